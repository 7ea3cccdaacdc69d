"""Rows of experts in float32 as bfloat16, beside the plan of their uses (schedule/groups.py): one launch.

The first blocks make the plan. All others make bfloat16 of rows, each row once for all experts of its token,
in the order of its columns or in that of floats.sixteen_loader.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..intrinsics import dependent_launch, ptx
from ..intrinsics.address import address
from ..intrinsics.floats import LEAST
from ..intrinsics.language import cuda, uint32, uint64
from ..machine import device
from ..machine.launch import Kernel, family
from ..schedule.counts import THREADS
from ..schedule.groups import OPERANDS, SHARED, UsePlan, new_plan, plan_maker
from .floats import sixteen_loader

SIXTEEN = 16  # columns of a thread


@family()
def narrowing_grouper() -> Kernel:
    """The kernel: blocks that make the plan, and blocks for rows, 16 columns a thread."""
    make_plan, load, store16 = plan_maker(), sixteen_loader(), ptx.store16
    wait_for_predecessor, let_successor_start = (
        dependent_launch.wait_for_predecessor, dependent_launch.let_successor_start,
    )  # fmt: skip

    def group(
        ids: Any, plan: Any, places: Any, block_counts: Any, zeros: Any, words: Any,  # as of groups.grouper()
        uses: Any, experts: Any, columns: Any, slots: Any,
        x: Any,  # float32 [sixteens, 16]
        rows: Any,  # bfloat16 [sixteens, 16]
        sixteens: Any,
        in_order: Any,  # 1 for the order of columns
        planning: Any,  # blocks that make the plan
    ) -> None:  # fmt: skip
        wait_for_predecessor()
        let_successor_start()  # not before: it reads ids as soon as it starts
        block = uint32(cuda.blockIdx.x)
        if block < planning:
            operands = ids, plan, places, block_counts, zeros, words, uses, experts, columns, slots
            make_plan(operands, planning)
        else:
            i = uint32(uint32(uint32(block - planning) * uint32(THREADS)) + uint32(cuda.threadIdx.x))
            if i < sixteens:
                a, b = cuda.local.array(4, uint32), cuda.local.array(4, uint32)
                load(address(x, i, SIXTEEN, 0, 4), a, b)
                to = address(rows, i, SIXTEEN, 0, 2)
                if in_order != uint32(0):
                    store16(to, a[0], b[0], a[1], b[1])
                    store16(to + uint64(16), a[2], b[2], a[3], b[3])
                else:
                    store16(to, a[0], a[1], a[2], a[3])
                    store16(to + uint64(16), b[0], b[1], b[2], b[3])

    return Kernel(
        "uses by expert, and rows to bfloat16", group, *OPERANDS, uint64, uint64, *(uint32,) * 3,
        threads=THREADS, shared=SHARED, least=LEAST["bfloat16"], early=True,
    )  # fmt: skip


def sorted_uses_and_rows(
    ids: Any, shape: UsePlan, zeros: Any, x: Any, in_order: bool
) -> tuple[Any, Any]:  # fmt: skip
    """The plan for ids, and rows of float32 as bfloat16; ``zeros``: words that are cleared."""
    plan, _, operands = new_plan(ids, shape, zeros)
    rows, sixteens = device.cupy().empty(x.shape, np.uint16), x.size // SIXTEEN
    blocks = -(-(shape.blocks + -(-sixteens // THREADS)) // shape.blocks) * shape.blocks
    more = x, rows, sixteens, int(in_order), shape.blocks
    narrowing_grouper()((blocks,), (THREADS,), *operands, *more, cluster=shape.blocks)
    return plan, rows
