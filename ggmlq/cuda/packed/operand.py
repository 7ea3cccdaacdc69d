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

from ..intrinsics import bf16x2, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, float32, uint32
from .codes import excess_pair, step_unpacker, word_loader
from .layout import PackedLayout
from .scales import run_scale_loader, scale_loader


class FragmentOperand(NamedTuple):
    """Device functions that read one fragment."""

    load_words: Any  # (address, lane, words)
    load_scales: Any  # (address, lane, scales)
    unpack_step: Any  # (words, s, a, opaque)
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
        word_loader(layout), scale_loader(layout), step_unpacker(layout, raised), first_sums
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
    unpack_step: Any  # (words, s, a, opaque)
    lowered: Any  # (x, d) -> the sum d without the excess; x: the sum of its activations
    needs_sums: bool  # whether ``lowered`` or offsets need sums of activations


@cache
def run_operand(layout: PackedLayout) -> RunOperand:
    """The device functions for gemv/by_runs.py."""
    raised = stays_raised(layout)
    lowered = _without_excess(layout) if raised else _unchanged
    loads, needs_sums = (word_loader(layout), run_scale_loader(layout)), raised or layout.has_offset
    return RunOperand(*loads, step_unpacker(layout, raised), lowered, needs_sums)


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
    """The device function that sums the activations of ``count`` steps, times a pair of equal numbers."""
    sums_into = bf16x2.sums_into

    @inlined
    def sum_of(b: Any, first: Any, times: Any) -> Any:
        d = cuda.local.array(4, float32)
        d[0] = d[1] = d[2] = d[3] = float32(0)
        for s in range(count):
            sums_into(d, 0, times, b, first + 2 * s)
        return d[0], d[1]

    return sum_of
