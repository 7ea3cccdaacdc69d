"""Run by test_cuda_scaled_simulator in Numba's simulator: kernels on tiles of 8-bit codes, whole blocks of them.

    python tests/simulated_tiles8.py SEED

Device memory is one array, shared memory another, and an address is a place in one of them. Copies are done
at once; ldmatrix and mma wait for all lanes of their warp and exchange what they hold.
"""

import sys
import threading

import numpy as np
from numba import cuda

import ggmlq as gq
from ggmlq.codes import CODES

WARPS = 32
DEVICE, SHARED = np.zeros(1 << 20, np.uint8), np.zeros(1 << 18, np.uint8)
TOP = [0]
GIVEN = [[None] * 32 for _ in range(WARPS)]
ALL = [threading.Barrier(32) for _ in range(WARPS)]


def place(array, align=16):
    """Put an array into device memory; its address."""
    at = -(-TOP[0] // align) * align
    raw = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
    DEVICE[at : at + raw.size] = raw
    TOP[0] = at + raw.size
    return at


def exchange(mine):
    """What all lanes of this warp give."""
    warp, lane = divmod(int(threading.current_thread().threadIdx.x), 32)
    GIVEN[warp][lane] = mine
    ALL[warp].wait()
    all_of_it = list(GIVEN[warp])
    ALL[warp].wait()
    return all_of_it, lane


def load_matrices(address):
    given, lane = exchange(int(address))
    g, t = divmod(lane, 4)
    starts = [given[8 * i + g] for i in range(4)]
    assert all(at % 16 == 0 for at in starts)
    for i in range(4):  # eight rows of 16 bytes: each bank once
        assert len({given[8 * i + r] // 16 % 8 for r in range(8)}) == 8, "a conflict of banks"
    return tuple(SHARED[at + 4 * t :][:4].view(np.int32)[0] for at in starts)


def bytes_of(kind):
    return {"s8": np.int8, "u8": np.uint8}[kind]


def multiply(operands, decode, columns):
    """[16, columns] times [8, columns] by the layout of mma, on top of the sums that this lane has."""
    given, lane = exchange(operands)
    g, t = divmod(lane, 4)
    of = lambda at, registers: np.concatenate(
        [
            np.concatenate([decode[at >= 4](given[at % 1 + lane_of][r]) for lane_of in registers[1]])
            for r in registers[0]
        ]
    )
    quad = [range(4 * row, 4 * row + 4) for row in range(8)]
    rows = [of(0, ((0, 2), quad[g])), of(0, ((1, 3), quad[g]))]
    cols = [of(4, ((4, 5), quad[2 * t])), of(4, ((4, 5), quad[2 * t + 1]))]
    assert len(rows[0]) == columns
    return [float(a @ b) for a in rows for b in cols]


def integer_mma(a, b):
    decode = [
        lambda w, k=bytes_of(kind): np.array([w], np.int32).view(k).astype(np.float64) for kind in (a, b)
    ]

    def mma(*operands):
        return tuple(
            np.int32(int(v) + int(c))
            for v, c in zip(multiply(operands, decode, 32), operands[6:], strict=True)
        )

    return mma


def mma_f16(*operands):
    half = lambda w: np.array([w], np.uint32).view(np.float16).astype(np.float64)
    found = multiply(operands, [half, half], 16)
    return tuple(np.float32(v + float(c)) for v, c in zip(found, operands[6:], strict=True))


def float_mma(a, b):
    decode = [
        lambda w, code=CODES[kind]: code.decode(np.array([w], np.int32).view(np.uint8)).astype(np.float64)
        for kind in (a, b)
    ]

    def mma(*operands):
        found = multiply(operands, decode, 32)
        return tuple(np.float32(v + float(c)) for v, c in zip(found, operands[6:], strict=True))

    return mma


def copy16_of(shared, address, size):
    at = int(shared)
    assert at % 16 == 0
    SHARED[at : at + 16] = 0
    if size:
        assert int(address) % 16 == 0, "a copy that is not aligned"
        SHARED[at : at + 16] = DEVICE[int(address) :][:16]


def copy4(shared, address):
    assert int(shared) % 4 == 0
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
    """Instructions on memory and of a warp; before any function is made with them."""
    from ggmlq.cuda.words import bf16x2, codes8, ptx

    ptx.shared_base = lambda: np.uint32(0)
    ptx.commit = lambda: None
    ptx.wait_for_all_but = lambda groups: lambda: None
    ptx.load_matrices, ptx.take_pair = load_matrices, taking(SHARED, 2, np.float32)
    ptx.load_float = taking(DEVICE, 1, np.float32)
    bf16x2.take4, bf16x2.copy16_of = taking(SHARED, 1, np.uint32), copy16_of
    codes8.copy4, codes8.load4 = copy4, taking(DEVICE, 1, np.int32)
    codes8.store_if, codes8.store_pair_if = store_if, store_pair_if
    codes8.integer_mma, codes8.mma_f16, codes8.float_mma = integer_mma, mma_f16, float_mma


class Padded:
    """The operand of a kernel, made with NumPy in the place of CuPy."""

    def __init__(self, s, groups):
        self.s, self.groups = s, groups


def scaled(rng, code, tile, rows, k, zeros, given):
    """Random codes, scales and zero points."""
    c = CODES[code]
    raw = rng.integers(0, 256, (rows, k), np.uint8)
    if c.kind == "float":
        raw[(raw & 0x7F) >= 0x70] ^= 0x30  # neither NaN nor so large that the rest does not count
        if given:
            raw[0, 0] = 0x7F
    over = gq.ScaledArray(
        raw.view(c.dtype), np.ones(gq.tiling.tiling(tile, rows, k).shape, np.float32), code, tile
    )
    shape = over.scales.shape
    scales = rng.uniform(0.5, 2, shape).astype(np.float32)
    points = rng.integers(-9, 90, shape, np.int32) if zeros else None
    return gq.ScaledArray(raw.view(c.dtype), scales, code, tile, points)


def check(make, x, w, tile_of, rng, exact):
    """Run a kernel over all blocks, compare with the oracle, guards around the output."""
    from ggmlq.cuda.tiles8 import rows as operands
    from ggmlq.cuda.tiles8.product import Given
    from ggmlq.cuda.scaled_linear import r4_mma_int8

    TOP[0] = 0
    DEVICE[:] = 0xAB
    SHARED[:] = 0xCD
    (m, k), n = x.shape, w.shape[0]
    given = Given(*(), *_given(operands, x, w))
    tile = tile_of(given.groups.step)
    y = np.full((m + 2, n), np.nan, np.float32)
    at = place(y) + 4 * n
    points = r4_mma_int8.points_of(x, w, given.groups)
    words = []

    def kernel(grid, block, *arguments):
        for value in arguments:
            words.append(place(value) if isinstance(value, np.ndarray) else value)
        words[2] = at
        for i in (0, 1, 11, 12):
            assert words[i] % 4 == 0
        function = make(tile, given, points)
        wide = [
            np.uint64(v) if i < 3 or 11 <= i < 17 or i >= 21 else np.uint32(v) for i, v in enumerate(words)
        ]
        if len(wide) == 26:
            wide[25] = np.uint32(words[25])
        with np.errstate(over="ignore"):
            cuda.jit(function)[grid[0], block[0]](*wide)

    more = () if not x.code.kind == "integer" else points
    if x.code.kind == "integer" and given.groups.length < k:
        more = (*points, given.groups.span)
    given.launch(kernel, tile, np.zeros((m, n), np.float32), *more, tall=2)
    found = DEVICE[at - 4 * n :][: 4 * (m + 2) * n].view(np.float32).reshape(m + 2, n)
    assert np.isnan(found[[0, -1]]).all(), "guards"
    want = gq.reference.scaled_linear(x, w)
    got = found[1:-1]
    what = (x, w, str(tile))
    assert np.array_equal(np.isnan(got), np.isnan(want)), what
    ok = ~np.isnan(want)
    assert np.abs(got - want)[ok].mean() <= 2e-7 * np.abs(want)[ok].mean(), (what, got, want)
    if exact:
        assert np.array_equal(got, gq.scaled_linear(x, w, kernel="cpu:naive")), what


def _given(operands, x, w):
    groups = operands.groups_of(w.shape[1], min(x.tiling.c, w.tiling.c))
    return operands.rows_of(x, groups), operands.rows_of(w, groups, keep=True), groups


class Located(np.ndarray):
    """What rows.py asks of CuPy's arrays: where they lie."""

    @property
    def data(self):
        return type("Memory", (), {"ptr": self.__array_interface__["data"][0] % 16})


def main():
    from dataclasses import replace

    patch()
    from ggmlq.cuda.scaled_linear import r4_mma_int8 as r4
    from ggmlq.cuda.scaled_linear import r5_widen as r5
    from ggmlq.cuda.scaled_linear import r6_mma_e4m3 as r6
    from ggmlq.cuda.tiles8 import rows
    from ggmlq.cuda.tiles8.shape import ByteTile

    rows.cupy = lambda: np
    rows._fits = lambda codes, groups: (
        codes.shape[1] % 16 == 0 and (codes.shape[1] <= groups.length or groups.length == groups.padded)
    )
    rng = np.random.default_rng(int(sys.argv[1]))
    small = (
        ByteTile(32, 32, 32, 16, stages=2),
        ByteTile(16, 32, 16, 16, stages=3),
        ByteTile(32, 48, 16, 48, stages=2),
    )
    shapes = [(5, 21, 160), (33, 40, 300), (17, 8, 48)]
    tiles = [
        ((1, None), (1, None)),
        ((1, 128), (128, 128)),
        ((1, 32), (1, 64)),
        ((1, 100), (3, None)),
        ((None, None), (16, 16)),
    ]
    for i in range(int(sys.argv[2])):
        m, n, k = shapes[rng.integers(3)]
        tile = small[rng.integers(3)]
        of_x, of_w = tiles[rng.integers(5)]
        step_tile = lambda step, tile=tile: replace(tile, step=step)
        kind = i % 3
        if kind == 0:
            a, b = rng.choice(["int8", "int8_full", "uint8"], 2)
            zeros = bool(rng.integers(2))
            x, w = (
                scaled(rng, c, t, r, k, z, False)
                for c, t, r, z in ((a, of_x, m, zeros), (b, of_w, n, zeros and bool(rng.integers(2))))
            )
            kinds = r4.KINDS[a], r4.KINDS[b]

            def make(tile, given, points, kinds=kinds, k=k):
                if given.groups.length < k:
                    return r4.grouped(
                        tile, *kinds, given.uniform(tile), any(np.ndim(p) for p in points)
                    ).function
                return r4.whole(tile, *kinds, any(np.ndim(p) for p in points)).function
        else:
            a, b = rng.choice(["e4m3", "e5m2"], 2)
            x, w = scaled(rng, a, of_x, m, k, False, True), scaled(rng, b, of_w, n, k, False, False)

            def make(tile, given, points, a=a, b=b, kind=kind):
                if kind == 1:
                    return r5.kernel(tile, a, b, given.uniform(tile), bool(rng.integers(2))).function
                return r6.kernel(tile, a, b, given.uniform(tile)).function

        print(i, kind, x, w, tile, flush=True)
        check(make, x, w, step_tile, rng, kind == 0)


if __name__ == "__main__":
    main()
