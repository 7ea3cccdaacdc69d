"""A fragment as the wide operand of ``mma``: a lane's words and scales, and the excess of raised codes.

Codes are put under the exponent of 128 (codes.py). Raised codes keep it: they are too high by 128 less the
lowest code, the *excess*. Taking it off each code costs an instruction for two weights. It can also be
taken off

    the sums           where sums of activations are known: excess × sum, one multiplication
    by one more mma    of the activations with the excess alone, where there is no offset

With raised codes, what tensor cores cut off is relative to 128 times an activation. That is within
reference.bound for codes of four bits and more in blocks of 256. So only these stay raised, and only for
one tile of activations, since more tiles share the instruction. For other types a fuzz on an H200 found
results up to six times as far off.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from ..intrinsics import ptx, tensor_cores
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, float32, uint32
from .codes import excess_pair, sixteen_unpacker, word_loader
from .layout import PackedLayout
from .scales import number_loader, run_scale_loader, scale_loader


class FragmentOperand(NamedTuple):
    """Device functions that read one fragment."""

    load_words: Any  # (address, lane, words)
    load_scales: Any  # (address, lane, scales)
    unpack_sixteen: Any  # (words, s, a, opaque)
    first_sums: Any  # (b, first, x0, x1) -> first values of a run's sums; x0, x1: sums of activations


@cache
def fragment_operand(layout: PackedLayout, tiles: int) -> FragmentOperand:
    """The device functions for a number of tiles, each of eight rows of activations."""
    raised = tiles == 1 and stays_raised(layout)
    if not raised:
        first_sums = _start_at_zero
    elif layout.has_offset:
        first_sums = _start_from_sums(layout)
    else:
        first_sums = _start_by_one_more_mma(layout)
    return FragmentOperand(
        word_loader(layout), scale_loader(layout), sixteen_unpacker(layout, raised=raised), first_sums
    )


def stays_raised(layout: PackedLayout) -> bool:
    """True for formats whose codes stay raised: q4_K, q5_K and q6_K."""
    return not layout.levels and layout.low == 4 and bool(layout.subs)


@inlined
def _start_at_zero(b: Any, first: Any, x0: Any, x1: Any) -> Any:
    return float32(0), float32(0)


def _start_from_sums(layout: PackedLayout) -> Any:
    minus_excess = float32(layout.lowest - 128)

    @inlined
    def first_sums(b: Any, first: Any, x0: Any, x1: Any) -> Any:
        return x0 * minus_excess, x1 * minus_excess

    return first_sums


def _start_by_one_more_mma(layout: PackedLayout) -> Any:
    minus_excess, sum_of = uint32(excess_pair(layout)), activation_summer(4 // layout.runs)

    @inlined
    def first_sums(b: Any, first: Any, x0: Any, x1: Any) -> Any:
        return sum_of(b, first, minus_excess)

    return first_sums


class RunOperand(NamedTuple):
    """Device functions that read a fragment where each lane has sums of one run alone."""

    load_words: Any  # (address, lane, words)
    load_scales: Any  # (address, lane, run, scales): of rows g and g + 8, then their offsets
    unpack_sixteen: Any  # (words, s, a, opaque)
    lowered: Any  # (x, d) -> the sum d without the excess; x: the sum of its activations
    needs_sums: bool  # whether ``lowered`` or offsets need sums of activations


@cache
def run_operand(layout: PackedLayout) -> RunOperand:
    """The device functions for run_multiplier of kernels/gemv/products.py."""
    raised = stays_raised(layout)
    lowered = _without_excess(layout) if raised else _unchanged
    loads, needs_sums = (word_loader(layout), run_scale_loader(layout)), raised or layout.has_offset
    return RunOperand(*loads, sixteen_unpacker(layout, raised=raised), lowered, needs_sums)


@inlined
def _unchanged(x: Any, d: Any) -> Any:
    return d


def _without_excess(layout: PackedLayout) -> Any:
    minus_excess, fma = float32(layout.lowest - 128), ptx.fma

    @inlined
    def lowered(x: Any, d: Any) -> Any:
        return fma(x, minus_excess, d)

    return lowered


@cache
def activation_summer(count: int) -> Any:
    """The device function that sums the activations of ``count`` sixteens, times a pair of equal numbers."""
    sums_into = tensor_cores.sums_into

    @inlined
    def sum_of(b: Any, first: Any, times: Any) -> Any:
        d = cuda.local.array(4, float32)
        d[0] = d[1] = d[2] = d[3] = float32(0)
        for s in range(count):
            sums_into(d, 0, times, b, first + 2 * s)
        return d[0], d[1]

    return sum_of


# Packed weights whose columns meet activations in their natural order, so that nothing orders those before.
#
# In the order of pack.py lane 4 g + t has columns 4 t … 4 t + 3 of each 16: pairs 2 t and 2 t + 1. In the
# natural order it needs pairs t and t + 4, which lanes t / 2 and t / 2 + 2 have, each its pair t % 2:
#
#     pairs of lane   0      1      2      3
#     as packed       0, 1   2, 3   4, 5   6, 7
#     natural         0, 4   1, 5   2, 6   3, 7
#
# So a lane loads the words of both and picks one pair of each. Scales do not depend on the order of a
# sixteen's columns.

AS_PACKED, SECOND_WORD = 0x3210, 0x7654  # picks of bf16x2.permute


def serves(layout: PackedLayout) -> bool:
    """True where pairs can be picked; floats of four bits have theirs in pieces."""
    return not layout.fp4


class LaneOrder(NamedTuple):
    """The order of a lane's columns: the two lanes whose words it loads, and what to pick of them."""

    first: Any
    second: Any
    pick: Any  # of both words, for permute
    other: Any  # for the second word of two columns, where codes have eight bits
    by: Any  # bits that the first word of codes of one bit moves down; of two bits twice as many
    rest: Any  # bits that the second one moves up


