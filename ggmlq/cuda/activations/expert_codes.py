"""The kernel that copies rows of 8-bit codes of x to the places of their uses in a plan (schedule/groups.py).

A row of codes is read once and written for each of its uses, 64 bytes a thread. So are the words that belong
to it: scales of its groups along K or, for integers, its scale and its zero-point terms. Rows of the plan
without a use hold anything; their sums are never read. Where each row has one use, and uses are in order,
rows stay where they are, and only those words are written.
"""

from __future__ import annotations

from typing import Any

from ..intrinsics import codes, dependent_launch, ptx
from ..intrinsics.address import address
from ..intrinsics.language import cuda, uint32, uint64
from ..machine.launch import Kernel, family
from ..schedule.groups import NOWHERE
from ..schedule.uses import NAN

THREADS = 256
CHUNK, CHUNKS = 16, 4  # codes that are loaded at a time; of a thread
WORDS = CHUNKS * CHUNK // 4
NARROW_NAN = 0x7FFF  # of float16 and of bfloat16


@family()
def gatherer() -> Kernel:
    """The kernel that gathers rows of codes and the words beside them; uses without an expert get rows of
    NaN.
    """
    load_words, load4, take_turn = codes.load_words, codes.load4, dependent_launch.take_turn
    store16, store4, store2 = ptx.store16, ptx.store4, ptx.store2

    def gather(
        x: Any,  # codes: rows ``pitch`` bytes apart, a multiple of 16
        to: Any,  # uint8 [rows of the plan, 16 · chunks]
        beside: Any,  # words of 32 bits that belong to rows,
        row_bytes: Any, column_bytes: Any,  # and the bytes between them
        to_beside: Any,  # [columns, height]
        plan: Any, places: Any,  # uint32 [m · per_token]: of the plan
        y: Any,  # outputs [m · per_token, n]
        pitch: Any, m: Any, per_token: Any, n: Any, chunks: Any,
        threads: Any,  # of a row, and the distance between a thread's chunks
        size: Any,  # bytes of an output
        shared: Any,  # rows of x that share the words beside them
        columns: Any, height: Any,  # rows of the plan
    ) -> None:  # fmt: skip
        take_turn()
        i = uint32(uint32(cuda.blockIdx.x) * uint32(THREADS) + uint32(cuda.threadIdx.x))
        row = uint32(i // threads)
        if row < m:
            first_chunk, v = uint32(i - uint32(row * threads)), cuda.local.array(WORDS, uint32)
            stay = per_token == uint32(1) and load4(plan + uint64(4)) != uint32(0)
            if not stay:
                for q in range(CHUNKS):
                    chunk = min(uint32(first_chunk + uint32(uint32(q) * threads)), uint32(chunks - uint32(1)))
                    words = load_words(x + uint64(row) * uint64(pitch) + uint64(chunk) * uint64(CHUNK))
                    at = 4 * q
                    v[at], v[at + 1], v[at + 2], v[at + 3] = words[0], words[1], words[2], words[3]
            row_beside = beside + uint64(uint32(row // shared)) * row_bytes
            use = uint32(row * per_token)
            end = uint32(use + per_token)
            while use < end:
                column = load4(places + uint64(use) * uint64(4))
                if column != uint32(NOWHERE):
                    if not stay:
                        for q in range(CHUNKS):
                            chunk, at = uint32(first_chunk + uint32(uint32(q) * threads)), 4 * q
                            if chunk < chunks:
                                target = address(to, column, chunks, chunk, CHUNK)
                                store16(target, v[at], v[at + 1], v[at + 2], v[at + 3])
                    for j in range(first_chunk, columns, threads):
                        word = load4(row_beside + uint64(j) * column_bytes)
                        store4(address(to_beside, j, height, column, 4), word)
                else:
                    for j in range(first_chunk, n, threads):
                        if size == uint32(2):
                            store2(address(y, use, n, j, 2), uint32(NARROW_NAN))
                        else:
                            store4(address(y, use, n, j, 4), uint32(NAN))
                use = uint32(use + uint32(1))

    return Kernel(
        "rows of codes of experts", gather, *(uint64,) * 9, *(uint32,) * 10, threads=THREADS, early=True
    )  # fmt: skip
