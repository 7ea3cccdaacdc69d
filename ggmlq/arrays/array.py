"""QuantArray: rows of ggml blocks with a logical shape, on the host or on a GPU."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, ClassVar, Self
from weakref import ref

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..base import text
from ..base.devices import cuda_device, device_of, is_host, on_device_of
from ..base.hooks import Hook
from ..errors import BlockIndexError, DeviceError, DTypeError, ShapeError
from ..formats import FORMATS, Format
from .buffers import check_row, checked_shape, flat_bytes, frozen
from .companion import Scale, checked_scale, reshaped, scale_at
from .prepared import LOCKS, PreparedCopies, wait
from .protocols import OPERATIONS, inner
from .weights import Weights, index_of, picking, shape_of

_packed_memory = Hook("packed weights that stand for their bytes")
_from_packed = Hook("bytes restored from packed weights")


class Kin:
    """The arrays over one memory on a GPU that may be written to: an array and its views.

    What kernels made of any of them is dropped when rows are put into one.
    """

    def __init__(self) -> None:
        self._arrays: list[ref[Storage]] = []

    def add(self, array: Storage) -> None:
        """Take an array in."""
        self._arrays = [one for one in self._arrays if one() is not None]
        self._arrays.append(ref(array))

    def forget(self) -> None:
        """Drop prepared copies and recordings of all arrays; it waits for the device if there are any.

        Memory of other work in CUDA graphs stays: attention, say, reads the new rows when it is replayed.
        """
        for one in list(self._arrays):
            if (array := one()) is not None:
                array.reread()


class Storage(PreparedCopies):
    """The memory of a :class:`ggmlq.QuantArray`."""

    _format: Format
    _shape: tuple[int, ...]
    _view: Any = None  # on a GPU a view whose rows lie apart
    _kin: Kin | None = None  # on a GPU, where rows may be put
    _pieces: tuple[NDArray[np.uint8], ...] = ()  # on the host bytes that are put together when needed

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
        self.memory = raw  # the bytes as stored or, where they were dropped, what products read instead
        self._stored: Any = raw  # None where the bytes were dropped
        self._swapped = swapped
        self._scale = scale  # beside the bytes; products and decoded values are multiplied by it
        if type(raw) is not np.ndarray and not (is_host(raw) or raw.flags.c_contiguous):
            self._view, self._stored = raw, None  # a copy is made for whoever needs rows that lie together

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks."""
        return self._format.row_bytes(self._shape[-1] if self._shape else 1) * math.prod(self._shape[:-1])

    @property
    def device(self) -> str:
        """``"cpu"``, or ``"cuda:0"`` and so on."""
        return device_of(self.memory)

    @property
    def raw(self) -> Any:
        """The little-endian bytes, uint8 [..., bytes per row], a NumPy or CuPy array on their device.

        Dropped bytes are made again from a prepared copy, and stay. On a GPU rows of a view may lie apart;
        then this is a copy of them.
        """
        return self._little if self._swapped else self._bytes()

    @property
    @inner
    def strided(self) -> Any:
        """The bytes where they are, for what reads rows that lie apart."""
        return self._little if self._swapped else self._strided()

    @property
    def scale(self) -> Any:
        """The companion scale, float32: one number, or one for each of the first axes; None without.

        Decoded values and products are multiplied by it. It is not part of :attr:`raw` and :attr:`blocks`.
        """
        scale = self._scale
        return scale if scale is None or scale.ndim else scale[()]

    @property
    def writable(self) -> bool:
        """True if :func:`ggmlq.put` may write rows: for arrays of :func:`ggmlq.empty` and for copies.

        The same holds for views of them, on a GPU if their rows lie together.
        """
        if not is_host(self.memory):
            return self._kin is not None and self._view is None
        return self._stored is not None and not self._swapped and bool(self._stored.flags.writeable)

    @inner
    def as_writable(self, kin: Kin | None = None) -> Self:
        """The array itself, on a GPU, as one whose rows may be put; ``kin``: of the array that it shows."""
        if self._kin is None and not is_host(self.memory):
            self._kin = kin or Kin()
            self._kin.add(self)
        return self

    @inner
    def written(self) -> None:
        """Rows were put: what kernels made of the bytes on a GPU is old. On the host a digest shows that."""
        if self._kin is not None:
            self._kin.forget()

    @inner
    def packed_alone(self, memory: Any, make: Any, weights: Any) -> Self:
        """The array itself, without bytes, as after :meth:`drop_raw`; ``make`` would prepare ``weights``."""
        self.memory, self._stored, self._prepared[make] = memory, None, weights
        return self

    @inner
    def over(self, *pieces: NDArray[np.uint8]) -> Self:
        """The array itself, on the host: its rows are those of pieces, put together if something needs that.

        Nobody changes them.
        """
        self._pieces, self._stored, self._owned = pieces, None, True
        return self

    @property
    @inner
    def pieces(self) -> tuple[Any, ...]:
        """The bytes, or where these are not put together yet, those of pieces of the rows."""
        return (self.raw,) if self.has_bytes else self._pieces

    @property
    @inner
    def has_bytes(self) -> bool:
        """True where the bytes are there, False where packed weights stand for them or nothing needs them."""
        return self._stored is not None or self._view is not None

    def parts(self) -> tuple[Any, ...]:
        stored = self._little if self._swapped else self._stored
        return (self._restored() if stored is None else stored,)

    @inner
    def reread(self) -> None:
        """Drop what kernels made of the bytes, which are others now, and the copy of rows that lie apart."""
        if self._prepared or not (self._view is None or self._stored is None):
            self.forget(f"put into the memory of {self!r}")

    @inner
    def forget(self, request: str, graphs: bool = False) -> None:
        super().forget(request, graphs)
        if self._view is not None:
            self._stored, self.memory = None, self._view

    def whole(self) -> None:
        if self._view is None:
            self._bytes()

    def _bytes(self) -> Any:
        stored = self._stored
        return self._restored() if stored is None else stored

    @cached_property
    def _little(self) -> NDArray[np.uint8]:
        return frozen(self._format.byteswapped(self._stored))

    # --- without the bytes ------------------------------------------------------------------

    def drop_raw(self) -> None:
        """Free the bytes on a GPU: the prepared copy that products read holds all their bits.

        For arrays [N, K] and experts [E, N, K] on a device, of every format but those with code books, tq1_0
        and q8_K. ``cuda:gemv``, ``cuda:mma_bf16``, ``cuda:dequant_bf16`` and ``cuda:grouped`` go on as
        before. What needs the bytes (:attr:`raw`, ``to``, ``dequantize``, slices, copies, pickle, other
        kernels) makes them again, the same to the bit, and keeps them until this is called again; a CUDA
        graph cannot record that.

        Memory that someone else holds is not freed: the array or tensor that the bytes came from, or
        slices, which are views. CUDA graphs of kernels that read the bytes must not be replayed any more.
        """
        request = f"drop_raw() of {self!r}"
        if is_host(self.memory):
            raise DeviceError(
                f"{request}: it is on the host, whose kernels read the bytes themselves; only an array on a "
                'GPU can do without; use q.to("cuda") first'
            )
        with LOCKS.of(self), on_device_of(request, self.memory):
            stored = self._stored
            if stored is not None:
                self.memory, self._stored = _packed_memory(request, self), None
                self.drop_recordings()  # which hold the bytes
                try:
                    wait(request, "the bytes are still there")
                except DeviceError:
                    self.memory = self._stored = stored
                    raise

    def _strided(self) -> Any:
        stored = self._stored if self._view is None else self._view
        return self._restored() if stored is None else stored

    def _restored(self) -> Any:
        if self._pieces:
            with LOCKS.of(self):
                if self._stored is None:
                    self._stored = self.memory = frozen(np.concatenate(self._pieces, axis=-2))
                return self._stored
        view = self._view
        with LOCKS.of(self), on_device_of(f"the bytes of {self!r}, for what needs all of them", self.memory):
            if self._stored is None:
                if view is not None and cuda_device().capturing(view.device.id):
                    return view.copy()  # of each replay
                what = f"the bytes of {self!r} were dropped, and something needs them"
                make = _from_packed if view is None else _together
                self._stored = self.memory = cuda_device().once(what, lambda: make(self))
            return self._stored


