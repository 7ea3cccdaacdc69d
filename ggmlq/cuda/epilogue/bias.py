"""The kernel that adds a bias to rows of results by one prepared launch, with the bits of CuPy's kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...base.slots import Slot
from ..activations.floats import NAMES
from ..intrinsics import codes, dependent_launch, ptx
from ..intrinsics.assembly import f32, instruction
from ..intrinsics.atoms import inlined
from ..intrinsics.floats import KINDS
from ..intrinsics.lane import address
from ..intrinsics.language import cuda, uint32, uint64
from ..machine.launch import Kernel, family
from ..machine.recorded import RecordedLaunches, X, Y

THREADS, MOST = 256, 65535  # of a block; rows of blocks in a grid


@instruction("add.rn.ftz.f32 $0, $1, $2;", f32, f32, f32)
def add_flushed(a: Any, b: Any) -> Any:
    """A sum as CuPy's kernels give it: subnormal numbers, before and after, are zeros of their sign."""
    least = np.float32(2.0**-126)
    a, b = (np.copysign(np.float32(0), v) if abs(v) < least else np.float32(v) for v in (a, b))
    return np.copysign(np.float32(0), a + b) if abs(a + b) < least else a + b


def loader(kind: str) -> Any:
    """The device function that loads one value of a kind as float32."""
    load2, load_float, float_of, half = codes.load2, ptx.load_float, ptx.float_of, ptx.half_value

    @inlined
    def load_half(at: Any) -> Any:
        return half(load2(at))

    @inlined
    def load_bfloat(at: Any) -> Any:
        return float_of(load2(at) << uint32(16))

    return {"float32": load_float, "float16": load_half, "bfloat16": load_bfloat}[kind]


@family((kind,) for kind in KINDS)
def adder(kind: str) -> Kernel:
    """The kernel that adds a bias: a column a thread, and some of its rows."""
    load, size, load_float, store_float = loader(kind), KINDS[kind], ptx.load_float, ptx.store_float
    take_turn = dependent_launch.take_turn

    def add(
        bias: Any,  # of the kind [n]
        y: Any,  # float32 [m, n]
        m: Any, n: Any,
    ) -> None:  # fmt: skip
        take_turn()
        column = uint32(uint32(cuda.blockIdx.x) * uint32(THREADS) + uint32(cuda.threadIdx.x))
        if column < n:
            b, row = load(bias + uint64(column) * uint64(size)), uint32(cuda.blockIdx.y)
            while row < m:
                at = address(y, row, n, column, 4)
                store_float(at, add_flushed(load_float(at), b))
                row = uint32(row + uint32(cuda.gridDim.y))

    return Kernel(
        f"add a bias of {kind}", add, uint64, uint64, uint32, uint32, threads=THREADS, early=True
    )  # fmt: skip


def plan(m: int, n: int, letter: str) -> RecordedLaunches:
    """The prepared launch that adds a bias to m rows of n results; ``letter``: NumPy's for the bias's kind.

    A call fills in the addresses of the bias and of the results, and the stream.
    """
    grid, arguments = (-(-n // THREADS), min(m, MOST)), (Slot(X), Slot(Y), m, n)
    return RecordedLaunches([(adder(NAMES[letter]), grid, (THREADS,), arguments, 1, 0)])
