"""The atoms of a format say what its ``unpack`` says: in plain Python, under Numba, as CUDA code."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from block_cases import BLOCKS

from ggmlq.arrays.blocks import random_blocks
from ggmlq.cpu.atoms import atoms as cpu_atoms
from ggmlq.formats._bits import half_value
from ggmlq.formats._tables import FP4


def any_blocks(fmt, n):
    """Random bytes; the first half with sane scales, the rest with NaN and infinity among them."""
    raw = np.random.default_rng(fmt.id).integers(0, 256, (n, fmt.dtype.itemsize), np.uint8)
    raw[: n // 2] = random_blocks(fmt, n // 2, 1, seed=fmt.id).view(np.uint8).reshape(n // 2, -1)
    return raw


def assert_equal_parts(fmt, raw, codes, scale, offset):
    """Bit for bit, except that any NaN equals any NaN."""
    with np.errstate(invalid="ignore", over="ignore"):
        want = fmt.unpack(raw.view(fmt.dtype)[:, 0])
    assert np.array_equal(codes, want.codes), fmt.name
    nothing = np.zeros_like(want.scale)
    for got, expected in ((scale, want.scale), (offset, nothing if want.offset is None else want.offset)):
        assert np.array_equal(got, expected, equal_nan=True), fmt.name
        sign = np.signbit(got) == np.signbit(expected)
        assert (sign | np.isnan(expected) | (expected == 0)).all(), fmt.name


@pytest.mark.parametrize("fmt", BLOCKS, ids=lambda fmt: fmt.name)
def test_plain_python(fmt):
    raw = any_blocks(fmt, 8)
    groups = range(fmt.block_size // fmt.group)
    with np.errstate(invalid="ignore", over="ignore"):
        codes = [[fmt.code(block, i) for i in range(fmt.block_size)] for block in raw]
        scale = [[fmt.scale(block, g) for g in groups] for block in raw]
        offset = [[fmt.offset(block, g) for g in groups] for block in raw]
    assert {type(value) for row in scale + offset for value in row} == {np.float32}
    assert_equal_parts(fmt, raw, np.array(codes), np.array(scale), np.array(offset))


@pytest.mark.parametrize("fmt", BLOCKS, ids=lambda fmt: fmt.name)
def test_what_scales_are_made_of(fmt):
    """What a format says of the numbers in a block gives its scales and offsets, and its bits its codes."""
    raw, how = any_blocks(fmt, 20), fmt.scales
    fields = [at for kind, at, *_ in fmt.dtype.fields.values() if kind == np.float16]

    def half(block, which):
        bits = how.d(block) if how.d and not which else None
        at = None if bits is not None else fields[which]
        return half_value(bits if at is None else int(block[at]) | int(block[at + 1]) << 8)

    for block in raw:
        for g in range(fmt.block_size // fmt.group):
            byte = int(how.sub(block, g)) if how.sub else 1
            assert 0 <= byte < 256
            low = int(how.low(block, g)) if how.low else byte >> 4 if how.nibbles else 1
            with np.errstate(invalid="ignore", over="ignore"):
                if how.table is not None:
                    scale = how.table[byte]
                elif fmt.dtype[0] == np.float32:
                    scale = block[:4].copy().view(np.float32)[0]
                else:
                    whole = np.float32((byte & 15 if how.nibbles else byte) - how.zero)
                    scale = half(block, 0) * whole * np.float32(how.unit)
                assert np.array_equal(scale, fmt.scale(block, g), equal_nan=True)
                if fmt.has_offset:
                    offset = half(block, 1) * np.float32(low * how.sign)
                    assert np.array_equal(offset, fmt.offset(block, g), equal_nan=True)
        if fmt.index is not None:
            codes = {int(fmt.index(block, i)): int(fmt.code(block, i)) for i in range(fmt.block_size)}
            assert all(0 <= index < 16 and FP4[index] == code for index, code in codes.items())


@pytest.mark.parametrize("fmt", BLOCKS, ids=lambda fmt: fmt.name)
def test_numba(fmt):
    raw = any_blocks(fmt, 200)
    code, scale, offset = cpu_atoms(fmt)

    @numba.njit
    def run(raw, codes, scales, offsets):
        for b in range(len(raw)):
            for i in range(codes.shape[1]):
                codes[b, i] = code(raw[b], i)
            for g in range(scales.shape[1]):
                scales[b, g] = scale(raw[b], g)
                offsets[b, g] = offset(raw[b], g)

    codes = np.zeros((200, fmt.block_size), np.int64)
    scales = np.zeros((200, fmt.block_size // fmt.group), np.float32)
    offsets = np.zeros_like(scales)
    run(raw, codes, scales, offsets)
    assert_equal_parts(fmt, raw, codes, scales, offsets)
    (signature,) = code.nopython_signatures
    assert isinstance(signature.return_type, numba.types.Integer), "a code must not become a float"
    (signature,) = scale.nopython_signatures
    assert signature.return_type == numba.float32


@pytest.mark.parametrize("fmt", BLOCKS, ids=lambda fmt: fmt.name)
def test_cuda_compiles(fmt):
    """Device functions become PTX on a machine without a GPU; test_cuda.py runs them on one."""
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")
    from numba import cuda

    from ggmlq.cuda.intrinsics.atoms import atoms as cuda_atoms

    code, scale, offset = cuda_atoms(fmt)

    def kernel(raw, codes, scales):
        i = cuda.grid(1)
        codes[i] = code(raw, i)
        scales[i] = scale(raw, 0) - offset(raw, 0)

    signature = (numba.uint8[::1], numba.int8[::1], numba.float32[::1])
    ptx, returned = cuda.compile_ptx(kernel, signature, cc=(7, 5))
    assert returned == numba.void
    assert ".entry" in ptx
    assert ".f64" not in ptx, "doubles are slow on a GPU and round differently"


def test_every_half():
    bits = np.arange(65536)
    with np.errstate(invalid="ignore"):  # arm64 tells of a NaN that is converted
        want = bits.astype(np.uint16).view(np.float16).astype(np.float32)
    compiled = numba.njit(half_value)
    for function in (half_value, compiled):
        got = np.array([function(int(b)) for b in bits], np.float32)
        assert np.array_equal(got, want, equal_nan=True)
        assert np.array_equal(np.signbit(got), np.signbit(want))
