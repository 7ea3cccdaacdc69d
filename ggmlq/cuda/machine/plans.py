"""A product's launches, written down once and repeated: what every call has in common is found out once.

While a rung runs, each launch is noted (launch.py), with its arguments. Arrays among them are x, y, what is
kept with the weights, or memory for what one kernel hands to the next; of these four only the second is the
same in the next call. So the others become holes of prepared launches (prepared_launch.py), and the next
product of as many rows is: one piece of memory, a few addresses, and the driver.

That is right for rungs that do nothing but launch kernels, the same ones for every x of a shape: they say
so (``repeats`` of ``register``). A plan belongs to what is kept with the array, and is given back with
it. Any number of threads may use it, on any stream: prepared launches are taken by one at a time, and who
finds none makes one more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from . import device
from .launch import NOTED, Kernel
from .prepared_launch import Hole, Ready

X, Y, BETWEEN = 0, 1, 2  # which of the addresses of a call
APART = 256  # bytes: where memory between kernels may begin
Noted = tuple[Kernel, tuple[int, ...], tuple[int, ...], tuple[Any, ...], int, int]


class Plan:
    """The launches of a product."""

    def __init__(self, noted: list[Noted], x: Any, y: Any, kept: Iterable[Any]) -> None:
        self._kept = tuple(kept)  # arrays that prepared launches have the addresses of
        self._places: dict[int, int] = {}  # of memory between kernels, by its address while it was noted
        self.between = 0  # bytes of memory between kernels
        self._steps = [
            (kernel, grid, block, [self._hole(each, (x, y)) for each in arguments], cluster, most)
            for kernel, grid, block, arguments, cluster, most in noted
        ]
        self._free: list[tuple[Ready, ...]] = [self._made()]
        self._memory = device.cupy().cuda.alloc

    def _hole(self, argument: Any, ends: tuple[Any, Any]) -> Any:
        """What stands for an argument of a launch in all calls."""
        if not hasattr(argument, "data"):
            return argument
        at = argument.data.ptr
        for which, end in enumerate(ends):
            if end.data.ptr <= at < end.data.ptr + end.nbytes:
                return Hole(which, at - end.data.ptr)
        if any(each.data.ptr <= at < each.data.ptr + each.nbytes for each in self._kept):
            return argument
        if at not in self._places:
            self._places[at] = self.between
            self.between += -(-argument.nbytes // APART) * APART
        return Hole(BETWEEN, self._places[at])

    def _made(self) -> tuple[Ready, ...]:
        return tuple(
            kernel.ready(grid, block, *given, cluster=cluster, most=most)
            for kernel, grid, block, given, cluster, most in self._steps
        )

    def __call__(self, x: int, y: int, stream: int, between: int = 0) -> None:
        """The product of what lies at x, to y.

        ``between``: an address of memory that has so many bytes; without it CuPy gives some.
        """
        try:
            launches = self._free.pop()
        except IndexError:  # other threads have them all
            launches = self._made()
        if self.between and not between:
            memory = self._memory(self.between)  # goes back to the stream's pool when all is launched
            between = memory.ptr
        addresses = (x, y, between)
        for each in launches:
            each.launch(addresses, stream)
        self._free.append(launches)


def noted(run: Callable[[], None]) -> list[Noted]:
    """Run something and say what it launched in this thread."""
    found: list[Noted] = []
    NOTED.launches = found
    try:
        run()
    finally:
        NOTED.launches = None
    return found


def kept_with(q: Any) -> list[Any]:
    """The memory of weights, and arrays that kernels keep with them."""
    parts = [q.memory]
    for made in q.all_kept():
        parts += made if isinstance(made, tuple) else vars(made).values() if hasattr(made, "__dict__") else ()
    return [part for part in parts if hasattr(part, "data")]


def recorded(launch: Callable[..., None], x: Any, q: Any, y: Any) -> Plan | None:
    """Launch a product, and a plan for the next one; None where this one had to prepare the weights."""
    before = list(map(id, q.all_kept()))
    launches = noted(lambda: launch(x, q, y))
    if not before or before != list(map(id, q.all_kept())):
        return None
    return Plan(launches, x, y, kept_with(q))
