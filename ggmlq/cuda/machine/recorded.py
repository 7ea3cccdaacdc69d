"""A product's launches, recorded once and repeated: the work that every call has in common is done once.

While a rung runs, each launch is recorded (launch.py) with its arguments. Arrays among them are x, y,
memory that was prepared with the weights, or a workspace in which a kernel leaves results for the next one.
Only the prepared memory is the same in the next call. So the others become address slots of prepared
launches (prepared_launch.py), and the next product of as many rows takes one allocation, a few addresses
and the driver's calls.

That is right for rungs that only launch kernels, the same ones for every x of a shape: they declare it
(``repeats`` of ``register``). A recording belongs to the prepared memory of its array, and is dropped with
it. Any number of threads may use it, on any stream: each takes a free list of prepared launches, or makes
one more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from . import device
from .launch import RECORDING, Kernel
from .prepared_launch import AddressSlot, PreparedLaunch

X, Y, WORKSPACE = 0, 1, 2  # numbers of a call's addresses
APART = 256  # bytes to which arrays between kernels are aligned
RecordedLaunch = tuple[Kernel, tuple[int, ...], tuple[int, ...], tuple[Any, ...], int, int]


class RecordedLaunches:
    """The launches of a product, with slots for the addresses of a call."""

    def __init__(self, launches: list[RecordedLaunch], x: Any, y: Any, prepared: Iterable[Any]) -> None:
        self._prepared = tuple(prepared)  # arrays whose addresses are in prepared launches
        self._offsets: dict[int, int] = {}  # offsets in the workspace, by address at the time of recording
        self.workspace = 0  # bytes of memory between kernels
        operands = x, y
        self._steps = [
            (kernel, grid, block, [self._slot_for(a, operands) for a in arguments], cluster, max_blocks)
            for kernel, grid, block, arguments, cluster, max_blocks in launches
        ]
        self._free: list[tuple[PreparedLaunch, ...]] = [self._prepare()]
        self._memory = device.cupy().cuda.alloc

    def _slot_for(self, argument: Any, operands: tuple[Any, Any]) -> Any:
        """An argument for all later calls: a slot where it is an array that changes, else the argument."""
        if not hasattr(argument, "data"):
            return argument
        at = argument.data.ptr
        for number, operand in enumerate(operands):
            if operand.data.ptr <= at < operand.data.ptr + operand.nbytes:
                return AddressSlot(number, at - operand.data.ptr)
        if any(array.data.ptr <= at < array.data.ptr + array.nbytes for array in self._prepared):
            return argument
        if at not in self._offsets:
            self._offsets[at] = self.workspace
            self.workspace += -(-argument.nbytes // APART) * APART
        return AddressSlot(WORKSPACE, self._offsets[at])

    def _prepare(self) -> tuple[PreparedLaunch, ...]:
        return tuple(
            kernel.prepare(grid, block, *arguments, cluster=cluster, max_blocks=max_blocks)
            for kernel, grid, block, arguments, cluster, max_blocks in self._steps
        )

    def __call__(self, x: int, y: int, stream: int, workspace: int = 0) -> None:
        """Launch the product of the array at ``x``, to ``y``.

        ``workspace``: the address of ``self.workspace`` bytes of memory; 0: CuPy allocates them.
        """
        try:
            launches = self._free.pop()
        except IndexError:  # other threads use them all
            launches = self._prepare()
        if self.workspace and not workspace:
            memory = self._memory(self.workspace)  # goes back to the stream's pool when all is launched
            workspace = memory.ptr
        addresses = (x, y, workspace)
        for launch in launches:
            launch.launch(addresses, stream)
        self._free.append(launches)


def recorded_launches(run: Callable[[], None]) -> list[RecordedLaunch]:
    """The launches that this thread makes while ``run`` runs; it runs here, once."""
    launches: list[RecordedLaunch] = []
    RECORDING.launches = launches
    try:
        run()
    finally:
        RECORDING.launches = None
    return launches


def prepared_memory(q: Any) -> list[Any]:
    """The arrays that hold the memory of weights, and those that kernels prepared from them."""
    parts = [q.memory]
    for item in q.prepared_copies():
        parts += item if isinstance(item, tuple) else vars(item).values() if hasattr(item, "__dict__") else ()
    return [part for part in parts if hasattr(part, "data")]


def recorded_product(launch: Callable[..., None], x: Any, q: Any, y: Any) -> RecordedLaunches | None:
    """Launch a product and record it for the next one; None where weights were not prepared before."""
    ids_before = list(map(id, q.prepared_copies()))
    launches = recorded_launches(lambda: launch(x, q, y))
    if not ids_before or ids_before != list(map(id, q.prepared_copies())):
        return None
    return RecordedLaunches(launches, x, y, prepared_memory(q))
