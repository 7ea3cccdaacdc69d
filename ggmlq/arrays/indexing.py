"""Indices and shapes of arrays of weights: which rows, and which columns between blocks or tiles."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ..base import text
from ..base.devices import is_host
from ..errors import BlockIndexError, DTypeError, ShapeError


def written(index: Any) -> str:
    """An index as it was written: ``q[:, 32:96]``."""
    steps = index if isinstance(index, tuple) else (index,)
    return f"q[{', '.join(map(_written_step, steps))}]"


def _written_step(step: Any) -> str:
    if step is Ellipsis:
        return "..."
    if not isinstance(step, slice):
        return text.short(step)
    ends = [step.start, step.stop] if step.step is None else [step.start, step.stop, step.step]
    return ":".join("" if end is None else text.short(end) for end in ends)


class Picking:
    """The words ``q[3:7] of <QuantArray …>`` of an error, made once it needs them."""

    def __init__(self, index: Any, q: Any) -> None:
        self._index, self._q = index, q

    def __str__(self) -> str:
        return f"{written(self._index)} of {self._q!r}"


class Index(NamedTuple):
    """An index as steps along the leading axes and a range of columns."""

    steps: tuple[Any, ...]  # along the axes before the last
    first: int  # of the columns
    end: int


def index_of(q: Any, index: Any, unit: int, short_end: bool, way: str) -> Index:
    """The part that an index picks: rows by steps along the axes before the last, columns by a slice.

    The slice of columns begins and ends at multiples of ``unit``; with ``short_end`` only its start must.
    ``way`` is advice for the error.
    """
    request: Any = Picking(index, q)
    steps = index if isinstance(index, tuple) else (index,)
    dots = [at for at, step in enumerate(steps) if step is Ellipsis]
    if len(dots) == 1 and len(steps) - 1 <= q.ndim:
        whole = (slice(None),) * (q.ndim - len(steps) + 1)
        steps = (*steps[: dots[0]], *whole, *steps[dots[0] + 1 :])
    columns = slice(None)
    if q.ndim and len(steps) == q.ndim and isinstance(steps[-1], slice):
        columns, steps = steps[-1], steps[:-1]
    if len(steps) >= max(q.ndim, 1):
        raise BlockIndexError(
            f"{request}: the last axis lies in {'tiles' if short_end else 'blocks'} of {unit}; rows are "
            f"picked along the axes before it, columns by a slice; or {way}, or np.asarray(q) for values"
        )
    if not all(is_step(step) for step in steps):
        raise BlockIndexError(
            f"{request}: rows are picked by integers, slices, '...', integer arrays and 1-D boolean arrays; "
            f"for anything else {way}, or np.asarray(q)"
        )
    return Index(steps, *_columns(request, q, columns, unit, short_end, way))


def _columns(request: str, q: Any, columns: slice, unit: int, short_end: bool, way: str) -> tuple[int, int]:
    length = q.shape[-1] if q.ndim else 1
    try:
        first, end, step = columns.indices(length)
    except (TypeError, ValueError) as error:
        raise BlockIndexError(f"{request}: {error}; its shape is {q.shape}; pass integers") from None
    end = max(first, end)
    whole = first == end or (first % unit == 0 and (short_end or end % unit == 0 or end == length))
    if step != 1 or not whole:
        near = f"{first // unit * unit}:{min(-(-end // unit) * unit, length)}"
        raise BlockIndexError(
            f"{request}: columns {first} to {end} in steps of {step}; they are cut between "
            f"{'tiles' if short_end else 'blocks'} of {unit}, in steps of 1, so that nothing is copied; take "
            f"{near}, {way}, or np.asarray(q) for values"
        )
    return first, end


def is_step(step: Any) -> bool:
    """True for an index that picks whole rows; not for a bool (adds an axis) or a 2-D mask (cuts rows)."""
    if isinstance(step, slice):
        return True
    if isinstance(step, bool | np.bool_ | str | bytes) or step is None or step is Ellipsis:
        return False
    try:
        picked = np.asarray(step) if is_host(step) else step
    except ValueError:  # lists of several lengths
        return False
    return picked.dtype.kind in "iu" or (picked.dtype.kind == "b" and picked.ndim == 1) or not picked.size


def shape_of(request: str, q: Any, shape: tuple[Any, ...]) -> tuple[int, ...]:
    """The arguments of ``reshape`` as lengths, one of which may be -1."""
    lengths = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
    if not all(isinstance(n, int | np.integer) and not isinstance(n, bool) for n in lengths):
        raise DTypeError(f"{request}: a shape is integers, one of which may be -1; pass q.reshape(2, -1)")
    dims = [int(n) for n in lengths]
    rest = math.prod(n for n in dims if n != -1)
    if dims.count(-1) == 1 and rest > 0 and q.size % rest == 0:
        dims[dims.index(-1)] = q.size // rest
    if min(dims, default=0) < 0 or math.prod(dims) != q.size:
        raise ShapeError(
            f"{request}: {q.size} elements do not fill {tuple(lengths)}; both shapes hold the same number; "
            "pass lengths whose product that is"
        )
    return tuple(dims)
