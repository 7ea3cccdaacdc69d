"""The warp-specialised kernel of 8-bit codes on Hopper: ``kernel(weights, schedule, epilogue)``.

    producers   two threads in warps of their own, one for codes of w, one for those of x: they keep the ring
                of stages full, across the end of a tile too
    consumers   the other warps: they wait for full stages, multiply them, and give their sums to the epilogue
    weights     the words of both operands, and consumers for their codes: floats, integers
    schedule    the tiles of a block and the steps of them, and where these lie; the beginning of a block
    epilogue    from sums to results, within the consumers and at the end of a block

A kernel takes three tuples of words: ``operands``, addresses and tensor maps; ``sizes``, the integers of the
schedule; ``results``, those of the epilogue. schedules.py and small_m_schedules.py say what they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..intrinsics import barrier as barriers
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, types, uint32, uint64
from ..machine.launch import Kernel

PRODUCER_REGISTERS, CONSUMER_REGISTERS = 40, 232  # registers of a thread, which starts with 168


class Weights(NamedTuple):
    """The codes that a kernel multiplies."""

    words: tuple[int, int]  # operands, sizes
    read: Any  # (operands, sizes) -> maps, terms of consumers, outputs, their rows and columns, steps
    consumer: Callable[..., Any]  # (epilogue, schedule) -> device function


@inlined
def whole(work: Any) -> Any:
    """All of a block's work."""
    return work


@inlined
def leave_at_once(ends: Any) -> None:
    """Do nothing at the end of the producers' warps."""


class Schedule(NamedTuple):
    """The device functions of a schedule."""

    words: tuple[int, int, int]  # operands, sizes, results
    open: Any  # (operands, sizes) -> ring, its full barriers, facts of the block
    read: Any  # (operands, sizes, results, facts) -> maps, terms, outputs, their rows and columns, work, ends
    produce_w: Any  # (ring, full, codes, scales, part, span), for one thread
    produce_x: Any
    close: Any  # (ring, outputs, work, their rows and columns, ends) the end of the block
    aim: Any = whole  # (work) -> the part of it that producers need
    leave: Any = leave_at_once  # (ends) the end of the producers' warps
    enclose: Any = None  # (``run`` of block()) -> the function of a kernel whose blocks may have no work
    count: Any = None  # (tiles) -> their number
    locate: Any = None  # (number, tiles) -> a tile's first row, first column, and column of scales of w


def block(variant: Any, weights: Weights, schedule: Schedule, epilogue: Any) -> Any:
    """The device function that runs each warp of an open block as producer or consumer.

    ``maps``: of codes of x and w, and of their scales; then the steps that share a scale of x. ``work``: the
    tiles and steps of a block; ``ends`` is for the epilogue.
    """
    read, aim, produce_w, produce_x, leave, close = (
        schedule.read, schedule.aim, schedule.produce_w, schedule.produce_x, schedule.leave, schedule.close
    )  # fmt: skip
    consume, first_lane = weights.consumer(epilogue, schedule), barriers.from_first_lane
    give, take = barriers.registers("dec", PRODUCER_REGISTERS), barriers.registers("inc", CONSUMER_REGISTERS)
    consumer_warps, moves_registers = 4 * variant.tile.groups, variant.moves_registers

    @inlined
    def run(ring: Any, full: Any, operands: Any, sizes: Any, results: Any, facts: Any) -> None:
        thread = uint32(cuda.threadIdx.x)
        warp = first_lane(uint32(thread >> uint32(5)))
        maps, terms, y, extent, work, ends = read(operands, sizes, results, facts)
        x, w, x_scales, w_scales, span = maps
        if uint32(warp) >= uint32(consumer_warps):
            if moves_registers:
                give()
            part = aim(work)
            if thread == uint32(32 * consumer_warps):
                produce_w(ring, full, w, w_scales, part, span)
            if thread == uint32(32 * consumer_warps + 32):
                produce_x(ring, full, x, x_scales, part, span)
            leave(ends)
        else:
            if moves_registers:
                take()
            consume(ring, full, warp, terms, y, work, extent, ends)
        close(ring, y, work, extent, ends)

    return run


def kernel(name: str, variant: Any, weights: Weights, schedule: Schedule, epilogue: Any) -> Kernel:
    """The kernel of a variant: a tile, codes, kinds of outputs.

    ``epilogue``: the device function that consumers call with the sums of a tile.
    """
    open_block, run = schedule.open, block(variant, weights, schedule, epilogue)

    def product(operands: Any, sizes: Any, results: Any) -> None:
        ring, full, facts = open_block(operands, sizes)
        run(ring, full, operands, sizes, results, facts)

    function = product if schedule.enclose is None else schedule.enclose(run)
    operands, sizes, results = schedule.words
    return Kernel(
        f"tma {name}", function, types.UniTuple(uint64, operands), types.UniTuple(uint32, sizes),
        types.UniTuple(uint64, results), threads=variant.threads, blocks=variant.blocks,
        shared=variant.shared, least=(9, 0), exact=True, early=True, lto=True,
    )  # fmt: skip
