"""Codes of 8 bits as tiles read them, compiled: slabs of weights, and rows with their sums and scales."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..machine.arguments import reader
from ..machine.jit import inner, jit
from ..machine.memory import bytes_at, floats_at, ints_at
from .int_layout import ROWS
from .int_operands import Laid, Taken

laid, taken = reader(Laid), reader(Taken)


@inner
def _ends(cut: Any, chunk: int) -> Any:
    """First and last column of a chunk; of one behind the end of K both are the same."""
    group = chunk // cut.chunks
    left = group * cut.group + chunk % cut.chunks * cut.chunk
    right = min(left + cut.chunk, (group + 1) * cut.group, cut.k)
    return min(left, right), right


@cache
def interleaver() -> Any:
    """Compiled: slabs ``first`` … ``stop``, four neighbours of 16 rows side by side."""

    def lay(arguments: int, first: int, stop: int) -> None:
        given = laid(arguments)
        flip = np.uint8(given.flip)
        codes = bytes_at(given.codes, given.rows, given.pitch)
        for slab in range(first, stop):
            made = bytes_at(given.slabs + slab * given.slab_bytes, 1, given.slab_bytes)[0]
            made[:] = 0
            for r in range(min(ROWS, given.rows - slab * ROWS)):
                row = codes[slab * ROWS + r]
                for chunk in range(given.groups * given.chunks):
                    left, right = _ends(given, chunk)
                    at = 64 * chunk * given.fours + 4 * r
                    for i in range(right - left):
                        made[at + 64 * (i >> 2) + (i & 3)] = row[left + i] ^ flip

    return jit(lay)


@cache
def row_converter(signed: bool) -> Any:
    """Compiled: rows ``first`` … ``stop`` of signed bytes, or of unsigned ones."""
    kind = np.int8 if signed else np.uint8

    def take(arguments: int, first: int, stop: int) -> None:
        given = taken(arguments)
        flip, chunks = np.uint8(given.flip), given.groups * given.chunks
        for row in range(first, stop):
            line = bytes_at(given.codes + row * given.pitch, 1, given.k)[0]
            made = bytes_at(given.stored + row * given.stored_pitch, 1, given.stored_pitch)[0]
            sums = ints_at(given.sums + 4 * row * chunks, 1, chunks)[0]
            for chunk in range(chunks):
                left, right = _ends(given, chunk)
                part, count = line[left:right], right - left
                if given.sums:
                    values, total = part.view(kind), np.int32(0)
                    for i in range(count):  # indices from 0 on: LLVM adds whole vectors
                        total += np.int32(values[i])
                    sums[chunk] = (total + given.shift * count) * given.factor
                if given.stored:
                    to = made[4 * given.fours * chunk : 4 * given.fours * (chunk + 1)]
                    for i in range(count):
                        to[i] = part[i] ^ flip
                    to[count:] = 0
            band = row // given.r
            for g in range(given.groups):
                tile = g * given.group // given.c
                if given.by_group:
                    at = given.scales + band * given.scales_pitch + tile * given.scales_step
                    floats_at(given.by_group, row + 1, given.groups)[row, g] = floats_at(at, 1, 1)[0, 0]
                if given.stored_zeros:
                    zero = np.int32(given.shift)
                    if given.zeros:
                        at = given.zeros + band * given.zeros_pitch + tile * given.zeros_step
                        zero += ints_at(at, 1, 1)[0, 0]
                    ints_at(given.stored_zeros, row + 1, given.groups)[row, g] = zero

    return jit(take)
