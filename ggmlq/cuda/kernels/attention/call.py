"""``attend``: attention on a GPU, from checked operands to launches."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ....arrays.array import QuantArray
from ....arrays.scaled import ScaledArray
from ....errors import UnsupportedError
from ...driver import device
from .hopper import HOPPER, HopperPlan, fits_hopper, hopper_plan_of
from .hopper import kernel as hopper_kernel
from .kv_tiles import KINDS
from .mma import kernel as mma_kernel
from .operands import WORD64, Rows, dequantized, dequantizes, placed
from .parameters import Addresses, Sizes, Strides
from .plan import (
    MAX_CLUSTER,
    MAX_SHARED,
    MAX_SHARED_HOPPER,
    MAX_V_COLUMNS,
    MIN_CAPABILITY,
    MMA_ROWS,
    REGISTER_TYPES,
    SWAP_AB_ROWS,
    Plan,
    fits_swap_ab,
    plan_of,
    row_bytes,
    swap_ab_plan_of,
)  # fmt: skip
from .split_kv import MERGE_THREADS, MERGE_THREADS_MANY_ROWS, MergeAddresses, MergeSizes, merger
from .swap_ab import kernel as swap_ab_kernel

FIXED_STEPS = 16  # of a split whose bits depend on no other row
MAX_ROWS_BY_POSITIONS = 16  # query rows for which warps of mma.py share the positions
# Rows from which blocks are dequantized before; likewise where wgmma multiplies, and the tiles of rows up to
# which its kernel decodes them for each.
MIN_ROWS_DEQUANTIZED, MIN_ROWS_DEQUANTIZED_HOPPER, MAX_TILES_DECODED = 512, 129, 2
MAX_DEQUANTIZED_BYTES = 256 << 20  # of keys and values
# Steps up to which a cluster has all splits, of floats and of blocks.
MAX_STEPS_CLUSTER, MAX_STEPS_CLUSTER_BLOCKS = 8, 16


AnyPlan = Plan | HopperPlan


class Extras(NamedTuple):
    """Arrays beside the operands, on the device, or None."""

    lengths: Any  # int64 [B]
    mask: Any  # float32 [B, H, T, S], axes that it is broadcast along with stride 0
    sinks: Any  # float32 [H]
    slopes: Any  # float32 [H]


def attend(request: str, a: Any, invariant: bool, kind: Any) -> Any:
    """The result [B, H, T, DV] in float32, float16 or bfloat16, on the device of q."""
    cp, capability = device.cupy(), device.capability()
    if capability is not None and capability < MIN_CAPABILITY:
        raise UnsupportedError(
            f"{request}: this GPU has compute capability {capability[0]}.{capability[1]}; the kernel needs "
            '8.0; compute on the host with q.get(), k.to("cpu") and v.to("cpu")'
        )
    rows = a.q.shape[1] // a.k.shape[1] * a.q.shape[2]
    if not a.q.size or not a.v.shape[3] or not a.k.shape[2]:
        return cp.zeros((*a.q.shape[:3], a.v.shape[3]), kind)
    v_in_k = _holds_values(a.k, a.v)
    decoded = not invariant and _decodes(a, rows)
    if decoded and not v_in_k and dequantizes(a.k, a.v):
        k, v = dequantized(a.k, a.v, a.lengths)
    else:
        k = placed(a.k, decoded)
        v = (
            Rows(k.name, k.raw, a.v.shape[3])
            if v_in_k
            else placed(a.v, decoded or a.v.shape[3] > MAX_V_COLUMNS)
        )
    y = cp.empty((*a.q.shape[:3], v.width), kind)
    q, extras = _queries(a.q, k.width), _extras(a)
    for first in range(0, v.width, MAX_V_COLUMNS):
        plan = _plan(a, k, v, min(MAX_V_COLUMNS, v.width - first), rows, v_in_k, invariant)
        _launch(plan, q, k, v, a, extras, invariant, y, first)
    return y[..., : a.v.shape[3]] if v.width > a.v.shape[3] else y


def _plan(
    a: Any, k: Rows, v: Rows, width: int, rows: int, v_in_k: bool, invariant: bool
) -> AnyPlan:  # fmt: skip
    """The plan for ``width`` columns of the values."""
    changed = _changed(a)
    if not (v_in_k or invariant) and _by_wgmma(a, rows, k.name, v.name, k.width, width):
        return hopper_plan_of(k.name, v.name, k.width, width, rows)
    few = rows <= _swap_ab_rows(k.name) and not (v_in_k or invariant)
    if few and fits_swap_ab(k.name, v.name, k.width, width):
        room = MAX_SHARED_HOPPER if device.capability() == HOPPER else MAX_SHARED
        plan = swap_ab_plan_of(k.name, v.name, k.width, width, changed, room)
        if plan.shared_bytes <= room:
            return plan
    return plan_of(
        k.name, v.name, k.width, width, rows > MAX_ROWS_BY_POSITIONS and not invariant, v_in_k, changed
    )


def _swap_ab_rows(k: str) -> int:
    """Rows up to which swap_ab.py takes them, eight at a time.

    On an H200 4 queries over 16384 positions of q8_0, 16 rows of a KV head, take 20 µs in two blocks of
    eight, 26 by wgmma; of f16 31 and 24.
    """
    blocks_on_hopper = k in REGISTER_TYPES and device.capability() == HOPPER
    return 2 * SWAP_AB_ROWS if blocks_on_hopper else SWAP_AB_ROWS


def _changed(a: Any) -> bool:
    """True if options change scores."""
    return bool(a.softcap > 0 or a.mask is not None or a.slopes is not None or a.scale <= 0)


def _decodes(a: Any, rows: int) -> bool:
    """True if blocks are dequantized to halves before: many query rows read them again and again."""
    widths, many = (a.k.shape[3], a.v.shape[3]), MIN_ROWS_DEQUANTIZED
    if _by_wgmma(a, rows, "f16", "f16", *widths):
        many = MIN_ROWS_DEQUANTIZED_HOPPER
        k, v = (x.format.name if isinstance(x, QuantArray) else "" for x in (a.k, a.v))
        if k in REGISTER_TYPES and fits_hopper(k, v, *widths):
            many = 1 + MAX_TILES_DECODED * hopper_plan_of(k, v, *widths, rows).rows
    return rows >= many and 2 * (_wide_values(a.k) + _wide_values(a.v)) <= MAX_DEQUANTIZED_BYTES


def _by_wgmma(a: Any, rows: int, k: str, v: str, width: int, width_v: int) -> bool:
    """True if hopper.py takes rows of these types and widths."""
    hopper = rows > _swap_ab_rows(k) and device.capability() == HOPPER
    return hopper and not _changed(a) and fits_hopper(k, v, width, width_v)


def _wide_values(rows: Any) -> int:
    """The number of values that are not in 16 bits."""
    sixteen = rows.format.block_size == 1 if isinstance(rows, QuantArray) else rows.dtype.itemsize == 2
    return 0 if sixteen else int(np.prod(rows.shape))


def _holds_values(k: Any, v: Any) -> bool:
    """True if values are the first columns of keys, whole groups of sixteen."""
    if v.shape[3] > k.shape[3] or v.shape[3] % MMA_ROWS or isinstance(k, ScaledArray):
        return False
    if isinstance(k, QuantArray):
        if not isinstance(v, QuantArray) or k.format is not v.format:
            return False
        k, v = k.strided, v.strided
    elif isinstance(v, QuantArray | ScaledArray) or k.dtype != v.dtype:
        return False
    return bool(k.data.ptr == v.data.ptr and k.strides == v.strides)


def _queries(q: Any, width: int) -> Any:
    """Queries as the kernel reads them: whole rows, of float32, float16 or bfloat16."""
    cp = device.cupy()
    if q.dtype.name not in KINDS:
        q = q.astype(np.float32)
    if q.shape[3] < width:
        wide = cp.zeros((*q.shape[:3], width), q.dtype)
        wide[..., : q.shape[3]] = q
        return wide
    q = cp.ascontiguousarray(q)
    return q.copy() if q.data.ptr % 16 else q


def _extras(a: Any) -> Extras:
    cp = device.cupy()
    mask = a.mask
    if mask is not None:
        if mask.dtype.kind == "b":
            mask = cp.where(cp.asarray(mask), np.float32(0), np.float32(-np.inf))
        mask = cp.broadcast_to(cp.asarray(mask, np.float32), (*a.q.shape[:3], a.k.shape[2]))
    lengths = a.lengths
    if isinstance(lengths, np.ndarray) and (lengths == lengths[0]).all():
        lengths = None
    sinks, slopes = (None if x is None else cp.asarray(x, np.float32) for x in (a.sinks, a.slopes))
    return Extras(None if lengths is None else cp.asarray(lengths, np.int64), mask, sinks, slopes)


def _split_count(plan: AnyPlan, blocks: int, steps: int) -> int:
    """The splits into which so many steps are divided, where each has ``blocks`` blocks."""
    splits = max(1, min(device.multiprocessors() * plan.resident // blocks, steps))
    return min(splits, MAX_CLUSTER) if _clustered(plan, blocks, steps) else splits


def _clustered(plan: AnyPlan, blocks: int, steps: int) -> bool:
    """True if the blocks of all splits are a cluster, each on a multiprocessor, which merges them there.

    The other half of the card is for the kernel behind. With more steps two launches are as fast: of 4096
    positions clusters of 8 and of 16 blocks took 10 µs on an H200, partials and the merge kernel 9; of 16384
    20 and 17.
    """
    splits = min(steps, MAX_CLUSTER)
    most = MAX_STEPS_CLUSTER_BLOCKS if plan.k in REGISTER_TYPES else MAX_STEPS_CLUSTER
    alone = steps <= most and 2 * blocks * splits <= device.multiprocessors()
    return plan.swap_ab and alone and (device.capability() or MIN_CAPABILITY) >= HOPPER


def _kernel(plan: AnyPlan) -> Any:
    if isinstance(plan, HopperPlan):
        return hopper_kernel(plan)
    return swap_ab_kernel(plan) if plan.swap_ab else mma_kernel(plan)


def _launch(
    plan: AnyPlan, q: Any, k: Rows, v: Rows, a: Any, extras: Extras, invariant: bool, y: Any,
    first: int,
) -> None:  # fmt: skip
    """Launch a plan for the columns of y from ``first`` on."""
    cp = device.cupy()
    (batch, heads, queries, _), kv_heads = q.shape, k.raw.shape[1]
    positions = k.raw.shape[2] if extras.lengths is not None else int(a.lengths[0])
    group, units = heads // kv_heads, batch * kv_heads
    rows, steps = group * queries, -(-positions // plan.positions)
    causal = a.causal or a.window > 0
    tiles = plan.tiles(queries, group, causal) if isinstance(plan, HopperPlan) else -(-rows // plan.rows)
    splits = max(1, -(-steps // FIXED_STEPS)) if invariant else _split_count(plan, units * tiles, steps)
    cluster = splits if _clustered(plan, units * tiles, steps) else 1
    merges = splits > cluster
    partials = cp.empty(splits * units * rows * (plan.width_v + 2), np.float32) if merges else None

    def address(x: Any) -> Any:
        return 0 if x is None else x.data.ptr

    addresses = Addresses(
        q=address(q),
        k=address(k.raw),
        v=address(k.raw) if plan.v_in_k else address(v.raw) + row_bytes(v.name, first),
        y=address(y) + first * y.itemsize,
        partials=address(partials),
        mask=address(extras.mask),
        lengths=address(extras.lengths),
        sinks=address(extras.sinks),
        slopes=address(extras.slopes),
    )
    mask = (0, 0, 0, 0) if extras.mask is None else extras.mask.strides
    strides = Strides(
        *(stride & WORD64 for stride in (*k.raw.strides[:3], *v.raw.strides[:3], *mask))
    )  # fmt: skip
    sizes = Sizes(
        queries=queries,
        group=group,
        positions=positions,
        kv_heads=kv_heads,
        window=a.window,
        causal=int(causal),
        q_kind=KINDS[q.dtype.name],
        y_kind=KINDS[y.dtype.name],
        fixed_steps=FIXED_STEPS if invariant else 0,
        y_columns=y.shape[3],
        v_column=first,
    )
    scale, last = (int(np.float32(value).view(np.uint32)) for value in (a.scale, a.softcap))
    run, grid = _kernel(plan), (splits, tiles, units)
    if isinstance(plan, HopperPlan):
        # Blocks are persistent and take tiles of all units; in place of a cap the kernel gets their number.
        blocks = max(1, device.multiprocessors() * plan.resident // splits)
        grid, last = (splits, min(tiles * units, blocks), 1), units
    crowded = {"cluster": cluster, "max_blocks": 1} if cluster > 1 else {}
    # A launch takes plain tuples.
    run(grid, (plan.threads,), tuple(addresses), tuple(strides), tuple(sizes), scale, last, **crowded)
    if partials is not None:
        many = units * rows > 2 * device.multiprocessors()
        threads = MERGE_THREADS_MANY_ROWS if many else MERGE_THREADS
        merged = MergeAddresses(addresses.partials, addresses.y, addresses.sinks)
        merge_sizes = MergeSizes(
            splits, units * rows, queries, group, kv_heads, sizes.y_kind, sizes.y_columns
        )  # fmt: skip
        merger(plan.width_v, threads)((units * rows,), (threads,), tuple(merged), tuple(merge_sizes))
