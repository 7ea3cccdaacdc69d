"""Int8 tensor cores: a warp multiplies 16 × 32 codes with 32 × 8 in one instruction.

Changed: ``mma.sync m16n8k32`` in place of dp4a, fed as the tensor cores want it. Codes go past the
registers (cp.async) into a ring of stages, 128 columns each, and from there with ldmatrix into registers,
one 16-byte chunk a lane, swizzled so that no bank is met twice.

A warp makes 64 × 64 outputs, 32 products for each byte that it reads of shared memory, so the memory keeps
up. Where scales do not vary along K the int32 sums stay in their registers from the first column to the
last, and meet scales and zero points once.

Why it helps: 4096 products an instruction, and nothing else to do between them. Where scales vary along
K, each group costs an output a conversion and a multiply-add, and a second set of sums.

Limited by ``mma.sync`` itself, which gets about three fifths of what Hopper's wgmma can do.
"""

from __future__ import annotations

from itertools import product as combined
from typing import Any

from ....arrays.scaled import ScaledArray
from ....dispatch.ladder import register
from ....dispatch.problems import ScaledLinear
from ...driver.launch import Kernel, family
from ...intrinsics import ptx, tensor_cores
from ...intrinsics.atoms import inlined
from ...intrinsics.language import cuda, float32, int32, types, uint32, uint64
from ...intrinsics.wgmma import INTEGERS
from ...kernels.codes8.mma_tiles import (
    TILE_PARAMETERS,
    ByteTile,
    LoopSteps,
    RatedTile,
    TileSizes,
    best_tile,
    block_locator,
    fetch_no_scales,
    finish_nothing,
    is_uniform,
    is_wide,
    load_no_scales,
    main_loop,
    too_large,
    with_every_step,
)
from ...kernels.codes8.mma_tiles import launch as launch_tiles
from ...kernels.codes8.mma_tiles import refuses as refused
from ...kernels.codes8.rows import INTEGER_KINDS, not_bytes, operand_pair, too_large_for_int32, zero_terms
from ...kernels.epilogue.mma_sums import clearer, scale_loader, stage_scales, storer, zero_point_corrector

LEAST = (8, 0)
POINTS = types.UniTuple(uint64, 4)  # addresses of zero points and their factors, of x and of w
UNGROUPED_TILES = (
    RatedTile(ByteTile(128, 256, 64, 64, stages=4), 1.0),
    RatedTile(ByteTile(128, 128, 64, 32, stages=6), 0.8),
    RatedTile(ByteTile(64, 64, 32, 16, stages=4, blocks=2), 0.5),
    RatedTile(ByteTile(16, 64, 16, 16, stages=4, blocks=3), 0.2),
)
GROUPED_TILES = (  # zero points take registers: with them the first of either list is left out
    RatedTile(ByteTile(128, 128, 64, 32, stages=5), 1.0),
    RatedTile(ByteTile(64, 64, 32, 16, stages=4, blocks=2), 0.6),
    RatedTile(ByteTile(16, 64, 16, 16, stages=4, blocks=3), 0.2),
)

FIRST = (UNGROUPED_TILES[0].tile, *with_every_step(GROUPED_TILES[:1]))


def multiplier(tile: ByteTile, a: str, b: str) -> Any:
    """The device function for 32 columns: all products of a warp's rows and columns."""
    (down, across), add = tile.grid, tensor_cores.adder(tensor_cores.integer_mma(a, b))

    @inlined
    def multiply(sums: Any, part: Any, a: Any, b: Any) -> None:
        for i in range(down):
            for j in range(across):
                add(part, 4 * (i * across + j), a, 4 * i, b, 2 * j)

    return multiply


