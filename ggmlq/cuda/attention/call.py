"""``attend``: attention on a GPU, from checked operands to launches."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ...arrays.array import QuantArray
from ...errors import UnsupportedError
from ..machine import device
from .floats import KINDS
from .kernel import LEAST, kernel
from .merge import THREADS, merger
from .operands import Rows, placed
from .plan import EDGE, WIDE, Plan, plan_of, row_bytes
from .wide import HOPPER, WidePlan, takes
from .wide import kernel as wide_kernel

FIXED = 16  # steps of a part whose bits depend on no other row
FEW, MANY, WIDE_ROWS = 16, 512, 65  # rows of queries: so few share their positions, for so many blocks are decoded before
MOST = 256 << 20  # bytes of keys and values that are decoded before
LONG = (1 << 64) - 1
EVERYTHING = 1 << 31  # units and rows that a launch numbers


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
            "8.0; compute on the host with q.get(), k.to(\"cpu\") and v.to(\"cpu\")"
        )
    heads, queries = a.q.shape[1:3]
    rows = heads // a.k.shape[1] * queries
    shared = _holds_values(a.k, a.v)
    decoded = rows >= MANY and not invariant and 2 * (_size(a.k) + _size(a.v)) <= MOST
    k = placed(a.k, decoded)
    v = Rows(k.name, k.raw, a.v.shape[3]) if shared else placed(a.v, decoded or a.v.shape[3] > WIDE)
    y = cp.empty((*a.q.shape[:3], v.width), kind)
    if not y.size or not a.k.shape[2]:
        y.fill(0)
        return y[..., : a.v.shape[3]]
    extras = _extras(a)
    for first in range(0, v.width, WIDE):
        width = min(WIDE, v.width - first)
        changed = a.softcap > 0 or a.mask is not None or a.slopes is not None or a.scale <= 0
        by_rows = rows > FEW and not invariant
        plan: Any = None
        if rows >= WIDE_ROWS and capability == HOPPER and not (changed or invariant) and takes(k.name, v.name, k.width, width):
            plan = WidePlan(k.name, v.name, k.width, width)
        else:
            plan = plan_of(k.name, v.name, k.width, width, by_rows, shared, changed)
        _launch(plan, _queries(a.q, k.width), k, v, a, extras, invariant, y, first)
    return y[..., : a.v.shape[3]] if v.width > a.v.shape[3] else y


def _size(rows: Any) -> int:
    """The number of values that are not in 16 bits."""
    wide = not isinstance(rows, QuantArray) and rows.dtype.itemsize > 2
    return int(np.prod(rows.shape)) if wide or (isinstance(rows, QuantArray) and rows.format.block_size > 1) else 0


def _holds_values(k: Any, v: Any) -> bool:
    """True if values are the first columns of keys, whole groups of sixteen."""
    if not (isinstance(k, QuantArray) and isinstance(v, QuantArray) and k.format is v.format):
        return False
    same = k.raw.data.ptr == v.raw.data.ptr and k.raw.strides[:3] == v.raw.strides[:3]
    return same and v.shape[3] <= k.shape[3] and v.shape[3] % EDGE == 0


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
    return q.copy() if q.data.ptr % 8 else q


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


def _launch(
    plan: Plan | WidePlan, q: Any, k: Rows, v: Rows, a: Any, extras: Extras, invariant: bool, y: Any, first: int
) -> None:
    cp = device.cupy()
    (batch, heads, queries, _), kv_heads = q.shape, k.raw.shape[1]
    positions = k.raw.shape[2] if extras.lengths is not None else int(a.lengths[0])
    group, units = heads // kv_heads, batch * kv_heads
    rows, steps = group * queries, -(-positions // plan.positions)
    tiles = -(-rows // plan.rows)
    if invariant:
        parts = -(-steps // FIXED)
    else:
        free = device.multiprocessors() * plan.resident // (units * tiles)
        parts = max(1, min(free, steps))
    partials = cp.empty(parts * units * rows * (plan.width_v + 2), np.float32) if parts > 1 else None
    values = k.raw.data.ptr if plan.shared else v.raw.data.ptr + row_bytes(v.name, first)
    arrays = (partials, extras.mask, extras.lengths, extras.sinks, extras.slopes)
    addresses = (
        q.data.ptr, k.raw.data.ptr, values, y.data.ptr + first * y.itemsize,
        *(0 if x is None else x.data.ptr for x in arrays),
    )  # fmt: skip
    mask = (0, 0, 0, 0) if extras.mask is None else extras.mask.strides
    strides = (*k.raw.strides[:3], *v.raw.strides[:3], *mask)
    sizes = (
        queries, group, positions, kv_heads, a.window, int(a.causal or a.window > 0), KINDS[q.dtype.name],
        KINDS[y.dtype.name], FIXED if invariant else 0, y.shape[3], first,
    )  # fmt: skip
    numbers = (int(np.float32(value).view(np.uint32)) for value in (a.scale, a.softcap))
    run = wide_kernel if isinstance(plan, WidePlan) else kernel
    run(plan)((parts, tiles, units), (plan.threads,), addresses, tuple(s & LONG for s in strides), sizes, *numbers)
    if partials is not None:
        merger(plan.width_v)(
            (units * rows,), (THREADS,), (partials.data.ptr, addresses[3], addresses[7]),
            (parts, units * rows, queries, group, kv_heads, KINDS[y.dtype.name], y.shape[3]),
        )  # fmt: skip
