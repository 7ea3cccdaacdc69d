"""Weights as the wide operand of mma, packed: the codes of the file, one step from the tensor cores.

Changed: until here the activations were the 16 rows of ``mma`` and the weights its 8 columns, so one row
of activations wasted fifteen sixteenths of it. Now 16 rows of weights are multiplied by 8 of activations.
Weights are packed (layouts/pack.py): a fragment of 16 rows and 64 columns is one piece of memory, in the bits
of the file. It holds for each lane of a warp just the codes that the lane puts into ``mma``. A warp copies a
fragment to shared memory, and every lane makes pairs of bfloat16 of its words with an instruction or two. The
activations, bfloat16 too, come straight from memory. A sum of one run is scaled once.

Why it helps: 4.5 bits a weight are read, not 9, and eight rows of activations share the unpacking. Codes are
exact in bfloat16 and scales multiply only sums, so nothing overflows and nothing else is rounded.

Limited by waiting: a warp copies a fragment, waits for it, multiplies, and copies the next. cuda:gemv keeps
fragments in flight, and is otherwise made for few rows; cuda:mma_bf16 is made for many.
"""

from __future__ import annotations

from typing import Any

from ....arrays.array import QuantArray
from ....dispatch.card import older_than
from ....dispatch.ladder import register
from ....dispatch.problems import Linear
from ....formats import BlockFormat
from ...driver.launch import Kernel, family
from ...intrinsics import bf16x2, ptx, tensor_cores
from ...intrinsics.atoms import inlined
from ...intrinsics.lane import address, g_and_t, warp_and_lane
from ...intrinsics.language import cuda, float32, uint32, uint64
from ...layouts.codes import buffer_sizes, sixteen_unpacker, word_loader
from ...layouts.floats import narrowed
from ...layouts.layout import ROWS, STEP, PackedLayout, layouts
from ...layouts.pack import LONGEST, packed_weights
from ...layouts.scales import scale_loader

MIN_CAPABILITY = (8, 0)
WARPS, COLUMNS = 8, 8  # of a block: fragment rows, and rows of activations
MAX_ROWS = 65535 * COLUMNS  # rows of activations: a grid has 65535 rows of blocks


# Who computes what: a block of eight warps has 128 rows of weights times 8 rows of activations, a warp one
# fragment row of 16. It walks along K, a fragment of 64 columns a step, with no help from its neighbours.
#
#                     8 rows of x           a step of a warp:
#                     +---------+
#     fragment row 0  | warp 0  | 16 rows   1. its 32 lanes copy a fragment into the warp's piece of shared
#                  1  | warp 1  | 16           memory, the file's bits
#                  …  | …       |           2. each lane makes pairs of bfloat16 of its words: a
#                  7  | warp 7  | 16        3. d = a · b, with b from memory; sums += scale · d, once a run
#                     +---------+
#
# Lane 4 g + t has rows g and g + 8 of the weights (sums 0, 1 and sums 2, 3) times rows 2 t and 2 t + 1 of x;
# what it loads of x is row g.


def copier(chunks: int) -> Any:
    """The device function that brings a fragment into shared memory, and waits for it."""
    copy16, commit, wait = ptx.copy16, ptx.commit, ptx.wait_for_all_but(0)

    @inlined
    def copy(to: Any, source: Any, lane: Any) -> None:
        for first in range(0, chunks, 32):
            chunk = lane + uint32(first)
            if chunk < chunks:
                copy16(to + chunk * 16, source + uint64(chunk * 16))
        commit()
        wait()  # for this lane's own copies
        cuda.syncwarp()  # the copies of the other lanes have arrived, too

    return copy


@inlined
def add_scaled(sums: Any, low: Any, high: Any, d: Any) -> None:
    """Add sums of rows g and g + 8, two columns each, times their scales."""
    sums[0], sums[1] = sums[0] + low * d[0], sums[1] + low * d[1]
    sums[2], sums[3] = sums[2] + high * d[2], sums[3] + high * d[3]


