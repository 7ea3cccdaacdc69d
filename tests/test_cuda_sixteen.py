"""Floats of 16 bits as kernels want them: PTX of the kernels on an emulated card, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")

from emulated_gpu import put_emulated
from fake_cupy import on_device

from ggmlq.cuda.driver import device
from ggmlq.cuda.driver.launch import Kernel
from ggmlq.cuda.intrinsics.floats import DTYPES
from ggmlq.cuda.kernels.epilogue import results
from ggmlq.cuda.layouts import floats, x_tiles

BITS = np.array([0, 1, 0x3FF, 0x400, 0x3C00, 0x7BFF, 0x7C00, 0x8000, 0x8001, 0xFC00, 0x0080, 0x7F80, 0xFF80])


@pytest.fixture
def card(monkeypatch):
    """A card that runs PTX; all memory on it is told to it."""
    return put_emulated(monkeypatch)


def aligned(card, array):
    """A copy on the device from a multiple of 16 bytes on."""
    memory = on_device(np.zeros(array.nbytes + 16, np.uint8))
    first = -memory.data.ptr % 16
    found = memory[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
    found[...] = array
    card.memory.add(found)
    return found


def rows(card, kind, shape, fresh):
    """Rows of a kind, subnormal numbers and infinities among them; and what they mean."""
    bits = fresh.integers(0, 1 << 16, shape).astype(np.uint16)
    bits.reshape(-1)[: len(BITS)] = BITS
    if kind == "bfloat16":
        values = (bits.astype(np.uint32) << 16).view(np.float32)
        bits[np.isnan(values)] = 0x4000
        return aligned(card, bits), (bits.astype(np.uint32) << 16).view(np.float32)
    halves = bits.view(np.float16)
    halves[np.isnan(halves)] = 2
    return aligned(card, halves), halves.astype(np.float32)


def bfloats(values):
    """Bits of the nearest bfloat16, ties to even."""
    bits = values.view(np.uint32).astype(np.uint64)
    return (bits + (0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_as_they_are_read(kind, card, fresh):
    x, values = rows(card, kind, (3, 96), fresh)
    y = floats.aligned_floats(x)
    assert y.dtype == np.float32
    assert np.array_equal(y.view(np.uint32), values.view(np.uint32))
    y = floats.narrowed(x, "bfloat16")
    assert y.dtype == DTYPES["bfloat16"]
    assert np.array_equal(y, bfloats(values))


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
def test_in_the_order_of_wgmma(kind, card, fresh):
    x, values = rows(card, "float16" if kind == "float32" else kind, (5, 96), fresh)
    x = aligned(card, values) if kind == "float32" else x
    pairs = bfloats(values).reshape(5, -1, 4, 2, 2)  # of 16: four times two pairs
    want = pairs.transpose(0, 1, 3, 2, 4)
    zeros = aligned(card, np.full(7, 9, np.uint32))
    made = x_tiles.x_tiles_of(x, 2, 8, zeros)
    assert not zeros.any()
    full = np.zeros((5, 128), np.uint16)
    full[:, :96] = want.reshape(5, 96)
    for step in range(2):
        for row in range(5):
            chunks = full[row, 64 * step : 64 * step + 64].reshape(8, 8)
            for chunk in range(8):
                assert np.array_equal(made[step, row].reshape(8, 8)[chunk ^ row % 8], chunks[chunk])


def test_x_tiles_are_made_on_all_multiprocessors(card, monkeypatch):
    """Few blocks are spread evenly over the multiprocessors; of many it makes no difference."""
    limits = []
    monkeypatch.setattr(device, "multiprocessors", lambda: 132)
    monkeypatch.setattr(Kernel, "__call__", lambda *_, max_blocks, **__: limits.append(max_blocks))
    for rows_of_x in (1, 133, 264, 265, 700):
        x = aligned(card, np.ones((rows_of_x, 4096), np.float32))  # 256 threads a row: a block
        for evenly in (False, True):
            x_tiles.x_tiles_of(x, 64, 8, aligned(card, np.zeros(1, np.uint32)), evenly=evenly)
    assert limits == [0, 1, 0, 2, 0, 2, 0, 3, 0, 0]


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
def test_a_bias_is_added_as_cupy_adds_it(kind, card, fresh):
    """Subnormal numbers are zeros, as its kernels are compiled."""
    n, least = 300, np.float32(2.0**-126)
    b, values = rows(card, "float16" if kind == "float32" else kind, (n,), fresh)
    b = aligned(card, values) if kind == "float32" else b
    y = aligned(card, fresh.standard_normal((5, n)).astype(np.float32))
    y[1] = -values
    y[2] = fresh.uniform(-2, 2, n).astype(np.float32) * least
    y[3] = np.nextafter(-values, np.float32(0))
    y[4] = least / 2
    want = np.array(y)
    with np.errstate(invalid="ignore"):
        for at in np.ndindex(*want.shape):
            want[at] = results.add_flushed.meaning(want[at], values[at[1]])
        grid = (-(-n // results.BIAS_THREADS), 3)  # fewer than there are rows
        results.bias_adder(kind)(grid, (results.BIAS_THREADS,), b, y, 5, n)
    assert np.array_equal(y.view(np.uint32)[~np.isnan(want)], want.view(np.uint32)[~np.isnan(want)])
    assert np.array_equal(np.isnan(y), np.isnan(want))
