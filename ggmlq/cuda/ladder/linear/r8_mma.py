"""Tensor cores: a warp multiplies 16 × 32 codes with 32 × 8 in one instruction.

Changed: the codes are multiplied again, by ``mma.sync`` on fragments that ldmatrix brings from shared
memory, which cp.async fills a few stages ahead. One instruction makes 4096
multiplications; a run of 32 columns is exactly one.

Limited by the steps after it: each int32 sum is converted to float (at half rate), multiplied by
one scale, and by the other while it is added. In registers alone, the bare instruction makes
1170 TFLOP/s on an H200, with these steps behind it 417.
"""

from __future__ import annotations

from typing import Any

from ....arrays.array import QuantArray
from ....dispatch.card import older_than, too_small_for
from ....dispatch.ladder import register
from ....dispatch.problems import Linear
from ....formats import BlockFormat
from ...driver.launch import Kernel, family
from ...intrinsics import ptx, tensor_cores
from ...intrinsics.atoms import inlined
from ...intrinsics.lane import address, four_into, g_and_t, warp_and_lane
from ...intrinsics.language import cuda, float32, int32, uint32, uint64
from ...layouts.unpacked import activations, compensate, unpacked_weights
from ...layouts.unpacked import refuses as refuses_unpacked

ROWS, COLUMNS = 64, 128  # outputs of a block: rows of activations, rows of weights
WARP_ROWS, WARP_COLUMNS = 64, 32  # outputs of a warp; a multiprocessor holds two blocks of four warps
WARPS_ACROSS = COLUMNS // WARP_COLUMNS
THREADS = 32 * (ROWS // WARP_ROWS) * WARPS_ACROSS
DOWN, ACROSS = WARP_ROWS // 16, WARP_COLUMNS // 8  # instructions ``mma`` that make a warp's outputs of a run
SUMS = 4 * DOWN * ACROSS  # outputs of a thread
A_WORDS, B_WORDS = 4 * DOWN, 2 * ACROSS  # registers of a thread for a run's codes; as many scales of w
A_SCALES = 2 * DOWN  # of x

STEP, RUNS = 128, 4  # columns of a stage, and runs of 32 in it
STAGES = 4  # in the ring
W_AT = ROWS * STEP  # places in a stage: of the weights' codes,
DX_AT = W_AT + COLUMNS * STEP  # of the activations' scales,
DW_AT = DX_AT + RUNS * ROWS * 4  # of the weights' scales
STAGE = DW_AT + RUNS * COLUMNS * 4  # bytes of a stage
MIN_CAPABILITY = (8, 0)  # the first capability with cp.async and this ``mma``
ROWS_OF_PASS = THREADS // 8  # that all threads copy at once

mma = tensor_cores.integer_mma("s8", "s8")  # [16, 32] codes times [32, 8], with int32 sums

# Who computes what: a block of four warps has 64 × 128 outputs, a warp all 64 rows of 32 columns.
#
#              n0      +32      +64      +96                  of a warp, in tiles of ``mma``
#          m0  +--------+--------+--------+--------+          +------+------+------+------+
#              |        |        |        |        |          | 16×8 |      |      |      |
#              | warp 0 | warp 1 | warp 2 | warp 3 |          +------+------+------+------+  × 4 down
#              |        |        |        |        |          |      |      |      |      |
#              +--------+--------+--------+--------+          +------+------+------+------+
#
# Lane 4 g + t has four sums of each tile: rows g and g + 8, columns 2 t and 2 t + 1.
#
# Along K a step is 128 codes, four runs of 32. Its operands are a stage of the ring in shared memory:
#
#     stage    codes of x [64, 128 bytes] | codes of w [128, 128 bytes] | scales of x [4, 64] | of w [4, 128]
#
#     ring     | stage 0 | stage 1 | stage 2 | stage 3 |       one is multiplied while copies into
#                  ↑ here                        ↑ to          the other three are in flight
#
# Banks: a row of a stage is eight chunks of 16 bytes, all 32 banks. ldmatrix takes the same chunk of eight
# rows at once; side by side in one column they would lie in the same four banks, and wait for each other.
# So chunk c of row r lies at place c ^ (r % 8): eight rows, eight places. Copies go along rows, and fill each
# row's eight places in another order, which costs nothing.

START = int32(0)  # of the integer sum of a run


@inlined
def scaled(dot: Any, x_scale: Any, w_scale: Any, total: Any) -> Any:
    """The total with a run's integer sum added, times both scales: a conversion and two instructions."""
    return ptx.fma(ptx.mul(float32(dot), w_scale), x_scale, total)


@inlined
def origin_of_warp() -> Any:
    """The first row and column of a warp's outputs in its tile."""
    warp, _ = warp_and_lane()
    row = warp // WARPS_ACROSS * WARP_ROWS
    column = warp % WARPS_ACROSS * WARP_COLUMNS
    return row, column


# --- copies: from memory into a stage ------------------------------------------------------------


@inlined
def fetch_scales(at: Any, source: Any, length: Any, count: Any) -> None:
    """Start the copies of ``count`` scales of each run of a stage; runs are ``length`` scales apart.

    A copy brings four scales, so a run takes ``count // 4`` copies, and the four runs take ``count`` of them.
    """
    for first in range(0, count, THREADS):
        c = uint32(cuda.threadIdx.x) + uint32(first)
        if c < count:
            run, place = c // (count // 4), c % (count // 4)
            along = uint64(run * length) + uint64(place * 4)
            ptx.copy16(at + c * 16, source + along * 4)


@inlined
def fetch(at: Any, x: Any, dx: Any, w: Any, dw: Any, step: Any, k: Any, m_rows: Any, n_rows: Any) -> None:
    """Start the copies of one stage past the registers: eight threads a row of 128 codes, 16 codes a copy."""
    row, chunk = uint32(cuda.threadIdx.x) >> 3, uint32(cuda.threadIdx.x) & 7
    to = at + row * STEP + ((chunk ^ (row & 7)) << 4)
    along = address(step * STEP, row, k, chunk * 16, 1)
    # Rows of later passes are a multiple of eight further, so their places are exchanged alike.
    for p in range(ROWS * 8 // THREADS):
        ptx.copy16(to + uint32(p * ROWS_OF_PASS * STEP), x + along + uint64(p * ROWS_OF_PASS) * k)
    for p in range(COLUMNS * 8 // THREADS):
        ptx.copy16(to + uint32(W_AT + p * ROWS_OF_PASS * STEP), w + along + uint64(p * ROWS_OF_PASS) * k)
    first = step * (4 * RUNS)
    fetch_scales(at + DX_AT, dx + first * m_rows, m_rows, ROWS)
    fetch_scales(at + DW_AT, dw + first * n_rows, n_rows, COLUMNS)


# --- products: from a stage into registers, and on to the tensor cores ----------------------------


@inlined
def load(at: Any, wm: Any, wn: Any, run: Any, a: Any, b: Any, da: Any, db: Any) -> None:
    """Bring a run's operands and scales from a stage into the registers ``a``, ``b``, ``da`` and ``db``.

    ldmatrix brings four matrices of 8 rows × 16 bytes; lane 8 i + r names row r of matrix i. For x these are
    rows 0 … 7 and 8 … 15 of the first 16 codes of the run, then of the other 16; for w two tiles of 8
    columns, each of them the first 16 codes and the other 16.
    """
    (_, lane), chunk = warp_and_lane(), uint32(2 * run)
    g, t = g_and_t(lane)
    row = lane & 15
    place = (((lane >> 4) + chunk) ^ (row & 7)) << 4
    a_at = at + (wm + row) * STEP + place
    for i in range(DOWN):
        four_into(a, 4 * i, tensor_cores.load_matrices(a_at + uint32(16 * STEP * i)))
    row = (lane >> 4 << 3) + (lane & 7)
    place = (((lane >> 3 & 1) + chunk) ^ (row & 7)) << 4
    b_at = at + W_AT + (wn + row) * STEP + place
    for j in range(ACROSS // 2):
        four_into(b, 4 * j, tensor_cores.load_matrices(b_at + uint32(16 * STEP * j)))
    # Scales of x lie in the order of unpacked.place_of_row: rows g, g + 8, g + 16, g + 24 side by side, so
    # that one load brings the four that this lane needs of 32 rows.
    da_at = at + DX_AT + (uint32(run * ROWS) + wm + g * 4) * 4
    for i in range(DOWN // 2):
        four_into(da, 4 * i, ptx.take_floats(da_at + uint32(128 * i)))
    db_at = at + DW_AT + (uint32(run * COLUMNS) + wn + t * 2) * 4
    for j in range(ACROSS):
        p = ptx.take_pair(db_at + uint32(32 * j))
        db[2 * j], db[2 * j + 1] = p[0], p[1]


@inlined
def multiply(at: Any, wm: Any, wn: Any, sums: Any) -> None:
    """Add the products of one stage to ``sums``: four runs, each loaded while another is multiplied."""
    a, b = cuda.local.array(A_WORDS, int32), cuda.local.array(B_WORDS, int32)
    da, db = cuda.local.array(A_SCALES, float32), cuda.local.array(B_WORDS, float32)
    next_a, next_b = cuda.local.array(A_WORDS, int32), cuda.local.array(B_WORDS, int32)
    next_da, next_db = cuda.local.array(A_SCALES, float32), cuda.local.array(B_WORDS, float32)
    load(at, wm, wn, 0, next_a, next_b, next_da, next_db)
    for run in range(RUNS):
        # What was loaded ahead is this run's now, and its registers take the run after it.
        for i in range(A_WORDS):
            a[i] = next_a[i]
        for i in range(B_WORDS):
            b[i], db[i] = next_b[i], next_db[i]
        for i in range(A_SCALES):
            da[i] = next_da[i]
        # The last run loads itself again, which nothing reads.
        load(at, wm, wn, min(run + 1, RUNS - 1), next_a, next_b, next_da, next_db)
        for i in range(DOWN):
            for j in range(ACROSS):
                r, c, o = 4 * i, 2 * j, 4 * (i * ACROSS + j)
                d = mma(a[r], a[r + 1], a[r + 2], a[r + 3], b[c], b[c + 1], START, START, START, START)
                sums[o] = scaled(d[0], da[2 * i], db[2 * j], sums[o])
                sums[o + 1] = scaled(d[1], da[2 * i], db[2 * j + 1], sums[o + 1])
                sums[o + 2] = scaled(d[2], da[2 * i + 1], db[2 * j], sums[o + 2])
                sums[o + 3] = scaled(d[3], da[2 * i + 1], db[2 * j + 1], sums[o + 3])


# --- results --------------------------------------------------------------------------------------


@inlined
def store(sums: Any, y: Any, m0: Any, n0: Any, m: Any, n: Any) -> None:
    """Write a tile, or the part of it that lies within [m, n], two neighbours at a time where they may be."""
    _, lane = warp_and_lane()
    g, t = g_and_t(lane)
    wm, wn = origin_of_warp()
    row, column = m0 + wm + g, n0 + wn + t * 2
    for i in range(2 * DOWN):
        r = row + uint32(8 * i)
        if r < m:
            for j in range(ACROSS):
                c = column + uint32(8 * j)
                at = address(y, r, n, c, 4)
                o = 4 * (i // 2 * ACROSS + j) + 2 * (i % 2)
                # Rows of an odd length begin at odd places: a pair must lie at a multiple of eight bytes.
                if c + 1 < n and at & 7 == 0:
                    ptx.store_pair(at, sums[o], sums[o + 1])
                else:
                    if c < n:
                        ptx.store_float(at, sums[o])
                    if c + 1 < n:
                        ptx.store_float(at + 4, sums[o + 1])


# --- the kernel -------------------------------------------------------------------------------------


@family()
def kernel() -> Kernel:
    base, commit, wait = ptx.shared_base, ptx.commit, ptx.wait_for_all_but(STAGES - 2)

    def tile(
        x: Any,  # int8 [m_rows, k]
        dx: Any,  # float32 [k / 32, m_rows], in the order of unpacked.place_of_row
        w: Any,  # int8 [n_rows, k]
        dw: Any,  # float32 [k / 32, n_rows]
        y: Any,  # float32 [m, n]
        m: Any, n: Any, k: Any, m_rows: Any, n_rows: Any,
    ) -> None:  # fmt: skip
        m0, n0 = uint32(cuda.blockIdx.y) * ROWS, uint32(cuda.blockIdx.x) * COLUMNS
        sums = cuda.local.array(SUMS, float32)
        for i in range(SUMS):
            sums[i] = float32(0)
        steps = k // STEP
        x_at, w_at = address(x, m0, k, 0, 1), address(w, n0, k, 0, 1)
        dx_at, dw_at = dx + m0 * 4, dw + n0 * 4
        wm, wn = origin_of_warp()
        to, here = uint32(0), uint32(0)  # the stages to fill and to multiply, as bytes from the first
        # A block has one tile here, so nobody reads yet. With several a warp might still read the stages of
        # the tile before: this barrier comes before each tile's first copy.
        cuda.syncthreads()
        # Three steps only copy; then each copies one stage, three ahead, and multiplies one; the last three
        # steps only multiply.
        for step in range(uint32(0), steps + (STAGES - 1)):
            ready = step >= STAGES - 1
            if ready:
                # This thread's copies of the oldest stage have arrived: of the others two may be in flight.
                wait()
                # So have those of all other threads; and no warp reads any more the stage multiplied last,
                # which is the one to fill next. Without it copies would overwrite what is still read.
                cuda.syncthreads()
            if step < steps:
                fetch(base() + to, x_at, dx_at, w_at, dw_at, step, k, m_rows, n_rows)
            commit()  # also where nothing was copied: ``wait`` counts groups, one a step
            to = 0 if to == (STAGES - 1) * STAGE else uint32(to + STAGE)
            if ready:
                multiply(base() + here, wm, wn, sums)
                here = 0 if here == (STAGES - 1) * STAGE else uint32(here + STAGE)
        store(sums, y, m0, n0, m, n)

    parameters = (uint64,) * 5 + (uint32,) * 5
    name = f"mma, {ROWS}x{COLUMNS}, warps {WARP_ROWS}x{WARP_COLUMNS}, {STAGES} stages"
    sizes: dict[str, Any] = {"threads": THREADS, "blocks": 2, "shared": STAGES * STAGE}
    return Kernel(name, tile, *parameters, least=MIN_CAPABILITY, **sizes)


def refuses(problem: Linear) -> str | None:
    if reason := refuses_unpacked(problem):
        return reason
    assert isinstance(problem.format, BlockFormat)
    if problem.format.group % 32:
        return "takes groups of whole runs of 32, one instruction each"
    return older_than(problem.card, MIN_CAPABILITY) or too_small_for(problem.card, STAGES * STAGE)


@register(__name__, __doc__, arithmetic="q8", accumulate="int32", refuses=refuses)
def launch(x: Any, q: QuantArray, out: Any) -> None:
    w = unpacked_weights(q)
    a = activations(x, w.run, for_mma=True)
    m, n = out.shape
    # Columns of blocks are columns of the result: blocks that run together share rows of activations.
    grid = (-(-n // COLUMNS), -(-m // ROWS))
    sizes = (m, n, w.codes.shape[1], len(a.codes), len(w.codes))
    kernel()(grid, (THREADS,), a.codes, a.scale, w.codes, w.scale, out, *sizes)
    compensate(out, a, w)  # takes the offsets off, for formats that have them
