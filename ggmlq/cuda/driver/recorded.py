"""A product's launches, recorded once and repeated: the work that every call has in common is done once.

While a rung runs, each launch is recorded (launch.py) with its arguments. x and y have a slot then
(base/slots.py), and so has memory in which a kernel leaves results for the next one, which rungs ask of
:func:`between`, and what was prepared of the weights, which they label by :func:`part`. So the next product
takes one allocation, a few addresses and the driver's calls (submit.py).

The number of rows is labelled, too, and what follows from it. So a recording is a *template* for other rows
of a bucket, and for other weights of its format and shape: a few words differ. What a rung decides by the
number of rows, such as its tile, it decides by :func:`decided`: a template serves the rows around its own for
which all decisions are the same.

That is right for rungs that only launch kernels, the same ones for every x of a shape: they declare it
(``repeats`` of ``register``). Launches belong to the prepared memory of their array, and are dropped with
it; a template holds no memory. Any number of threads may use both, on any stream.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from ...base.slots import Element, Rows, Slot, labelled
from ...dispatch.epilogue import PLAIN, Epilogue
from . import device, serving
from .launch import RECORDING, Launch
from .submit import Follower, PreparedLaunches

X, Y, WORKSPACE, BIAS, RESIDUAL = 0, 1, 2, 3, 4  # numbers of a call's addresses
PARTS = 5  # the first number of what is prepared of weights
APART = 256  # bytes to which arrays between kernels are aligned
EIGHT, FEW = 8, (0, 1, 2, 4, 8)  # rows of a bucket; the last rows of the first buckets


def bucket(rows: int) -> range:
    """The numbers of rows that may share a template: 1, 2, 3 and 4, 5 to 8, and then eight by eight.

    Tiles are multiples of eight rows, kernels for a few rows are made for powers of two.
    """
    if rows > FEW[-1]:
        first = (rows - 1) // EIGHT * EIGHT + 1
        return range(first, first + EIGHT)
    last = next(last for last in FEW if last >= rows)
    return range(last // 2 + 1 if last else 0, last + 1)


class RecordedLaunches:
    """Launches with slots for the addresses of a call, and the memory that they need between kernels.

    ``workspace``: its bytes; ``allocate`` gives them. ``memory``: arrays whose addresses are in launches.
    """

    def __init__(
        self, prepared: PreparedLaunches, workspace: int = 0, memory: tuple[Any, ...] = (),
        allocate: Any = None,
    ) -> None:  # fmt: skip
        self.prepared, self.workspace, self._owned, self._allocate = prepared, workspace, memory, allocate
        # (addresses of the slots, by their numbers; a stream) launches all.
        self.launch: Callable[[Sequence[int], int], None] = prepared.launch

    @classmethod
    def of(cls, launches: Iterable[Launch]) -> RecordedLaunches:
        """Launches that need no memory between them."""
        return cls(PreparedLaunches(launch.loaded() for launch in launches))

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


# --- what rungs label ---------------------------------------------------------------------------


def between(shape: int | tuple[int, ...], dtype: Any) -> Any:
    """An empty array in which a kernel leaves results for the next one; each recorded call has its own.

    Where its shape follows from the rows, the place of a recorded one is enough for all rows of a bucket. So
    those behind it lie at the same places for all of them.
    """
    sizes = shape if isinstance(shape, tuple) else (shape,)
    array = device.cupy().empty(tuple(map(int, sizes)), dtype)
    if RECORDING.launches is None:
        return array
    slot, most = Slot(WORKSPACE, RECORDING.workspace), RECORDING.most
    count = math.prod(size.of(most) if type(size) is Rows else size for size in sizes)
    RECORDING.workspace += -(-count * np.dtype(dtype).itemsize // APART) * APART
    return labelled(array, slot, sizes[0] if type(sizes[0]) is Rows else None)


def part(q: Any, find: Callable[[Any], Any]) -> Any:
    """``find(q)``, an array that was prepared of weights: labelled while a product with them is recorded."""
    array = find(q)
    if RECORDING.launches is None or RECORDING.weights is not q:
        return array
    if find not in RECORDING.parts:
        RECORDING.parts.append(find)
    return labelled(array, Slot(PARTS + RECORDING.parts.index(find)))


def decided(decide: Callable[..., Any], rows: int, *facts: Hashable) -> Any:
    """``decide(rows, *facts)``, which may hang on the rows: a recording serves rows with the same decision.

    The result has no other use of the rows: none of its numbers may follow from them within a bucket.
    """
    decision = decide(int(rows), *facts)
    if RECORDING.launches is not None:
        RECORDING.decisions.append((decide, facts, decision))
    return decision


def across(rows: int, columns: int) -> int:
    """The tiles of so many columns that hold all rows, decided: recordings serve rows with as many."""
    tiles: int = decided(_tiles, rows, columns)
    return tiles


def _tiles(rows: int, columns: int) -> int:
    return -(-rows // columns)


# --- templates ------------------------------------------------------------------------------------


class Numbers(NamedTuple):
    """Neighbouring words that follow from the rows: the place of the first, and a function for all."""

    place: int
    of: Callable[[int], tuple[int, ...]]


class Template:
    """A recorded product, which serves other rows and other weights of its format and shape.

    ``rows``: those that it serves.
    """

    def __init__(
        self, rows: range, recorded: int, launches: Iterable[Launch], workspace: int,
        parts: Sequence[Callable[[Any], Any]], q: Any,
    ) -> None:  # fmt: skip
        self.rows, self._recorded, self._workspace = rows, recorded, workspace
        self._parts = tuple(parts)
        self._prepared = PreparedLaunches(launch.loaded() for launch in launches)
        self._format, self._shape = q.format, q.shape
        self._on_torch, self._device = serving.is_torch(), device.current()
        self._allocate: Any = device.cupy().cuda.alloc if workspace else None
        slots, followers = self._prepared.slots, self._prepared.followers
        self._slots = [slot for slot in slots if slot[1] < PARTS]
        self._holes = [(i, number - PARTS, offset) for i, number, offset in slots if number >= PARTS]
        self._numbers = [(i, of) for i, of in followers if type(of) is not Element]
        self._groups = _groups(followers)

    def launches(self, q: Any, rows: int) -> RecordedLaunches | None:
        """The launches of a product of so many rows with an array; None for others than those it serves.

        The array is prepared if it is not yet, which takes time, and fails while a graph is recorded.
        """
        if rows not in self.rows or q.format is not self._format or q.shape != self._shape:
            return None
        if serving.is_torch() is self._on_torch:
            memory = tuple([find(q) for find in self._parts])
        else:
            with serving.served_by(self._on_torch):
                memory = tuple(find(q) for find in self._parts)
        pointers = [array.data for array in memory]
        for pointer in pointers:
            if pointer.device_id != self._device:
                return None
        prepared = self._prepared.copy(self._slots)
        words = prepared.words
        for i, number, offset in self._holes:
            words[i] = pointers[number].ptr + offset
        if rows != self._recorded:
            for i, of in self._numbers:
                words[i] = of(rows)
            for first, numbers_of in self._groups:
                for i, word in enumerate(numbers_of(rows), first):
                    words[i] = word
        return RecordedLaunches(prepared, self._workspace, memory, self._allocate)


def _groups(followers: Iterable[Follower]) -> list[Numbers]:
    """The words that follow from rows several at a time."""
    groups: list[Numbers] = []
    for i, of in followers:
        if type(of) is Element and of.place == 0:
            groups.append(Numbers(i, of.numbers))
        elif type(of) is Element:
            assert groups[-1] == (i - of.place, of.numbers), "they stand side by side, in their order"
    return groups


def recorded_launches(
    run: Callable[[], None], most: int = 0, weights: Any = None
) -> tuple[list[Launch], int]:  # fmt: skip
    """The launches that this thread makes while ``run`` runs, and the bytes of their workspace.

    ``most``: rows for which those bytes are enough. ``weights``: the array whose parts are labelled.
    """
    launches: list[Launch] = []
    RECORDING.launches, RECORDING.workspace, RECORDING.most = launches, 0, most
    RECORDING.weights, RECORDING.parts, RECORDING.decisions = weights, [], []
    try:
        run()
    finally:
        RECORDING.launches = RECORDING.weights = None
    return launches, RECORDING.workspace


def record(
    launch: Callable[..., None], x: Any, q: Any, y: Any, end: Epilogue = PLAIN, alone: bool = False
) -> Template | None:  # fmt: skip
    """Launch a product and record it for others; None where weights were not prepared before.

    None, too, where a launch has an array that is neither labelled nor prepared with the weights. ``alone``:
    for no other number of rows.
    """
    ids_before, count = list(map(id, q.prepared_copies())), len(x)
    parts = {"bias": (end.bias, BIAS), "residual": (end.residual, RESIDUAL)}
    addends = {name: labelled(part, Slot(slot)) for name, (part, slot) in parts.items() if part is not None}
    options = {"end": end._replace(**addends)} if addends else {}
    rows = Rows(count)
    arrays = labelled(x, Slot(X), rows), labelled(y, Slot(Y), rows)
    launches, workspace = recorded_launches(
        lambda: launch(arrays[0], q, arrays[1], **options), bucket(count)[-1], q
    )
    if not launches or not ids_before or ids_before != list(map(id, q.prepared_copies())):
        return None
    steps: list[Launch] = []
    for each in launches:
        words = each.kernel.with_slots(each.arguments)
        if any(hasattr(word, "data") for word in _flat(words)):
            return None
        steps.append(each._replace(arguments=words))
    is_alone = alone or RECORDING.ahead
    served = range(count, count + 1) if is_alone else _served(count, RECORDING.decisions)
    return Template(served, count, steps, workspace, RECORDING.parts, q)


def _served(count: int, decisions: Sequence[tuple[Callable[..., Any], tuple[Any, ...], Any]]) -> range:
    """The rows around ``count``, in its bucket, for which all decisions are those that were taken."""
    able, first, last = bucket(count), count, count

    def same(rows: int) -> bool:
        return all(decide(rows, *facts) == taken for decide, facts, taken in decisions)

    while first - 1 in able and same(first - 1):
        first -= 1
    while last + 1 in able and same(last + 1):
        last += 1
    return range(first, last + 1)


def recorded_product(
    launch: Callable[..., None], x: Any, q: Any, y: Any, end: Epilogue = PLAIN
) -> RecordedLaunches | None:  # fmt: skip
    """Launch a product and record it for the next one of as many rows; None as of :func:`record`."""
    template = record(launch, x, q, y, end)
    return None if template is None else template.launches(q, len(x))


def _flat(arguments: Iterable[Any]) -> Iterator[Any]:
    """Arguments, and the elements of those that are tuples."""
    for argument in arguments:
        yield from argument if type(argument) is tuple else (argument,)


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
