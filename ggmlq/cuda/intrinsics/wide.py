"""Addresses of what a thread fetches step by step: one multiply-add, and numbers that stay in a register.

Left to themselves LLVM takes four instructions for such an address, and the assembler computes anew in each
round of a loop what follows from a thread's number.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .assembly import instruction, only_on_a_gpu, u32, u64


@instruction("mad.wide.u32 $0, $1, $2, $3;", u64, u32, u32, u64)
def wide_place(count: Any, size: Any, base: Any) -> Any:
    """``base + count * size`` in 64 bits."""
    return np.uint64(int(base) + int(count) * int(size))


@instruction("shfl.sync.idx.b32 $0, $1, $2, 31, -1;", u32, u32, u32, effect=True)
def held(value: Any, lane: Any) -> Any:
    """A lane's own number, kept in a register."""
    only_on_a_gpu()
