"""``y @ q`` on Hopper: the product with packed weights as they lie, which sums over their rows.

Up to 16 rows of y a kernel's blocks have 128 columns of weights. The warps of a block, and the blocks of a
cluster, split the rows, and add up in the end (mma/transposed.py). All is bfloat16 there, and weights are
rounded as wgmma's are. So it is up to 32 rows where such blocks fill the card. More rows take the tiles of
transposed.py.

With more than ``MAX_ROWS_OF_TILES`` rows weights are decoded, at most ``SLAB_BYTES`` of them at a time, and
cuBLAS multiplies, float16 as float16, other floats as bfloat16. In a CUDA graph, and over torch's memory,
CuPy's cuBLAS cannot be called: tiles serve all rows there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ....arrays.array import QuantArray
from ....dispatch.card import Card
from ....formats import BlockFormat
from ...driver import device
from ...driver.launch import Kernel, family
from ...driver.recorded import between
from ...intrinsics import bf16x2, codes8, hopper, ptx, tensor_cores
from ...intrinsics.atoms import inlined
from ...intrinsics.floats import DTYPES
from ...intrinsics.lane import address, g_and_t, opaque_zero, warp_and_lane
from ...intrinsics.language import cuda, float32, uint32, uint64
from ...layouts.floats import narrowed
from ...layouts.layout import FRAGMENT_ROWS, ROWS, STEP, TILE_ROWS, PackedLayout, layouts
from ...layouts.pack import PackedWeights, packed_weights
from ...layouts.to_bf16 import decode_halves, decode_packed, fitting_power
from ...layouts.weights import HIGH_HALVES, LOW_HALVES, row_pairs, serves_halves
from ...layouts.x_tiles import cleared, readable_rows
from ..cost.warp_specialized import WarpSpecializedShape, best_split, best_tile
from ..cublas import AS_IS, COMPUTE_32F, DEFAULT, INPUT, R_32F
from ..epilogue.results import KIND_NUMBERS, Result, result_of
from ..gemv.kernel import (
    Weights,
    XRows,
    cluster_epilogue,
    kernel_of,
    streamer,
    warp_placer,
    weight_fetcher,
)
from ..gemv.products import FLOAT16, Multiplier
from ..gemv.stages import (
    HOPPER,
    HOPPER_SHARED,
    MAX_BYTES_OF_MOST_WARPS,
    MAX_ROWS_OF_FLOATS,
    RESERVED,
    GemvStage,
)
from ..hopper import frame
from ..hopper.kernel import HALVES as WGMMA_HALVES
from ..hopper.kernel import Products, dense, dense_results, map_words, packed_blocks, weights_map
from ..hopper.stream_k import exchange_sizes, within_clusters
from ..hopper.tiles import WarpSpecializedTile, plan_raster

# ``y @ q`` by the warp-specialised kernel of Hopper: packed weights as they lie, for many rows of y.
#
# A stage has the bytes of one of ``x @ q.T``: eight fragments below each other, two side by side. There they
# are 128 rows of weights; here 128 columns are a tile, and sums run down the rows, 128 of them a stage. Each
# warp takes one sixteen of a fragment (layouts/weights.py). y has 16 bits and is read as it lies.

TRANSPOSED_TILES = tuple(map(WarpSpecializedTile, (64, 128)))
NO_ADDEND, NOTHING_LATE = (0, 0), (0,) * 5  # kernels/hopper/kernel.py: dense


@family(lambda: ((layout, tile) for layout in layouts() for tile in TRANSPOSED_TILES))
def tile_kernel(layout: PackedLayout, tile: WarpSpecializedTile) -> Kernel:
    """The kernel of one product."""
    products = Products(layout, tile, natural=True, halves=True, transposed=True)
    schedule = dense(layout, tile, transposed=True)
    epilogue = dense_results(tile), within_clusters(layout, tile, schedule.walk.locate)
    name = f"columns of {layout.name}, {tile}"
    return frame.kernel(name, packed_blocks(products), schedule, epilogue)


def multiply_tiles(
    y: Any, q: QuantArray, w: PackedWeights, out: Any, bias: Any, tile: WarpSpecializedTile | None = None
) -> None:  # fmt: skip
    """``out = y @ q + bias`` for y [m, n] in 16 bits or float32, whose rows are a multiple of eight columns
    long; q's packed weights are ``w``.
    """
    (m, k), card, layout = out.shape, device.card_of(device.current()), w.layout
    # Parts of a unit would round small scales to numbers of few bits.
    halves = y.dtype.char == "e" and serves_halves(layout) and layout.unit == 1
    rows, kind = readable_rows(y)
    if halves:
        rows = (rows if kind == "float16" else narrowed(y, "float16")).view(np.uint16)
    elif kind != "bfloat16":
        rows = narrowed(rows, "bfloat16")
    stages = -(-rows.shape[1] // TILE_ROWS)
    shape = WarpSpecializedShape.on(card, m, k, stages, layout, True)
    tile = tile or best_tile(shape, TRANSPOSED_TILES).tile
    words = map_words(rows, tile)
    if words is None:  # the driver wants other addresses
        rows = rows.copy()
        words = map_words(rows, tile)
    assert words is not None
    product, across = tile_kernel(layout, tile), shape.across(tile)
    wave = shape.wave(tile, device.resident_blocks(tile.blocks, tile.shared(layout)))
    split, _ = best_split(shape.down * across, stages, wave)
    w_bytes = FRAGMENT_ROWS * layout.fragment_bytes
    order = plan_raster(across, shape.down, wave.blocks, tile.x_tile_bytes, w_bytes)
    partials, flags = exchange_sizes(split, tile)
    if flags:
        partials, flags = between(partials, np.float32), between(flags, np.uint32)
        cleared(flags)
    product(
        (split.blocks,), (product.threads,), (*q.prepared(weights_map(tile.box_row(layout))), 0),
        result_of(out, bias), (partials, flags),
        (rows, WGMMA_HALVES if halves else KIND_NUMBERS["bfloat16"], rows.shape[1]), (m, k, 2 * stages, 0),
        tuple(order), (rows, *words), NO_ADDEND, NOTHING_LATE, split.arguments,
        cluster=split.cluster, max_blocks=tile.blocks,
    )  # fmt: skip


# The parts of the kernel for ``y @ q`` with few rows: stages, loads of activations, products, sums.
#
# Sums run over rows of weights, so weights are the first operand of ``mma`` the other way round: 16 columns
# by 16 rows. A lane of ``mma`` wants four rows, which t says, of two columns, which g says. A word of packed
# codes has four columns of rows r and r + 8. So lane 4 g + t takes the words that are made for lanes 4 t + g
# % 4 and 16 further, rows t, t + 8 and t + 4, t + 12, of fragment g / 4 of two: no number moves between
# lanes.
#
#     a warp's stage   two rows of two fragments, and the 32 columns of y that meet their rows
#     a lane's sums    of columns 16 s + 4 (g % 4) … + 3 of each sixteen s, by rows 2 t, 2 t + 1 of y

TRANSPOSED_COLUMNS = {8: 4, 16: 2, 32: 2}  # rows of y that kernels are made for: the most blocks of a cluster
STAGE_SPAN, STAGE_ROWS = 2, 2  # fragments side by side in a stage; rows of fragments
STAGE_DEPTH = STAGE_ROWS * ROWS  # rows of weights of a stage


@dataclass(frozen=True)
class TransposedStage(GemvStage):
    """A stage of a small block, whose outputs are columns of weights."""

    small: bool = True

    @classmethod
    def of(cls, layout: PackedLayout, columns: int) -> TransposedStage:
        """The stage for a number of rows of y."""
        return cls(layout, columns, STAGE_SPAN)

    @property
    def warps(self) -> int:
        return 8

    @property
    def count(self) -> int:
        return 3 if self.layout.fragment_bytes <= MAX_BYTES_OF_MOST_WARPS else 2

    @property
    def blocks(self) -> int:
        return max(1, min(2 if self.columns <= 16 else 1, HOPPER_SHARED // (self.shared + RESERVED)))

    @property
    def most_splits(self) -> int:
        return TRANSPOSED_COLUMNS[self.columns]

    @property
    def numbers(self) -> int:
        return 32 * self.tiles

    @property
    def takes_bits(self) -> bool:
        return True

    @property
    def swaps(self) -> bool:
        return False

    @property
    def depth(self) -> int:
        return STAGE_DEPTH

    @property
    def pitch(self) -> int:
        return self.row_bytes + 16

    @property
    def rows(self) -> int:
        return self.span * STEP


class WeightColumns(NamedTuple):
    """Packed weights from a tile's first column on."""

    at: Any  # address of the tile in the first row of fragments
    apart: Any  # bytes from a row of fragments to the next
    deep: Any  # bytes from a stage to the next


