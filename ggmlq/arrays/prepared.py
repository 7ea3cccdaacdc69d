"""Prepared copies of weights (in a kernel's order) and recorded launches, which live with each array.

A copy is made once, and again when the bytes of the array have changed.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, Self

import numpy as np

from ..base.devices import cuda_device, is_host, on_device_of
from ..base.forks import in_child
from ..base.hooks import Hook
from ..errors import DeviceError
from .buffers import locked, owner_of, unchanging
from .protocols import inner


class _Locks:
    """One lock for each array, made at first use; new ones in a forked child, where the owners are gone."""

    def __init__(self) -> None:
        self._forget()
        in_child(self._forget)

    def _forget(self) -> None:
        self._guard, self._process = threading.Lock(), object()

    def of(self, array: PreparedCopies) -> Any:
        """The lock of an array in this process."""
        with self._guard:
            process, lock = array.lock
            if process is not self._process:
                lock = threading.RLock()
                array.lock = self._process, lock
            return lock


LOCKS = _Locks()
_MATRICES, _RECORDINGS = "matrices", "recordings"
MOST_RECORDINGS = {"cpu": 64, "cuda": 128}  # of an array: some kilobytes each, more on the host
_uses = itertools.count()
INTEGERS = (int, np.integer)
_digest = Hook("digests of an array's bytes")  # compiled code, which only writable arrays need


class FirstUse:
    """An attribute that is made when it is first used: weights have many slices, most of which need none."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make, self.inner = make, True  # no public member

    def __set_name__(self, kind: type, name: str) -> None:
        self._name = name

    def __get__(self, array: Any, kind: type) -> Any:
        if array is None:
            return self
        # One step of the dictionary: of two threads that come at once both get the same object.
        return array.__dict__.setdefault(self._name, self._make())


class _Making(threading.local):
    """The seconds that a thread has spent in making prepared copies."""

    seconds, depth = 0.0, 0

    def timed(self, make: Callable[[], Any]) -> Any:
        """The result of ``make``; of copies that are made of each other the whole counts."""
        begin, self.depth = time.perf_counter(), self.depth + 1
        try:
            return make()
        finally:
            self.depth -= 1
            if not self.depth:
                self.seconds += time.perf_counter() - begin


MAKING = _Making()


class Recording:
    """Recorded launches, and a number that tells when they were last used."""

    __slots__ = ("launches", "used")

    def __init__(self, launches: Any) -> None:
        self.launches, self.used = launches, next(_uses)