@cache
def lane_order(layout: PackedLayout) -> Any:
    """The device function for a lane's :class:`LaneOrder`; ``natural``: else all is as it was packed."""
    from_bytes = layout.low == 8
    picks, next_pair = (0x5410, 0x2222) if layout.levels else (0x6240, 0x1111)
    if from_bytes:
        picks, next_pair = AS_PACKED, 0x4444
    others = SECOND_WORD if from_bytes else AS_PACKED

    @inlined
    def order(lane: Any, natural: Any) -> Any:
        first, second, by, rest = lane, lane, uint32(0), uint32(0)
        pick, other = uint32(AS_PACKED), uint32(others)
        if natural:
            odd = uint32(lane & 1)
            first = uint32(uint32(lane & 28) | uint32(uint32(lane >> 1) & 1))
            second = uint32(first | 2)
            pick = uint32(picks + uint32(odd * next_pair))
            other, by = pick, uint32(odd << 1)
            rest = uint32(2 - by)
        return LaneOrder(first, second, pick, other, by, rest)

    return order


@cache
def natural_loader(layout: PackedLayout) -> Any:
    """The device function that loads a lane's words and scales of a fragment in a ``lane_order``."""
    low, high, bits = layout.low, layout.high, layout.bits
    load_words, load_numbers, permute = word_loader(layout), number_loader(layout, layout.bits), ptx.permute
    masked_or = ptx.masked_or

    @inlined  # of few bits: low ones of the first word, high ones of the second
    def picked(a: Any, b: Any, by: Any, rest: Any, mask: Any) -> Any:
        upper = uint32(uint32(b << rest) & uint32(~mask & 0xFFFFFFFF))
        return masked_or(uint32(a >> by), uint32(mask), upper)

    @inlined
    def load(at: Any, lane: Any, order: Any, words: Any) -> None:
        pick, by, rest = order.pick, order.by, order.rest
        a, b = cuda.local.array(bits, uint32), cuda.local.array(bits, uint32)
        load_words(at, order.first, a)
        load_words(at, order.second, b)
        load_numbers(at, lane, words)
        if low == 8:
            for i in range(0, 8, 2):
                words[i] = permute(a[i], a[i + 1], pick)
                words[i + 1] = permute(b[i], b[i + 1], order.other)
        elif low == 4:
            for i in range(4):
                words[i] = permute(a[i], b[i], pick)
        else:
            for i in range(2):
                words[i] = picked(a[i], b[i], uint32(by << 1), uint32(rest << 1), 0x0F0F0F0F)
        if high == 2:
            for i in range(low, low + 2):
                words[i] = picked(a[i], b[i], uint32(by << uint32(1)), uint32(rest << uint32(1)), 0x0F0F0F0F)
        elif high == 1:
            words[low] = picked(a[low], b[low], by, rest, 0x33333333)

    return load
