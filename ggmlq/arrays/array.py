"""QuantArray: rows of ggml blocks with a logical shape, on the host or on a GPU."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..base import text
from ..base.devices import cuda_device, is_host, on_device_of
from ..errors import BlockIndexError, DeviceError, DTypeError, ShapeError
from ..formats import FORMATS, Format
from .buffers import check_row, checked_shape, flat_bytes, frozen
from .companion import Scale, checked_scale, reshaped, scale_at
from .indexing import Picking, index_of, shape_of
from .members import inner
from .protocols import OPERATIONS
from .storage import Storage
from .weights import Weights


class QuantArray(Storage, Weights):
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

    product: ClassVar[str] = "linear"  # which operation x @ q.T is
    stored: ClassVar[str] = "q.blocks"
    decoding: ClassVar[str] = "dequantize"

    def __init__(
        self, format: Format, shape: tuple[int, ...], raw: Any, swapped: bool = False,
        scale: Scale | None = None,
    ) -> None:  # fmt: skip
        """Take the arguments unchecked; :meth:`from_bytes` is the constructor that checks.

        ``swapped``: the bytes are those of a big-endian file. They stay as they are in ``blocks``;
        everything else sees the little-endian ``raw``, converted when first asked for. ``scale``: on the
        host, as :func:`.companion.checked_scale` gives it.
        """
        self._format = format
        self._shape = shape
        super().__init__(raw, swapped, scale)

    @classmethod
    def from_bytes(
        cls, raw: Any, format: str | int | Format, shape: int | Sequence[int], scale: Any = None
    ) -> QuantArray:
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
        scale : float or array of float32, optional
            The companion scale of an nvfp4 tensor: one number, or [E] for experts [E, N, K].
        """
        fmt = FORMATS[format]
        request = f"QuantArray.from_bytes(raw, {fmt.name!r}, {shape!r})"
        dims = checked_shape(request, fmt, shape)
        flat = flat_bytes(request, raw)
        rows = dims[:-1]
        row_bytes = fmt.row_bytes(dims[-1] if dims else 1)
        need = row_bytes * math.prod(rows)
        if flat.size != need:
            raise ShapeError(
                f"{request}: the buffer has {flat.size} bytes, this shape needs {need} "
                f"({row_bytes} a row); pass a slice of the right length or the true shape"
            )
        return cls(fmt, dims, flat.reshape(*rows, row_bytes), False, checked_scale(request, scale, dims))

    # --- what it is ---------------------------------------------------------------------

    @property
    def format(self) -> Format:
        """The format of the blocks."""
        return self._format

    @property
    def shape(self) -> tuple[int, ...]:
        """The logical shape in NumPy order, counted in elements."""
        return self._shape

    @property
    @inner
    def unit(self) -> int:
        """Elements of a block."""
        return self._format.block_size

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

    def facts(self) -> list[tuple[str, object]]:
        scale = [] if self._scale is None else [("scale", text.short(self.scale))]
        return [
            ("format", f"{self.format.name}, {self.format.bits_per_weight:g} bits a weight"),
            ("shape", self.shape),
            ("ne", list(reversed(self.shape))),
            ("bytes", text.size(self.nbytes)),
            ("device", self.device),
            *scale,
        ]

    def __repr__(self) -> str:
        ne = list(reversed(self.shape))
        size = text.size(self.nbytes)
        return f"<QuantArray {self.format.name} {self.shape}, ne {ne}, {size}, {self.device}{self._scaled()}>"

    def _scaled(self) -> str:
        scale = self._scale
        if scale is None:
            return ""
        return f", scale {scale:.6g}" if not scale.ndim else f", scale {scale.shape}"

    # --- rows ---------------------------------------------------------------------------

    def __len__(self) -> int:
        if not self.shape:
            raise DTypeError(f"len() of {self!r}: a scalar has no axes; use np.asarray(q)")
        return self.shape[0]

    def __getitem__(self, index: Any) -> QuantArray:
        """Index the leading axes, and slice the last at whole blocks: views; copies for integer arrays."""
        if self.ndim > 2 and (matrix := self.matrix_at(index)) is not None:
            return matrix
        place = index_of(self, index, self.unit, False, "take q.blocks[...] for blocks")
        try:
            part = self._strided()[place.steps]
        except (IndexError, TypeError) as error:
            raise BlockIndexError(
                f"{Picking(index, self)}: {error}; its shape is {self.shape}; stay within it"
            ) from None
        lengths = (place.end - place.first,) if self.shape else ()
        if lengths != self.shape[-1:]:
            part = part[..., self.format.row_bytes(place.first) : self.format.row_bytes(place.end)]
        scale = scale_at(self._scale, self.shape[:-1], place.steps)
        return self._derived(
            QuantArray(self.format, (*part.shape[:-1], *lengths), part, self._swapped, scale)
        )

    def __setitem__(self, index: Any, value: Any) -> None:
        """Encode floats into rows of a writable array, as :func:`ggmlq.put` does."""
        if not self.writable:
            super().__setitem__(index, value)
        OPERATIONS["put_at"](self, index, value)

    def _derived(self, part: QuantArray) -> QuantArray:
        """A view or copy of rows, which on a GPU may be written to where this array may."""
        if not is_host(part.memory):  # the view may be gone when a graph that read it is replayed
            part.recorded = self.recorded
        return part if self._kin is None else part.as_writable(self._kin)

    def reshape(self, *shape: Any) -> QuantArray:
        """A view of the blocks in another shape, whose rows are whole blocks; a copy where rows lie apart.

        >>> import numpy as np, ggmlq as gq
        >>> gq.quantize(np.ones((4, 64), np.float32), "q8_0").reshape(2, -1)
        <QuantArray q8_0 (2, 128), ne [128, 2], 272 bytes, cpu>
        """
        request = f"reshape{shape} of {self!r}"
        dims = shape_of(request, self, shape)
        check_row(request, self.format, dims[-1] if dims else 1)
        with on_device_of(request, self.memory):
            raw = self._strided().reshape(*dims[:-1], self.format.row_bytes(dims[-1] if dims else 1))
        part = QuantArray(
            self.format, dims, raw, self._swapped, reshaped(request, self._scale, self.shape, dims)
        )
        return part if self._view is not None and part._view is None else self._derived(part)

    def __iter__(self) -> Iterator[QuantArray]:
        if self.ndim < 2:
            raise BlockIndexError(
                f"iteration over {self!r}: it has no leading axis; iterate over q.blocks or np.asarray(q)"
            )
        return (self[i] for i in range(len(self)))

    # --- elsewhere ----------------------------------------------------------------------

    def to(self, device: str) -> QuantArray:
        """A copy on ``"cpu"``, ``"cuda"`` or ``"cuda:1"``; the array itself if it is there already."""
        if device == self.device or (device == "cuda" and self._is_on_current()):
            return self
        if device == "cpu":
            return QuantArray(self.format, self.shape, frozen(self.raw.get()), scale=self._scale)
        return QuantArray(self.format, self.shape, cuda_device().upload(self.raw, device), scale=self._scale)

    def _is_on_current(self) -> bool:
        """True if the array lies on CuPy's current device; False on the host."""
        return not is_host(self.memory) and self.memory.device.id == cuda_device().current()

    def copy(self) -> QuantArray:
        """A copy with memory of its own, to write to: rows by ``q[i] = …``, on the host ``blocks`` too."""
        return QuantArray(self.format, self.shape, self.strided.copy(), scale=self._scale).as_writable()

    @inner
    def unscaled(self) -> QuantArray:
        """These blocks without their companion scale."""
        return self.with_scale(None)

    @inner
    def with_scale(self, scale: Scale | None) -> QuantArray:
        """These blocks with this companion scale, as :func:`.companion.checked_scale` gives it."""
        return QuantArray(self.format, self.shape, self._strided(), self._swapped, scale)

    def __reduce__(self) -> tuple[Any, ...]:
        writable = not is_host(self.raw) or bool(self.raw.flags.writeable)
        return _restore, (self.format, self.shape, self.raw, writable, self._scale)

    # --- values -------------------------------------------------------------------------

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


def _restore(
    fmt: Format, shape: tuple[int, ...], raw: Any, writable: bool, scale: Scale | None = None
) -> QuantArray:
    return QuantArray(fmt, shape, raw if writable else frozen(raw), scale=scale)
