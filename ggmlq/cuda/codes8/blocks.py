"""The common parts of blocks that multiply 8-bit codes: the words of a kernel, and both producers.

Producers are two threads in warps of their own, one for codes of w, one for those of x. A kernel takes three
tuples of words:

    operands   addresses and tensor maps
    sizes      integers of the schedule
    results    words of the epilogue

The tuples of warp_specialized/kernel.py are here, with ``work`` for the tiles and steps of a block, and
``finals`` for what the epilogue needs beside sums:

    sources    maps of codes of x and of w, maps of their scales, steps that share a scale of x; work; finals
    needs      scales and zero points; outputs; work; rows and columns of the outputs; finals
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..intrinsics import barrier as barriers
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, types, uint32, uint64
from ..warp_specialized.kernel import Frame


class CodeWeights(NamedTuple):
    """The weights of 8-bit codes, and the words that their schedules read."""

    frame: Frame
    consumer: Callable[..., Any]  # as of warp_specialized/kernel.py: Weights
    words: tuple[int, int]  # operands, sizes
    read: Any  # (operands, sizes) -> maps, terms of consumers, outputs, their rows and columns, steps


class CodeWalk(NamedTuple):
    """Device functions by which consumers go from tile to tile."""

    count: Any  # (tiles) -> their number
    locate: Any  # (number, tiles) -> a tile's first row, first column, and column of scales of w


@inlined
def whole(work: Any) -> Any:
    """All of a block's work."""
    return work


@inlined
def leave_at_once(finals: Any) -> None:
    """The end of producers' warps that wait for nothing."""


def two_producers(
    weights: CodeWeights, produce_w: Any, produce_x: Any, aim: Any = whole, leave: Any = leave_at_once
) -> Any:
    """The device function of the producers' warps, behind those of consumers.

    ``produce_w``, ``produce_x``: the device functions (ring, full, codes, scales, part, span) of one thread.
    ``aim``: that for the part of the work that they need. ``leave``: that for the end of these warps.
    """
    first = 32 * weights.frame.consumers

    @inlined
    def produce(ring: Any, full: Any, warp: Any, sources: Any) -> None:
        (x, w, x_scales, w_scales, span), work, finals = sources
        part, thread = aim(work), uint32(cuda.threadIdx.x)
        if thread == uint32(first):
            produce_w(ring, full, w, w_scales, part, span)
        if thread == uint32(first + 32):
            produce_x(ring, full, x, x_scales, part, span)
        leave(finals)

    return produce


def tuples(operands: int, sizes: int, results: int) -> tuple[Any, ...]:
    """The types of a kernel's parameters, by the number of words in each."""
    return types.UniTuple(uint64, operands), types.UniTuple(uint32, sizes), types.UniTuple(uint64, results)


def encloser(open_block: Any, read: Any) -> Callable[[Any], Any]:
    """The function for a kernel whose blocks all have work.

    ``open_block``: the device function (operands, sizes) for the ring, its full barriers and facts of the
    block. ``read``: that from the three tuples and these facts to maps, terms, outputs, their rows and
    columns, work and finals.
    """
    first_lane = barriers.from_first_lane

    def enclose(run: Any) -> Any:
        def product(operands: Any, sizes: Any, results: Any) -> None:
            ring, full, facts = open_block(operands, sizes)
            warp = first_lane(uint32(uint32(cuda.threadIdx.x) >> uint32(5)))
            maps, terms, y, extent, work, finals = read(operands, sizes, results, facts)
            run(ring, full, warp, (maps, work, finals), (terms, y, work, extent, finals))

        return product

    return enclose
