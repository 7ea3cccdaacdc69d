"""A record as the wide operand of ``mma``: what a lane loads, and where the excess of raised codes goes.

Codes are put under the exponent of 128 (codes.py). Left so they are too high by 128 less the lowest code,
the *excess*. To take it off each code costs an instruction for two weights; it can also be taken off

    with the offset    which is multiplied with the sum of the activations anyway: nothing extra
    from the sums      that begin with the excess times that sum: where the sum is there, one multiplication
    by one more mma    of the activations with the excess alone, where there is no offset

Which of them is best depends on how many tiles of activations share the work.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from ..words import bf16x2
from ..words.atoms import inlined
from ..words.language import float32, uint32
from .codes import fragment_of, words_of, zero_of
from .layout import Layout
from .scales import scales_of

FEW = 4  # tiles of activations from which codes without an offset are better taken down one by one


class Operand(NamedTuple):
    """Device functions for one record."""

    load_words: Any  # (address, lane, words)
    load_scales: Any  # (address, lane, scales): offsets are those that the fragment's codes need
    fragment: Any  # (words, s, a, unseen)
    begin: Any  # (b, first, x0, x1) -> what the sums of a run begin with; x0, x1: sums of activations


@cache
def operand_of(kept: Layout, tiles: int) -> Operand:
    """The functions for so many tiles of eight rows of activations."""
    raised = tiles < FEW or kept.has_offset
    with_offset = kept.has_offset and tiles > 1
    if kept.has_offset and not with_offset:
        begin = _from_sums(kept)
    elif raised and zero_of(kept):
        begin = _by_one_more_mma(kept)
    else:
        begin = _from_nothing
    return Operand(words_of(kept), scales_of(kept, with_offset), fragment_of(kept, raised), begin)


@inlined
def _from_nothing(b: Any, first: Any, x0: Any, x1: Any) -> Any:
    return float32(0), float32(0)


def _from_sums(kept: Layout) -> Any:
    lift = float32(kept.lowest - 128)

    @inlined
    def begin(b: Any, first: Any, x0: Any, x1: Any) -> Any:
        return x0 * lift, x1 * lift

    return begin


def _by_one_more_mma(kept: Layout) -> Any:
    zero, sum_of = uint32(zero_of(kept)), summer(kept)

    @inlined
    def begin(b: Any, first: Any, x0: Any, x1: Any) -> Any:
        return sum_of(b, first, zero)

    return begin


@cache
def summer(kept: Layout) -> Any:
    """The device function that sums the activations of a run, times a pair of equal numbers."""
    each, mma, none = 4 // kept.runs, bf16x2.mma, float32(0)

    @inlined
    def sum_of(b: Any, first: Any, times: Any) -> Any:
        d = (none, none, none, none)
        for s in range(each):
            d = mma(
                times, times, times, times, b[first + 2 * s], b[first + 2 * s + 1], d[0], d[1], d[2], d[3]
            )
        return d[0], d[1]

    return sum_of
