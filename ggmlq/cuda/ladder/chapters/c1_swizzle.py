"""Swizzle: rows of a tile in shared memory lie so that eight lanes read eight rows without meeting.

Shared memory has 32 banks of 4 bytes; byte b lies in bank b // 4 % 32. In one clock each bank gives one
word. ``ldmatrix`` reads 8 rows of 16 bytes at a time, one row a lane. Rows of 128 bytes fill all banks
exactly, so in the plain layout the first 16 bytes of *all* rows lie in banks 0 to 3: eight lanes wait in
one line.

    plain      chunk c of row r at chunk c             8 rows, 4 banks     8 clocks
    padded     rows of 144 bytes                       each row 4 banks on 1 clock, an eighth of memory lost
    swizzled   chunk c of row r at chunk c ^ (r % 8)   each row elsewhere  1 clock, nothing lost

(A chunk is 16 bytes.) XOR with the row moves chunks within their row, and eight rows use eight different
places. It is its own inverse, so writers and readers call the same function. The copy engine knows this
very swizzle, and ``wgmma`` undoes it (chapter 2): both have to be told the same.

``conflicts`` counts the clocks; the kernel multiplies with any of the layouts, by ``mma`` and without
Hopper.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...driver.launch import Kernel, array, family
from ...intrinsics import ptx, tensor_cores
from ...intrinsics.atoms import inlined
from ...intrinsics.lane import g_and_t, warp_and_lane
from ...intrinsics.language import cuda, int32, uint32, uint64
from .operands import result_of

STEP = 128  # codes along K that a step takes: bytes of a row in shared memory
BANKS, WORD, CHUNK = 32, 4, 16  # bytes of a word, of a chunk
LINES = 8  # rows that ldmatrix reads at a time
ROWS, COLUMNS, THREADS = 64, 32, 128  # a warp has 16 rows of x, and all columns
CHUNKS = STEP // CHUNK
TILES = COLUMNS // 8  # of mma
SUMS = 4 * TILES  # a thread's


# Where chunk 0 (o) of eight rows lies, and so in which banks a read of it meets itself. A column is a chunk's
# place, four banks:
#
#              plain               padded              swizzled
#     row 0    o . . . . . . .     o . . . . . . .     o . . . . . . .     chunk 0 of row r at 0 ^ r
#     row 1    o . . . . . . .     . o . . . . . .     . o . . . . . .     chunk 1 of row r at 1 ^ r:
#     row 2    o . . . . . . .     . . o . . . . .     . . o . . . . .     1, 0, 3, 2, 5, 4, 7, 6
#     …                            each row begins
#     row 7    o . . . . . . .     a place further     . . . . . . . o
#
# Who computes what: a block of four warps has 64 × 32 outputs, warp i rows 16 i … 16 i + 15. All 128 threads
# load both tiles, 128 columns of K a step; each warp then takes 32 columns at a time to the tensor cores: 16
# rows of x by one ldmatrix, 16 rows of w by another.


def plain(row: Any, chunk: Any) -> Any:
    """The place of a chunk where rows follow each other."""
    return row * STEP + chunk * CHUNK


def padded(row: Any, chunk: Any) -> Any:
    """The place of a chunk where each row is 16 bytes longer than it need be."""
    return row * (STEP + CHUNK) + chunk * CHUNK


def swizzled(row: Any, chunk: Any) -> Any:
    """The place of a chunk where chunks of a row are exchanged by the row's number."""
    return row * STEP + (chunk ^ row % LINES) * CHUNK


LAYOUTS: dict[str, Callable[[Any, Any], Any]] = {"plain": plain, "padded": padded, "swizzled": swizzled}


