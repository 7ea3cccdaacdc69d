"""Checks arrays that a user saves as tensors, and gives their bytes for the file, a slab at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import prod
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..arrays.tensors import host_array, is_tensor
from ..arrays.weights import Divided
from ..base.devices import is_host
from ..errors import GGUFError
from ..formats import FORMATS, Format
from ..formats.scalars import SCALARS
from .extents import Extent
from .source import place, release
from .tensors import MAX_DIMS, MOST_BYTES
from .valuetype import order_sign

MAX_NAME = 63  # bytes: ggml's GGML_MAX_NAME is 64 with the NUL
SLAB_BYTES = 16 << 20  # converted or handed to the system at a time

_BY_DTYPE = {fmt.dtype: fmt for fmt in SCALARS if not fmt.bfloat}
_BY_NAME = {dtype.name: fmt for dtype, fmt in _BY_DTYPE.items()} | {"bfloat16": FORMATS["bf16"]}


class Described(NamedTuple):
    """A tensor as the header will list it."""

    name: str
    format: Format
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) // self.format.block_size * self.format.dtype.itemsize


class Streamed(NamedTuple):
    """A tensor that is made while it is written, so that it never exists in full.

    ``parts`` is called when the tensor's turn comes, and gives its rows in order as QuantArrays of
    its format.
    """

    format: Format
    shape: tuple[int, ...]
    parts: Callable[[], Iterable[QuantArray]]


def describe(name: object, x: Any) -> Described:
    """Check a name and an array; GGUFError with the reason and the way out."""
    _check_name(name)
    assert isinstance(name, str)
    fmt = x.format if isinstance(x, QuantArray | Streamed) else _format(x)
    shape = tuple(int(n) for n in x.shape)
    if len(shape) > MAX_DIMS:
        _refuse(f"it has {len(shape)} axes; ggml's tensors have {MAX_DIMS} at most; reshape it")
    if prod(max(n, 1) for n in shape) * fmt.dtype.itemsize > MOST_BYTES:
        _refuse(f"its shape {shape} counts more than 64 bits hold; cut it down")
    return Described(name, fmt, shape)


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        _refuse(f"its name is of type {type(name).__name__}; names are str; rename it")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        _refuse("its name has a lone surrogate, which UTF-8 cannot hold; rename it")
    if size > MAX_NAME:
        _refuse(f"its name has {size} bytes; ggml's names hold {MAX_NAME}; give it a shorter one")
    if not name:
        _refuse("its name is empty, and ggml does not load such a tensor; give it a name")
    if "\0" in name:
        _refuse("its name has a NUL, where C ends a name; rename it")


def _format(x: Any) -> Format:
    """The scalar format of a NumPy or CuPy array."""
    if is_tensor(x):
        return _format_of_tensor(x)
    if isinstance(x, Divided):
        _refuse(f'it is {x!r}, and a file holds whole arrays; pass x.to("cpu")')
    dtype = getattr(x, "dtype", None)
    if not isinstance(dtype, np.dtype) or not hasattr(x, "shape"):
        _refuse(
            f"it is a {type(x).__name__}; tensors are QuantArrays, NumPy or CuPy arrays, or torch's; "
            "convert it with np.asarray(x, np.float32)"
        )
    if isinstance(x, np.ma.MaskedArray):
        _refuse("it is a masked array, and a file has no masks; pass x.filled(0)")
    if dtype.name == "bfloat16":
        return FORMATS["bf16"]
    scalar = _BY_DTYPE.get(dtype.newbyteorder("<"))
    if scalar is None:
        _refuse(
            f"its dtype is {dtype}; GGUF holds {', '.join(str(d) for d in _BY_DTYPE)} and bfloat16; "
            "convert it with x.astype(np.float32), or wrap the bytes of blocks with QuantArray.from_bytes"
        )
    return scalar


def _format_of_tensor(x: Any) -> Format:
    scalar = _BY_NAME.get(str(x.dtype).removeprefix("torch."))
    if scalar is None or str(x.layout) != "torch.strided":
        _refuse(
            f"it is a tensor of {x.dtype}, {x.layout}; GGUF holds dense ones of {', '.join(_BY_NAME)}; "
            "convert it with x.float() or x.to_dense()"
        )
    return scalar


def slabs(x: Any, tensor: Described, byteorder: str) -> Iterator[memoryview | Extent]:
    """The bytes of a tensor in the order of the file. At most one copy of it exists at a time."""
    if isinstance(x, Streamed):
        yield from _streamed(x, tensor, byteorder)
        return
    blocks = _blocks(x, tensor).reshape(-1)
    dtype = tensor.format.dtype.newbyteorder(order_sign(byteorder))
    step = max(1, SLAB_BYTES // dtype.itemsize)
    for start in range(0, len(blocks), step):
        part = blocks[start : start + step]
        data = part.astype(dtype, copy=False).view(np.uint8)
        location = place(data)
        yield data.data if location is None else Extent(*location, data.data)
        release(part)


def _streamed(x: Streamed, tensor: Described, byteorder: str) -> Iterator[memoryview | Extent]:
    left = tensor.nbytes
    for part in x.parts():
        left -= part.nbytes
        if part.format is not tensor.format or left < 0:
            break
        yield from slabs(part, tensor, byteorder)
    if left:
        _refuse(
            f"tensor {tensor.name!r}: its parts are not {tensor.format.name} of shape {tensor.shape}; "
            "they must be its rows, all of them and in order; check what makes them"
        )


def _blocks(x: Any, tensor: Described) -> NDArray[Any]:
    if isinstance(x, QuantArray):
        return np.ascontiguousarray(x.to("cpu").blocks)
    if is_tensor(x):
        x = host_array(x)
    host = x if is_host(x) else x.get()
    host = np.ascontiguousarray(host)
    return host.view(np.uint16) if host.dtype.name == "bfloat16" else host


def _refuse(reason: str) -> NoReturn:
    raise GGUFError(reason)