@cache
def transposed_fetcher(stage: TransposedStage) -> Any:
    """The device function that starts the copies of a stage's weights; ``pair``: its rows of fragments."""
    fetch_rows = weight_fetcher(stage)

    @inlined
    def fetch(at: Any, lane: Any, w: Any, pair: Any) -> None:
        fetch_rows(at, lane, Weights(w.at + pair * w.deep, w.apart, uint64(0)), uint32(0))

    return fetch


@cache
def columns_fetcher(stage: TransposedStage) -> Any:
    """The device function that starts the copies of a stage's columns of y as they lie."""
    floats, fetch_floats, fetch_bits = stage.floats, width_fetcher(stage, 4), width_fetcher(stage, 2)

    @inlined
    def fetch(at: Any, lane: Any, y: Any, pair: Any) -> None:
        if floats and y.kind == 0:
            fetch_floats(at, lane, y, pair)
        else:
            fetch_bits(at, lane, y, pair)

    return fetch


@cache
def width_fetcher(stage: TransposedStage, width: int) -> Any:
    """The same for columns of y of ``width`` bytes each; zeros beyond y, which ``mma`` multiplies too.

    It is gemv's row_fetcher but for offsets, which are cut to 32 bits in the end alone, not step by step:
    with steps of 32 bits the machine code has other address arithmetic.
    """
    columns, pitch, y_at = stage.columns, stage.pitch, stage.x_at
    row_chunks, every = STAGE_DEPTH * width // 16, 16 // width
    shift = row_chunks.bit_length() - 1

    @inlined
    def fetch(at: Any, lane: Any, y: Any, pair: Any) -> None:
        for first in range(0, row_chunks * columns, 32):
            c = uint32(lane + uint32(first))
            row, chunk = uint32(c >> shift), uint32(c & row_chunks - 1)
            if first + 32 <= row_chunks * columns or row < columns:
                column = uint32(pair * STAGE_DEPTH + chunk * every)
                there = row < y.m and column < y.k
                source = address(y.at, row, y.k, column, width) if there else y.at
                place = uint32(y_at + row * pitch + uint32(chunk << 4))
                ptx.copy16_or_zeros(uint32(at + place), source, uint32(16) if there else uint32(0))

    return fetch