def _together(q: Storage) -> Any:
    """A copy of rows that lie apart."""
    return q.strided.copy()


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
        shape, fmt = self._shape, self._format
        if len(shape) > 2 and (matrix := self.matrix_at(index)) is not None:
            return matrix
        kind, steps, place = type(index), (index,), None
        length = shape[-1:]
        if len(shape) < 2 or not (kind is slice or (kind is int and -shape[0] <= index < shape[0])):
            # Most indices pick whole rows of the first axis, and need none of this.
            place = index_of(self, shape, index, fmt.block_size, False, "take q.blocks[...] for blocks")
            steps = place.steps
        try:
            part = self._strided()[steps]
        except (IndexError, TypeError) as error:
            raise BlockIndexError(
                f"{picking(index, self)}: {error}; its shape is {shape}; stay within it"
            ) from None
        if place is not None and length != (place.end - place.first,) and shape:
            part = part[..., fmt.row_bytes(place.first) : fmt.row_bytes(place.end)]
            length = (place.end - place.first,)
        scale = self._scale
        if scale is not None:
            scale = scale_at(scale, shape[:-1], steps)
        array = QuantArray(fmt, part.shape[:-1] + length, part, self._swapped, scale)
        return array if type(part) is np.ndarray else self._derived(array)

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
