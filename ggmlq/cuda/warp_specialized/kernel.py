"""The warp-specialised kernel of Hopper: ``kernel(weights, schedule, epilogue)``.

    producers   the last warps: they keep a ring of stages full, across the end of a tile too
    consumers   the first warps: they wait for full stages, multiply them, and give sums to the epilogue
    weights     what is multiplied: packed blocks (consumers.py), or 8-bit codes (codes8/consumers.py)
    schedule    the tiles of a block, the steps of them, and where these lie: one product, or that of experts,
                with or without a split along K (schedules.py, codes8/schedules.py)
    epilogue    from sums to results, by consumers alone or together at the end of a block

Every such product is a call of this function. A schedule has the parameters of its kernels in tuples, each
for one thing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..intrinsics import barrier as barriers
from ..intrinsics.atoms import inlined
from ..intrinsics.language import uint32
from ..machine.launch import Kernel


class Frame(NamedTuple):
    """The warps of a block, and what it takes of a multiprocessor."""

    consumers: int  # warps
    threads: int
    shared: int  # bytes
    blocks: int = 1  # on a multiprocessor
    registers: tuple[int, int] | None = None  # of a producer's and of a consumer's thread, where they move
    lto: bool = True  # the assembler gets the whole kernel: machine/launch.py


class Weights(NamedTuple):
    """The operand that a kernel multiplies with, and its consumers."""

    frame: Frame
    consumer: Callable[..., Any]  # (schedule, epilogue) -> device function (ring, full, warp, tasks)
    words: tuple[int, int] = (0, 0)  # of codes: of their operands and sizes
    read: Any = None  # of codes: device function for the parts of both


class Schedule(NamedTuple):
    """The work of a kernel's blocks, and its producers.

    ``tasks``, ``sources`` and ``ends`` are tuples of the schedule's own: for consumers, for producers, and
    for the end of a block.
    """

    parameters: tuple[Any, ...]  # their types
    enclose: Callable[..., Any]  # (run) -> the kernel's function, which begins a block and calls ``run``
    produce: Any  # device function (ring, full, warp, sources)
    close: Any  # device function (ring, full, ends)
    walk: Any = None  # device functions by which consumers go from tile to tile
    shared: int = 0  # bytes that it adds to those of the frame


def roles(weights: Weights, schedule: Schedule, epilogue: Any) -> Any:
    """The device function that runs each warp of a block as producer or consumer."""
    consumers, registers = weights.frame.consumers, weights.frame.registers
    moves, (producer_registers, consumer_registers) = registers is not None, registers or (0, 0)
    give, take = barriers.registers("dec", producer_registers), barriers.registers("inc", consumer_registers)
    consume, produce, close = weights.consumer(schedule, epilogue), schedule.produce, schedule.close

    @inlined
    def run(ring: Any, full: Any, warp: Any, sources: Any, tasks: Any, ends: Any) -> None:
        if uint32(warp) >= uint32(consumers):
            if moves:
                give()
            produce(ring, full, warp, sources)
        else:
            if moves:
                take()
            consume(ring, full, warp, tasks)
        close(ring, full, ends)

    return run


def kernel(name: str, weights: Weights, schedule: Schedule, epilogue: Any) -> Kernel:
    """The kernel of weights, a schedule and an epilogue that suit each other."""
    frame = weights.frame
    return Kernel(
        name, schedule.enclose(roles(weights, schedule, epilogue)), *schedule.parameters,
        threads=frame.threads, blocks=frame.blocks, shared=frame.shared + schedule.shared, least=(9, 0),
        exact=True, early=True, lto=frame.lto,
    )  # fmt: skip
