"""Bytes and shapes as callers pass them, checked for ``QuantArray.from_bytes``."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.devices import is_host
from ..errors import DTypeError, ShapeError
from ..formats import Format


def checked_shape(request: str, fmt: Format, shape: int | Sequence[int]) -> tuple[int, ...]:
    """A logical shape as a tuple; its rows are whole blocks."""
    lengths = tuple(shape) if isinstance(shape, Iterable) else (shape,)
    if not all(isinstance(n, int | np.integer) and not isinstance(n, bool) for n in lengths):
        raise DTypeError(f"{request}: a shape is a tuple of integers, like (4096, 14336)")
    dims = tuple(int(n) for n in lengths)
    if any(not 0 <= n < 2**63 for n in dims) or len(dims) > 63:
        raise ShapeError(
            f"{request}: an axis is negative or beyond 2**63, or there are more than 63 axes; "
            "every axis needs its true length"
        )
    check_row(request, fmt, dims[-1] if dims else 1)
    return dims


def check_row(request: str, fmt: Format, elements: int, other: str | None = None) -> None:
    """Refuse rows that are not whole blocks; ``other`` names a format that would take them."""
    if elements % fmt.block_size:
        up = -(-elements // fmt.block_size) * fmt.block_size
        raise ShapeError(
            f"{request}: rows have {elements} elements, {fmt.name} blocks hold "
            f"{fmt.block_size}; pad the last axis to {up}"
            + (f", or take {other}, as llama.cpp does for such rows" if other else "")
        )


def refuse_mask(request: str, x: Any) -> None:
    """Refuse a masked array, which would lose its mask without a word."""
    if isinstance(getattr(x, "mask", None), np.ndarray | np.bool_):
        raise DTypeError(f"{request}: a masked array's mask has no place here; pass x.filled(0)")


def flat_bytes(request: str, raw: Any) -> Any:
    """The buffer as a flat uint8 array, never a copy; read-only on the host."""
    refuse_mask(request, raw)
    if isinstance(raw, np.ndarray) or not is_host(raw):
        if not raw.flags.c_contiguous:
            raise ShapeError(
                f"{request}: the array with strides {raw.strides} is not C-contiguous, so it cannot "
                "be viewed without a copy; pass np.ascontiguousarray(raw)"
            )
        if raw.dtype.hasobject:
            raise DTypeError(f"{request}: an array of {raw.dtype} holds no bytes; pass its data")
        flat = raw.reshape(-1).view(np.uint8)
        return frozen(np.asarray(flat).view()) if is_host(raw) else flat
    try:
        view = memoryview(raw)
    except (TypeError, ValueError) as error:  # no buffer, or a released one
        raise DTypeError(
            f"{request}: no buffer in this {type(raw).__name__} ({error}); "
            "pass bytes, a memoryview or a uint8 array"
        ) from None
    if not view.c_contiguous:
        raise ShapeError(f"{request}: the buffer is not C-contiguous; pass bytes(raw)")
    return frozen(np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8))


def frozen(raw: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A read-only view of an array."""
    raw.flags.writeable = False
    return raw


def unchanging(raw: NDArray[Any]) -> bool:
    """True where nobody can write to the memory of an array: a read-only view may look at writable memory."""
    at: Any = raw
    while isinstance(at, np.ndarray):
        if at.flags.writeable:
            return False
        at = at.base
    return at is None or locked(at)


def owner_of(raw: NDArray[Any]) -> Any:
    """The object that owns the memory of an array, if that object is no array; else None."""
    at: Any = raw
    while isinstance(at, np.ndarray):
        at = at.base
    return at


def locked(owner: Any) -> bool:
    """True if nobody can ever write to the memory of this owner, through no view either."""
    at = owner
    while at is not None:
        try:
            view = memoryview(at)
        except TypeError:  # whose memory it is cannot be asked
            return False
        if not view.readonly:
            return False
        at = at.obj if isinstance(at, memoryview) else None  # a read-only one may hide a bytearray
    return True


def _address_of() -> Callable[[NDArray[Any]], int]:
    """A function for the address of a NumPy array's memory, ten times as fast as ``ctypes.data``.

    The address is the word behind the head of the object, by NumPy's binary interface. If a test shows that
    this word is not the address, the function uses ``ctypes.data``.
    """
    head, word = object.__basicsize__, ctypes.c_ssize_t
    arrays = [np.empty(n, np.uint8) for n in (1, 1000)]
    if all(word.from_address(id(array) + head).value == array.ctypes.data for array in arrays):
        read = word.from_address
        return lambda x: read(id(x) + head).value
    return lambda x: int(x.ctypes.data)


address_of = _address_of()
