"""``gq.concatenate`` and ``gq.stack``: arrays of weights joined to one, block by block, without decoding."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np

from ..arrays.array import QuantArray
from ..arrays.buffers import frozen
from ..arrays.companion import joined as joined_scale
from ..arrays.companion import same_scales
from ..arrays.scaled import ScaledArray
from ..base.devices import is_host, namespace, on_device_of
from ..base.text import short
from ..errors import DeviceError, DTypeError, ShapeError

Array = TypeVar("Array", QuantArray, ScaledArray)


def concatenate(arrays: Iterable[Array], axis: int = 0) -> Array:
    """Join arrays of one format along an existing axis; their blocks stay as they are.

    Parameters
    ----------
    arrays : sequence of QuantArray or of ScaledArray
        Of one format (or of one code and tile), on one device, of shapes that differ along the axis alone.
    axis : int
        Any axis. Of ScaledArrays tiles must meet: where they don't along the rows, each row of the result
        has scales of its own; along the last axis that is an error.

    >>> import numpy as np, ggmlq as gq
    >>> q = gq.quantize(np.ones((2, 64), np.float32), "q4_0")
    >>> gq.concatenate([q, q[:1]]).shape, gq.concatenate([q, q], axis=1).shape
    ((3, 64), (2, 128))
    """
    request = f"concatenate(arrays, axis={short(axis)})"
    operands = _checked(request, arrays)
    ndim = operands[0].ndim
    if not ndim:
        raise ShapeError(f"{request}: {operands[0]!r} has no axes; gq.stack joins arrays along a new one")
    at = _axis(request, axis, ndim)
    for array in operands[1:]:
        same = len(array.shape) == ndim and all(
            n == m or i == at for i, (n, m) in enumerate(zip(operands[0].shape, array.shape, strict=False))
        )
        if not same:
            raise ShapeError(
                f"{request}: shapes {operands[0].shape} and {array.shape}; they may differ along axis "
                f"{at} alone; slice or reshape one of them"
            )
    whole: Array = _joined(request, operands, at)
    return whole


def stack(arrays: Iterable[Array], axis: int = 0) -> Array:
    """Join arrays of one format and one shape along a new axis: experts [N, K] to [E, N, K].

    >>> import numpy as np, ggmlq as gq
    >>> q = gq.quantize(np.ones((2, 64), np.float32), "q4_0")
    >>> gq.stack([q, q, q])
    <QuantArray q4_0 (3, 2, 64), ne [64, 2, 3], 216 bytes, cpu>
    """
    request = f"stack(arrays, axis={short(axis)})"
    operands = _checked(request, arrays)
    shape = operands[0].shape
    at = _axis(request, axis, len(shape) + 1)
    if at == len(shape):
        raise ShapeError(
            f"{request}: the new axis would be the last, "
            f"{'which lies in blocks' if shape else 'of a scalar'}; "
            f"pass an axis from 0 to {max(len(shape) - 1, 0)}"
        )
    if differing := [array for array in operands if array.shape != shape]:
        raise ShapeError(
            f"{request}: shapes {shape} and {differing[0].shape}; all must be the same; slice them"
        )
    whole: Array = _joined(request, [array.reshape(*shape[:at], 1, *shape[at:]) for array in operands], at)
    return whole


def _checked(request: str, arrays: Any) -> list[Any]:
    """The arrays as a list, all of one kind and format on one device."""
    if isinstance(arrays, QuantArray | ScaledArray) or not isinstance(arrays, Iterable):
        raise DTypeError(
            f"{request}: got a {type(arrays).__name__}; arrays come as a list of them; pass [a, b]"
        )
    operands = list(arrays)
    if not operands:
        raise ShapeError(f"{request}: the list is empty; at least one array is needed; pass [a, b]")
    first = operands[0]
    for array in operands:
        if not isinstance(array, QuantArray | ScaledArray) or type(array) is not type(first):
            raise DTypeError(
                f"{request}: the list holds a {type(array).__name__}; all must be QuantArrays, or all "
                "ScaledArrays; quantize the others, or join floats with np.concatenate"
            )
        if _meaning(array, True) != _meaning(first, True):
            raise DTypeError(
                f"{request}: {first!r} and {array!r} differ in what bytes mean; all must be of one format; "
                "quantize one of them again, as gq.quantize(q.dequantize(), …)"
            )
        if array.device != first.device:
            raise DeviceError(
                f"{request}: arrays are on {first.device} and on {array.device}; all must be on one device; "
                f"move them with q.to({first.device!r})"
            )
    return operands


def _meaning(array: QuantArray | ScaledArray, to_join: bool) -> tuple[object, ...]:
    """The facts that give its bytes a meaning; of arrays to join only the columns of tiles are the same."""
    if isinstance(array, QuantArray):
        return (array.format.name,)
    return array.code.name, array.tile[1] if to_join else array.tiling, array.scale, array.zeros is not None


def _axis(request: str, axis: Any, ndim: int) -> int:
    if not isinstance(axis, int | np.integer) or isinstance(axis, bool) or not -ndim <= axis < ndim:
        raise ShapeError(f"{request}: axes are integers from {-ndim} to {ndim - 1} here; pass one of these")
    return int(axis) % ndim


def _joined(request: str, arrays: list[Any], at: int) -> Any:
    first = arrays[0]
    with on_device_of(request, first.memory):
        if isinstance(first, ScaledArray):
            return _scaled(request, arrays, at)
        raw = namespace(first.memory).concatenate([array.raw for array in arrays], axis=at)
        length = sum(array.shape[at] for array in arrays)
        shape = (*first.shape[:at], length, *first.shape[at + 1 :])
        scales, shapes = [array._scale for array in arrays], [array.shape for array in arrays]
        scale = joined_scale(request, scales, shapes, at)
        return QuantArray(first.format, shape, frozen(raw) if is_host(raw) else raw, scale=scale)


# --- codes with scales ------------------------------------------------------------------------


def _scaled(request: str, arrays: list[ScaledArray], at: int) -> ScaledArray:
    first = arrays[0]
    join = namespace(first.codes).concatenate
    codes = join([array.codes for array in arrays], axis=at)
    parts = [[array.scales for array in arrays]]
    if first.zeros is not None:
        parts.append([array.zeros for array in arrays])
    last, alike = at == first.ndim - 1, all(array.tile[0] == first.tile[0] for array in arrays)
    tile = (first.tile[0] if alike else 1, _columns_of_tile(request, arrays) if last else first.tile[1])
    if alike and (last or (at == 0 and _tiles_meet(arrays))):
        joined = [join(part, axis=1 if last else 0) for part in parts]
    else:
        tile = 1, tile[1]
        rows = [[_by_row(array, part) for array, part in zip(arrays, kind, strict=True)] for kind in parts]
        joined = [join(kind, axis=at).reshape(-1, kind[0].shape[-1]) for kind in rows]
    return ScaledArray(codes, joined[0], first.code, tile, *joined[1:])


def _tiles_meet(arrays: list[ScaledArray]) -> bool:
    """True if every array but the last ends at the end of a tile of rows."""
    r = arrays[0].tile[0]
    return r is not None and not any(array.tiling.rows % r for array in arrays[:-1])


def _columns_of_tile(request: str, arrays: list[ScaledArray]) -> int | None:
    """Columns of a tile of arrays side by side; all arrays but the last must have whole tiles."""
    columns, lengths = arrays[0].tile[1], [array.shape[-1] for array in arrays]
    if len(arrays) == 1:
        return columns
    if columns is None:  # each array is one tile: they lie beside array other if the last is not the longest
        columns = lengths[0] if lengths[-1] <= lengths[0] else 0
    if not columns or any(length % columns for length in lengths[:-1]):
        raise ShapeError(
            f"{request}: tiles of {arrays[0].tile} over {', '.join(map(str, lengths))} columns do not meet; "
            "every array but the last must end where a tile does; quantize the joined floats instead"
        )
    return columns


def _by_row(array: ScaledArray, part: Any) -> Any:
    """Scales or zero points [..., tiles along a row], one set for every row."""
    over = array.tiling
    rows = namespace(part).repeat(part, over.r, axis=0)[: over.rows] if over.r > 1 else part
    return rows.reshape(*array.shape[:-1], part.shape[1])


# --- equal --------------------------------------------------------------------------------------


def equal(a: QuantArray | ScaledArray, b: QuantArray | ScaledArray) -> bool:
    """Compare two arrays: True if format, shape and bytes are the same, on the host or on a device.

    Of a big-endian file the little-endian bytes count. NaN equals NaN here if the bytes do. Companion scales
    are the same too. ScaledArrays are
    the same if their codes, scales and zero points are, and their tiles as they lie over the shape.

    >>> import numpy as np, ggmlq as gq
    >>> q = gq.quantize(np.eye(2, 64, dtype=np.float32), "q8_0")
    >>> gq.equal(q, q.copy()), gq.equal(q, q[:1])
    (True, False)
    """
    for name, array in (("a", a), ("b", b)):
        if not isinstance(array, QuantArray | ScaledArray):
            raise DTypeError(
                f"equal(a, b): {name} is a {type(array).__name__}; both must be QuantArrays or ScaledArrays; "
                "compare values as np.array_equal(np.asarray(q), x)"
            )
    if type(a) is not type(b) or a.shape != b.shape or _meaning(a, False) != _meaning(b, False):
        return False
    if isinstance(a, QuantArray) and isinstance(b, QuantArray) and not same_scales(a._scale, b._scale):
        return False
    if a is b:
        return True
    if a.device != b.device:
        a, b = a.to("cpu"), b.to("cpu")
    with on_device_of("equal(a, b)", a.memory):
        return all(bool((x == y).all()) for x, y in zip(_bytes(a), _bytes(b), strict=True))


def _bytes(array: QuantArray | ScaledArray) -> list[Any]:
    if isinstance(array, QuantArray):
        return [array.raw]
    xp = namespace(array.codes)
    codes, scales, *zeros = array.parts()
    return [xp.ascontiguousarray(codes).view("u1"), xp.ascontiguousarray(scales).view("u1"), *zeros]