@cache
def column_taker(stage: TransposedStage) -> Any:
    """The device function that loads a lane's pairs of y as bfloat16: two for each tile of eight rows.

    They are those of rows t and t + 8 of the weights, then of rows t + 4 and t + 12.
    """
    y_at, pitch, tiles, floats = stage.x_at, stage.pitch, stage.tiles, stage.floats

    @inlined
    def take_floats(at: Any, b: Any) -> None:
        for i in range(2):
            first = uint32(at + uint32(16 * i))
            b[i] = bf16x2.narrowed(ptx.take_float(first), ptx.take_float(uint32(first + 32)))

    @inlined
    def take_bits(at: Any, picks: Any, kind: Any, b: Any) -> None:
        for tile in range(tiles):
            for i in range(2):
                first = uint32(at + uint32(8 * tile * pitch + 8 * i))
                b[2 * tile + i] = ptx.permute(ptx.take4(first), ptx.take4(uint32(first + 16)), picks)
        if kind == FLOAT16:
            for i in range(2 * tiles):
                low, high = codes8.half_values(b[i])
                b[i] = bf16x2.narrowed(low, high)

    @inlined
    def take(at: Any, row: Any, lane: Any, kind: Any, b: Any) -> None:
        g, t = g_and_t(lane)
        row_at = uint32(at + y_at + g * pitch)
        if floats and kind == 0:
            take_floats(uint32(row_at + 4 * ROWS * row + t * 4), b)
        else:  # of two rows in a word
            picks = HIGH_HALVES if t & 1 else LOW_HALVES
            word_at = uint32(row_at + 2 * ROWS * row + (t >> 1) * 4)
            take_bits(word_at, picks, kind, b)

    return take


