"""The bytes of a QuantArray, which may be dropped while a prepared copy on a GPU holds all their bits."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, Self
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from ..base.devices import cuda_device, cuda_module, device_of, is_host, on_device_of
from ..errors import DeviceError
from ..formats import Format
from .buffers import frozen
from .companion import Scale
from .members import inner
from .prepared import LOCKS, PreparedCopies, wait


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

    def __init__(self, stored: Any, swapped: bool, scale: Scale | None = None) -> None:
        super().__init__()
        self._scale = scale  # beside the bytes; products and decoded values are multiplied by it
        # On a GPU a view whose rows lie apart; of it a copy is made for whoever needs rows that lie together.
        self._view = None if is_host(stored) or stored.flags.c_contiguous else stored
        self._stored: Any = stored if self._view is None else None  # None where the bytes were dropped, too
        self._swapped = swapped
        self.memory = stored  # the bytes as stored or, where they were dropped, what products read instead
        self._kin: Kin | None = None  # on a GPU, where rows may be put

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
        return not self._swapped and bool(self._stored.flags.writeable)

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

    @property
    @inner
    def has_bytes(self) -> bool:
        """True where the bytes are there, False where packed weights stand for them."""
        return self._stored is not None or self._view is not None

    def parts(self) -> tuple[Any, ...]:
        return (self.raw,)

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
        and q8_K. ``cuda:gemv``, ``cuda:mma_bf16``, ``cuda:wgmma``, ``cuda:dequant_bf16`` and ``cuda:grouped``
        go on as before. What needs the bytes (:attr:`raw`, ``to``, ``dequantize``, slices, copies, pickle,
        other kernels) makes them again, the same to the bit, and keeps them until this is called again; a
        CUDA graph cannot record that.

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
                self.memory, self._stored = cuda_module("packed.to_blocks").packed_memory(request, self), None
                self.drop_recordings()  # which hold the bytes
                try:
                    wait(request, "the bytes are still there")
                except DeviceError:
                    self.memory = self._stored = stored
                    raise

    def _strided(self) -> Any:
        return self._bytes() if self._view is None else self._view

    def _restored(self) -> Any:
        view = self._view
        with LOCKS.of(self), on_device_of(f"the bytes of {self!r}, for what needs all of them", self.memory):
            if self._stored is None:
                if view is not None and cuda_device().capturing(view.device.id):
                    return view.copy()  # of each replay
                what = f"the bytes of {self!r} were dropped, and something needs them"
                make = cuda_module("packed.to_blocks").restored if view is None else _together
                self._stored = self.memory = cuda_device().once(what, lambda: make(self))
            return self._stored


def _together(q: Storage) -> Any:
    """A copy of rows that lie apart."""
    return q.strided.copy()
