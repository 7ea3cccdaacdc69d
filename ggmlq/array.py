"""QuantArray: rows of ggml blocks with a logical shape, on the host or on a GPU."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from . import text
from .buffers import checked_shape, flat_bytes, frozen
from .devices import cuda_device, is_host, on_device_of
from .errors import BlockIndexError, DeviceError, DTypeError, ShapeError
from .formats import FORMATS, Format
from .matrix import OPERATIONS, Transposed, is_step
from .storage import Storage


class QuantArray(Storage):
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

    product: ClassVar[str] = "linear"  # which operation x @ q.T is

    def __init__(self, format: Format, shape: tuple[int, ...], raw: Any, swapped: bool = False) -> None:
        """Trusts its arguments; :meth:`from_bytes` is the constructor that checks.

        ``swapped``: the bytes are those of a big-endian file. They stay as they are in ``blocks``;
        everything else sees the little-endian ``raw``, converted when first asked for.
        """
        self._format = format
        self._shape = shape
        super().__init__(raw, swapped)

    @classmethod
    def from_bytes(cls, raw: Any, format: str | int | Format, shape: int | Sequence[int]) -> QuantArray:
        """Look at bytes as blocks, without a copy.

        Results follow the bytes. On the host that has a price: over memory that someone can still write
        to (a bytearray, an array that is not read-only) each product reads them once to see whether they
        have changed. Bytes, a read-only file, and ``raw.flags.writeable = False`` save that. CuPy has no
        read-only arrays: after writing to one call ``q.drop_prepared()``.

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
        dims = checked_shape(asked, fmt, shape)
        flat = flat_bytes(asked, raw)
        rows = dims[:-1]
        row_bytes = fmt.row_bytes(dims[-1] if dims else 1)
        need = row_bytes * math.prod(rows)
        if flat.size != need:
            raise ShapeError(
                f"{asked}: the buffer has {flat.size} bytes, this shape needs {need} "
                f"({row_bytes} a row); pass a slice of the right length or the true shape"
            )
        return cls(fmt, dims, flat.reshape(*rows, row_bytes))

    # --- what it is ---------------------------------------------------------------------

    @property
    def format(self) -> Format:
        """What the blocks mean."""
        return self._format

    @property
    def shape(self) -> tuple[int, ...]:
        """The logical shape in NumPy order, counted in elements."""
        return self._shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def blocks(self) -> NDArray[Any]:
        """The blocks [..., K // block_size] as a structured NumPy array; a view.

        From a big-endian file the dtype is big-endian: the numbers are right, the bytes the file's.
        """
        if not is_host(self.memory):
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
        """Index the leading axes: views, but copies for integer arrays and, on a GPU, slices with a step."""
        if self.ndim > 2 and (matrix := self.matrix_at(index)) is not None:
            return matrix
        steps = index if isinstance(index, tuple) else (index,)
        if len(steps) == self.ndim and isinstance(steps[-1], slice) and steps[-1] == slice(None):
            steps = steps[:-1]
        if len(steps) >= max(self.ndim, 1):
            raise BlockIndexError(
                f"q[{index!r}] of {self!r}: the last axis lies in blocks of "
                f"{self.format.block_size} and cannot be indexed; index the axes before it, "
                "take q.blocks[...] for blocks, or np.asarray(q) for values"
            )
        if not all(is_step(step) for step in steps):
            raise BlockIndexError(
                f"q[{index!r}] of {self!r}: rows are picked by integers, slices, integer arrays and "
                "1-D boolean arrays; for anything else index q.blocks or np.asarray(q)"
            )
        try:
            part = self._bytes()[steps]
        except (IndexError, TypeError) as error:
            raise BlockIndexError(f"q[{index!r}] of {self!r}: {error}; its shape is {self.shape}") from None
        if not (is_host(part) or part.flags.c_contiguous):  # kernels read rows that lie together
            with on_device_of(f"q[{index!r}] of {self!r}", part):
                part = part.copy()
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
        if device == self.device or (device == "cuda" and self._is_on_current()):
            return self
        if device == "cpu":
            return QuantArray(self.format, self.shape, frozen(self.raw.get()))
        return QuantArray(self.format, self.shape, cuda_device().upload(self.raw, device))

    def _is_on_current(self) -> bool:
        """Whether it is on CuPy's current device."""
        return not is_host(self.memory) and self.memory.device.id == cuda_device().current()

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
        return OPERATIONS["dequantize"](self, dtype)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ShapeError(
                f"np.asarray({self!r}, copy=False): decoding makes a new array; "
                "allow the copy, or take q.raw or q.blocks"
            )
        if not is_host(self.memory):
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

    # --- comparison ---------------------------------------------------------------------

    __hash__ = object.__hash__  # by identity: keys of caches; arrays of the same bytes stay two

    def __eq__(self, other: object) -> bool:
        if other is self:  # so that weak references and lists find it
            return True
        if not (isinstance(other, QuantArray | list | tuple) or hasattr(other, "__array__")):
            return NotImplemented
        raise DTypeError(
            f"comparison of {self!r} with a {type(other).__name__}: blocks are not compared element by "
            "element; gq.equal(a, b) tells whether format, shape and bytes are the same, "
            "np.asarray(q) == x compares values"
        )


def _restore(fmt: Format, shape: tuple[int, ...], raw: Any, writable: bool) -> QuantArray:
    return QuantArray(fmt, shape, raw if writable else frozen(raw))
