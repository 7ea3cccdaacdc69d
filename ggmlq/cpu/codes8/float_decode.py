"""The kernel that decodes rows of 8-bit floats to rows of bfloat16; it fills each run up with zeros."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ...codes import CODES, MiniFloat
from ..machine.arguments import reader
from ..machine.intrinsics import intrinsic_of
from ..machine.jit import inner, jit
from ..machine.memory import floats_at
from ..machine.numba_names import cgutils
from ..machine.row_tail import load_some
from ..machine.simd import I64, Simd
from ..machine.target import Target
from .float_layout import STEP
from .float_lookup import halves, interleave
from .float_operands import Decoding
from .float_transpose import NONE, PART

arguments_of = reader(Decoding)


@inner
def runs_of(fields: Any) -> Any:
    """A table with a row for each run: first column, number of columns, bytes from the first scale to its.

    Runs behind the end of K have no columns.
    """
    table = np.empty((fields.groups * fields.runs, 3), np.int64)
    for run in range(len(table)):
        group = run // fields.runs
        left = min(group * fields.group + run % fields.runs * fields.run, fields.k)
        table[run, 0] = left
        table[run, 1] = max(min(left + fields.run, (group + 1) * fields.group, fields.k) - left, 0)
        table[run, 2] = min(left, fields.k - 1) // fields.c * fields.scales_step
    return table


@cache
def row_decoder(name: str, target: Target) -> Any:
    """Compiled: decode rows ``start`` … ``stop`` to bfloat16, and write the scales of their runs."""
    decode = _decoder(name, target)

    def decode_rows(arguments: int, start: int, stop: int) -> None:
        fields = arguments_of(arguments)
        runs, steps = runs_of(fields), fields.width // STEP
        scales = floats_at(fields.by_run, stop, len(runs))
        for row in range(start, stop):
            codes, values = fields.codes + row * fields.pitch, fields.values + row * fields.values_pitch
            band = fields.scales + row // fields.r * fields.scales_pitch
            for run in range(len(runs)):
                decode(codes + runs[run, 0], runs[run, 1], steps, values + 2 * run * fields.width)
                scales[row, run] = floats_at(band + runs[run, 2], 1, 1)[0, 0]

    return jit(decode_rows)


def _decoder(name: str, target: Target) -> Any:
    """An intrinsic that decodes a run of a row: (address of codes, their number, steps, result)."""
    code = CODES[name]
    assert isinstance(code, MiniFloat)
    return intrinsic_of(lambda builder, *words: _emit(Simd(builder, target), code, *words), 4)


def _emit(simd: Simd, code: MiniFloat, codes: Any, count: Any, steps: Any, to: Any) -> None:
    b = simd.builder
    with cgutils.for_range(b, steps, intp=I64) as loop:
        at = b.mul(loop.index, I64(STEP))
        stored = load_some(simd, b.add(codes, at), PART, b.sub(count, at))
        wide = simd.join([stored, NONE, NONE, NONE])
        both = halves(simd, wide, code)
        numbers = simd.join([simd.part(interleave(simd, both, 1, half), 0, STEP) for half in (False, True)])
        simd.store(numbers, b.add(to, b.mul(at, I64(2))))
