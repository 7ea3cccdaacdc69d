"""The kernel that adds the partial sums of columns that were split among blocks, and writes results."""

from __future__ import annotations

from typing import Any

from ..intrinsics import dependent_launch, ptx
from ..intrinsics.address import address
from ..intrinsics.lane import four_into
from ..intrinsics.language import cuda, float32, uint32, uint64
from ..machine.launch import Kernel, family
from .residual import residual_loader
from .results import bias_loader, store_result

ADDERS, FOUR = 256, 4  # threads of a block; results of a thread


@family()
def adder() -> Kernel:
    """The kernel that adds the partial sums of each result, the first part first, then bias and residual."""
    load_floats, take_turn = ptx.load_floats, dependent_launch.take_turn
    load_bias, load_residual, store = bias_loader(), residual_loader(), store_result

    def add(
        partials: Any,  # float32 [count, m, fours, 4]
        y: Any, y_kind: Any, bias: Any, bias_kind: Any,  # of y [m, n]: epilogue/results.py
        count: Any, m: Any, n: Any, fours: Any,
        residual: Any, residual_kind: Any,  # of y's shape, or 0: epilogue/residual.py
    ) -> None:  # fmt: skip
        take_turn()
        i = uint64(cuda.blockIdx.x) * uint64(ADDERS) + uint64(cuda.threadIdx.x)
        length = uint64(m) * uint64(fours)
        if i < length:
            total = cuda.local.array(FOUR, float32)
            four_into(total, 0, load_floats(partials + i * uint64(4 * FOUR)))
            for part in range(1, count):
                v = load_floats(address(partials, part, length, i, 4 * FOUR))
                for j in range(FOUR):
                    total[j] += v[j]
            column, first = uint32(i // uint64(fours)), uint32(i % uint64(fours)) * uint32(FOUR)
            result = y, y_kind, bias, bias_kind
            for j in range(FOUR):
                row = first + uint32(j)
                if row < n:
                    value = total[j] + load_bias(result, row, n)
                    more = load_residual(residual, residual_kind, column, row, n)
                    store(result, column, row, n, value + more)

    parameters = (uint64, uint64, uint32, uint64, *(uint32,) * 5, uint64, uint32)
    return Kernel("add partial sums to results", add, *parameters, threads=ADDERS, early=True)


def add_partials(
    partials: Any, result: tuple[Any, ...], m: int, n: int, residual: tuple[Any, int] = (0, 0)
) -> None:  # fmt: skip
    """Launch it for partial sums [splits, m, n], n rounded up to a multiple of four; ``residual``: as of
    ``residual_of``.
    """
    count, _, wide = partials.shape
    fours = wide // FOUR
    adder()((-(-m * fours // ADDERS),), (ADDERS,), partials, *result, count, m, n, fours, *residual)
