"""Activations of experts as panels of bfloat16: rows where a plan (pipeline/groups.py) has their uses.

The panels are those of panels.py. A row is read once and written for each of its uses; rows that no use
has are whatever was there, for sums of their own that nobody reads.
"""

from __future__ import annotations

from typing import Any

from ..gemv.uses import NAN
from ..machine.launch import Kernel, family
from ..pipeline.groups import NOWHERE
from ..words import codes, early_start, ptx
from ..words.address import address
from ..words.floats import LEAST
from ..words.language import cuda, uint32, uint64
from .floats import sixteen_loader
from .panels import EACH, THREADS, placer


@family()
def gatherer() -> Kernel:
    """Float32 to panels, 16 columns a thread; and rows of NaN for uses that have no expert."""
    load, place, store4, load4 = sixteen_loader(), placer(), ptx.store4, codes.load4
    take_turn = early_start.take_turn

    def gather(
        x: Any,  # float32 [m, k]
        panels: Any,
        places: Any,  # uint32 [m · each]: of a plan
        y: Any,  # float32 [m · each, n]
        m: Any, each: Any, k: Any, n: Any, sixteens: Any, height: Any,  # sixteens: of a row, whole panels
    ) -> None:  # fmt: skip
        take_turn()
        i = uint32(uint32(cuda.blockIdx.x) * uint32(THREADS) + uint32(cuda.threadIdx.x))
        row = uint32(i // sixteens)
        if row < m:
            own = uint32(i - uint32(row * sixteens))
            a, b = cuda.local.array(4, uint32), cuda.local.array(4, uint32)
            for t in range(4):
                a[t] = b[t] = uint32(0)
            column = uint32(own * uint32(EACH))
            if column < k:
                load(address(x, row, k, column, 4), a, b)
            use = uint32(row * each)
            end = uint32(use + each)
            while use < end:
                there = load4(places + uint64(use) * uint64(4))
                if there != uint32(NOWHERE):
                    place(panels, own, height, there, a, b)
                else:
                    for j in range(own, n, sixteens):
                        store4(address(y, use, n, j, 4), uint32(NAN))
                use = uint32(use + uint32(1))

    return Kernel(
        "rows of experts to panels of bfloat16", gather, *(uint64,) * 4, *(uint32,) * 6, threads=THREADS,
        least=LEAST["bfloat16"], early=True,
    )  # fmt: skip
