"""What an array holds: bytes, prepared copies, and dropping the bytes."""

from __future__ import annotations

import importlib
import math
import os
import threading
from collections.abc import Callable
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .buffers import frozen, locked, owner_of, unchanging
from .devices import cuda_device, cuda_module, device_of, is_host, on_device_of
from .errors import DeviceError
from .formats import Format


class _Locks:
    """A lock an array, made when first needed, and anew in a forked child: there its owner is gone."""

    def __init__(self) -> None:
        self._forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._guard, self._process = threading.Lock(), object()

    def of(self, array: Storage) -> Any:
        """The lock of an array in this process."""
        with self._guard:
            process, lock = array.lock
            if process is not self._process:
                lock = threading.RLock()
                array.lock = self._process, lock
            return lock


_LOCKS = _Locks()


class Storage:
    """The memory of a :class:`ggmlq.QuantArray`."""

    _format: Format
    _shape: tuple[int, ...]

    def __init__(self, stored: Any, swapped: bool) -> None:
        self._stored = stored  # None where the bytes were dropped
        self._swapped = swapped
        self._prepared: dict[Any, Any] = {}
        self._followed: dict[Any, tuple[bytes, Any]] = {}  # with a digest of the bytes that it was made of
        self.lock: tuple[Any, Any] = (None, None)  # the process that it is for, and the lock
        self.memory = stored  # the bytes as stored or, where they were dropped, what products read instead
        self.recorded: list[Any] = []  # memory of products in CUDA graphs, which replays use again

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

        If they were dropped they are made again, and stay.
        """
        return self._little if self._swapped else self._bytes()

    def _bytes(self) -> Any:
        stored = self._stored
        return self._restored() if stored is None else stored

    @cached_property
    def _little(self) -> NDArray[np.uint8]:
        return frozen(self._format.byteswapped(self._stored))

    @property
    def lasting(self) -> bool:
        """Whether nobody can write to its bytes, so that kernels may keep what they make of them.

        True on a device, where arrays are never read-only: see :meth:`drop_prepared`.
        """
        return not is_host(self.memory) or self._locked or unchanging(self.memory)

    @cached_property
    def _locked(self) -> bool:
        """Whether the memory is a file's or of bytes, which stays so: asked once, not in each product."""
        owner = owner_of(self._stored)
        return owner is not None and locked(owner)

    # --- what kernels keep with it --------------------------------------------------------

    def prepared(self, make: Callable[[Any], Any]) -> Any:
        """``make(self)``, made once and kept: the weights in the order that a kernel reads.

        Slices and copies have their own. Where the bytes may be written to they are looked at in each
        product, and it is made again when they have changed.
        """
        if not self.lasting:
            return self._following(make)
        try:
            return self._prepared[make]
        except KeyError:
            pass
        with _LOCKS.of(self):
            if make not in self._prepared:
                if is_host(self.memory):
                    self._prepared[make] = make(self)
                else:
                    what = f"{self!r} is not yet in the order that this kernel reads"
                    self._prepared[make] = cuda_device().once(what, lambda: make(self))
            return self._prepared[make]

    def _following(self, make: Callable[[Any], Any]) -> Any:
        """The same for bytes on the host that may be written to."""
        with _LOCKS.of(self):
            now = _digest()(self.raw)
            before, made = self._followed.get(make, (None, None))
            if now != before:
                self._followed.pop(make, None)
                made = make(self)
                self._followed[make] = now, made
            return made

    def kept(self, make: Callable[[Any], Any]) -> Any:
        """What :meth:`prepared` made before, or None."""
        return self._prepared.get(make)

    def drop_prepared(self) -> None:
        """Give back the memory of what kernels keep; the next product makes it again.

        If the bytes were dropped they are made again first: nothing is lost. CUDA graphs that hold
        products with this array must not be replayed any more. It waits for the device; while a graph is
        recorded it cannot.
        """
        asked = f"drop_prepared() of {self!r}"
        with _LOCKS.of(self), on_device_of(asked, self.memory):
            self._bytes()
            if not is_host(self.memory) and (self._prepared or self.recorded):
                cuda_device().refuse_capture(asked)
                _wait(asked, "what kernels keep is still there")
            self._prepared.clear()
            self._followed.clear()
            self.recorded.clear()

    # --- without the bytes ------------------------------------------------------------------

    def drop_raw(self) -> None:
        """Give back the memory of the bytes: on a GPU, what products read holds all their bits.

        For arrays [N, K] on a device, of every format but those with code books, tq1_0 and q8_K.
        ``cuda:gemv``, ``cuda:mma_bf16``, ``cuda:wgmma`` and ``cuda:dequant_bf16`` go on as before. What
        needs the bytes (:attr:`raw`, ``to``, ``dequantize``, slices, copies, pickle, other kernels) makes
        them again, the same to the bit, and keeps them until this is called again; a CUDA graph cannot
        record that.

        Memory that someone else holds is not freed: the array or tensor that the bytes came from, or
        slices, which are views. CUDA graphs of kernels that read the bytes must not be replayed any more.
        """
        asked = f"drop_raw() of {self!r}"
        if is_host(self.memory):
            raise DeviceError(
                f"{asked}: it is on the host, whose kernels read the bytes themselves; only an array on a "
                'GPU can do without; use q.to("cuda") first'
            )
        with _LOCKS.of(self), on_device_of(asked, self.memory):
            stored = self._stored
            if stored is not None:
                self.memory, self._stored = cuda_module("strips.to_blocks").kept_instead(asked, self), None
                try:
                    _wait(asked, "the bytes are still there")
                except DeviceError:
                    self.memory = self._stored = stored
                    raise

    def _restored(self) -> Any:
        with _LOCKS.of(self), on_device_of(f"the bytes of {self!r}, which were dropped", self.memory):
            if self._stored is None:
                what = f"the bytes of {self!r} were dropped, and something needs them"
                make = cuda_module("strips.to_blocks").restored
                self._stored = self.memory = cuda_device().once(what, lambda: make(self))
            return self._stored


@cache
def _digest() -> Callable[[Any], bytes]:
    """What tells bytes from others, compiled: by name, when the first array that may be written to asks."""
    found: Callable[[Any], bytes] = importlib.import_module("ggmlq.cpu.machine.digest").digest
    return found


def _wait(asked: str, so_far: str) -> None:
    """Until no kernel reads the memory that is to be given back, on any stream."""
    try:
        cuda_device().wait()
    except Exception as error:
        raise DeviceError(
            f"{asked}: the device cannot be waited for ({error}), as while any stream records a "
            f"CUDA graph; {so_far}; drop it when none is recorded"
        ) from error
