"""QuantArray: rows of ggml blocks with a logical shape, on the host or on a GPU."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from . import text
from .errors import BlockIndexError, DeviceError, DTypeError, ShapeError
from .formats import FORMATS, Format


class QuantArray:
    """A read-only array of quantized rows.

    The storage is uint8 [..., bytes per row], a NumPy array or a CuPy array. ``shape`` is the
    logical shape in NumPy order: its last axis runs along the blocks.

    >>> import numpy as np, ggmlq as gq
    >>> q = gq.quantize(np.eye(2, 64, dtype=np.float32), "q8_0")
    >>> q
    <QuantArray q8_0 (2, 64), ne [64, 2], 136 bytes, cpu>
    >>> q.blocks.shape, q.blocks["d"][0, 0] == np.float16(1 / 127)
    ((2, 2), np.True_)
    """

    __array_ufunc__: ClassVar[None] = None  # so that NumPy hands `x @ q.T` to us
    __array_priority__: ClassVar[float] = 1000.0  # so that CuPy does

    def __init__(self, format: Format, shape: tuple[int, ...], raw: Any, swapped: bool = False) -> None:
        """Trusts its arguments; :meth:`from_bytes` is the constructor that checks.

        ``swapped``: the bytes are those of a big-endian file. They stay as they are in ``blocks``;
        everything else sees the little-endian ``raw``, converted when first asked for.
        """
        self.format = format
        self.shape = shape
        self._stored = raw
        self._swapped = swapped

    @classmethod
    def from_bytes(cls, raw: Any, format: str | int | Format, shape: int | Sequence[int]) -> QuantArray:
        """Look at bytes as blocks, without a copy.

        Parameters
        ----------
        raw : bytes-like, numpy.ndarray, numpy.memmap or cupy.ndarray
            Any C-contiguous buffer with exactly the bytes that the shape needs.
        format : str, int or Format
            Name in any case, ggml id, or Format.
        shape : int or sequence of int
            The logical shape in NumPy order, counted in elements.
        """
        fmt = FORMATS[format]
        asked = f"QuantArray.from_bytes(raw, {fmt.name!r}, {shape!r})"
        dims = _checked_shape(asked, fmt, shape)
        flat = _flat_bytes(asked, raw)
        rows = dims[:-1]
        row_bytes = fmt.row_bytes(dims[-1] if dims else 1)
        need = row_bytes * int(np.prod(rows, dtype=object))
        if flat.size != need:
            raise ShapeError(
                f"{asked}: the buffer has {flat.size} bytes, this shape needs {need} "
                f"({row_bytes} a row); pass a slice of the right length or the true shape"
            )
        return cls(fmt, dims, flat.reshape(*rows, row_bytes))

    # --- what it is ---------------------------------------------------------------------

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks."""
        return int(self._stored.nbytes)

    @property
    def device(self) -> str:
        """``"cpu"``, or ``"cuda:0"`` and so on."""
        return "cpu" if is_host(self._stored) else f"cuda:{self._stored.device.id}"

    @property
    def raw(self) -> Any:
        """The little-endian bytes, uint8 [..., bytes per row], a NumPy or CuPy array on their device."""
        return self._little if self._swapped else self._stored

    @cached_property
    def _little(self) -> NDArray[np.uint8]:
        return _frozen(self.format.byteswapped(self._stored))

    @property
    def blocks(self) -> NDArray[Any]:
        """The blocks [..., K // block_size] as a structured NumPy array; a view.

        From a big-endian file the dtype is big-endian: the numbers are right, the bytes the file's.
        """
        if not is_host(self._stored):
            raise DeviceError(
                f"blocks of {self!r}: structured arrays exist on the host only; "
                'use q.to("cpu").blocks, or q.raw for the bytes on the device'
            )
        dtype = self.format.dtype.newbyteorder() if self._swapped else self.format.dtype
        blocks: NDArray[Any] = self._stored.view(dtype)
        return blocks if self.shape else blocks.reshape(())

    @property
    def T(self) -> Transposed:
        """The transpose, for ``x @ q.T``. Nothing is moved."""
        return Transposed(self)

    def __repr__(self) -> str:
        ne = list(reversed(self.shape))
        size = text.size(self.nbytes)
        return f"<QuantArray {self.format.name} {self.shape}, ne {ne}, {size}, {self.device}>"

    # --- rows ---------------------------------------------------------------------------

    def __len__(self) -> int:
        if not self.shape:
            raise DTypeError(f"len() of {self!r}: a scalar has no axes; use np.asarray(q)")
        return self.shape[0]

    def __getitem__(self, index: Any) -> QuantArray:
        """Index the leading axes: views for integers and slices, a copy for integer arrays."""
        steps = index if isinstance(index, tuple) else (index,)
        if len(steps) == self.ndim and isinstance(steps[-1], slice) and steps[-1] == slice(None):
            steps = steps[:-1]
        if any(step is None or step is Ellipsis for step in steps) or len(steps) >= self.ndim:
            raise BlockIndexError(
                f"q[{index!r}] of {self!r}: the last axis lies in blocks of "
                f"{self.format.block_size} and cannot be indexed; index the {self.ndim - 1} leading "
                "axes, take q.blocks[...] for blocks, or np.asarray(q) for values"
            )
        part = self._stored[steps]
        return QuantArray(self.format, (*part.shape[:-1], self.shape[-1]), part, self._swapped)

    def __iter__(self) -> Iterator[QuantArray]:
        if self.ndim < 2:
            raise BlockIndexError(
                f"iteration over {self!r}: it has no leading axis; iterate over q.blocks or np.asarray(q)"
            )
        return (self[i] for i in range(len(self)))

    # --- elsewhere ----------------------------------------------------------------------

    def to(self, device: str) -> QuantArray:
        """The same array on ``"cpu"``, ``"cuda"`` or ``"cuda:1"``; itself if it is there."""
        if device == self.device:
            return self
        if device == "cpu":
            return QuantArray(self.format, self.shape, _frozen(self.raw.get()))
        return QuantArray(self.format, self.shape, cuda_device().upload(self.raw, device))

    def copy(self) -> QuantArray:
        """A copy of its own; on the host its ``blocks`` may be written to."""
        return QuantArray(self.format, self.shape, self.raw.copy())

    def __copy__(self) -> QuantArray:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> QuantArray:
        return self.copy()

    def __reduce__(self) -> tuple[Any, ...]:
        writable = not is_host(self.raw) or bool(self.raw.flags.writeable)
        return _restore, (self.format, self.shape, self.raw, writable)

    # --- values -------------------------------------------------------------------------

    def dequantize(self, dtype: DTypeLike = np.float32) -> Any:
        """The values as floats on the same device; see :func:`ggmlq.dequantize`."""
        from .ops import dequantize

        return dequantize(self, dtype)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ShapeError(
                f"np.asarray({self!r}, copy=False): decoding makes a new array; "
                "allow the copy, or take q.raw or q.blocks"
            )
        if not is_host(self._stored):
            raise DeviceError(
                f'np.asarray({self!r}): it is not on the host; use q.to("cpu"), '
                "or q.dequantize() for floats on the device"
            )
        return np.asarray(self.dequantize(np.float32 if dtype is None else dtype))

    def __rmatmul__(self, x: object) -> Any:
        raise ShapeError(f"x @ q with {self!r}: rows of q lie along K, as in ggml; write x @ q.T")

    def __matmul__(self, x: object) -> Any:
        raise ShapeError(
            f"q @ x with {self!r}: activations come first; write x @ q.T, which is gq.linear(x, q)"
        )