@family(lambda: ((layout,) for layout in layouts()))
def kernel(layout: PackedLayout) -> Kernel:
    """The kernel: block (eight fragment rows, eight rows of activations)."""
    fragment_bytes, runs, scales = layout.fragment_bytes, layout.runs, layout.scales
    has_offset = layout.has_offset
    copy, sixteens_per_run = copier(fragment_bytes // 16), 4 // runs
    (words_count, scales_count) = buffer_sizes(layout)
    load_words, load_scales = word_loader(layout), scale_loader(layout)
    unpack_sixteen = sixteen_unpacker(layout)
    base, load8, store_float, ones = ptx.shared_base, ptx.load8, ptx.store_float, bf16x2.ones
    mma_into, sums_into = tensor_cores.add_bf16, tensor_cores.sums_into

    def product(
        fragments: Any,  # uint8 [fragment rows, steps, fragment]
        x: Any,  # bfloat16 [m, k]
        y: Any,  # float32 [m, n]
        m: Any, n: Any, k: Any, steps: Any,
    ) -> None:  # fmt: skip
        warp, lane = warp_and_lane()
        g, t = g_and_t(lane)
        fragment_row = uint32(cuda.blockIdx.x) * WARPS + warp
        first_row = uint32(cuda.blockIdx.y) * COLUMNS
        row_of_x, here = first_row + g, base() + warp * fragment_bytes
        words, f = cuda.local.array(words_count, uint32), cuda.local.array(scales_count, float32)
        a, b = cuda.local.array(4, uint32), cuda.local.array(2, uint32)
        sums, d = cuda.local.array(4, float32), cuda.local.array(4, float32)
        total = cuda.local.array(4, float32)
        for i in range(4):
            sums[i] = float32(0)
        for step in range(steps):
            copy(here, address(fragments, fragment_row, steps, step, fragment_bytes), lane)
            load_words(here, lane, words)
            load_scales(here, lane, f)
            for run in range(runs):
                for i in range(4):
                    d[i], total[i] = float32(0), float32(0)
                for s in range(run * sixteens_per_run, run * sixteens_per_run + sixteens_per_run):
                    column = uint32(step * STEP) + uint32(16 * s) + t * 4
                    b[0], b[1] = uint32(0), uint32(0)
                    # Beyond x a lane multiplies zeros: mma needs all lanes, so none may leave.
                    if row_of_x < m and column < k:
                        b[0], b[1] = load8(address(x, row_of_x, k, column, 2))
                    unpack_sixteen(words, s, a, uint32(0))
                    mma_into(d, 0, a, 0, b, 0)
                    if has_offset:  # sums of x, as products with ones: an offset is taken off for each
                        sums_into(total, 0, ones, b, 0)
                add_scaled(sums, f[run], f[scales + run], d)
                if has_offset:
                    add_scaled(sums, -f[runs + run], -f[scales + runs + run], total)
            cuda.syncwarp()  # all lanes have read the fragment: the next may take its place
        for i in range(4):
            row = fragment_row * ROWS + g + uint32(i // 2 * 8)
            column = first_row + t * 2 + uint32(i % 2)
            if row < n and column < m:
                store_float(address(y, column, n, row, 4), sums[i])

    parameters = (uint64,) * 3 + (uint32,) * 4
    sizes: dict[str, Any] = {"threads": 32 * WARPS, "shared": WARPS * fragment_bytes, "least": MIN_CAPABILITY}
    return Kernel(f"packed of {layout.name}", product, *parameters, **sizes)


def refuses(problem: Linear) -> str | None:
    if not isinstance(problem.format, BlockFormat):
        return "is written for blocks"
    if problem.m > MAX_ROWS or problem.k > LONGEST:
        return f"takes up to {MAX_ROWS} rows of activations and {LONGEST} columns"
    return older_than(problem.card, MIN_CAPABILITY)


@register(__name__, __doc__, arithmetic="bf16x", accumulate="f16", refuses=refuses)
def launch(x: Any, q: QuantArray, out: Any) -> None:
    (m, n), k = out.shape, q.shape[1]
    if not (m and n and k):
        out.fill(0)
        return
    assert isinstance(q.format, BlockFormat)
    w = packed_weights(q)
    grid, sizes = (w.fragments.shape[0] // WARPS, -(-m // COLUMNS)), (m, n, k, w.fragments.shape[1])
    kernel(w.layout)(grid, (32 * WARPS,), w.fragments, narrowed(x, "bfloat16"), out, *sizes)
