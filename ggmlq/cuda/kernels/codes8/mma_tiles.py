"""Kernels that multiply 8-bit codes by ``mma.sync``: tiles, ring, main loop, choice of a tile, launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ....arrays.scaled import ScaledArray
from ....dispatch.card import older_than
from ....dispatch.problems import ScaledLinear
from ....errors import UnsupportedError
from ...driver import device
from ...driver.recorded import between
from ...intrinsics import ptx, tensor_cores
from ...intrinsics.atoms import inlined
from ...intrinsics.lane import four_into, warp_and_lane, warp_origin
from ...intrinsics.language import cuda, int32, types, uint32, uint64
from ..epilogue.results import FOUR, add_partials, result_of
from ..hopper.frame import MAX_SHARED_BYTES
from ..mma.ring import offset_advancer
from .rows import STEPS, OperandPair, operand_pair, too_short

MAX_STAGES = 8

# --- tiles --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ByteTile:
    """A tile of outputs, whose codes pass through shared memory ``step`` columns at a time."""

    rows: int = 128  # of x
    columns: int = 128  # rows of w: columns of outputs
    warp_rows: int = 64
    warp_columns: int = 32
    step: int = 128
    stages: int = 4
    blocks: int = 1  # blocks that fit on a multiprocessor together

    def __str__(self) -> str:
        return (
            f"{self.rows}x{self.columns}x{self.step}, warps {self.warp_rows}x{self.warp_columns}, "
            f"{self.stages} stages"
        )

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * (self.rows // self.warp_rows) * (self.columns // self.warp_columns)

    @property
    def stage(self) -> int:
        """Bytes of a stage: codes of x, codes of w, a scale for each of their rows."""
        return (self.rows + self.columns) * (self.step + 4)

    @property
    def scales(self) -> int:
        """Offset of a stage's scales."""
        return (self.rows + self.columns) * self.step

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        return self.stages * self.stage

    @property
    def sums(self) -> int:
        """Outputs of a thread."""
        return self.warp_rows * self.warp_columns // 32

    @property
    def grid(self) -> tuple[int, int]:
        """Tiles of ``mma`` in a warp's outputs."""
        return self.warp_rows // 16, self.warp_columns // 8

    @property
    def fragments(self) -> tuple[int, int]:
        """Registers of a lane for 32 columns of x, and of w."""
        return self.warp_rows // 4, self.warp_columns // 4

    def tiles(self, m: int, n: int) -> tuple[int, int]:
        """Tiles down and across an output of m rows and n columns."""
        return -(-m // self.rows), -(-n // self.columns)


def block_locator(tile: ByteTile) -> Any:
    """The device function for the first row and column of a block's tile.

    Blocks go down ``group`` tiles of rows before they take the next tile of columns, so that blocks that
    run at the same time share rows of both operands in the L2.
    """
    rows, columns = tile.rows, tile.columns

    @inlined
    def locate(down: Any, across: Any, group: Any) -> Any:
        # The last group may have fewer tiles of rows: ``height``.
        block = uint32(cuda.blockIdx.x)
        group_size = group * across
        first = block // group_size * group
        height = min(down - first, group)
        rest = block % group_size
        return (first + rest % height) * rows, rest // height * columns

    return locate


# --- the ring ---------------------------------------------------------------------------------------
#
# The ring of stages of ``mma`` kernels for 8-bit codes: copies, loads of operands, the main loop along K.
#
#     stage    codes of x [rows, step] · codes of w [columns, step] · scales of x [rows] · of w [columns]
#
# A row of a stage is 2, 4 or 8 chunks of 16 bytes. Chunk c of row r lies at c ^ swizzle(r), where rows that
# share the 128 bytes of all banks have the same swizzle. So neither the copies, which go along rows, nor
# ldmatrix, which goes down columns, have bank conflicts. Rows and columns beyond the ends are zeros.


def swizzler(step: int) -> Any:
    """The device function for the number that a row's chunks are swizzled by."""
    chunks = step // 16
    together, mask = 8 // chunks, chunks - 1

    @inlined
    def swizzle(row: Any) -> Any:
        return row // together & mask

    return swizzle


@cache
def stage_fetcher(tile: ByteTile) -> Any:
    """The device function that starts the copies of one stage's codes.

    ``x_at``, ``w_at``: the address of this thread's chunk in the first step; ``left_x``, ``left_w``: the
    rows that remain from the thread's first row on.
    """
    threads, rows, columns, step = tile.threads, tile.rows, tile.columns, tile.step
    chunks, w_offset = step // 16, rows * step
    rows_apart = threads // chunks  # rows between two copies of one thread
    swizzle = swizzler(step)

    @inlined
    def start_copies(to: Any, source: Any, count: Any, left: Any, pitch: Any, inside: Any) -> None:
        for p in range(0, count, rows_apart):
            if count % rows_apart == 0 or int32(cuda.threadIdx.x // chunks) + int32(p) < int32(count):
                size = uint32(16) if inside and int32(p) < left else uint32(0)
                ptx.copy16_or_zeros(to + uint32(p * step), source + uint64(p) * pitch, size)

    @inlined
    def fetch(
        at: Any, x_at: Any, w_at: Any, left_x: Any, left_w: Any, now: Any, k: Any, pitch_x: Any, pitch_w: Any
    ) -> None:
        row, chunk = uint32(cuda.threadIdx.x) // chunks, uint32(cuda.threadIdx.x) % chunks
        to = at + row * step + ((chunk ^ swizzle(row)) << 4)
        column = now * step
        inside = column + chunk * 16 < k
        start_copies(to, x_at + column, rows, left_x, pitch_x, inside)
        start_copies(to + w_offset, w_at + column, columns, left_w, pitch_w, inside)

    return fetch


@cache
def fragment_loader(tile: ByteTile) -> Any:
    """The device function that loads 32 columns of a stage into registers, as fragments of ``mma``."""
    (down, across), step, w_offset = tile.grid, tile.step, tile.rows * tile.step
    swizzle = swizzler(step)

    @inlined
    def load(at: Any, wm: Any, wn: Any, part: Any, a: Any, b: Any) -> None:
        _, lane = warp_and_lane()
        chunk = uint32(2 * part)
        row = lane & 15
        chunk_at = (((lane >> 4) + chunk) ^ swizzle(row)) << 4
        a_at = at + (wm + row) * step + chunk_at
        for i in range(down):
            four_into(a, 4 * i, tensor_cores.load_matrices(a_at + uint32(16 * step * i)))
        row = (lane >> 4 << 3) + (lane & 7)
        chunk_at = (((lane >> 3 & 1) + chunk) ^ swizzle(row)) << 4
        b_at = at + w_offset + (wn + row) * step + chunk_at
        for j in range(across // 2):
            four_into(b, 4 * j, tensor_cores.load_matrices(b_at + uint32(16 * step * j)))

    return load


class LoopSteps(NamedTuple):
    """Device functions that a kernel adds to the main loop."""

    fetch: Any  # (at, source, step): start the copies of a stage's scales
    multiply: Any  # (sums, part, a, b): multiply 32 columns that are in registers
    hold: Any  # (at, wm, wn, held): load a stage's scales into registers
    finish: Any  # (sums, part, held, step, source): called after a stage was multiplied


@inlined
def fetch_no_scales(at: Any, scale_source: Any, step: Any) -> None:
    """A kernel that reads its scales after the loop fetches none with the stages."""


@inlined
def load_no_scales(at: Any, wm: Any, wn: Any, held: Any) -> None:
    """A kernel that reads its scales after the loop loads none from the stages."""


@inlined
def finish_nothing(sums: Any, part: Any, held: Any, step: Any, scale_source: Any) -> None:
    """A kernel that adds up all of K at once does nothing when a stage ends."""


@cache
def main_loop(tile: ByteTile, work: LoopSteps) -> Any:
    """The device function of the main loop along K: a stage is multiplied while later ones are copied.

    Operands are loaded into registers 32 columns ahead, across the end of a stage too: the barrier comes
    before the last products of a stage, whose operands are in registers by then.
    """
    count, length, step = tile.stages, tile.stage, tile.step
    after, fetch, load = offset_advancer(count, length), stage_fetcher(tile), fragment_loader(tile)
    # Copies are waited for in groups, one a stage; stages beyond the end have empty ones, so counts stay
    # right. Before the loop `count` groups were started: with all but count - 1 of them the first stage is
    # there. At the end of step `now` count + now were, and now + 2 stages must be there: all but count - 2.
    first_there, next_there = ptx.wait_for_all_but(count - 1), ptx.wait_for_all_but(count - 2)
    all_there = ptx.wait_for_all_but(0)
    warp_rows, warp_columns, across = tile.warp_rows, tile.warp_columns, tile.columns // tile.warp_columns
    chunks, parts, (count_a, count_b) = step // 16, step // 32, tile.fragments
    fetch_scales, multiply, hold, finish = work.fetch, work.multiply, work.hold, work.finish

    @inlined
    def run_loop(
        sums: Any, part: Any, held: Any, x: Any, w: Any, scale_source: Any, m0: Any, n0: Any, m: Any, n: Any,
        k: Any, pitch_x: Any, pitch_w: Any,
    ) -> None:  # fmt: skip
        row, chunk = uint32(cuda.threadIdx.x) // chunks, uint32(cuda.threadIdx.x) % chunks
        x_at = x + uint64(m0 + row) * pitch_x + uint64(chunk * 16)
        w_at = w + uint64(n0 + row) * pitch_w + uint64(chunk * 16)
        left_x, left_w = int32(m) - int32(m0 + row), int32(n) - int32(n0 + row)
        wm, wn = warp_origin(warp_rows, warp_columns, across)
        steps = (k + (step - 1)) // step
        for i in range(count):
            if uint32(i) < steps:
                at = ptx.shared_base() + uint32(i * length)
                fetch(at, x_at, w_at, left_x, left_w, uint32(i), k, pitch_x, pitch_w)
                fetch_scales(at, scale_source, uint32(i))
            ptx.commit()
        a, b = cuda.local.array(count_a, int32), cuda.local.array(count_b, int32)
        next_a, next_b = cuda.local.array(count_a, int32), cuda.local.array(count_b, int32)
        here = uint32(0)
        first_there()
        cuda.syncthreads()  # a thread waited for its own copies alone
        load(ptx.shared_base(), wm, wn, 0, next_a, next_b)
        for now in range(steps):
            for p in range(parts - 1):
                for i in range(count_a):
                    a[i] = next_a[i]
                for i in range(count_b):
                    b[i] = next_b[i]
                load(ptx.shared_base() + here, wm, wn, p + 1, next_a, next_b)
                multiply(sums, part, a, b)
            for i in range(count_a):
                a[i] = next_a[i]
            for i in range(count_b):
                b[i] = next_b[i]
            at = ptx.shared_base() + here
            hold(at, wm, wn, held)
            next_there()
            cuda.syncthreads()  # all see the next stage, and nobody reads this one any more
            later = uint32(now) + count
            if later < steps:
                fetch(at, x_at, w_at, left_x, left_w, later, k, pitch_x, pitch_w)
                fetch_scales(at, scale_source, later)
            ptx.commit()
            here = after(here)
            # After the last stage: a load that nobody uses.
            load(ptx.shared_base() + here, wm, wn, 0, next_a, next_b)
            multiply(sums, part, a, b)
            finish(sums, part, held, uint32(now), scale_source)
        all_there()  # no copy may be in flight when a block ends

    return run_loop


class RatedTile(NamedTuple):
    """A tile, and how busy its kernel keeps a multiprocessor, relative to other tiles."""

    tile: ByteTile
    efficiency: float


class TileSizes(NamedTuple):
    """The sizes of a product, and the raster of its tiles."""

    m: Any
    n: Any
    k: Any
    pitch_x: Any  # bytes from row to row of codes; likewise of w
    pitch_w: Any
    down: Any  # tiles
    across: Any
    raster_height: Any  # tiles that blocks go down before they take the next column of tiles


class TileScales(NamedTuple):
    """The scales of both operands, in the order in which kernels/epilogue/mma_sums.py takes them."""

    x: Any  # address; likewise of w
    w: Any
    row_x: Any  # bytes from row to row
    row_w: Any
    column_x: Any  # from column to column
    column_w: Any
    rows_x: Any  # rows that share one
    rows_w: Any
    steps_x: Any  # steps that share one
    steps_w: Any


# The parameters of a kernel on tiles: addresses of x, w and y; TileSizes; TileScales, the addresses and bytes
# apart from the numbers that share one.
TILE_PARAMETERS = (
    types.UniTuple(uint64, 3), types.UniTuple(uint32, 8),
    types.UniTuple(uint64, 6), types.UniTuple(uint32, 4),
)  # fmt: skip
BLOCKS_OF_MULTIPROCESSOR, MIN_STEPS_OF_PART, MAX_PARTS_OF_K = 2, 4, 8  # where blocks share K
RASTER_HEIGHT = 8  # tiles that blocks go down before they take the next column of tiles


def refuses(problem: ScaledLinear, least: tuple[int, int]) -> str | None:
    """The reason why tiles of 8-bit codes do not serve a problem, or None."""
    if max(problem.m, problem.n, problem.k) >= 1 << 31:
        return "takes up to 2**31 - 1 rows and columns"
    return too_short(problem) or older_than(problem.card, least)


def fitting(tile: ByteTile, step: int, shared: int) -> ByteTile | None:
    """The tile with another step and as many stages as ``shared`` bytes hold; None if fewer than two."""
    with_step = replace(tile, step=step)
    stages = min(tile.stages * tile.step // step, MAX_STAGES, shared // tile.blocks // with_step.stage)
    return replace(with_step, stages=stages) if stages >= 2 else None


def with_every_step(rated_tiles: Sequence[RatedTile]) -> list[ByteTile]:
    """The tiles with every step, and as many stages as fit on Hopper, for the lists of kernels."""
    tiles = [fitting(rated.tile, step, MAX_SHARED_BYTES) for rated in rated_tiles for step in STEPS]
    return [tile for tile in tiles if tile is not None]


def too_large(problem: ScaledLinear, rated_tiles: Sequence[RatedTile]) -> str | None:
    """The reason why none of these tiles fits into the shared memory of a problem's card, or None."""
    card = problem.card
    if card is None or any(fitting(rated.tile, rated.tile.step, card.shared) for rated in rated_tiles):
        return None
    return f"needs {2 * rated_tiles[-1].tile.stage >> 10} KB of shared memory for a block"


def best_tile(rated_tiles: Sequence[RatedTile], step: int, m: int, n: int) -> ByteTile:
    """The tile with which the multiprocessors finish first, by an estimate from its size and efficiency.

    :func:`too_large` has refused problems for whose card none fits.
    """
    shared, count = device.most_shared(), device.multiprocessors()

    def time(rated: RatedTile) -> float:
        down, across = rated.tile.tiles(m, n)
        return -(-down * across // count) * rated.tile.rows * rated.tile.columns / rated.efficiency

    for rated in sorted(rated_tiles, key=time):
        if (tile := fitting(rated.tile, step, shared)) is not None:
            return tile
    raise UnsupportedError(
        f"a product of codes in steps of {step} columns: no tile of this kernel fits into the {shared} bytes "
        "of shared memory that a block has here; let another kernel be chosen"
    )


def is_wide(tile: Any) -> bool:
    """True where a warp is wide enough to gain from one scale for all its columns."""
    return bool(tile.warp_columns >= 32)


def is_uniform(pair: OperandPair, tile: ByteTile) -> bool:
    """True where all columns of a warp share a scale."""
    rows = pair.w.scales.rows
    return is_wide(tile) and (rows % tile.warp_columns == 0 or rows >= len(pair.w.codes))


def launch(
    kernel: Any, tile: ByteTile, pair: OperandPair, out: Any, *more: Any, raster_height: int = RASTER_HEIGHT,
    parts: int = 1,
) -> None:  # fmt: skip
    """Launch a kernel with the arguments that all such kernels take; ``more`` follows them.

    ``parts``: of K, for kernels that take some; then ``out`` is [parts, m, n].
    """
    (m, n), x, w = out.shape[-2:], pair.x.scales, pair.w.scales
    down, across = tile.tiles(m, n)
    k = min(pair.x.columns, pair.w.columns)
    kernel(
        (down * across, parts)[: 1 + (parts > 1)], (tile.threads,), (pair.x.codes, pair.w.codes, out),
        tuple(TileSizes(m, n, k, pair.x.pitch, pair.w.pitch, down, across, raster_height)),
        (x.at, w.at, x.row, w.row, x.column, w.column), (x.rows, w.rows, x.steps, w.steps), *more,
    )  # fmt: skip


def launch_split(kernel: Any, tile: ByteTile, pair: OperandPair, out: Any, splits: int = 0) -> None:
    """Launch a kernel whose blocks may share K, then the one that adds their sums.

    ``splits``: parts of K, which are whole groups; 0 for the best number.
    """
    (m, n), steps = out.shape, -(-min(pair.x.columns, pair.w.columns) // tile.step)
    splits = splits or best_parts(tile, m, n, steps)
    span, parts = span_of(pair, steps, splits)
    if parts == 1 or n % FOUR:
        launch(kernel, tile, pair, out, steps)
        return
    partials = between((parts, m, n), np.float32)
    launch(kernel, tile, pair, partials, span, parts=parts)
    add_partials(partials, result_of(out, None), m, n)


def launch_floats(
    make: Callable[[ByteTile, OperandPair], Any], rated_tiles: Sequence[RatedTile], x: ScaledArray,
    w: ScaledArray, out: Any, splits: int,
) -> None:  # fmt: skip
    """Launch the kernel that ``make`` gives for a tile and operands; ``splits``: of :func:`launch_split`."""
    if not (out.size and w.shape[1]):
        out.fill(0)
        return
    operands = operand_pair(x, w)
    tile = best_tile(rated_tiles, operands.groups.step, *out.shape)
    launch_split(make(tile, operands), tile, operands, out, splits)


def span_of(pair: OperandPair, steps: int, splits: int) -> tuple[int, int]:
    """The steps of a part of K, whole groups that share scales, and the number of parts."""
    group = max((each for each in (pair.x.scales.steps, pair.w.scales.steps) if each < steps), default=1)
    span = -(-steps // (splits * group)) * group
    return span, -(-steps // span)


def best_parts(tile: ByteTile, m: int, n: int, steps: int) -> int:
    """The parts of K that fill the multiprocessors, where there are few tiles, and none is short."""
    down, across = tile.tiles(m, n)
    blocks = device.multiprocessors() * BLOCKS_OF_MULTIPROCESSOR
    return max(1, min(blocks // (down * across), steps // MIN_STEPS_OF_PART, MAX_PARTS_OF_K))
