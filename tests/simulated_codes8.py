"""Run by test_cuda_scaled_simulator in Numba's simulator: the kernels of scaled products, on tiny problems.

    python tests/simulated_codes8.py SEED plain|integer|float ROUNDS

Device memory is one array, shared memory another, and an address is a place in one of them. Copies are done
at once; ldmatrix and mma wait for all lanes of their warp and exchange what they hold.
"""

import sys
import threading
from dataclasses import replace

import numpy as np
from numba import cuda

import ggmlq as gq
from ggmlq.codes import CODES
from ggmlq.codes.tiling import tiling

DEVICE, SHARED = np.zeros(1 << 20, np.uint8), np.zeros(1 << 18, np.uint8)
TOP = [0]
HANDED = [[None] * 32 for _ in range(32)]
ALL = [threading.Barrier(32) for _ in range(32)]
BYTES = {"s8": np.int8, "u8": np.uint8}
FLOATS, INTEGERS = ("e4m3", "e5m2"), ("int8", "int8_full", "uint8")
SHAPES = [(5, 9, 160), (18, 7, 204), (17, 8, 48)]
TILES = [
    ((1, None), (1, None)), ((1, 128), (128, 128)), ((1, 32), (1, 64)), ((1, 100), (3, None)),
    ((None, None), (16, 16)),
]  # fmt: skip