class PreparedCopies:
    """The base of arrays of weights that holds what kernels make of them: prepared copies and recordings."""

    memory: Any  # on which device it lies
    lock: tuple[Any, Any] = (None, None)  # the process that it is for, and the lock
    lasts = True  # False: what is made of the bytes is for one product, after which they may change
    recorded: Any = FirstUse(list)  # memory of products in CUDA graphs, which replays use again
    _owned: bool | None = None
    _prepared: Any = FirstUse(dict)
    _followed: Any = FirstUse(dict)  # with a digest of the bytes it was made of

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, index: Any) -> Any:
        raise NotImplementedError

    @inner
    def parts(self) -> tuple[Any, ...]:
        """The plain arrays that make up this array, as they are now."""
        raise NotImplementedError

    @inner
    def whole(self) -> None:
        """Restore dropped bytes, so that prepared copies may be freed without loss."""

    @property
    @inner
    def immutable(self) -> bool:
        """True if nobody can write to the array's bytes, so that prepared copies stay right.

        True on a device, where arrays are never read-only: see :meth:`drop_prepared`.
        """
        if self._owned or not (type(self.memory) is np.ndarray or is_host(self.memory)):
            return True
        parts = self.parts()
        if self._owned is None:  # whether the memory is a file's or of bytes: it stays so
            owners = map(owner_of, parts)
            self._owned = all(owner is not None and locked(owner) for owner in owners)
        return self._owned or all(map(unchanging, parts))

    @inner
    def lasting(self) -> Self:
        """The array itself, over memory of an owner that hands out a new array when its bytes change."""
        self._owned = True
        return self

    @inner
    def prepared(self, make: Callable[[Any], Any]) -> Any:
        """``make(self)``, made once and kept: the weights in the order that a kernel reads.

        Slices and copies of the array have prepared copies of their own. If the array's bytes are writable,
        each product examines them, and the copy is made again when they have changed.
        """
        if not self.lasts:
            if make not in self._prepared:
                self._prepared[make] = make(self)
            return self._prepared[make]
        if not self.immutable:
            return self._following(make)
        try:
            return self._prepared[make]
        except KeyError:
            pass
        with LOCKS.of(self):
            if make not in self._prepared:
                if is_host(self.memory):
                    self._prepared[make] = MAKING.timed(lambda: make(self))
                else:
                    what = f"{self!r} is not yet in the order that this kernel reads"
                    self._prepared[make] = MAKING.timed(lambda: cuda_device().once(what, lambda: make(self)))
            return self._prepared[make]

    def _following(self, make: Callable[[Any], Any]) -> Any:
        """The prepared copy of writable bytes on the host, made again when these have changed."""
        with LOCKS.of(self):
            now = tuple(_digest(part) for part in self.parts())
            before, copy = self._followed.get(make, (None, None))
            if now != before:
                self._followed.pop(make, None)
                copy = make(self)
                self._followed[make] = now, copy
            return copy

    @inner
    def matrices(self) -> tuple[Any, ...]:
        """The subarrays along the first axis, the same objects each time, so their prepared copies last."""
        parts: tuple[Any, ...] | None = self._prepared.get(_MATRICES)
        if parts is None:
            with LOCKS.of(self):
                parts = self._prepared.get(_MATRICES)
                if parts is None:
                    parts = tuple(self[i] for i in range(len(self)))
                    for part in parts if self._owned else ():
                        part.lasting()
                    self._prepared[_MATRICES] = parts
        return parts

    @inner
    def matrix_at(self: Self, index: Any) -> Self | None:
        """The subarray of that number, if :meth:`matrices` was called before; else None."""
        there: tuple[Self, ...] | None = self._prepared.get(_MATRICES)
        if there is None or not isinstance(index, INTEGERS) or isinstance(index, bool):
            return None
        return there[index] if -len(there) <= index < len(there) else None

    @inner
    def prepared_copy(self, make: Callable[[Any], Any]) -> Any:
        """The prepared copy that ``make`` made, or None; it makes none."""
        return self._prepared.get(make)

    @inner
    def take_prepared(self, make: Callable[[Any], Any], copy: Any) -> None:
        """Have a prepared copy that is there already; ``make`` would make the same."""
        with LOCKS.of(self):
            self._prepared.setdefault(make, copy)

    @inner
    def prepared_copies(self) -> list[Any]:
        """All prepared copies that exist."""
        return [copy for _, copy in self.prepared_by()]

    @inner
    def prepared_by(self) -> list[tuple[Any, Any]]:
        """All prepared copies that exist, each with the function that made it."""
        return [(make, copy) for make, copy in list(self._prepared.items()) if make is not _RECORDINGS]

    @property
    @inner
    def has_prepared(self) -> bool:
        """True if there are prepared copies, recordings or memory of products in CUDA graphs."""
        return bool(self._prepared or self.recorded)

    @inner
    def recording(self, key: Hashable) -> Any:
        """The recorded launch of a product with this array, or None."""
        recordings = self._prepared.get(_RECORDINGS)
        if not recordings or (entry := recordings.get(key)) is None:
            return None
        entry.used = next(_uses)
        return entry.launches

    @inner
    def keep_recording(self, key: Hashable, launches: Any) -> None:
        """Keep recorded launches until :meth:`drop_prepared`; of too many the least lately used go.

        A quarter of them goes at a time, for the search takes longer than a call.
        """
        with LOCKS.of(self):
            recordings: dict[Hashable, Recording] = self._prepared.setdefault(_RECORDINGS, {})
            most = MOST_RECORDINGS["cpu" if is_host(self.memory) else "cuda"]
            if key not in recordings and len(recordings) >= most:
                for old in sorted(recordings, key=lambda old: recordings[old].used)[: most // 4]:
                    del recordings[old]
            recordings[key] = Recording(launches)

    @inner
    def drop_recordings(self) -> None:
        """Drop all recordings, which hold memory of the array; the next products are recorded again."""
        with LOCKS.of(self):
            self._prepared.pop(_RECORDINGS, None)

    def drop_prepared(self) -> None:
        """Free prepared copies and recordings; the next product makes them again.

        If the bytes were dropped they are made again first: nothing is lost. CUDA graphs that hold
        products with this array must not be replayed any more. The call waits for the device, so it is an
        error while a graph is recorded.
        """
        self.forget(f"drop_prepared() of {self!r}", graphs=True)

    @inner
    def forget(self, request: str, graphs: bool = False) -> None:
        """Free prepared copies and recordings; with ``graphs`` memory of products in CUDA graphs, too."""
        with LOCKS.of(self), on_device_of(request, self.memory):
            self.whole()
            if not is_host(self.memory) and (self._prepared or (graphs and self.recorded)):
                cuda_device().refuse_capture(request)
                wait(request, "what kernels keep is still there")
            for part in self._prepared.get(_MATRICES, ()):
                part.forget(request, graphs)
            self._prepared.clear()
            self._followed.clear()
            if graphs:
                self.recorded.clear()


def wait(request: str, so_far: str) -> None:
    """Wait until no kernel on any stream reads the memory that is about to be freed."""
    try:
        cuda_device().wait()
    except Exception as error:
        raise DeviceError(
            f"{request}: the device cannot be waited for ({error}), as while any stream records a "
            f"CUDA graph; {so_far}; drop it when none is recorded"
        ) from error
