"""``attend``: attention on a GPU, from checked operands to launches."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ...arrays.array import QuantArray
from ...arrays.scaled import ScaledArray
from ...errors import UnsupportedError
from ..machine import device
from .codes import KINDS
from .kernel import LEAST, kernel
from .operands import LONG, Rows, placed
from .plan import (
    BLOCKS,
    EDGE,
    HOPPERS,
    MOST_BLOCKS,
    SHARED,
    TURNED,
    WIDE,
    Plan,
    WidePlan,
    plan_of,
    row_bytes,
    takes,
    turned_plan_of,
    turns,
    wide_plan_of,
)  # fmt: skip
from .results import FEW as MERGED_FEW
from .results import MANY as MERGED_MANY
from .results import merger
from .turned import kernel as turned_kernel
from .unpacked import unpacked, unpacks
from .wide import HOPPER
from .wide import kernel as wide_kernel

FIXED = 16  # steps of a part whose bits depend on no other row
FEW = 16  # rows of queries that share their positions
MANY, MANY_WIDE = 512, 129  # rows for which blocks are decoded before; likewise where wgmma multiplies
MOST = 256 << 20  # bytes of keys and values that are decoded before
CLUSTERED, CLUSTERED_BLOCKS = 8, 16  # steps up to which a cluster has all parts, of floats and of blocks


AnyPlan = Plan | WidePlan


class Extras(NamedTuple):
    """Arrays beside the operands, on the device, or None."""

    lengths: Any  # int64 [B]
    mask: Any  # float32 [B, H, T, S], axes that it is broadcast along with stride 0
    sinks: Any  # float32 [H]
    slopes: Any  # float32 [H]


def attend(request: str, a: Any, invariant: bool, kind: Any) -> Any:
    """The result [B, H, T, DV] in float32, float16 or bfloat16, on the device of q."""
    cp, capability = device.cupy(), device.capability()
    if capability is not None and capability < LEAST:
        raise UnsupportedError(
            f"{request}: this GPU has compute capability {capability[0]}.{capability[1]}; the kernel needs "
            '8.0; compute on the host with q.get(), k.to("cpu") and v.to("cpu")'
        )
    rows = a.q.shape[1] // a.k.shape[1] * a.q.shape[2]
    if not a.q.size or not a.v.shape[3] or not a.k.shape[2]:
        return cp.zeros((*a.q.shape[:3], a.v.shape[3]), kind)
    shared = _holds_values(a.k, a.v)
    decoded = not invariant and _decodes(a, rows)
    if decoded and not shared and unpacks(a.k, a.v):
        k, v = unpacked(a.k, a.v, a.lengths)
    else:
        k = placed(a.k, decoded)
        v = Rows(k.name, k.raw, a.v.shape[3]) if shared else placed(a.v, decoded or a.v.shape[3] > WIDE)
    y = cp.empty((*a.q.shape[:3], v.width), kind)
    q, extras = _queries(a.q, k.width), _extras(a)
    for first in range(0, v.width, WIDE):
        plan = _plan(a, k, v, min(WIDE, v.width - first), rows, shared, invariant)
        _launch(plan, q, k, v, a, extras, invariant, y, first)
    return y[..., : a.v.shape[3]] if v.width > a.v.shape[3] else y


def _plan(
    a: Any, k: Rows, v: Rows, width: int, rows: int, shared: bool, invariant: bool
) -> AnyPlan:  # fmt: skip
    """The plan for ``width`` columns of the values."""
    changed = _changed(a)
    if not (shared or invariant) and _by_wgmma(a, rows, k.name, v.name, k.width, width):
        return wide_plan_of(k.name, v.name, k.width, width, rows)
    if rows <= _turned_rows(k.name) and not (shared or invariant) and turns(k.name, v.name, k.width, width):
        room = HOPPERS if device.capability() == HOPPER else SHARED
        plan = turned_plan_of(k.name, v.name, k.width, width, changed, room)
        if plan.shared_bytes <= room:
            return plan
    return plan_of(k.name, v.name, k.width, width, rows > FEW and not invariant, shared, changed)


def _turned_rows(k: str) -> int:
    """Rows up to which keys and values are the wide operand, eight at a time.

    On an H200 4 queries over 16384 positions of q8_0, 16 rows of a head of keys, take 20 µs in two blocks of
    eight, 26 by wgmma; of f16 31 and 24.
    """
    return FEW if k in BLOCKS and device.capability() == HOPPER else TURNED


def _changed(a: Any) -> bool:
    """True if options change scores."""
    return bool(a.softcap > 0 or a.mask is not None or a.slopes is not None or a.scale <= 0)


def _decodes(a: Any, rows: int) -> bool:
    """True if blocks are decoded to halves before: many rows of queries read them again and again."""
    many = MANY_WIDE if _by_wgmma(a, rows, "f16", "f16", a.k.shape[3], a.v.shape[3]) else MANY
    return rows >= many and 2 * (_wide_values(a.k) + _wide_values(a.v)) <= MOST


def _by_wgmma(a: Any, rows: int, k: str, v: str, width: int, width_v: int) -> bool:
    """True if wide.py takes rows of these types and widths."""
    hopper = rows > _turned_rows(k) and device.capability() == HOPPER
    return hopper and not _changed(a) and takes(k, v, width, width_v)


def _wide_values(rows: Any) -> int:
    """The number of values that are not in 16 bits."""
    sixteen = rows.format.block_size == 1 if isinstance(rows, QuantArray) else rows.dtype.itemsize == 2
    return 0 if sixteen else int(np.prod(rows.shape))


def _holds_values(k: Any, v: Any) -> bool:
    """True if values are the first columns of keys, whole groups of sixteen."""
    if v.shape[3] > k.shape[3] or v.shape[3] % EDGE or isinstance(k, ScaledArray):
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


def _parts(plan: AnyPlan, blocks: int, steps: int) -> int:
    """The parts into which so many steps are divided, where each has ``blocks`` blocks."""
    parts = max(1, min(device.multiprocessors() * plan.resident // blocks, steps))
    return min(parts, MOST_BLOCKS) if _clustered(plan, blocks, steps) else parts


def _clustered(plan: AnyPlan, blocks: int, steps: int) -> bool:
    """True if the blocks of all parts are a cluster, each on a multiprocessor, which adds them there.

    The other half of the card is for the kernel behind. With more steps two launches are as fast: of 4096
    positions clusters of 8 and of 16 blocks took 10 µs on an H200, parts and results.py 9; of 16384 20 and
    17.
    """
    parts, most = min(steps, MOST_BLOCKS), CLUSTERED_BLOCKS if plan.k in BLOCKS else CLUSTERED
    alone = steps <= most and 2 * blocks * parts <= device.multiprocessors()
    return plan.turned and alone and (device.capability() or LEAST) >= HOPPER


def _kernel(plan: AnyPlan) -> Any:
    if isinstance(plan, WidePlan):
        return wide_kernel(plan)
    return turned_kernel(plan) if plan.turned else kernel(plan)


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
    tiles = -(-rows // plan.rows)
    parts = max(1, -(-steps // FIXED)) if invariant else _parts(plan, units * tiles, steps)
    cluster = parts if _clustered(plan, units * tiles, steps) else 1
    apart = parts > cluster
    partials = cp.empty(parts * units * rows * (plan.width_v + 2), np.float32) if apart else None
    values = k.raw.data.ptr if plan.shared else v.raw.data.ptr + row_bytes(v.name, first)
    arrays = (partials, extras.mask, extras.lengths, extras.sinks, extras.slopes)
    addresses = (
        q.data.ptr, k.raw.data.ptr, values, y.data.ptr + first * y.itemsize,
        *(0 if x is None else x.data.ptr for x in arrays),
    )  # fmt: skip
    mask = (0, 0, 0, 0) if extras.mask is None else extras.mask.strides
    strides = tuple(stride & LONG for stride in (*k.raw.strides[:3], *v.raw.strides[:3], *mask))
    kind = KINDS[y.dtype.name]
    sizes = (
        queries, group, positions, kv_heads, a.window, int(a.causal or a.window > 0), KINDS[q.dtype.name],
        kind, FIXED if invariant else 0, y.shape[3], first,
    )  # fmt: skip
    scale, cap = (int(np.float32(value).view(np.uint32)) for value in (a.scale, a.softcap))
    run, grid = _kernel(plan), (parts, tiles, units)
    if isinstance(plan, WidePlan):  # blocks take tiles of all heads in turn
        blocks = max(1, device.multiprocessors() * plan.resident // parts)
        grid, cap = (parts, min(tiles * units, blocks), 1), units
    crowded = {"cluster": cluster, "max_blocks": 1} if cluster > 1 else {}
    run(grid, (plan.threads,), addresses, strides, sizes, scale, cap, **crowded)
    if partials is not None:
        threads = MERGED_FEW if units * rows <= 2 * device.multiprocessors() else MERGED_MANY
        merger(plan.width_v, threads)(
            (units * rows,), (threads,), (partials.data.ptr, addresses[3], addresses[7]),
            (parts, units * rows, queries, group, kv_heads, kind, y.shape[3]),
        )  # fmt: skip
