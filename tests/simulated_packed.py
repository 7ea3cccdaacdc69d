"""Run by test_cuda_packed in Numba's simulator: the kernel that packs, what products read, and back.

    python tests/simulated_packed.py SEED FORMAT,N,K ...

Device memory is an array here, and an address is a place in it; shared memory is a fragment.
"""

import sys

import made_up
import numpy as np
from numba import cuda

import ggmlq as gq
from ggmlq.reference import weights as held
from ggmlq.testing.cases import weights


class Memory:
    """Bytes that addresses are places in."""

    bytes = np.zeros(0, np.uint8)

    def putting(self, dtype):
        def store(address, value):
            value = np.uint64(value) & np.uint64(256 ** np.dtype(dtype).itemsize - 1)
            self.bytes[int(address) :][: np.dtype(dtype).itemsize].view(dtype)[0] = value

        return store

    def taking(self, count):
        def load(address):
            assert int(address) % (4 * count) == 0, "a load that is not aligned"
            words = self.bytes[int(address) :][: 4 * count].view("<u4")
            return np.uint32(words[0]) if count == 1 else tuple(words)

        return load


FORMATS = {**gq.formats, **made_up.FORMATS}
WRITTEN, READ = Memory(), Memory()  # what kernels write to, and what they read from


def packed(blocks, fmt):
    """Fragments [fragment rows, steps, bytes], made by the kernel."""
    from ggmlq.cuda.packed import pack
    from ggmlq.cuda.packed.layout import layout_of

    n, per_row, _ = blocks.shape
    layout = layout_of(fmt)
    count, steps = -(-n // 16), -(-per_row * fmt.block_size // 64)
    WRITTEN.bytes = np.zeros(count * steps * layout.fragment_bytes, np.uint8)
    grid = (count, -(-32 * steps // pack.THREADS))
    cuda.jit(pack.pack_kernel.__wrapped__(fmt).function)[grid, pack.THREADS](blocks, 0, steps)
    return WRITTEN.bytes.reshape(count, steps, layout.fragment_bytes)


def values_read(fragments, fmt):
    """The values [rows, columns] that a product reads from fragments, in float64; a block of threads is a
    warp. Codes as bytes are held against codes as floats.
    """
    from ggmlq.cuda.packed import codes, scales
    from ggmlq.cuda.packed.layout import layout_of

    layout = layout_of(fmt)
    count, steps, size = fragments.shape
    READ.bytes = fragments.reshape(-1)
    unpack_step, load_words = codes.step_unpacker(layout), codes.word_loader(layout)
    load_scales, sizes = scales.scale_loader(layout), codes.buffer_sizes(layout)
    as_bytes = codes.serves_bytes(layout)
    unpack_bytes = codes.byte_unpacker(layout) if as_bytes else None
    unpack_signed = codes.signed_unpacker(layout) if as_bytes else None
    found = np.full((16 * count, 64 * steps), np.nan)

    def read(found):
        fragment_row, step, lane = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
        at, (g, t) = np.uint32((fragment_row * steps + step) * size), divmod(lane, 4)
        words, made = [None] * sizes[0], [None] * sizes[1]
        load_words(at, np.uint32(lane), words)
        load_scales(at, np.uint32(lane), made)
        for s in range(4):
            a = [None] * 4
            unpack_step(words, s, a, np.uint32(0))
            if as_bytes:
                unpack_bytes(words, s, a_bytes := [None] * 2, 0, np.uint32(0))
                unpack_signed(words, s, a_signed := [None] * 2, 0, np.uint32(0))
            for r in range(4):
                pair = np.array([int(a[r]) << 16 & 0xFFFFFFFF, int(a[r]) & 0xFFFF0000], np.uint32)
                if as_bytes:
                    byte = np.array([int(a_bytes[r % 2]) & 0xFFFFFFFF], np.uint32).view(np.int8)
                    of_pair = byte[r // 2 :: 2] + np.float32(codes.lowest_byte(layout))
                    assert np.array_equal(of_pair, pair.view(np.float32))
                    byte = np.array([int(a_signed[r % 2]) & 0xFFFFFFFF], np.uint32).view(np.int8)
                    assert np.array_equal(byte[r // 2 :: 2], of_pair * codes.byte_unit(layout))
                i, row = r % 2 * layout.scales + 16 * s // layout.run, 16 * fragment_row + g + 8 * (r % 2)
                value = pair.view(np.float32) * np.float64(made[i])
                if layout.has_offset:
                    value = value - np.float64(made[i + layout.runs])
                column = 64 * step + 16 * s + 4 * t + 2 * (r // 2)
                for e in range(2):
                    found[row, column + e] = value[e]

    cuda.jit(read)[(count, steps), 32](found)
    return found


def exact(q):
    """The weights with the scales of the format, which are exact in float32."""
    parts = q.format.unpack(q.blocks)
    values = parts.codes.reshape(*parts.scale.shape, -1) * parts.scale[..., None].astype(np.float64)
    if parts.offset is not None:
        values = values - parts.offset[..., None].astype(np.float64)
    return values.reshape(q.shape)


def check_weights(fmt, n, k, seed):
    q = weights(fmt, n, k, seed)
    found = values_read(packed(q.raw.copy().reshape(n, -1, fmt.dtype.itemsize), fmt), fmt)
    assert not found[n:].any()
    assert not found[:, k:].any()
    assert np.array_equal(found[:n, :k], exact(q))
    want = held(q, "bf16x").values
    assert np.allclose(found[:n, :k], want, rtol=0, atol=1e-6 * np.abs(want).max())


def nearest(values):
    """Rounded to bfloat16, in float64."""
    bits = np.float32(values).view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000).astype(np.uint32)
    return bits.view(np.float32).astype(np.float64)


def check_pairs(fmt, n, k, seed, exponents=None):
    """Check what ``wgmma`` takes: codes times rounded scales, rounded once; offsets rounded around the
    middle.

    ``exponents``: those that blocks have instead of ordinary ones, where a scale is nothing else.
    """
    from ggmlq.cuda.packed import operand
    from ggmlq.cuda.packed.layout import layout_of
    from ggmlq.cuda.packed.weights import fragment_weights, serves_halves

    q, layout = weights(fmt, n, k, seed).copy(), layout_of(fmt)
    if exponents:
        q.blocks["e"] = np.random.default_rng(seed).choice(np.array(exponents, np.uint8), q.blocks.shape)
    fragments = packed(q.raw.copy().reshape(n, -1, fmt.dtype.itemsize), fmt)
    count, steps, size = fragments.shape
    READ.bytes = fragments.reshape(-1)
    words_each, load, pack, shrunk = fragment_weights(layout)
    orders = (load, *natural_loads(layout)) if operand.serves(layout) else (load,)
    taken = np.full((len(orders), 16 * count, 64 * steps), np.nan)

    def read(taken):
        fragment_row, step, lane = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
        words, a, (g, t) = [None] * words_each, [None] * 16, divmod(lane, 4)
        for way, load_words in enumerate(orders):
            load_words(np.uint32((fragment_row * steps + step) * size), np.uint32(lane), words)
            pack(words, a, np.uint32(0))
            for i in range(16):
                pair = np.array([int(a[i]) << 16 & 0xFFFFFFFF, int(a[i]) & 0xFFFF0000], np.uint32)
                place = 2 * t + 8 * (i // 2 % 2) if way == 2 else 4 * t + 2 * (i // 2 % 2)
                column, row = 64 * step + 16 * (i // 4) + place, 16 * fragment_row + g + 8 * (i % 2)
                taken[way, row, column : column + 2] = pair.view(np.float32) * shrunk

    cuda.jit(read)[(count, steps), 32](taken)
    found = taken[0]
    assert (taken == found).all(), "the natural order takes other weights"
    parts = fmt.unpack(q.blocks)
    scale = parts.scale[..., None].astype(np.float64)
    codes, less = parts.codes.reshape(*parts.scale.shape, -1) - layout.middle, 0.0
    if layout.has_offset:
        less = nearest(parts.offset[..., None] - layout.middle * scale)
    want = nearest(codes * nearest(scale) - less).reshape(q.shape)
    assert not found[n:].any()
    assert not found[:, k:].any()
    assert np.array_equal(found[:n, :k], want)
    if serves_halves(layout):
        check_halves(q, fmt, layout)


def check_halves(q, fmt, layout):
    """Check the first fragment's halves: codes around the middle times scales as halves; offsets rounded."""
    from ggmlq.cuda.packed.weights import fragment_weights, half_weights

    (words_each, load, *_), pack = fragment_weights(layout), half_weights(layout)
    found = np.full((16, 64), np.nan)

    def read(found):
        lane = cuda.threadIdx.x
        words, a, (g, t) = [None] * words_each, [None] * 16, divmod(lane, 4)
        load(np.uint32(0), np.uint32(lane), words)
        pack(words, a, np.uint32(0))
        for i in range(16):
            column = 16 * (i // 4) + 4 * t + 2 * (i // 2 % 2)
            pair = np.array([a[i]], np.uint32).view(np.float16)
            found[g + 8 * (i % 2), column : column + 2] = pair

    cuda.jit(read)[1, 32](found)
    parts = fmt.unpack(q.blocks)
    scale = parts.scale[..., None].astype(np.float64)
    codes, less = parts.codes.reshape(*parts.scale.shape, -1) - layout.middle, 0.0
    if layout.has_offset:
        less = (parts.offset[..., None] - layout.middle * scale).astype(np.float16)
    want = (codes * scale.astype(np.float16).astype(np.float64) - less).astype(np.float16)
    assert np.array_equal(found[: q.shape[0], : q.shape[1]], want.reshape(q.shape)[:16, :64])


def natural_loads(layout):
    """Loads as packed and in the natural order, by the functions that know both."""
    from ggmlq.cuda.packed import operand

    order, load = operand.lane_order(layout), operand.natural_loader(layout)
    return [lambda at, lane, words, way=way: load(at, lane, order(lane, way), words) for way in (False, True)]


def check_bytes(fmt, n, k, seed):
    """Blocks of any bytes come back."""
    from ggmlq.cuda.packed import to_blocks

    blocks = np.random.default_rng(seed).integers(
        0, 256, (n, k // fmt.block_size, fmt.dtype.itemsize), np.uint8
    )
    fragments = packed(blocks, fmt)
    READ.bytes, WRITTEN.bytes = fragments.reshape(-1), np.zeros(blocks.size, np.uint8)
    row_bytes = fmt.row_bytes(k)
    kernel = to_blocks.restore_kernel.__wrapped__(fmt)
    grid = (n, -(-row_bytes // kernel.threads))
    cuda.jit(kernel.function)[grid, kernel.threads](0, 0, row_bytes, fragments.shape[1])
    assert np.array_equal(WRITTEN.bytes, blocks.reshape(-1))


def patch():
    """Instructions on memory work on READ and WRITTEN; before any function is made with them."""
    from ggmlq.cuda.intrinsics import bf16x2, ptx
    from ggmlq.cuda.packed import to_blocks

    bf16x2.take4, bf16x2.take8, ptx.take16 = READ.taking(1), READ.taking(2), READ.taking(4)
    ptx.store4, ptx.store1, to_blocks.load4 = WRITTEN.putting("<u4"), WRITTEN.putting("u1"), READ.taking(1)


def main():
    from ggmlq.cuda.packed import to_blocks

    patch()
    seed = int(sys.argv[1])
    for asked in sys.argv[2:]:
        name, n, k = asked.split(",")
        check_weights(FORMATS[name], int(n), int(k), seed)
        check_pairs(FORMATS[name], int(n), int(k), seed)
        if name == "mxfp4":  # blocks of zeros have 0
            check_pairs(FORMATS[name], int(n), int(k), seed, (0, 1, 2, 120, 130, 255))
        if to_blocks.sources(FORMATS[name]) is not None:
            check_bytes(FORMATS[name], int(n), int(k), seed)


if __name__ == "__main__":
    main()
