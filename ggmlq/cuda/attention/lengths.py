"""Rows of a cache for new positions of its sequences, whose numbers of positions grow on the device."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..intrinsics import dependent_launch
from ..intrinsics.language import cuda, int32, int64, uint32
from ..machine.device import cupy
from ..machine.launch import Kernel, array, family

THREADS = 256
NUMBERS = array(int64, 1)


@family()
def counter() -> Kernel:
    """The kernel that numbers rows; a block of threads a sequence."""
    take_turn = dependent_launch.take_turn

    def kernel(
        lengths: Any,  # int64 [B], which grow
        numbers: Any,  # int64 [B]: of new positions
        ids: Any,  # int64 [B · HK · T]
        same: Any,  # new positions of all sequences, or -1
        heads: Any,
        queries: Any,
        positions: Any,
    ) -> None:
        take_turn()
        b, i = uint32(cuda.blockIdx.x), uint32(cuda.threadIdx.x)
        start, more = lengths[b], int64(same)
        if same < int32(0):
            more = max(int64(0), min(numbers[b], int64(queries)))
        cuda.syncthreads()  # all have read
        if i == uint32(0):
            lengths[b] = min(start + more, int64(positions))
        while i < heads * queries:
            head = i // queries
            at = i - head * queries
            place, row = start + int64(at), int64(-1)
            if int64(at) < more and place < int64(positions):
                row = int64(b * heads + head) * int64(positions) + place
            ids[int64(b) * int64(heads * queries) + int64(i)] = row
            i += uint32(THREADS)

    words = int32, uint32, uint32, uint32
    return Kernel("rows of a cache", kernel, NUMBERS, NUMBERS, NUMBERS, *words, threads=THREADS, early=True)


def placed(lengths: Any, numbers: Any, same: int, heads: int, queries: int, positions: int) -> Any:
    """Ids [B, HK, T] of rows [B · HK · positions] for new positions, by which ``lengths`` [B] grow.

    Of T positions each sequence gets the first ``same``, or if that is -1 its part of ``numbers`` [B]. Ids of
    the others, and of positions beyond the last, are -1.
    """
    ids = cupy().empty((len(lengths), heads, queries), np.int64)
    counter()(
        (len(lengths),), (THREADS,), lengths, numbers, ids.reshape(-1), same & 0xFFFFFFFF, heads, queries,
        positions,
    )  # fmt: skip
    return ids
