"""A lane's weights of a fragment as halves, for activations in float16, the scale multiplied in.

Codes are exact, as in code_halves.py, around the middle where there is an offset. They are multiplied by the
scale, rounded to a half, in one fma. An integer times a half is a multiple of its last place, so small scales
cost no precision. A weight beyond 65504 is infinite. Scales that are powers of two or small floats reach
beyond halves: such weights stay bfloat16 (weights.py).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from ..intrinsics import halves, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, uint32
from .code_halves import half_unpacker
from .layout import PackedLayout
from .weights import NONE, exact_products


def serves_halves(layout: PackedLayout) -> bool:
    """True where scales are halves, so that weights can be."""
    return layout.scale == "half"


@cache
def half_weights(layout: PackedLayout) -> Any:
    """The device function that makes a lane's sixteen registers of halves; operands are those of ``unpack``
    of ``fragment_weights``.
    """
    centred = replace(layout, lowest=-layout.middle) if layout.has_offset else layout
    unpack_step, scales, steps_per_run = half_unpacker(centred), half_scales(layout), 4 // layout.runs
    runs, low, high = layout.runs, halves.fma_low, halves.fma_high

    @inlined
    def unpack(words: Any, a: Any, opaque: Any) -> None:
        code = cuda.local.array(4, uint32)
        for run in range(runs):
            scale, offset = scales(words, run, opaque)
            for s in range(run * steps_per_run, run * steps_per_run + steps_per_run):
                unpack_step(words, s, code, opaque)
                for r in range(0, 4, 2):
                    a[4 * s + r] = low(code[r], scale, offset)
                    a[4 * s + r + 1] = high(code[r + 1], scale, offset)

    return unpack


@cache
def half_scales(layout: PackedLayout) -> Any:
    """The device function for a run's scales of rows g and g + 8, a pair of halves, and for the pair that
    offsets add.
    """
    bits, blocks, runs_per_block = layout.bits, layout.blocks, layout.runs // layout.blocks
    has_offset, middle, fma = layout.has_offset, np.uint32(halves.pair(layout.middle)), halves.fma
    assert layout.subs or not has_offset or layout.sign < 0, "what is stored is added"

    @inlined
    def stored(words: Any, run: Any, opaque: Any) -> Any:
        block = bits + run // runs_per_block
        scale, offset = words[block], NONE
        if has_offset:
            offset = fma(scale, middle, words[block + blocks])
        return scale, offset

    return _half_products(layout) if layout.subs else stored


def _half_products(layout: PackedLayout) -> Any:
    """Half times byte, rounded once; the offset is taken at the middle of the codes and rounded once, too."""
    pair, narrowed, fma, middle = exact_products(layout), halves.narrowed, ptx.fma, np.float32(layout.middle)
    bits, numbers, has_offset = layout.bits, layout.half_words + layout.sub_words, layout.has_offset

    @inlined
    def scales(words: Any, run: Any, opaque: Any) -> Any:
        loaded, offset = cuda.local.array(numbers, uint32), NONE
        for i in range(numbers):
            loaded[i] = words[bits + i]
        a, b = pair(loaded, 0, run, opaque)
        if has_offset:
            c, d = pair(loaded, 1, run, opaque)
            offset = narrowed(fma(a, middle, -c), fma(b, middle, -d))
        return narrowed(a, b), offset

    return scales
