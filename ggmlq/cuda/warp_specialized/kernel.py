"""The warp-specialised kernel of Hopper: ``kernel(weights, schedule, epilogue)``.

    producers   the last warps: they keep a ring of stages full, across the end of a tile too
    consumers   the first warps: they wait for full stages, multiply them, and give sums to the epilogue
    weights     what is multiplied, and so the consumers: packed blocks (consumers.py), or 8-bit codes
                (codes8/schedules.py, codes8/small_m.py)
    schedule    the tiles of a block, the steps of them, where these lie, and the producers: one product, or
                that of experts, with or without a split along K (schedules.py, codes8/schedules.py,
                small_m.py)
    epilogue    from sums to results

The rungs warp_specialized, persistent, split_k and small_m, and of experts grouped, grouped_codes and
small_m_codes, are calls of this function.
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
    consumer: Callable[..., Any]  # (schedule, epilogue) -> device function (ring, full, warp, needs)


class Schedule(NamedTuple):
    """The work of a kernel's blocks, and its producers.

    ``sources`` and ``needs`` are tuples that a schedule makes: for producers, and for consumers.
    """

    parameters: tuple[Any, ...]  # their types
    # (run) -> the kernel's function, which calls run(ring, full, warp, sources, needs)
    enclose: Callable[..., Any]
    produce: Any  # device function (ring, full, warp, sources)
    close: Any  # device function (ring, needs) for the end of a block
    walk: Any = None  # device functions by which consumers go from tile to tile
    shared: int = 0  # bytes that it adds to those of the frame


@inlined
def keep_registers() -> None:
    """A beginning of warps that move no registers."""


def roles(weights: Any, schedule: Schedule, epilogue: Any) -> Any:
    """The device function that runs each warp of a block as producer or consumer."""
    consumers, give, take = weights.frame.consumers, keep_registers, keep_registers
    if weights.frame.registers is not None:
        few, many = weights.frame.registers
        give, take = barriers.registers("dec", few), barriers.registers("inc", many)
    consume, produce, close = weights.consumer(schedule, epilogue), schedule.produce, schedule.close

    @inlined
    def run(ring: Any, full: Any, warp: Any, sources: Any, needs: Any) -> None:
        if uint32(warp) >= uint32(consumers):
            give()
            produce(ring, full, warp, sources)
        else:
            take()
            consume(ring, full, warp, needs)
        close(ring, needs)

    return run


def kernel(name: str, weights: Any, schedule: Schedule, epilogue: Any) -> Kernel:
    """The kernel of weights, a schedule and an epilogue that suit each other.

    ``weights``: as Weights, or with further fields for its schedules.
    """
    frame = weights.frame
    return Kernel(
        name, schedule.enclose(roles(weights, schedule, epilogue)), *schedule.parameters,
        threads=frame.threads, blocks=frame.blocks, shared=frame.shared + schedule.shared, least=(9, 0),
        exact=True, early=True, lto=frame.lto,
    )  # fmt: skip