class Transposed:
    """What ``q.T`` is: good for ``x @ q.T``, ``q.T.T`` and NumPy's ``asarray``."""

    __array_ufunc__: ClassVar[None] = None
    __array_priority__: ClassVar[float] = 1000.0

    def __init__(self, q: QuantArray) -> None:
        self.T = q
        self.shape = q.shape[::-1]
        self.ndim = q.ndim

    def __rmatmul__(self, x: Any) -> Any:
        from .ops import linear

        return linear(x, self.T)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self.T.__array__(dtype, copy).T)

    def __repr__(self) -> str:
        return f"{self.T!r}.T"


# --- helpers --------------------------------------------------------------------------------


def is_host(x: object) -> bool:
    """Whether an array lives in host memory (everything but a CuPy array does)."""
    return type(x).__module__.partition(".")[0] != "cupy"


def cuda_device() -> Any:
    """The module that knows CuPy, loaded only when someone asks for a device."""
    return importlib.import_module("ggmlq.cuda.device")


def _frozen(raw: NDArray[np.uint8]) -> NDArray[np.uint8]:
    raw.flags.writeable = False
    return raw


def _restore(fmt: Format, shape: tuple[int, ...], raw: Any, writable: bool) -> QuantArray:
    return QuantArray(fmt, shape, raw if writable else _frozen(raw))


def _checked_shape(asked: str, fmt: Format, shape: int | Sequence[int]) -> tuple[int, ...]:
    if isinstance(shape, int | np.integer):
        shape = (int(shape),)
    try:
        dims = tuple(int(n.__index__()) for n in shape)
    except (AttributeError, TypeError):
        raise DTypeError(f"{asked}: a shape is a tuple of integers, like (4096, 14336)") from None
    if any(n < 0 for n in dims):
        raise ShapeError(f"{asked}: a length is negative; every axis needs its true length")
    check_row(asked, fmt, dims[-1] if dims else 1)
    return dims


def check_row(asked: str, fmt: Format, elements: int) -> None:
    """Rows must be whole blocks."""
    if elements % fmt.block_size:
        up = -(-elements // fmt.block_size) * fmt.block_size
        raise ShapeError(
            f"{asked}: rows have {elements} elements, {fmt.name} blocks hold "
            f"{fmt.block_size}; pad the last axis to {up}"
        )


def _flat_bytes(asked: str, raw: Any) -> Any:
    """The buffer as a flat uint8 array, never a copy; read-only on the host."""
    if isinstance(raw, np.ndarray) or not is_host(raw):
        if not raw.flags.c_contiguous:
            raise ShapeError(
                f"{asked}: the array with strides {raw.strides} is not C-contiguous, so it cannot "
                "be viewed without a copy; pass np.ascontiguousarray(raw)"
            )
        if isinstance(raw, np.ndarray) and raw.dtype.hasobject:
            raise DTypeError(f"{asked}: an array of {raw.dtype} holds no bytes; pass its data")
        flat = raw.reshape(-1).view(np.uint8)
        return _frozen(np.asarray(flat).view()) if is_host(raw) else flat
    try:
        view = memoryview(raw)
    except TypeError:
        raise DTypeError(
            f"{asked}: {type(raw).__name__} has no buffer; pass bytes, a memoryview or a uint8 array"
        ) from None
    if not view.c_contiguous:
        raise ShapeError(f"{asked}: the buffer is not C-contiguous; pass bytes(raw)")
    return _frozen(np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8))
