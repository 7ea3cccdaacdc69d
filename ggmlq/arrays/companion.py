"""The companion scale of an array of blocks: one float32 for all of it, or one for each of its first axes.

NVFP4 tensors of model files need one: a second tensor, ``blk.0.ffn_up.scale`` beside ``blk.0.ffn_up.weight``,
holds one number, or one for each expert. Values are blocks times scale.

A scale is float32 of shape ``()`` or of the first axes of its array: [E] for experts [E, N, K], and [N] for
rows [N, K] that were joined from arrays with scales of their own. It lies on the host, whatever the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.devices import is_host, namespace
from ..errors import DTypeError, ShapeError

Scale = NDArray[np.float32]


def checked_scale(request: str, scale: Any, shape: tuple[int, ...]) -> Scale | None:
    """The scale that a caller hands over, as read-only float32 of its own."""
    if scale is None:
        return None
    try:
        numbers = np.array(scale if is_host(scale) else scale.get(), np.float32)
    except (TypeError, ValueError) as error:
        raise DTypeError(
            f"{request}: scale={scale!r:.80} is no array of numbers ({error}); pass a float, or one for each "
            "matrix"
        ) from None
    if numbers.ndim and numbers.shape != shape[: min(numbers.ndim, len(shape) - 1)]:
        raise ShapeError(
            f"{request}: scale has shape {numbers.shape}, the array {shape}; a scale is one number, or "
            f"one for the first axes but the last; pass a float, or an array of shape {shape[:-1][:1]}"
        )
    numbers.flags.writeable = False
    return numbers


def scale_at(scale: Scale | None, lead: tuple[int, ...], steps: Sequence[Any]) -> Scale | None:
    """The scale of the part that an index picks; ``lead``: the axes but the last, along which ``steps`` lie.

    >>> scale = np.float32([1, 2, 3])
    >>> scale_at(scale, (3, 5), [1]), scale_at(scale, (3, 5), [slice(1, None)])
    (array(2., dtype=float32), array([2., 3.], dtype=float32))
    """
    if scale is None or not scale.ndim or not steps:
        return scale
    steps = [step if isinstance(step, slice) or is_host(step) else step.get() for step in steps]
    further = (isinstance(step, slice | int | np.integer) for step in steps[1:])
    if scale.ndim == 1 and all(further):
        return _frozen(scale[steps[0]])
    return _frozen(by_row(scale, lead)[tuple(steps)])


def reshaped(
    request: str, scale: Scale | None, shape: tuple[int, ...], dims: tuple[int, ...]
) -> Scale | None:
    """The scale of the same rows of blocks in another shape."""
    if scale is None or not scale.ndim or (len(dims) > scale.ndim and dims[: scale.ndim] == scale.shape):
        return scale
    if not dims:
        return _frozen(scale.reshape(()))
    rows = by_row(scale, shape[:-1])
    if dims[-1] and shape[-1] % dims[-1] == 0:  # rows are cut, or stay
        return _frozen(np.repeat(rows.reshape(-1), shape[-1] // dims[-1]).reshape(dims[:-1]))
    groups = rows.reshape(math.prod(dims[:-1]), -1) if math.prod(dims) else np.zeros((0, 1), np.float32)
    if (groups != groups[:, :1]).any():
        raise ShapeError(
            f"{request}: rows of {dims[-1]} columns would have several scales; {shape} has scales of shape "
            f"{scale.shape}; keep rows of one scale apart"
        )
    return _frozen(groups[:, 0].reshape(dims[:-1]))


def by_row(scale: Scale, lead: tuple[int, ...]) -> Scale:
    """A scale for every row of an array whose axes but the last are ``lead``; a view."""
    return np.broadcast_to(scale.reshape(scale.shape + (1,) * (len(lead) - scale.ndim)), lead)


def joined(
    request: str, scales: Sequence[Scale | None], shapes: Sequence[tuple[int, ...]], axis: int
) -> Scale | None:
    """The scale of arrays joined along an axis; an array without a scale counts as 1."""
    if all(scale is None for scale in scales):
        return None
    numbers = [np.ones((), np.float32) if scale is None else scale for scale in scales]
    depth = max(scale.ndim for scale in numbers)
    if depth == 0 and len({scale.tobytes() for scale in numbers}) == 1:
        return numbers[0]
    if axis == len(shapes[0]) - 1:
        if any(not same_scales(one, numbers[0]) for one in numbers[1:]):
            raise ShapeError(
                f"{request}: the arrays have scales {scales!r:.200}; columns of one row have one scale; "
                "join them along another axis, or quantize the joined floats"
            )
        return numbers[0]
    depth = max(depth, axis + 1)
    rows = [by_row(one, shape[:depth]) for one, shape in zip(numbers, shapes, strict=True)]
    return _frozen(np.concatenate(rows, axis=axis))


def _frozen(scale: Any) -> Scale:
    numbers = np.array(scale, np.float32)
    numbers.flags.writeable = False
    return numbers


def same_scales(a: Scale | None, b: Scale | None) -> bool:
    """True for two scales of the same shape and numbers, NaN at the same places, or for none of both."""
    if a is None or b is None:
        return a is b
    return bool(np.array_equal(a, b, equal_nan=True))


def multiply(values: Any, scale: Any) -> None:
    """Multiply decoded values or products by a scale that broadcasts over them, in place."""
    if scale is None:
        return
    with np.errstate(over="ignore", invalid="ignore"):
        values *= namespace(values).asarray(scale) if np.ndim(scale) else float(scale)


def of_uses(scale: Any, ids: Any) -> Any:
    """The companion scale of each use of an expert, [T, U, 1] or [T, U, N]; ids of no expert take any."""
    if not np.ndim(scale):
        return scale
    xp = namespace(ids)
    rows = xp.asarray(scale)[xp.clip(ids, 0, len(scale) - 1)]
    return rows[..., None] if scale.ndim == 1 else rows
