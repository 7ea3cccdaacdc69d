"""The kernel of products with weights as they lie: a tile is decoded, then rows of y meet it in registers.

Each result is summed along the rows of weights in their order, a stretch at a time; the sums of stretches
are added in their order. So its bits depend neither on the other rows of y nor on the number of threads.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..attention import tile
from ..machine.jit import inner, jit
from ..machine.memory import call_kernel, fail, floats_at, reader
from ..machine.target import Target
from .transposed import LANES, STRETCH, Columns

NEAR = 64  # columns of a tile that stay in the first cache while all rows of y pass
PROBLEM = 8 * 7  # where the code that decodes leaves what it raised, in bytes of the words of its arguments

operands = reader(Columns)


@inner
def _filled(f: Any, line: int, lines: int, column: int, width: int, values: Any, words: Any) -> None:
    """Decode some lines and columns of the weights to a tile."""
    words[0], words[1] = f.weights + line * f.pitch + column // f.size * f.nbytes, f.pitch
    words[2], words[3] = lines, width
    words[4], words[5] = values.ctypes.data, values.shape[1]
    at = words.ctypes.data
    fail(call_kernel(f.fill, at, 0, 0, at + PROBLEM), words[PROBLEM // 8])


@inner
def _near(y: int, pitch: int, lines: int, to: Any) -> None:
    """Some columns of y side by side: rows of it lie far apart, and so fall into a few sets of the cache."""
    for r in range(len(to)):
        row = floats_at(y + 4 * r * pitch, 1, lines)[0]
        for i in range(lines):
            to[r, i] = row[i]


@cache
def sweep(target: Target) -> Any:
    """Compiled: units ``begin`` … ``end``, counted by stretch, by rows of y, and by band."""
    weighted = tile.weighted(target)

    def work(arguments: int, begin: int, end: int) -> None:
        f = operands(arguments)
        bands, blocks = (f.k + f.band - 1) // f.band, (f.m + f.rows - 1) // f.rows
        values = np.empty((f.lines, f.band + LANES), np.float32)
        sums = np.empty((f.rows, f.band + LANES), np.float32)
        y = np.empty((f.rows, f.lines + LANES), np.float32)
        pitch, y_pitch = 4 * (f.band + LANES), 4 * (f.lines + LANES)
        words = np.zeros(8, np.int64)
        for unit in range(begin, end):
            column, row = unit % bands * f.band, unit // bands % blocks * f.rows
            width, count = min(f.band, f.k - column), min(f.rows, f.m - row)
            whole = (width + LANES - 1) // LANES * LANES
            first, last, to = 0, f.n, f.out
            if f.stretches > 1:
                part = unit // (bands * blocks)
                first, last, to = (
                    part * STRETCH, min(f.n, (part + 1) * STRETCH), f.out + 4 * part * f.m * f.k,
                )  # fmt: skip
            for start in range(first, last, STRETCH):
                sums[:count, :whole] = np.float32(0)
                stop = min(last, start + STRETCH)
                for line in range(start, stop, f.lines):
                    lines = min(f.lines, stop - line)
                    _filled(f, line, lines, column, width, values, words)
                    _near(f.y + 4 * (row * f.n + line), f.n, lines, y[:count])
                    for c in range(0, whole, NEAR):
                        weighted(
                            y.ctypes.data, y_pitch, count, values.ctypes.data + 4 * c, pitch, lines,
                            min(NEAR, whole - c), sums.ctypes.data + 4 * c, pitch,
                        )  # fmt: skip
                for r in range(count):
                    result = floats_at(to + 4 * ((row + r) * f.k + column), 1, width)[0]
                    if start == first:
                        for i in range(width):
                            result[i] = sums[r, i]
                    else:
                        for i in range(width):
                            result[i] += sums[r, i]

    return jit(work)
