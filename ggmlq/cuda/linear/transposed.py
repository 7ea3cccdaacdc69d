"""``y @ q`` on Hopper: the product with packed weights as they lie, which sums over their rows.

Up to 16 rows of y a kernel's blocks have 128 columns of weights. The warps of a block, and the blocks of a
cluster, split the rows, and add up in the end (gemv/transposed.py). All is bfloat16 there, and weights are
rounded as wgmma's are. So it is up to 32 rows where such blocks fill the card. More rows take the tiles of
transposed_tiles.py.

With more than ``MANY`` rows weights are decoded, at most ``SLAB`` bytes of them at a time, and cuBLAS
multiplies, float16 as float16, other floats as bfloat16. In a CUDA graph, and over torch's memory, CuPy's
cuBLAS cannot be called: tiles serve all rows there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...arrays.array import QuantArray
from ...dispatch.card import Card
from ...formats import BlockFormat
from ..activations.floats import narrowed
from ..activations.x_tiles import readable_rows
from ..epilogue.results import KIND_NUMBERS, result_of
from ..gemv import clusters, transposed
from ..gemv.stages import FLOATS, WIDE
from ..gemv.transposed import COLUMNS, DEEP, PAIR, TransposedStage
from ..intrinsics import dependent_launch, ptx
from ..intrinsics.floats import DTYPES
from ..intrinsics.lane import opaque_zero, warp_and_lane
from ..intrinsics.language import cuda, float32, uint32, uint64
from ..machine import device
from ..machine.launch import Kernel, family
from ..packed.layout import ROWS, PackedLayout, layouts
from ..packed.pack import packed_weights
from ..packed.to_bf16 import decode_packed
from ..packed.to_halves import decode_halves, fitting_power
from ..rings.ring import offset_advancer
from . import transposed_tiles
from ._cublas import AS_IS, COMPUTE_32F, DEFAULT, INPUT, R_32F

MANY = 768  # rows of y, beyond which decoded weights and cuBLAS are faster
FEW, BUSY = 16, 0.75  # rows that take no tiles; the share of the card that blocks for 32 rows must keep busy
SLAB = 256 << 20  # bytes of weights that are decoded at a time
EIGHT = 8  # columns of y that a row is a multiple of
SPLITS = {1: 0, 2: 0, 4: 7}  # blocks of a cluster: rounds of fragments that their meeting takes
START = 9  # rounds that the start and the end of a block take


@family(lambda: ((layout, columns) for layout in layouts() for columns in COLUMNS))
def kernel(layout: PackedLayout, columns: int) -> Kernel:
    """The kernel: block (128 columns of weights and a share of the rows) for up to ``columns`` rows of y."""
    stage = TransposedStage.of(layout, columns)
    length, count, size, warps = stage.length, stage.count, stage.size, stage.warps
    ahead, end, ring, after = count - 1, (count - 1) * length, count * length, offset_advancer(count, length)
    (fetch_weights, fetch_columns), finish = transposed.fetchers(stage), transposed.epilogue(stage)
    multiply, place, numbers, outputs = (
        transposed.multiplier(stage), clusters.warp_placer(stage), stage.numbers, stage.rows
    )  # fmt: skip
    base, commit, wait = ptx.shared_base, ptx.commit, ptx.wait_for_all_but(count - 2)
    let_start, wait_for_predecessor = (
        dependent_launch.let_successor_start, dependent_launch.wait_for_predecessor
    )  # fmt: skip

    def multiply_columns(
        fragments: Any,  # uint8 [fragment rows, spans, fragments of a span, fragment]
        y: Any, y_kind: Any,  # [m, n], of a kind by its place in KINDS; no float32 from 9 rows on
        out: Any, out_kind: Any, bias: Any, bias_kind: Any,  # of out [m, k]: epilogue/results.py
        m: Any, n: Any, k: Any,
        height: Any,  # pairs of fragment rows that have weights
        spans: Any, splits: Any,
    ) -> None:  # fmt: skip
        warp, lane = warp_and_lane()
        tile, rank, first, stride = place(warp, splits)
        apart = uint64(spans) * uint64(size)
        deep = apart * uint64(PAIR)
        w_at = fragments + uint64(tile) * uint64(size)
        warp_at = uint32(base() + uint32(warp * uint32(ring)) + opaque_zero(spans))
        sums = cuda.local.array(numbers, float32)
        for i in range(numbers):
            sums[i] = float32(0)
        let_start()
        for i in range(ahead):
            pair = uint32(first + uint32(stride * uint32(i)))
            if pair < height:
                fetch_weights(uint32(warp_at + uint32(i * length)), lane, w_at + uint64(pair) * deep, apart)
        wait_for_predecessor()  # it may have made y, or read out
        for i in range(ahead):
            pair = uint32(first + uint32(stride * uint32(i)))
            if pair < height:
                fetch_columns(uint32(warp_at + uint32(i * length)), lane, y, y_kind, pair, m, n)
            commit()
        to, here, pair = uint32(end), uint32(0), first
        while pair < height:
            wait()
            cuda.syncwarp()  # the stage has arrived for all lanes; none reads the one to fill
            later = uint32(pair + uint32(stride * uint32(ahead)))
            if later < height:
                fetch_weights(uint32(warp_at + to), lane, w_at + uint64(later) * deep, apart)
                fetch_columns(uint32(warp_at + to), lane, y, y_kind, later, m, n)
            commit()
            multiply(uint32(warp_at + here), lane, y_kind, sums, opaque_zero(spans))
            to, here = after(to), after(here)
            pair = uint32(pair + stride)
        cuda.syncthreads()  # the rings are free
        finish(sums, (out, out_kind, bias, bias_kind), uint32(tile * uint32(outputs)), rank, splits, m, k)

    parameters = (uint64, uint64, uint32, uint64, uint32, uint64, uint32) + (uint32,) * 6
    return Kernel(
        f"columns of {layout.name}, up to {columns} rows", multiply_columns, *parameters, threads=32 * warps,
        shared=stage.shared, blocks=stage.blocks, max_blocks=stage.blocks, least=WIDE, early=True,
    )  # fmt: skip


def splits_for(tiles: int, height: int, stage: TransposedStage, multiprocessors: int) -> int:
    """The blocks of a cluster: so many that the fullest multiprocessor has the least to do."""
    places = stage.blocks * multiprocessors

    def rounds(splits: int) -> int:
        share = -(-height // (splits * stage.warps))
        return -(-tiles * splits // places) * (share + START + SPLITS[splits])

    return min((splits for splits in SPLITS if splits <= stage.most_splits), key=rounds)


def refuses(q: QuantArray, card: Card | None) -> str | None:
    """The reason why kernels do not serve weights as they lie, or None."""
    if not isinstance(q.format, BlockFormat):
        return "is written for blocks"
    if q.scale is not None:
        return "takes weights without a scale of their own"
    if card is None or card.capability != WIDE:
        return "is written for cards of compute capability 9.0"
    return None


def multiply(y: Any, q: QuantArray, out: Any, bias: Any, by_library: bool) -> None:
    """``out = y @ q + bias``; out is float32 or of 16 bits; ``by_library``: CuPy's cuBLAS can be called."""
    m, n = y.shape
    if not (m and n and out.size):
        out[...] = 0 if bias is None else bias
        return
    if m > MANY and by_library:
        _by_cublas(y, q, out, bias)
        return
    y, w = y if not n % EIGHT else _padded(y), packed_weights(q)
    (m, k), n = out.shape, y.shape[1]
    stage = TransposedStage.of(w.layout, next((each for each in COLUMNS if each >= m), max(COLUMNS)))
    tiles, height, multiprocessors = -(-k // stage.rows), -(-n // DEEP), device.multiprocessors()
    splits = splits_for(tiles, height, stage, multiprocessors)
    if m > FEW and (m > stage.columns or tiles * splits < BUSY * multiprocessors):
        transposed_tiles.multiply(y, q, w, out, bias)
        return
    rows, kind = readable_rows(y)
    if m > FLOATS and kind == "float32":
        rows, kind = narrowed(rows, "bfloat16"), "bfloat16"
    make, spans = kernel(w.layout, stage.columns), w.fragments.shape[1] // stage.span
    make(
        (tiles * splits,), (make.threads,), w.fragments, rows, KIND_NUMBERS[kind],
        *result_of(out, bias), m, n, k, height, spans, splits, cluster=splits,
    )  # fmt: skip


def _padded(y: Any) -> Any:
    """Rows of y with zeros behind, so that each is a multiple of eight columns long."""
    m, n = y.shape
    longer = device.cupy().zeros((m, -(-n // EIGHT) * EIGHT), y.dtype)
    longer[:, :n] = y
    return longer


def _by_cublas(y: Any, q: QuantArray, out: Any, bias: Any) -> None:
    """Multiply by decoded weights, a slab of rows at a time; slabs are added up in float32.

    float16 is multiplied as float16, other floats as bfloat16. cuBLAS writes one slab's results as float16.
    """
    w, (n, k), xp = packed_weights(q), q.shape, device.cupy()
    power = q.prepared(fitting_power) if y.dtype == np.float16 else None
    kind = "bfloat16" if power is None else "float16"
    rows = narrowed(y if not n % EIGHT else _padded(y), kind)
    step = max(ROWS, SLAB // (2 * k) // ROWS * ROWS)
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
