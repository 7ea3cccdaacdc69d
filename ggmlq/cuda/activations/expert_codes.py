"""Activations of experts as rows of codes, where a plan (pipeline/groups.py) has their uses.

A row of 8-bit codes is read once and written for each of its uses, 16 bytes a thread, and so is what
belongs to it: scales of its groups along K, or, of integers, its scale and what zero points need. Rows that
no use has are whatever was there, for sums of their own that nobody reads.
"""

from __future__ import annotations

from typing import Any

from ..gemv.uses import NAN
from ..machine.launch import Kernel, family
from ..pipeline.groups import NOWHERE
from ..words import codes, early_start, ptx
from ..words.address import address
from ..words.language import cuda, uint32, uint64

THREADS = 256
PIECE = 16  # codes of a thread


@family()
def gatherer() -> Kernel:
    """Rows of codes and words beside them; and rows of NaN for uses that have no expert."""
    load_words, load4, store16, store4 = codes.load_words, codes.load4, ptx.store16, ptx.store4
    take_turn = early_start.take_turn

    def gather(
        x: Any,  # codes: rows ``pitch`` bytes apart, a multiple of 16
        to: Any,  # uint8 [rows of the plan, 16 · pieces]
        beside: Any,  # words of 32 bits that belong to rows: where they are,
        row_bytes: Any, column_bytes: Any,  # and bytes between them
        to_beside: Any,  # [columns, height]
        places: Any,  # uint32 [m · each]: of a plan
        y: Any,  # float32 [m · each, n]
        pitch: Any, m: Any, each: Any, n: Any, pieces: Any,
        shared: Any,  # rows of x that share what lies beside
        columns: Any, height: Any,  # rows of the plan
    ) -> None:  # fmt: skip
        take_turn()
        i = uint32(uint32(cuda.blockIdx.x) * uint32(THREADS) + uint32(cuda.threadIdx.x))
        row = uint32(i // pieces)
        if row < m:
            own = uint32(i - uint32(row * pieces))
            v = load_words(x + uint64(row) * uint64(pitch) + uint64(own) * uint64(PIECE))
            of_row = beside + uint64(uint32(row // shared)) * row_bytes
            use = uint32(row * each)
            end = uint32(use + each)
            while use < end:
                there = load4(places + uint64(use) * uint64(4))
                if there != uint32(NOWHERE):
                    store16(address(to, there, pieces, own, PIECE), v[0], v[1], v[2], v[3])
                    for j in range(own, columns, pieces):
                        word = load4(of_row + uint64(j) * column_bytes)
                        store4(address(to_beside, j, height, there, 4), word)
                else:
                    for j in range(own, n, pieces):
                        store4(address(y, use, n, j, 4), uint32(NAN))
                use = uint32(use + uint32(1))

    return Kernel(
        "rows of codes of experts", gather, *(uint64,) * 8, *(uint32,) * 8, threads=THREADS, early=True
    )  # fmt: skip