@cache
def sixteen_multiplier(stage: TransposedStage) -> Any:
    """The device function that multiplies sixteen s of the two fragments."""
    unpack, tiles = row_pairs(stage.layout).unpack, stage.tiles

    @inlined
    def multiply(words: Any, others: Any, s: Any, f: Any, b: Any, sums: Any, opaque: Any) -> None:
        w, a = cuda.local.array(8, uint32), cuda.local.array(4, uint32)
        unpack(words, s, w, 0, f[0], f[1], opaque)
        unpack(others, s, w, 4, f[2], f[3], opaque)
        for half in range(2):
            a[0], a[1], a[2], a[3] = w[2 * half], w[2 * half + 1], w[2 * half + 4], w[2 * half + 5]
            for tile in range(tiles):
                tensor_cores.add_bf16(sums, 4 * ((2 * s + half) * tiles + tile), a, 0, b, 2 * tile)

    return multiply


@cache
def transposed_multiplier(stage: TransposedStage) -> Any:
    """The device function that adds a stage to a lane's sums."""
    pairs, fragment_bytes = row_pairs(stage.layout), stage.layout.fragment_bytes
    count, load, scales = pairs.words, pairs.load, pairs.scales
    take, multiply_sixteen, b_count = column_taker(stage), sixteen_multiplier(stage), 2 * stage.tiles
    runs, per_run, size = stage.layout.runs, 4 // stage.layout.runs, stage.size

    @inlined
    def multiply_run(words: Any, others: Any, run: Any, b: Any, sums: Any, opaque: Any) -> None:
        f = cuda.local.array(4, uint32)
        f[0], f[1] = scales(words, run, opaque)
        f[2], f[3] = scales(others, run, opaque)
        for s in range(run * per_run, run * per_run + per_run):
            multiply_sixteen(words, others, s, f, b, sums, opaque)

    @inlined
    def multiply_row(at: Any, row: Any, lane: Any, kind: Any, sums: Any, opaque: Any) -> None:
        b = cuda.local.array(b_count, uint32)
        words, others = cuda.local.array(count, uint32), cuda.local.array(count, uint32)
        take(at, row, lane, kind, b)
        g, t = g_and_t(lane)
        here = uint32(at + row * size + (g >> 2) * fragment_bytes)
        there = uint32(t * 4 + (g & 3))
        load(here, there, words)
        load(here, uint32(there + 16), others)
        multiply_run(words, others, 0, b, sums, opaque)  # a loop over runs would not be unrolled
        multiply_run(words, others, 1, b, sums, opaque)
        if runs > 2:
            multiply_run(words, others, 2, b, sums, opaque)
            multiply_run(words, others, 3, b, sums, opaque)

    @inlined
    def multiply(at: Any, lane: Any, kind: Any, sums: Any, opaque: Any) -> None:
        multiply_row(at, 0, lane, kind, sums, opaque)
        multiply_row(at, 1, lane, kind, sums, opaque)

    return multiply