def put(array):
    """Put an array into device memory; its address."""
    at = -(-TOP[0] // 16) * 16
    raw = array.ravel(order="K").view(np.uint8)  # as it lies, in rows or in columns
    DEVICE[at : at + raw.size] = raw
    TOP[0] = at + raw.size
    return at


# --- instructions -----------------------------------------------------------------------------


def exchange(value):
    """The values that all lanes of this warp hand over."""
    warp, lane = divmod(int(threading.current_thread().threadIdx.x), 32)
    HANDED[warp][lane] = value
    ALL[warp].wait()
    values = list(HANDED[warp])
    ALL[warp].wait()
    return values, lane


def load_matrices(address):
    values, lane = exchange(int(address))
    g, t = divmod(lane, 4)
    for i in range(4):  # eight rows of 16 bytes: each bank once
        assert len({values[8 * i + r] // 16 % 8 for r in range(8)}) == 8, "a conflict of banks"
    return tuple(SHARED[values[8 * i + g] + 4 * t :][:4].view(np.int32)[0] for i in range(4))


def products(operands, decode_a, decode_b):
    """The products of ``mma`` for the four sums of this lane."""
    values, lane = exchange(operands)
    g, t = divmod(lane, 4)

    def row(lane_of_row, registers, decode):
        lanes = range(4 * lane_of_row, 4 * lane_of_row + 4)
        return np.concatenate([decode(values[lane][r]) for r in registers for lane in lanes])

    rows = [row(g, (0, 2), decode_a), row(g, (1, 3), decode_a)]
    columns = [row(2 * t + c, (4, 5), decode_b) for c in range(2)]
    return [float(a @ b) for a in rows for b in columns]


def byte_decoder(kind):
    return lambda word: np.array([word], np.int32).view(BYTES[kind]).astype(np.float64)


def code_decoder(code):
    return lambda word: CODES[code].decode(np.array([word], np.int32).view(np.uint8)).astype(np.float64)


def decode_halves(word):
    return np.array([word], np.uint32).view(np.float16).astype(np.float64)


def floats_added(decode_a, decode_b):
    def mma(*operands):
        found = products(operands, decode_a, decode_b)
        return tuple(np.float32(v + float(c)) for v, c in zip(found, operands[6:], strict=True))

    return mma


def integer_mma(a, b):
    def mma(*operands):
        found = products(operands, byte_decoder(a), byte_decoder(b))
        return tuple(np.int32(int(v) + int(c)) for v, c in zip(found, operands[6:], strict=True))

    return mma


def copy16_or_zeros(shared, address, size):
    assert int(shared) % 16 == 0
    SHARED[int(shared) :][:16] = 0
    if size:
        assert int(address) % 16 == 0, "a copy that is not aligned"
        SHARED[int(shared) :][:16] = DEVICE[int(address) :][:16]


def copy4(shared, address):
    SHARED[int(shared) :][:4] = DEVICE[int(address) :][:4]


def taking(memory, count, dtype):
    def take(address):
        words = memory[int(address) :][: 4 * count].view(dtype)
        return words[0] if count == 1 else tuple(words)

    return take


def store_if(address, value, inside):
    if inside:
        DEVICE[int(address) :][:4].view(np.float32)[0] = value


def store_pair_if(address, a, b, inside):
    assert int(address) % 8 == 0 or not inside
    store_if(address, a, inside)
    store_if(int(address) + 4, b, inside)


def patch():
    """Replace instructions on memory and of a warp, before any function is made with them."""
    from ggmlq.cuda.codes8 import rows
    from ggmlq.cuda.intrinsics import bf16x2, codes8, ptx

    ptx.shared_base = lambda: np.uint32(0)
    ptx.commit = lambda: None
    ptx.wait_for_all_but = lambda groups: lambda: None
    ptx.load_matrices, ptx.take_pair = load_matrices, taking(SHARED, 2, np.float32)
    ptx.load_float = taking(DEVICE, 1, np.float32)
    bf16x2.take4, bf16x2.copy16_or_zeros = taking(SHARED, 1, np.uint32), copy16_or_zeros
    codes8.copy4, codes8.load4 = copy4, taking(DEVICE, 1, np.int32)
    codes8.store_if, codes8.store_pair_if = store_if, store_pair_if
    codes8.integer_mma, codes8.mma_f16 = integer_mma, floats_added(decode_halves, decode_halves)
    codes8.float_mma = lambda a, b: floats_added(code_decoder(a), code_decoder(b))
    rows.cupy, rows._aligned = (lambda: np), (lambda codes: True)


# --- problems ---------------------------------------------------------------------------------


def scaled(rng, code, tile, rows, k, zeros=False, nan=False):
    """Random codes, scales and zero points; scales in either order."""
    code = CODES[code]
    raw = rng.integers(0, 256, (rows, k * code.dtype.itemsize), np.uint8)
    if code.kind == "float":
        raw[(raw & 0x7F) >= 0x70] ^= 0x30  # neither NaN nor so large that the rest does not count
        if nan:
            raw[0, 0] = 0x7F
    shape = tiling(tile, rows, k).shape
    scales = rng.uniform(0.5, 2, shape).astype(np.float32)
    if rng.integers(2):
        scales = np.asfortranarray(scales)
    points = rng.integers(0, 90, shape, np.int32) if zeros else None
    return gq.ScaledArray(raw.view(code.dtype), scales, code, tile, points)


def judged(found, x, w, what, exact):
    """Compare with the oracle; integers also to the bit with the CPU's plainest kernel."""
    want = gq.reference.scaled_linear(x, w)
    assert np.array_equal(np.isnan(found), np.isnan(want)), what
    known = ~np.isnan(want)
    error = np.abs(found - want)[known].sum() / np.abs(want)[known].sum()
    assert error <= 2e-7, (*what, error)
    if exact:
        assert np.array_equal(found, gq.scaled_linear(x, w, kernel="cpu:naive")), what


def run_tiles(make, x, w, tile, exact):
    """A kernel on tiles, over all its blocks, between guard rows."""
    from ggmlq.cuda.codes8.mma_tiles import PARAMETERS, span_of
    from ggmlq.cuda.codes8.mma_tiles import launch as launch_tiles
    from ggmlq.cuda.codes8.rows import operand_pair
    from ggmlq.cuda.intrinsics.language import uint32, uint64
    from ggmlq.cuda.scaled_linear.r4_mma_int8 import points_of

    TOP[0], DEVICE[:], SHARED[:] = 0, 0xAB, 0xCD
    (m, k), n, operands = x.shape, w.shape[0], operand_pair(x, w)
    tile = replace(tile, step=operands.groups.step)
    steps = -(-min(operands.x.columns, operands.w.columns) // tile.step)
    span, parts = (steps, 1) if exact else span_of(operands, steps, 1 + m % 3)
    y = np.full((parts * m + 2, n), np.nan, np.float32)
    at = put(y) + 4 * n
    points = points_of(x, w, operands.groups)
    more, kinds = (points, [*PARAMETERS, *[uint64] * 4]) if exact else ((span,), [*PARAMETERS, uint32])
    if exact and operands.groups.length < k:
        more, kinds = (*points, operands.groups.span), [*kinds, uint32]

    def kernel(grid, block, *arguments):
        words = [put(value) if isinstance(value, np.ndarray) else value for value in arguments]
        words[2] = at
        of = {uint64: np.uint64, uint32: np.uint32}
        typed = [of[kind](word) for kind, word in zip(kinds, words, strict=True)]
        with np.errstate(over="ignore"):
            cuda.jit(make(tile, operands, points).function)[grid, block[0]](*typed)

    out = np.zeros((parts, m, n), np.float32)
    launch_tiles(kernel, tile, operands, out, *more, raster_height=2, parts=parts)
    found = DEVICE[at - 4 * n :][: 4 * (parts * m + 2) * n].view(np.float32).reshape(-1, n)
    assert np.isnan(found[[0, -1]]).all(), "it writes past its output"
    judged(found[1:-1].reshape(parts, m, n).sum(0), x, w, (make.__name__, repr(x), repr(w), str(tile)), exact)


def integers(rng, count):
    """A problem with integers."""
    (m, n, k), (of_x, of_w) = SHAPES[count % 3], TILES[rng.integers(5)]
    zeros, both = bool(rng.integers(2)), bool(rng.integers(2))
    a, b = rng.choice(INTEGERS, 2)
    return scaled(rng, a, of_x, m, k, zeros), scaled(rng, b, of_w, n, k, zeros and both)


def tensor_cores(rng, rounds, kind):
    from ggmlq.cuda.codes8.mma_tiles import is_uniform
    from ggmlq.cuda.codes8.rows import INTEGER_KINDS
    from ggmlq.cuda.rings.shape import ByteTile
    from ggmlq.cuda.scaled_linear import r4_mma_int8 as r4
    from ggmlq.cuda.scaled_linear import r5_widen as r5
    from ggmlq.cuda.scaled_linear import r6_mma_e4m3 as r6

    tiles = (
        ByteTile(32, 32, 32, 16, stages=2), ByteTile(16, 32, 16, 16, stages=3),
        ByteTile(32, 48, 16, 48, stages=2),
    )  # fmt: skip
    for i in range(rounds):
        tile = tiles[rng.integers(3)]
        if kind == "integer":
            x, w = integers(rng, i)

            def mma_int8(tile, pair, points, x=x, w=w):
                kinds = INTEGER_KINDS[x.code.name], INTEGER_KINDS[w.code.name]
                zeros = x.zeros is not None or w.zeros is not None
                if pair.groups.length < x.shape[1]:
                    return r4.grouped(tile, *kinds, is_uniform(pair, tile), zeros)
                return r4.ungrouped(tile, *kinds, zeros)

            run_tiles(mma_int8, x, w, tile, exact=True)
            continue
        (m, n, k), (of_x, of_w) = SHAPES[rng.integers(3)], TILES[rng.integers(5)]
        a, b = rng.choice(FLOATS, 2)
        x, w = scaled(rng, a, of_x, m, k, nan=True), scaled(rng, b, of_w, n, k)

        converts = bool(rng.integers(2))

        def widen(tile, pair, points, a=a, b=b, converts=converts):
            return r5.kernel(tile, a, b, is_uniform(pair, tile), converts)

        def mma_fp8(tile, pair, points, a=a, b=b):
            return r6.kernel(tile, a, b)

        run_tiles(mma_fp8 if i % 3 == 2 else widen, x, w, tile, exact=False)


def run_plain(kernel, grid, block, arguments, x, w, name, exact=True):
    """A kernel on arrays."""
    y = np.full((x.shape[0], w.shape[0]), np.nan, np.float32)
    at = next(i for i, a in enumerate(arguments) if a is None)
    with np.errstate(over="ignore"):
        cuda.jit(kernel.function)[grid, block](*arguments[:at], y, *map(np.uint32, arguments[at + 1 :]))
    judged(y, x, w, (name, repr(x), repr(w)), exact)


def threads(rng, rounds):
    """The rungs whose threads work alone, and those with tiles in shared memory."""
    from ggmlq.cuda.scaled_linear import r0_naive, r1_tiled, r2_tiled_int32, r3_dp4a

    r0_naive.cupy = r3_dp4a.cupy = lambda: np
    for i in range(rounds):
        (m, n, k), (of_x, of_w) = (3, 9, 70 + i), TILES[rng.integers(5)]
        a, b = rng.choice(FLOATS, 2)
        floats = scaled(rng, a, of_x, m, k, nan=True), scaled(rng, b, of_w, n, k)
        a, b = rng.choice([*INTEGERS, "int16", "uint16"], 2)
        wide = scaled(rng, a, of_x, m, k, i % 2), scaled(rng, b, of_w, n, k)
        for x, w in (floats, wide):
            parts, shared, group, zeros = r0_naive.operands(x, w)
            kernel = r0_naive.kernel(x.code, w.code, zeros)
            arguments = [*parts, None, *shared, group]
            run_plain(kernel, (1, 1), (16, 16), arguments, x, w, "naive", exact=w is wide[1])
    a, b = rng.choice(INTEGERS, 2)
    x, w = scaled(rng, a, (1, 24), 3, 42, True), scaled(rng, b, (2, None), 7, 42)
    parts, shared, group, zeros = r0_naive.operands(x, w)
    arguments = [*parts, None, *shared, group]
    for rung in (r1_tiled, r2_tiled_int32):
        kernel = rung.kernel(x.code, w.code, zeros)
        run_plain(kernel, (1, 1), 256, arguments, x, w, rung.__name__, exact=True)
    (signs, zeros), arguments = r3_dp4a.arguments(x, w)
    run_plain(r3_dp4a.kernel(*signs, zeros), (1, 1), 256, arguments, x, w, "dp4a")


def main():
    patch()
    seed, kind, rounds = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    rng = np.random.default_rng(seed)
    threads(rng, rounds) if kind == "plain" else tensor_cores(rng, rounds, kind)


if __name__ == "__main__":
    main()