def cases(tiles: list[ByteTile], *choices: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """The cases of a family; the last choice of each says whether there are zero points."""
    return [case for case in combined(tiles, *choices, (False, True)) if not (case[-1] and case[0] in FIRST)]


def grouped_cases() -> list[tuple[Any, ...]]:
    """The cases of grouped kernels; one scale for all columns of a warp is a choice for wide warps alone."""
    every_case = cases(with_every_step(GROUPED_TILES), INTEGERS, INTEGERS, (False, True))
    return [case for case in every_case if is_wide(case[0]) or not case[3]]


@family(cases([rated.tile for rated in UNGROUPED_TILES], INTEGERS, INTEGERS))
def ungrouped(tile: ByteTile, a: str, b: str, zeros: bool) -> Kernel:
    """The kernel for scales that do not vary along K."""
    (down, across), count = tile.grid, tile.sums
    run_loop = main_loop(
        tile, LoopSteps(fetch_no_scales, multiplier(tile, a, b), load_no_scales, finish_nothing)
    )
    locate, clear, store = block_locator(tile), clearer(count, int32), storer(tile)
    hold, correct, scale_register_count = (
        scale_loader(tile),
        zero_point_corrector(tile),
        2 * down + 2 * across,
    )
    scale, fma = stage_scales(tile, False).scale, ptx.fma

    def product(operands: Any, sizes: Any, scales: Any, shared: Any, points: Any) -> None:
        (x, w, y), size = operands, TileSizes(*sizes)
        m, n, k = size.m, size.n, size.k
        m0, n0 = locate(size.down, size.across, size.raster_height)
        sums = cuda.local.array(count, int32)
        clear(sums)
        run_loop(sums, sums, sums, x, w, sums, m0, n0, m, n, k, size.pitch_x, size.pitch_w)
        if zeros:
            correct(sums, points, uint32(0), m0, n0, m, n)
        scale_registers, results = (
            cuda.local.array(scale_register_count, float32),
            cuda.local.array(count, float32),
        )
        hold(scales + shared, scale_registers, m0, n0, m, n)
        for i in range(down):
            for j in range(across):
                for c in range(4):
                    o = 4 * (i * across + j) + c
                    results[o] = fma(float32(sums[o]), scale(scale_registers, i, j, c), float32(0))
        store(results, y, m0, n0, m, n)

    name = f"mma_int8 {a} {b}, {tile}{', zeros' if zeros else ''}"
    sizes: dict[str, Any] = {"threads": tile.threads, "blocks": tile.blocks, "shared": tile.shared}
    return Kernel(name, product, *TILE_PARAMETERS, POINTS, least=LEAST, **sizes)


@family(grouped_cases())
def grouped(tile: ByteTile, a: str, b: str, uniform: bool, zeros: bool) -> Kernel:
    """The kernel for scales that vary along K."""
    (down, across), count, stage_scale_functions = tile.grid, tile.sums, stage_scales(tile, uniform)
    locate, store, correct, fma, step_length = (
        block_locator(tile), storer(tile), zero_point_corrector(tile), ptx.fma, tile.step,
    )  # fmt: skip
    clear, clear_floats = clearer(count, int32), clearer(count, float32)
    slots, scale_register_count = stage_scale_functions.slots, stage_scale_functions.held
    start, fetch_scales = stage_scale_functions.start, stage_scale_functions.fetch
    hold, scale = stage_scale_functions.hold, stage_scale_functions.scale

    @inlined
    def fetch(at: Any, stage_terms: Any, step: Any) -> None:
        fetch_scales(at, stage_terms[0], step)

    @inlined
    def finish(sums: Any, part: Any, scale_registers: Any, step: Any, stage_terms: Any) -> None:
        _scale_slots, points, span, steps, m0, n0, m, n = stage_terms
        if (step + 1) % span == 0 or step + 1 == steps:
            if zeros:
                correct(part, points, step // span, m0, n0, m, n)
            for i in range(down):
                for j in range(across):
                    for c in range(4):
                        o = 4 * (i * across + j) + c
                        sums[o] = fma(float32(part[o]), scale(scale_registers, i, j, c), sums[o])
                        part[o] = int32(0)

    run_loop = main_loop(tile, LoopSteps(fetch, multiplier(tile, a, b), hold, finish))

    def product(operands: Any, sizes: Any, scales: Any, shared: Any, points: Any, span: Any) -> None:
        (x, w, y), size = operands, TileSizes(*sizes)
        m, n, k = size.m, size.n, size.k
        m0, n0 = locate(size.down, size.across, size.raster_height)
        sums, part = cuda.local.array(count, float32), cuda.local.array(count, int32)
        scale_registers, scale_slots = (
            cuda.local.array(scale_register_count, float32),
            cuda.local.array(slots, uint64),
        )
        clear_floats(sums)
        clear(part)
        start(scale_slots, scales + shared, m0, n0, m, n)
        steps = (k + (step_length - 1)) // step_length
        stage_terms = (scale_slots, points, span, steps, m0, n0, m, n)
        run_loop(sums, part, scale_registers, x, w, stage_terms, m0, n0, m, n, k, size.pitch_x, size.pitch_w)
        store(sums, y, m0, n0, m, n)

    name = f"mma_int8 in groups {a} {b}, {tile}{', one scale a warp' * uniform}{', zeros' * zeros}"
    sizes: dict[str, Any] = {"threads": tile.threads, "blocks": tile.blocks, "shared": tile.shared}
    return Kernel(name, product, *TILE_PARAMETERS, POINTS, uint32, least=LEAST, **sizes)


def refuses(problem: ScaledLinear) -> str | None:
    reason = not_bytes(problem) or too_large_for_int32(problem) or refused(problem, LEAST)
    return reason or too_large(problem, GROUPED_TILES if problem.varies else UNGROUPED_TILES)


def points_of(x: ScaledArray, w: ScaledArray, groups: Any) -> tuple[Any, ...]:
    """The zero-point terms of both operands as arguments of a kernel; zeros without any."""
    if x.zeros is None and w.zeros is None:
        return (0, 0, 0, 0)
    return (*zero_terms(x, groups, weights=False), *zero_terms(w, groups, weights=True))


@register(__name__, __doc__, arithmetic="codes", accumulate="int32", refuses=refuses)
def launch(x: ScaledArray, w: ScaledArray, out: Any) -> None:
    (m, n), k = out.shape, w.shape[1]
    if not (out.size and k):
        out.fill(0)
        return
    operands = operand_pair(x, w)
    kinds = INTEGER_KINDS[x.code.name], INTEGER_KINDS[w.code.name]
    points = points_of(x, w, operands.groups)
    zeros = x.zeros is not None or w.zeros is not None
    if operands.groups.length < k:
        tile = best_tile(GROUPED_TILES[zeros:], operands.groups.step, m, n)
        kernel = grouped(tile, *kinds, is_uniform(operands, tile), zeros)
        launch_tiles(kernel, tile, operands, out, points, operands.groups.span)
    else:
        tile = best_tile(UNGROUPED_TILES[zeros:], operands.groups.step, m, n)
        launch_tiles(ungrouped(tile, *kinds, zeros), tile, operands, out, points)
