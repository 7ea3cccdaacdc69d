"""Decoders of K types, on an emulated card: the host's values, from any address, and no byte read in vain."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")

from emulated_gpu import put_emulated
from fake_cupy import DeviceArray

import ggmlq as gq
from ggmlq.arrays.blocks import random_blocks
from ggmlq.cuda.driver import launch
from ggmlq.cuda.intrinsics.floats import DTYPES, KINDS
from ggmlq.cuda.kernels.quantize import decode
from ggmlq.cuda.kernels.quantize import decode as dequantize
from ggmlq.formats import FORMATS

NAMES = tuple(decode.LAYOUTS)


def placed(memory, raw, astray):
    """The bytes at an address that is so far from a multiple of 16; the words they touch may be read."""
    around = np.zeros(raw.nbytes + 32, np.uint8)
    first = -around.ctypes.data % 16 + astray
    blocks = around[first : first + raw.nbytes].reshape(raw.shape)
    blocks[...] = raw
    before = blocks.ctypes.data % 4
    memory.add(around[first - before :][: -(-(before + raw.nbytes) // 4) * 4])
    return blocks.view(DeviceArray)


def decoded(monkeypatch, fmt, kind, raw, astray):
    """The values that the kernel writes, between guards."""
    state = put_emulated(monkeypatch)
    blocks = placed(state.memory, raw, astray)
    around = np.full((len(raw) + 2, fmt.block_size), 7, DTYPES[kind]).view(DeviceArray)
    call = launch.Kernel.__call__

    def without_telling(
        kernel, grid, block, given, out, *more
    ):  # the emulated card would allow all of an array
        call(kernel, grid, block, given.data.ptr, out, *more)

    monkeypatch.setattr(launch.Kernel, "__call__", without_telling)
    dequantize.decode(fmt, kind, blocks, around[1:-1])
    assert (around[[0, -1]] == 7).all()
    return np.asarray(around[1:-1])


def bits(values):
    """The bits of bfloat16, for floats that are numbers."""
    wide = values.view(np.uint32).astype(np.uint64)
    return (wide + 0x7FFF + (wide >> 16 & 1) >> 16).astype(np.uint16)


def test_values(monkeypatch, fresh):
    """Every K type once, to a kind and from an address that are drawn."""
    for name in NAMES:
        fmt, kind, astray = FORMATS[name], str(fresh.choice([*KINDS])), int(fresh.integers(16))
        count = int(fresh.integers(1, 40))
        raw = np.ascontiguousarray(random_blocks(fmt, count, 1, int(fresh.integers(1 << 30))))
        raw = raw.view(np.uint8).reshape(count, -1)
        if kind != "bfloat16" and fresh.integers(2):
            raw = fresh.integers(0, 256, raw.shape, np.uint8)  # any bytes, NaN among the scales
        q = gq.QuantArray.from_bytes(raw, fmt, (count, fmt.block_size))
        with np.errstate(all="ignore"):
            want = q.dequantize(np.float16 if kind == "float16" else np.float32)
            want = bits(want) if kind == "bfloat16" else want
            got = decoded(monkeypatch, fmt, kind, raw, astray)
        assert np.array_equal(got, want, equal_nan=kind != "bfloat16"), f"{name} to {kind}, {astray}, {count}"
        monkeypatch.undo()


@pytest.mark.parametrize("name", NAMES)
def test_planes_are_where_the_format_says(name):
    """Planes have as many bits as codes, and hold each byte of codes once."""
    fmt, layout = FORMATS[name], decode.LAYOUTS[name]
    lowest, highest = (int(fmt.code(np.full(fmt.dtype.itemsize, byte, np.uint8), 0)) for byte in (0, 255))
    assert sum(plane.bits for plane in layout.planes) == (highest - lowest + 1).bit_length() - 1
    taken = np.zeros(fmt.dtype.itemsize, int)
    for plane in layout.planes:
        taken[plane.at : plane.at + 32 * plane.bits] += 1
    fields = {field: (kind.itemsize, at) for field, (kind, at, *_) in fmt.dtype.fields.items()}
    for field, (length, at) in fields.items():
        assert (taken[at : at + length] == (field in ("qs", "qh", "ql", "hmask"))).all()
    assert fields["d"][1] == layout.d
