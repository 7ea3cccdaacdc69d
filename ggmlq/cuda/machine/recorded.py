"""A product's launches, recorded once and repeated: the work that every call has in common is done once.

While a rung runs, each launch is recorded (launch.py) with its arguments. x and y have a slot then
(base/slots.py), and so has memory in which a kernel leaves results for the next one, which rungs ask of
:func:`between`. All other arrays must be memory of the weights, or prepared with them, which is the same in
the next call. So the next product of as many rows takes one allocation, a few addresses and the driver's
calls (submit.py).

That is right for rungs that only launch kernels, the same ones for every x of a shape: they declare it
(``repeats`` of ``register``). A recording belongs to the prepared memory of its array, and is dropped with
it. Any number of threads may use it, on any stream: each takes a free list of prepared launches, or makes
one more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from ...base.slots import Slot, labelled, slot_of
from ...dispatch.epilogue import PLAIN, Epilogue
from . import device, serving
from .launch import RECORDING, Kernel
from .submit import PreparedLaunch

X, Y, WORKSPACE, BIAS, RESIDUAL = 0, 1, 2, 3, 4  # numbers of a call's addresses
APART = 256  # bytes to which arrays between kernels are aligned
RecordedLaunch = tuple[Kernel, tuple[int, ...], tuple[int, ...], tuple[Any, ...], int, int]


class RecordedLaunches:
    """Launches with slots for the addresses of a call, and the memory that they need between kernels.

    ``workspace``: its bytes. ``memory``: arrays whose addresses are in the launches.
    """

    def __init__(
        self, launches: Iterable[RecordedLaunch], workspace: int = 0, memory: Iterable[Any] = ()
    ) -> None:  # fmt: skip
        self._launches, self.workspace, self._owned = tuple(launches), workspace, tuple(memory)
        self._on_torch = serving.is_torch()
        self._free: list[tuple[PreparedLaunch, ...]] = [self._prepare()]
        self._allocate: Any = device.cupy().cuda.alloc if workspace else None

    def _prepare(self) -> tuple[PreparedLaunch, ...]:
        with serving.served_by(self._on_torch):
            return tuple(
                kernel.prepare(grid, block, *arguments, cluster=cluster, max_blocks=max_blocks)
                for kernel, grid, block, arguments, cluster, max_blocks in self._launches
            )

    def __call__(
        self, x: int, y: int, stream: int, workspace: int = 0, bias: int = 0, residual: int = 0
    ) -> None:  # fmt: skip
        """Launch the product of the array at ``x``, to ``y``.

        ``workspace``: the address of ``self.workspace`` bytes of memory; 0: CuPy allocates them. ``bias``,
        ``residual``: those of what the product adds, if anything.
        """
        if self.workspace and not workspace:
            memory = self._allocate(self.workspace)  # goes back to the stream's pool when all is launched
            workspace = memory.ptr
        self.launch((x, y, workspace, bias, residual), stream)

    def launch(self, addresses: Sequence[int], stream: int) -> None:
        """Launch all on a stream; ``addresses``: those of the slots, by their numbers."""
        try:
            launches = self._free.pop()
        except IndexError:  # other threads use them all
            launches = self._prepare()
        for each in launches:
            each.launch(addresses, stream)
        self._free.append(launches)


def between(shape: int | tuple[int, ...], dtype: Any) -> Any:
    """An empty array in which a kernel leaves results for the next one; each recorded call has its own."""
    array = device.cupy().empty(shape, dtype)
    if RECORDING.launches is None:
        return array
    slot = Slot(WORKSPACE, RECORDING.workspace)
    RECORDING.workspace += -(-array.nbytes // APART) * APART
    return labelled(array, slot)


def recorded_launches(run: Callable[[], None]) -> tuple[list[RecordedLaunch], int]:
    """The launches that this thread makes while ``run`` runs, and the bytes of their workspace."""
    launches: list[RecordedLaunch] = []
    RECORDING.launches, RECORDING.workspace = launches, 0
    try:
        run()
    finally:
        RECORDING.launches = None
    return launches, RECORDING.workspace


def prepared_memory(q: Any) -> list[Any]:
    """The arrays that hold the memory of weights, and those that kernels prepared from them."""
    parts = [q.memory]
    for item in q.prepared_copies():
        parts += item if isinstance(item, tuple) else vars(item).values() if hasattr(item, "__dict__") else ()
    return [part for part in parts if hasattr(part, "data")]


def recorded_product(
    launch: Callable[..., None], x: Any, q: Any, y: Any, end: Epilogue = PLAIN
) -> RecordedLaunches | None:  # fmt: skip
    """Launch a product and record it for the next one; None where weights were not prepared before.

    None, too, where a launch has an array that is neither labelled nor prepared with the weights.
    """
    ids_before = list(map(id, q.prepared_copies()))
    parts = {"bias": (end.bias, BIAS), "residual": (end.residual, RESIDUAL)}
    addends = {name: labelled(part, Slot(slot)) for name, (part, slot) in parts.items() if part is not None}
    options = {"end": end._replace(**addends)} if addends else {}
    arrays = labelled(x, Slot(X)), labelled(y, Slot(Y))
    launches, workspace = recorded_launches(lambda: launch(arrays[0], q, arrays[1], **options))
    if not ids_before or ids_before != list(map(id, q.prepared_copies())):
        return None
    memory = prepared_memory(q)
    owners = {id(_owner(part)) for part in memory}
    steps: list[RecordedLaunch] = []
    for kernel, grid, block, arguments, cluster, max_blocks in launches:
        words = tuple(map(_slotted, arguments))
        if any(hasattr(word, "data") and id(_owner(word)) not in owners for word in _flat(words)):
            return None
        steps.append((kernel, grid, block, words, cluster, max_blocks))
    return RecordedLaunches(steps, workspace, memory)


def _slotted(argument: Any) -> Any:
    """An argument with slots in place of the arrays that a call brings."""
    if type(argument) is tuple:
        return tuple(map(_slotted, argument))
    return (slot_of(argument) or argument) if hasattr(argument, "data") else argument


def _flat(arguments: Iterable[Any]) -> Iterator[Any]:
    """Arguments, and the elements of those that are tuples."""
    for argument in arguments:
        yield from argument if type(argument) is tuple else (argument,)


def _owner(array: Any) -> Any:
    """The array whose memory an array is, or is a part of."""
    while getattr(array, "base", None) is not None:
        array = array.base
    return array


# A second stream, for work beside that of the current one; it joins the current one at the end.
#
# Streams are reused, one user at a time. A stream that a CUDA graph has recorded belongs to that recording
# until it ends, so it is skipped until then.


class SideStream(NamedTuple):
    """A stream, with events for the start and the end of its work."""

    stream: Any
    begun: Any
    done: Any


_FREE: dict[int, list[SideStream]] = {}  # free ones of each device


def _borrow(index: int) -> SideStream:
    free, recording = _FREE.setdefault(index, []), []
    try:
        while free:
            try:
                side = free.pop()
            except IndexError:  # another thread took the last one
                break
            if not side.stream.is_capturing():
                return side
            recording.append(side)
    finally:
        free += recording
    cuda = device.cupy().cuda
    return SideStream(
        cuda.Stream(non_blocking=True), cuda.Event(disable_timing=True), cuda.Event(disable_timing=True)
    )


@contextmanager
def fork(index: int, main: Any) -> Iterator[Any]:
    """A context with a stream that starts where ``main`` is; ``main`` waits for it at the end, always."""
    side = _borrow(index)
    side.begun.record(main)
    side.stream.wait_event(side.begun)
    try:
        yield side.stream
    finally:
        side.done.record(side.stream)
        main.wait_event(side.done)
        _FREE[index].append(side)