@cache
def transposed_epilogue(stage: TransposedStage) -> Any:
    """The device function that adds up the sums of the warps, the first warp first, and stores outputs."""
    columns, tiles, stride = stage.columns, stage.tiles, stage.sums
    share, factor = cluster_epilogue(stage), float32(row_pairs(stage.layout).factor)

    @inlined
    def put_sixteen(sums: Any, s: Any, warp: Any, g: Any, t: Any, m: Any) -> None:
        first = (g >> 2) * STEP + (g & 3) * 4
        for i in range(8 * tiles):
            row = first + uint32(16 * s + i // (4 * tiles) * 2 + i // 2 % 2)
            column = uint32(i // 4 % tiles * 8 + i % 2) + t * 2
            at = (warp * columns + column) * stride + row
            if column < m:
                ptx.put_float(ptx.shared_base() + at * 4, sums[8 * tiles * s + i] * factor)

    @inlined
    def finish(sums: Any, result: Any, first: Any, rank: Any, splits: Any, m: Any, k: Any) -> None:
        warp, lane = warp_and_lane()
        g, t = g_and_t(lane)
        put_sixteen(sums, 0, warp, g, t, m)  # a loop over sixteens would not be unrolled
        put_sixteen(sums, 1, warp, g, t, m)
        put_sixteen(sums, 2, warp, g, t, m)
        put_sixteen(sums, 3, warp, g, t, m)
        cuda.syncthreads()
        share(result, first, rank, splits, m, k)

    return finish


MAX_ROWS_OF_TILES = 768  # rows of y, beyond which decoded weights and cuBLAS are faster
MAX_ROWS_OF_SMALL_BLOCKS = 16  # rows of y that take no tiles in any case
MIN_SHARE_BUSY = 0.75  # of the card that blocks for 32 rows must keep busy
SLAB_BYTES = 256 << 20  # bytes of weights that are decoded at a time
COLUMNS_OF_A_CHUNK = 8  # a row of y is a multiple of them
SPLIT_ROUNDS = {1: 0, 2: 0, 4: 7}  # blocks of a cluster: rounds of fragments that their meeting takes
START_ROUNDS = 9  # rounds that the start and the end of a block take


@family(lambda: ((layout, columns) for layout in layouts() for columns in TRANSPOSED_COLUMNS))
def kernel(layout: PackedLayout, columns: int) -> Kernel:
    """The kernel: block (128 columns of weights and a share of the rows) for up to ``columns`` rows of y."""
    stage = TransposedStage.of(layout, columns)
    ring, size, numbers, outputs = stage.count * stage.length, stage.size, stage.numbers, stage.rows
    fetch, multiplier = transposed_fetcher(stage), Multiplier(transposed_multiplier(stage))
    stream = streamer(stage, fetch, columns_fetcher(stage), multiplier)
    place_of, finish = warp_placer(stage), transposed_epilogue(stage)

    def multiply_columns(
        fragments: Any,  # uint8 [fragment rows, spans, fragments of a span, fragment]
        y: Any, y_kind: Any,  # [m, n], of a kind by its place in KINDS; no float32 from 9 rows on
        out: Any, out_kind: Any, bias: Any, bias_kind: Any,  # of out [m, k]: kernels/epilogue/results.py
        m: Any, n: Any, k: Any,
        height: Any,  # pairs of fragment rows that have weights
        spans: Any, splits: Any,
    ) -> None:  # fmt: skip
        warp, lane = warp_and_lane()
        place, apart = place_of(warp, splits), uint64(spans) * size
        deep = apart * STAGE_ROWS
        w = WeightColumns(fragments + uint64(place.tile) * size, apart, deep)
        warp_at = uint32(ptx.shared_base() + uint32(warp * ring) + opaque_zero(spans))
        sums = cuda.local.array(numbers, float32)
        for i in range(numbers):
            sums[i] = float32(0)
        hopper.let_successor_start()
        stream(warp_at, lane, place, height, spans, w, XRows(y, y_kind, m, n), sums)
        result = Result(out, out_kind, bias, bias_kind)
        finish(sums, result, uint32(place.tile * outputs), place.rank, splits, m, k)

    parameters = (uint64, uint64, uint32, uint64, uint32, uint64, uint32) + (uint32,) * 6
    name = f"columns of {layout.name}, up to {columns} rows"
    return kernel_of(name, multiply_columns, parameters, stage, HOPPER)


def splits_for(tiles: int, height: int, stage: TransposedStage, multiprocessors: int) -> int:
    """The blocks of a cluster: so many that the fullest multiprocessor has the least to do."""
    places = stage.blocks * multiprocessors

    def rounds(splits: int) -> int:
        share = -(-height // (splits * stage.warps))
        return -(-tiles * splits // places) * (share + START_ROUNDS + SPLIT_ROUNDS[splits])

    return min((splits for splits in SPLIT_ROUNDS if splits <= stage.most_splits), key=rounds)


def refuses(q: QuantArray, card: Card | None) -> str | None:
    """The reason why kernels do not serve weights as they lie, or None."""
    if not isinstance(q.format, BlockFormat):
        return "is written for blocks"
    if q.scale is not None:
        return "takes weights without a scale of their own"
    if card is None or card.capability != HOPPER:
        return "is written for cards of compute capability 9.0"
    return None


def multiply(y: Any, q: QuantArray, out: Any, bias: Any, by_library: bool) -> None:
    """``out = y @ q + bias``; out is float32 or of 16 bits; ``by_library``: CuPy's cuBLAS can be called."""
    m, n = y.shape
    if not (m and n and out.size):
        out[...] = 0 if bias is None else bias
        return
    if m > MAX_ROWS_OF_TILES and by_library:
        _by_cublas(y, q, out, bias)
        return
    y, w = y if not n % COLUMNS_OF_A_CHUNK else _padded(y), packed_weights(q)
    (m, k), n = out.shape, y.shape[1]
    stage = TransposedStage.of(
        w.layout, next((each for each in TRANSPOSED_COLUMNS if each >= m), max(TRANSPOSED_COLUMNS))
    )
    tiles, height, multiprocessors = -(-k // stage.rows), -(-n // STAGE_DEPTH), device.multiprocessors()
    splits = splits_for(tiles, height, stage, multiprocessors)
    if m > MAX_ROWS_OF_SMALL_BLOCKS and (
        m > stage.columns or tiles * splits < MIN_SHARE_BUSY * multiprocessors
    ):
        multiply_tiles(y, q, w, out, bias)
        return
    rows, kind = readable_rows(y)
    if m > MAX_ROWS_OF_FLOATS and kind == "float32":
        rows, kind = narrowed(rows, "bfloat16"), "bfloat16"
    make, spans = kernel(w.layout, stage.columns), w.fragments.shape[1] // stage.span
    make(
        (tiles * splits,), (make.threads,), w.fragments, rows, KIND_NUMBERS[kind],
        *result_of(out, bias), m, n, k, height, spans, splits, cluster=splits,
    )  # fmt: skip


def _padded(y: Any) -> Any:
    """Rows of y with zeros behind, so that each is a multiple of eight columns long."""
    m, n = y.shape
    longer = device.cupy().zeros((m, -(-n // COLUMNS_OF_A_CHUNK) * COLUMNS_OF_A_CHUNK), y.dtype)
    longer[:, :n] = y
    return longer


def _by_cublas(y: Any, q: QuantArray, out: Any, bias: Any) -> None:
    """Multiply by decoded weights, a slab of rows at a time; slabs are added up in float32.

    float16 is multiplied as float16, other floats as bfloat16. cuBLAS writes one slab's results as float16.
    """
    w, (n, k), xp = packed_weights(q), q.shape, device.cupy()
    power = q.prepared(fitting_power) if y.dtype == np.float16 else None
    kind = "bfloat16" if power is None else "float16"
    rows = narrowed(y if not n % COLUMNS_OF_A_CHUNK else _padded(y), kind)
    step = max(ROWS, SLAB_BYTES // (2 * k) // ROWS * ROWS)
    direct = out.dtype == np.float32 or (kind == "float16" == out.dtype.name and n <= step and bias is None)
    sums = out if direct else xp.empty(out.shape, np.float32)
    slab = xp.empty((min(step, n), k), DTYPES[kind])
    for first in range(0, n, step):
        values = slab[: n - first]
        if power is None:
            decode_packed(w, first, values)
        else:
            decode_halves(w, first, values, power)
        add_product(rows, first, values, sums, kind, 2.0 ** -(power or 0))
    if bias is not None:
        sums += bias
    if sums is not out:
        out[...] = sums


def add_product(y: Any, first: int, w: Any, sums: Any, kind: str, factor: float) -> None:
    """``sums += factor * y[:, first:] @ w`` for as many columns of y as w has rows; the first one sets them.

    cuBLAS counts columns first and so sees all of it transposed.
    """
    (m, n), (rows, k) = y.shape, w.shape
    times, more = np.full(1, factor, np.float32), np.full(1, first > 0, np.float32)
    written = R_32F if sums.dtype == np.float32 else INPUT[sums.dtype.name]
    device.cublas().gemmEx(
        device.cupy().cuda.device.get_cublas_handle(), AS_IS, AS_IS, k, m, rows,
        times.ctypes.data, w.data.ptr, INPUT[kind], k, y.data.ptr + 2 * first, INPUT[kind], n,
        more.ctypes.data, sums.data.ptr, written, k, COMPUTE_32F, DEFAULT,
    )  # fmt: skip
