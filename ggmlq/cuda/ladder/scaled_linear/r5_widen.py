"""FP8 on any tensor core: codes become halves on their way from shared memory, which is exact.

Changed: all that int8 has, with ``mma.sync m16n8k16`` on halves. Every e4m3 and e5m2 is a half, so
nothing is rounded. Codes cross the memories as bytes; one instruction (``cvt.rn.f16x2.e4m3x2``, or a few on
bits where a GPU lacks it) widens two of them in the registers from which the tensor cores take them.
A lane has four neighbours along K of each row: the first two meet the first two of the other operand, so
their order does not matter. Every 128 columns, or where scales change, the sums times both scales are added
to other float32 sums.

Why it helps: halves in shared memory would cost twice the bytes at a place where there are none to spare.
In warps of 64 × 32 outputs, per 32 columns: 3 KB read for 32 products (of 128 bytes a clock, 24 clocks of
about 52), 48 conversions, and 16 multiply-adds that promote.

Limited by ``mma.sync`` on halves: half of int8's rate, and three fifths of what Hopper's wgmma can do.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product as combined
from typing import Any

from ....arrays.scaled import ScaledArray
from ....dispatch.ladder import register
from ....dispatch.problems import ScaledLinear
from ...driver import device
from ...driver.launch import Kernel, family
from ...intrinsics import codes8, ptx, tensor_cores
from ...intrinsics.atoms import inlined
from ...intrinsics.language import cuda, float32, uint32, uint64
from ...kernels.codes8.mma_tiles import (
    TILE_PARAMETERS,
    ByteTile,
    LoopSteps,
    RatedTile,
    TileScales,
    TileSizes,
    block_locator,
    is_uniform,
    is_wide,
    launch_floats,
    main_loop,
    too_large,
    with_every_step,
)
from ...kernels.codes8.mma_tiles import refuses as refused
from ...kernels.codes8.rows import OperandPair
from ...kernels.epilogue.mma_sums import clearer, stage_scales, storer

LEAST, CONVERTS = (8, 0), (8, 9)  # CONVERTS: the lowest capability with the instruction
TILES = (
    RatedTile(ByteTile(128, 128, 64, 32, stages=5), 1.0),
    RatedTile(ByteTile(64, 64, 32, 16, stages=4, blocks=2), 0.6),
    RatedTile(ByteTile(16, 64, 16, 16, stages=4, blocks=3), 0.2),
)
FLOAT_CODES = ("e4m3", "e5m2")


def multiplier(tile: ByteTile, a: str, b: str, converts: bool) -> Any:
    """The device function for 32 columns, widened 16 at a time."""
    (down, across), (count_a, count_b) = tile.grid, tile.fragments
    add = tensor_cores.adder(tensor_cores.mma_f16)
    widen_a, widen_b = codes8.widening(a, converts), codes8.widening(b, converts)

    @inlined
    def multiply(sums: Any, part: Any, a: Any, b: Any) -> None:
        halves_a, halves_b = cuda.local.array(count_a, uint32), cuda.local.array(count_b, uint32)
        for half in range(2):
            for i in range(down):
                for r in range(2):
                    v = widen_a(a[4 * i + 2 * half + r])
                    halves_a[4 * i + r], halves_a[4 * i + 2 + r] = v[0], v[1]
            for j in range(across):
                v = widen_b(b[2 * j + half])
                halves_b[2 * j], halves_b[2 * j + 1] = v[0], v[1]
            for i in range(down):
                for j in range(across):
                    add(part, 4 * (i * across + j), halves_a, 4 * i, halves_b, 2 * j)

    return multiply


def promoter(tile: ByteTile, scale: Any) -> Any:
    """The device function that adds the scaled sums of a stage to those of all stages."""
    (down, across), fma = tile.grid, ptx.fma

    @inlined
    def finish(sums: Any, part: Any, scale_registers: Any, step: Any, scale_slots: Any) -> None:
        for i in range(down):
            for j in range(across):
                for c in range(4):
                    o = 4 * (i * across + j) + c
                    sums[o] = fma(part[o], scale(scale_registers, i, j, c), sums[o])
                    part[o] = float32(0)

    return finish


def float_kernel(name: str, tile: ByteTile, uniform: bool, multiply: Any, least: tuple[int, int]) -> Kernel:
    """A kernel for floats: ``multiply`` adds 32 columns, each stage is promoted."""
    count, step, stage_scale_functions = tile.sums, tile.step, stage_scales(tile, uniform)
    locate, clear, store, start = (
        block_locator(tile), clearer(count, float32), storer(tile), stage_scale_functions.start,
    )  # fmt: skip
    slots, scale_register_count = stage_scale_functions.slots, stage_scale_functions.held
    run_loop = main_loop(
        tile,
        LoopSteps(
            stage_scale_functions.fetch,
            multiply,
            stage_scale_functions.hold,
            promoter(tile, stage_scale_functions.scale),
        ),
    )

    def product(
        operands: Any, sizes: Any, scales: Any, shared: Any,
        span: Any,  # steps of a part of K, whole groups; parts are blocks along y
    ) -> None:  # fmt: skip
        (x, w, y), size, at = operands, TileSizes(*sizes), TileScales(*scales, *shared)
        m, n = size.m, size.n
        part_of_k = uint32(cuda.blockIdx.y)
        first = uint32(part_of_k * span)
        begin = uint32(first * step)
        k = min(uint32(size.k - begin), uint32(span * step))
        x, w = x + begin, w + begin
        x_scales = at.x + uint64(first // at.steps_x) * at.column_x
        w_scales = at.w + uint64(first // at.steps_w) * at.column_w
        y = y + uint64(part_of_k) * m * n * 4
        m0, n0 = locate(size.down, size.across, size.raster_height)
        sums, part = cuda.local.array(count, float32), cuda.local.array(count, float32)
        scale_registers, scale_slots = (
            cuda.local.array(scale_register_count, float32),
            cuda.local.array(slots, uint64),
        )
        clear(sums)
        clear(part)
        start(scale_slots, (x_scales, w_scales, *scales[2:], *shared), m0, n0, m, n)
        run_loop(sums, part, scale_registers, x, w, scale_slots, m0, n0, m, n, k, size.pitch_x, size.pitch_w)
        store(sums, y, m0, n0, m, n)

    full = f"{name}, {tile}{', one scale a warp' if uniform else ''}"
    sizes: dict[str, Any] = {"threads": tile.threads, "blocks": tile.blocks, "shared": tile.shared}
    return Kernel(full, product, *TILE_PARAMETERS, uint32, least=least, **sizes)


def cases(tiles: Sequence[RatedTile], *more: tuple[bool, ...]) -> list[tuple[Any, ...]]:
    """Tiles, codes, one scale for all columns of a warp or not, and further choices."""
    all_cases = combined(with_every_step(tiles), FLOAT_CODES, FLOAT_CODES, (False, True), *more)
    return [case for case in all_cases if is_wide(case[0]) or not case[3]]


@family(cases(TILES, (False, True)))
def kernel(tile: ByteTile, a: str, b: str, uniform: bool, converts: bool) -> Kernel:
    name = f"mma_f16 of {a} {b}{'' if converts else ' by bits'}"
    multiply = multiplier(tile, a, b, converts)
    return float_kernel(name, tile, uniform, multiply, CONVERTS if converts else LEAST)


def converts_here() -> bool:
    """True where the current GPU has the instruction."""
    return (device.capability() or CONVERTS) >= CONVERTS


def refuses(problem: ScaledLinear) -> str | None:
    if problem.integer:
        return "multiplies floats of 8 bits"
    return refused(problem, LEAST) or too_large(problem, TILES)


@register(__name__, __doc__, arithmetic="codes", accumulate="float32", refuses=refuses)
def launch(x: ScaledArray, w: ScaledArray, out: Any, splits: int = 0) -> None:
    """``splits``: parts of K, in place of the best number."""

    def make(tile: ByteTile, operands: OperandPair) -> Kernel:
        return kernel(tile, x.code.name, w.code.name, is_uniform(operands, tile), converts_here())

    launch_floats(make, TILES, x, w, out, splits)
