"""A thread's position: its warp, its lane, and its elements of the operands of ``mma``."""

from __future__ import annotations

from typing import Any

from .atoms import inlined
from .language import cuda, uint32

ALL_LANES = 0xFFFFFFFF  # the mask of lanes in an exchange within a warp


@inlined
def warp_and_lane() -> Any:
    """The warp and the lane of this thread in its block."""
    thread = uint32(cuda.threadIdx.x)
    return thread >> uint32(5), thread & uint32(31)


@inlined
def g_and_t(lane: Any) -> Any:
    """The g and t of lane 4 g + t: it has rows g and g + 8 of the wide operand and sums, columns by t."""
    return lane >> uint32(2), lane & uint32(3)


@inlined
def four_into(array: Any, at: Any, four: Any) -> None:
    """Store the four results of one wide load as neighbours in a local array."""
    array[at], array[at + 1], array[at + 2], array[at + 3] = four[0], four[1], four[2], four[3]


@inlined
def opaque_zero(count: Any) -> Any:
    """A zero that the assembler cannot know, made of a count below 2**31.

    A constant mask combined with it stays in a register. Alone the assembler would make it anew, an
    instruction for every use.
    """
    return uint32(uint32(count >> uint32(16)) & uint32(0x8000))