def conflicts(layout: str, chunk: int) -> int:
    """Clocks of a read of one chunk of eight neighbouring rows: the most words that lie in one bank."""
    words = [0] * BANKS
    for row in range(LINES):
        for byte in range(0, CHUNK, WORD):
            words[(LAYOUTS[layout](row, chunk) + byte) // WORD % BANKS] += 1
    return max(words)


@family((name,) for name in LAYOUTS)
def kernel(layout: str) -> Kernel:
    """The kernel: a block of four warps makes 64 × 32 sums."""
    where, inner_place = LAYOUTS[layout], inlined(LAYOUTS[layout])
    w_at, mma = where(ROWS, 0), tensor_cores.integer_mma("s8", "s8")  # the tile of w lies behind that of x
    load16, put16, load_matrices, base = (
        ptx.load16,
        ptx.put16,
        tensor_cores.load_matrices,
        ptx.shared_base,
    )

    @inlined
    def place(row: Any, chunk: Any) -> Any:
        return uint32(inner_place(int32(row), int32(chunk)))

    def swizzle_product(x: Any, w: Any, y: Any, k: Any, steps: Any) -> None:
        thread, shared = uint32(cuda.threadIdx.x), base()
        warp, lane = warp_and_lane()
        g, t = g_and_t(lane)
        row, column = uint32(cuda.blockIdx.y * uint32(ROWS)), uint32(cuda.blockIdx.x * uint32(COLUMNS))
        sums = cuda.local.array(SUMS, int32)
        for i in range(SUMS):
            sums[i] = 0
        # ldmatrix: lanes 8 i … 8 i + 7 name the rows of matrix i
        a_row = uint32(uint32(warp << 4) + uint32(lane & 15))
        a_chunk = uint32(lane >> 4)
        b_row = uint32(uint32(lane & 7) + uint32(uint32(lane >> 4) << 3))
        b_chunk = uint32(uint32(lane >> 3) & 1)
        for step in range(steps):
            # Neighbouring threads load neighbouring chunks of a row: eight threads a whole line of memory.
            for i in range((ROWS + COLUMNS) * CHUNKS // THREADS):
                place_in_step = uint32(thread + uint32(i * THREADS))
                r, chunk = uint32(place_in_step // CHUNKS), uint32(place_in_step % CHUNKS)
                offset = step * STEP + uint64(chunk) * CHUNK
                if r < ROWS:
                    four = load16(x + uint64(row + r) * k + offset)
                else:
                    four = load16(w + uint64(column + uint32(r - ROWS)) * k + offset)
                put16(uint32(shared + place(r, chunk)), four[0], four[1], four[2], four[3])
            cuda.syncthreads()  # the tiles are whole: warps read rows that others wrote
            for part in range(CHUNKS // 2):  # 32 codes of K
                a = load_matrices(uint32(shared + place(a_row, uint32(a_chunk + uint32(2 * part)))))
                for pair in range(TILES // 2):
                    r = uint32(b_row + uint32(16 * pair))
                    b = load_matrices(uint32(shared + w_at + place(r, b_chunk + uint32(2 * part))))
                    for i in range(2):
                        s = 4 * (2 * pair + i)
                        sums[s], sums[s + 1], sums[s + 2], sums[s + 3] = mma(
                            a[0], a[1], a[2], a[3], b[2 * i], b[2 * i + 1],
                            sums[s], sums[s + 1], sums[s + 2], sums[s + 3],
                        )  # fmt: skip
            cuda.syncthreads()  # nobody reads the tiles any more: the next step may write them
        # Lane 4 g + t has rows g and g + 8, columns 2 t and 2 t + 1 of each tile of ``mma``.
        low = uint32(row + uint32(uint32(warp << 4) + g))
        for i in range(TILES):
            at = uint32(column + uint32(8 * i) + uint32(t << 1))
            y[low, at], y[low, at + 1] = sums[4 * i], sums[4 * i + 1]
            y[low + 8, at], y[low + 8, at + 1] = sums[4 * i + 2], sums[4 * i + 3]

    return Kernel(
        f"chapter swizzle, {layout}", swizzle_product, uint64, uint64, array(int32, 2), uint32, uint32,
        threads=THREADS, shared=where(ROWS + COLUMNS, 0), least=(8, 0),
    )  # fmt: skip


def product(x: Any, w: Any, layout: str = "swizzled") -> Any:
    """The sums of codes x [M, K] · w [N, K]ᵀ as int32 [M, N], exactly; M is a multiple of 64, N of 32.

    ``layout``: "plain", "padded" or "swizzled"; from capability 8.0.
    """
    y = result_of(x, w, ROWS, COLUMNS, "i4")
    (m, k), n = x.shape, len(w)
    kernel(layout)((n // COLUMNS, m // ROWS), (THREADS,), x, w, y, k, k // STEP)
    return y
