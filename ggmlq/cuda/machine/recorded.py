"""A product's launches, written down once and repeated: what every call has in common is found out once.

While a rung runs, each launch is noted (launch.py), with its arguments. Arrays among them are x, y, what is
kept with the weights, or memory for what one kernel hands to the next; of these four only the second is
the same in the next call. So the others become holes of prepared launches (prepared_launch.py), and the next product
of as many rows is: one piece of memory, a few addresses, and the driver.

That is right for rungs that do nothing but launch kernels, the same ones for every x of a shape: they say
so (``repeats`` of ``register``). A plan belongs to what is kept with the array, and is given back with
it. Any number of threads may use it, on any stream: prepared launches are taken by one at a time, and who
finds none makes one more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from . import device
from .launch import RECORDING, Kernel
from .prepared_launch import AddressSlot, PreparedLaunch

X, Y, WORKSPACE = 0, 1, 2  # which of the addresses of a call
APART = 256  # bytes: where memory between kernels may begin
LaunchRecord = tuple[Kernel, tuple[int, ...], tuple[int, ...], tuple[Any, ...], int, int]


class RecordedLaunches:
    """The launches of a product."""

    def __init__(self, record_launches: list[LaunchRecord], x: Any, y: Any, kept: Iterable[Any]) -> None:
        self._prepared = tuple(kept)  # arrays that prepared launches have the addresses of
        self._places: dict[int, int] = {}  # of memory between kernels, by its address while it was noted
        self.workspace = 0  # bytes of memory between kernels
        self._steps = [
            (kernel, grid, block, [self._slot_for(each, (x, y)) for each in arguments], cluster, max_blocks)
            for kernel, grid, block, arguments, cluster, max_blocks in record_launches
        ]
        self._free: list[tuple[PreparedLaunch, ...]] = [self._prepare()]
        self._memory = device.cupy().cuda.alloc

    def _slot_for(self, argument: Any, ends: tuple[Any, Any]) -> Any:
        """What stands for an argument of a launch in all calls."""
        if not hasattr(argument, "data"):
            return argument
        at = argument.data.ptr
        for which, end in enumerate(ends):
            if end.data.ptr <= at < end.data.ptr + end.nbytes:
                return AddressSlot(which, at - end.data.ptr)
        if any(each.data.ptr <= at < each.data.ptr + each.nbytes for each in self._prepared):
            return argument
        if at not in self._places:
            self._places[at] = self.workspace
            self.workspace += -(-argument.nbytes // APART) * APART
        return AddressSlot(WORKSPACE, self._places[at])

    def _prepare(self) -> tuple[PreparedLaunch, ...]:
        return tuple(
            kernel.prepare(grid, block, *given, cluster=cluster, max_blocks=max_blocks)
            for kernel, grid, block, given, cluster, max_blocks in self._steps
        )

    def __call__(self, x: int, y: int, stream: int, workspace: int = 0) -> None:
        """The product of what lies at x, to y.

        ``between``: an address of memory that has so many bytes; without it CuPy gives some.
        """
        try:
            launches = self._free.pop()
        except IndexError:  # other threads have them all
            launches = self._prepare()
        if self.workspace and not workspace:
            memory = self._memory(self.workspace)  # goes back to the stream's pool when all is launched
            workspace = memory.ptr
        addresses = (x, y, workspace)
        for each in launches:
            each.launch(addresses, stream)
        self._free.append(launches)


def record_launches(run: Callable[[], None]) -> list[LaunchRecord]:
    """Run something and say what it launched in this thread."""
    found: list[LaunchRecord] = []
    RECORDING.launches = found
    try:
        run()
    finally:
        RECORDING.launches = None
    return found


def prepared_memory(q: Any) -> list[Any]:
    """The memory of weights, and arrays that kernels keep with them."""
    parts = [q.memory]
    for made in q.all_kept():
        parts += made if isinstance(made, tuple) else vars(made).values() if hasattr(made, "__dict__") else ()
    return [part for part in parts if hasattr(part, "data")]


def record_product(launch: Callable[..., None], x: Any, q: Any, y: Any) -> RecordedLaunches | None:
    """Launch a product, and a plan for the next one; None where this one had to prepare the weights."""
    before = list(map(id, q.all_kept()))
    launches = record_launches(lambda: launch(x, q, y))
    if not before or before != list(map(id, q.all_kept())):
        return None
    return RecordedLaunches(launches, x, y, prepared_memory(q))
