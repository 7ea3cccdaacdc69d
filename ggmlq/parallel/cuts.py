"""The cuts of weights for ``gq.parallel.shard``: where the part of each device begins and ends.

Rows of one product are the columns of the next one, so both are cut by one rule: at multiples of 256, the
longest block, where each device gets enough of them to be even; else at multiples of 32 (of 128 for codes
with scales, as activations have their tiles), else anywhere. Columns are cut between blocks or tiles, rows of
a ScaledArray between tiles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ..arrays.scaled import ScaledArray
from ..base.devices import namespace, on_device_of
from ..base.text import short
from ..codes.scaling import laid_out
from ..errors import ShapeError

Spans = tuple[tuple[int, int], ...]
COARSE, FINE, TILE = 256, 32, 128  # elements
EVEN = 4  # steps of 256 that a device must have


def spans(request: str, q: Any, count: int, axis: Any, cuts: Sequence[int] | None = None) -> Spans:
    """The begin and the end of each device's part along the axis that is cut."""
    length, unit = measures(q, axis)
    if cuts is not None:
        return _spans_at(request, length, unit, count, cuts)
    step = _step(length, unit, count, axis, TILE if isinstance(q, ScaledArray) else FINE)
    units = -(-length // step)
    if units < count:
        what = {0: "rows", 1: f"columns, in blocks or tiles of {unit}"}.get(axis, axis)
        raise ShapeError(
            f"{request}: {length} {what} are not enough for {count} devices; each has one at least; cut "
            "another axis, or name fewer devices"
        )
    ends = [min(length, step * (units * i // count)) for i in range(count + 1)]
    ends[-1] = length
    return tuple(pairwise(ends))


def _step(length: int, unit: int, count: int, axis: Any, fine: int) -> int:
    if axis in ("experts", "heads"):
        return 1
    if length >= EVEN * count * math.lcm(unit, COARSE):
        return math.lcm(unit, COARSE)
    step = math.lcm(unit, fine)
    if -(-length // step) >= count:
        return step
    return 1 if axis == 0 and -(-length // unit) < count else unit


def measures(q: Any, axis: Any) -> tuple[int, int]:
    """The length of an axis, and the unit that all cuts are multiples of."""
    if axis == "experts":
        return len(q), 1
    if axis == "heads":
        return q.shape[1], 1
    if axis == 1:
        return q.shape[-1], q.unit
    n = q.shape[-2]
    r = q.tiling.r if isinstance(q, ScaledArray) else 1
    return n, r if r <= n and (q.ndim == 2 or n % r == 0) else 1


def _spans_at(request: str, length: int, unit: int, count: int, cuts: Sequence[int]) -> Spans:
    """Cuts that the caller names: as ``s.cuts`` gives them, without the ends."""
    whole = isinstance(cuts, Sequence | np.ndarray) and all(
        isinstance(n, int | np.integer) and not isinstance(n, bool) for n in cuts
    )
    ends = [0, *(int(n) for n in cuts), length] if whole else []
    if len(ends) != count + 1 or any(a >= b for a, b in pairwise(ends)) or any(n % unit for n in ends[1:-1]):
        raise ShapeError(
            f"{request}: cuts={short(cuts)}; {count} devices need {count - 1} rising numbers between 0 and "
            f"{length}, multiples of {unit}; pass those of an array that goes with it, s.cuts, or none"
        )
    return tuple(pairwise(ends))


def piece(q: Any, axis: Any, first: int, end: int) -> Any:
    """A part of an array, a view where the array's own slices are views."""
    if axis == "experts":
        return q[first:end]
    if axis == 1:
        return q[..., first:end]
    if axis == "heads":
        return q[:, first:end]
    if q.ndim == 2:
        return q[first:end]
    if isinstance(q, ScaledArray) and measures(q, 0)[1] > 1 and q.tiling.r < q.tiling.rows:
        return _tiles(q, first, end)
    return q[:, first:end]


def _tiles(q: ScaledArray, first: int, end: int) -> ScaledArray:
    """Rows of every expert, with whole tiles of scales: a plain slice would bring one scale a row."""
    experts, n, _ = q.shape
    r = q.tiling.r
    with on_device_of(f"rows {first} to {end} of each expert of {q!r}", q.codes):
        xp = namespace(q.codes)
        parts = []
        for part in q.parts()[1:]:
            scales = part.reshape(experts, n // r, -1)[:, first // r : -(-end // r)]
            parts.append(laid_out(xp, part, xp.ascontiguousarray(scales.reshape(-1, scales.shape[-1]))))
        scales, *zeros = parts
        return ScaledArray(q.codes[:, first:end], scales, q.code, q.tile, *zeros)
