"""FP8 tensor cores through ``mma.sync``: nothing is widened where the instruction is real.

Changed: ``mma.sync m16n8k32`` takes e4m3 and e5m2 as they are, so two conversions in three instructions
disappear and a product covers 32 columns. Everything else is as below.

Only for capabilities 8.9, 12.0 and 12.1. On 9.0 and 10.0 the assembler accepts the instruction and makes
two products of halves, twelve conversions and four additions of it: there the rung below is faster.

Limited by the sums: those tensor cores add FP8 products with about 14 bits behind the leading one, so that
promotion every 128 columns is no luxury.
"""

from __future__ import annotations

from itertools import product as combined
from typing import Any

from ....arrays.scaled import ScaledArray
from ....dispatch.ladder import register
from ....dispatch.problems import ScaledLinear
from ...driver.launch import Kernel, family
from ...intrinsics import tensor_cores
from ...intrinsics.atoms import inlined
from ...kernels.codes8.mma_tiles import ByteTile, RatedTile, launch_floats, too_large, with_every_step
from ...kernels.codes8.mma_tiles import refuses as refused
from .r5_widen import FLOAT_CODES, float_kernel

LEAST, REAL = (8, 9), ((8, 9), (12, 0), (12, 1))
TILES = (
    RatedTile(ByteTile(128, 64, 32, 32, stages=3), 1.0),  # such GPUs have 99 KB of shared memory
    RatedTile(ByteTile(64, 64, 32, 16, stages=4), 0.6),
    RatedTile(ByteTile(16, 64, 16, 16, stages=4), 0.2),
)


def multiplier(tile: ByteTile, a: str, b: str) -> Any:
    """The device function that multiplies 32 columns."""
    (down, across), add = tile.grid, tensor_cores.adder(tensor_cores.float_mma(a, b))

    @inlined
    def multiply(sums: Any, part: Any, a: Any, b: Any) -> None:
        for i in range(down):
            for j in range(across):
                add(part, 4 * (i * across + j), a, 4 * i, b, 2 * j)

    return multiply


@family(combined(with_every_step(TILES), FLOAT_CODES, FLOAT_CODES))
def kernel(tile: ByteTile, a: str, b: str) -> Kernel:
    """A kernel that always holds a scale for each column: with one a warp, kernels for 12.0 would spill their
    sums.
    """
    return float_kernel(f"mma_fp8 {a} {b}", tile, False, multiplier(tile, a, b), LEAST)


def refuses(problem: ScaledLinear) -> str | None:
    if problem.integer:
        return "multiplies floats of 8 bits"
    card = problem.card
    if card is not None and card.capability not in REAL:
        return (
            "is for compute capabilities 8.9, 12.0 and 12.1; on {}.{} mma.sync has no FP8 of its own, "
            "what there is is made of halves and slower than cuda:widen".format(*card.capability)
        )
    return refused(problem, LEAST) or too_large(problem, TILES)


@register(__name__, __doc__, arithmetic="codes", accumulate="float32", refuses=refuses)
def launch(x: ScaledArray, w: ScaledArray, out: Any, splits: int = 0) -> None:
    """``splits``: parts of K, in place of the best number."""
    launch_floats(lambda tile, _: kernel(tile, x.code.name, w.code.name), TILES, x, w, out, splits)
