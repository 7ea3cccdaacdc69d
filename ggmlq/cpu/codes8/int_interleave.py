"""The kernels that bring 8-bit integers into the order of tiles: weights as panels, activations with sums."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..machine.arguments import reader
from ..machine.jit import inner, jit
from ..machine.memory import bytes_at, floats_at, ints_at
from .int_layout import ROWS
from .int_operands import Conversion, Interleaving

interleaving, conversion = reader(Interleaving), reader(Conversion)


@inner
def _ends(cut: Any, chunk: int) -> Any:
    """First and last column of a chunk; of one behind the end of K both are the same."""
    group = chunk // cut.chunks
    left = group * cut.group + chunk % cut.chunks * cut.chunk
    right = min(left + cut.chunk, (group + 1) * cut.group, cut.k)
    return min(left, right), right


@cache
def interleaver() -> Any:
    """Compiled: write panels ``first`` … ``stop``, four neighbours of 16 rows side by side."""

    def interleave(arguments: int, first: int, stop: int) -> None:
        fields = interleaving(arguments)
        flip = np.uint8(fields.flip)
        codes = bytes_at(fields.codes, fields.rows, fields.pitch)
        for panel in range(first, stop):
            stored = bytes_at(fields.panels + panel * fields.panel_bytes, 1, fields.panel_bytes)[0]
            stored[:] = 0
            for r in range(min(ROWS, fields.rows - panel * ROWS)):
                row = codes[panel * ROWS + r]
                for chunk in range(fields.groups * fields.chunks):
                    left, right = _ends(fields, chunk)
                    at = 64 * chunk * fields.fours + 4 * r
                    for i in range(right - left):
                        stored[at + 64 * (i >> 2) + (i & 3)] = row[left + i] ^ flip

    return jit(interleave)


@cache
def row_converter(signed: bool) -> Any:
    """Compiled: convert rows ``first`` … ``stop`` of ``Conversion``, of signed bytes or of unsigned ones."""
    kind = np.int8 if signed else np.uint8

    def convert(arguments: int, first: int, stop: int) -> None:
        fields = conversion(arguments)
        flip, chunks = np.uint8(fields.flip), fields.groups * fields.chunks
        for row in range(first, stop):
            line = bytes_at(fields.codes + row * fields.pitch, 1, fields.k)[0]
            stored = bytes_at(fields.stored + row * fields.stored_pitch, 1, fields.stored_pitch)[0]
            sums = ints_at(fields.sums + 4 * row * chunks, 1, chunks)[0]
            for chunk in range(chunks):
                left, right = _ends(fields, chunk)
                part, count = line[left:right], right - left
                if fields.sums:
                    values, total = part.view(kind), np.int32(0)
                    for i in range(count):  # indices from 0 on: LLVM adds whole vectors
                        total += np.int32(values[i])
                    sums[chunk] = (total + fields.shift * count) * fields.factor
                if fields.stored:
                    to = stored[4 * fields.fours * chunk : 4 * fields.fours * (chunk + 1)]
                    for i in range(count):
                        to[i] = part[i] ^ flip
                    to[count:] = 0
            band = row // fields.r
            for g in range(fields.groups):
                tile = g * fields.group // fields.c
                if fields.by_group:
                    at = fields.scales + band * fields.scales_pitch + tile * fields.scales_step
                    floats_at(fields.by_group, row + 1, fields.groups)[row, g] = floats_at(at, 1, 1)[0, 0]
                if fields.stored_zeros:
                    zero = np.int32(fields.shift)
                    if fields.zeros:
                        at = fields.zeros + band * fields.zeros_pitch + tile * fields.zeros_step
                        zero += ints_at(at, 1, 1)[0, 0]
                    ints_at(fields.stored_zeros, row + 1, fields.groups)[row, g] = zero

    return jit(convert)
