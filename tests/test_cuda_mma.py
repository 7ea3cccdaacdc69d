"""cuda:mma_bf16 and cuda:mma_q8: their kernels on an emulated card, their tiles and their choice."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")

from block_cases import weights
from emulated_gpu import addends, put_emulated
from emulated_packed import pack_blocks
from fake_cupy import on_device

import ggmlq as gq
from ggmlq.arrays.rows import rows
from ggmlq.cuda.intrinsics.floats import DTYPES
from ggmlq.cuda.kernels.cost.mma import MmaSplit, best_split
from ggmlq.cuda.kernels.mma.kernel import BYTES, HALF_SUMS, RESERVED, SHARED, tiles_of
from ggmlq.cuda.ladder.linear import r14_mma_bf16, r18_mma_q8, r19_mma_f16
from ggmlq.cuda.layouts.codes import MOST_EXACT, can_fold
from ggmlq.cuda.layouts.layout import layout_of, layouts
from ggmlq.cuda.layouts.pack import PackedWeights
from ggmlq.dispatch.card import card_named
from ggmlq.formats import BLOCK_FORMATS, FORMATS
from ggmlq.formats.packing import halves

RUNG, Q8, HALVES = r14_mma_bf16.launch, r18_mma_q8.launch, r19_mma_f16.launch


def bits(values, kind):
    """Numbers as a kind of floats holds them, and their values."""
    if kind == "bfloat16":
        words = values.astype(np.float32).view(np.uint32) >> 16
        return words.astype(np.uint16), (words << 16).view(np.float32)
    held = values.astype(DTYPES[kind])
    return held, held.astype(np.float32)


@pytest.fixture
def card(monkeypatch):
    return put_emulated(monkeypatch)


def there(card, array):
    """A copy on the device from a multiple of 16 bytes on."""
    memory = on_device(np.zeros(array.nbytes + 16, np.uint8))
    first = -memory.data.ptr % 16
    copy = memory[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    card.memory.add(copy)
    return copy


def packed(card, monkeypatch, host):
    """Weights on the device, packed."""
    fragments, layout = pack_blocks(host)
    weights_there = PackedWeights(there(card, fragments), layout)
    for module in (r14_mma_bf16, r18_mma_q8, r19_mma_f16):
        monkeypatch.setattr(module, "packed_weights", lambda q: weights_there)
    return gq.QuantArray(host.format, host.shape, there(card, host.raw))


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("case", "kind", "target", "split"),
    [
        (("q4_0", 9, 20, 96), "float32", "float32", (16, 1)),
        (("q4_0", 35, 134, 160), "float16", "float16", (64, 2)),
        (("q4_0", 66, 18, 64), "bfloat16", "bfloat16", (32, 1)),
        (("q4_K", 70, 20, 256), "float16", "float32", (128, 1)),
        (("q3_K", 7, 18, 256), "float16", "float32", (16, 1)),
        (("q8_0", 7, 18, 96), "float16", "float32", (16, 1)),
    ],
    ids=str,
)
def test_on_an_emulated_card(case, kind, target, split, card, monkeypatch, fresh):
    """Rows and columns that fill no tile, with a bias and a residual, within the bound; nothing beyond."""
    name, m, n, k = case
    host = weights(name, n, k, int(fresh.integers(1 << 30)))
    q, y = packed(card, monkeypatch, host), there(card, np.full((m + 2, n), 9, DTYPES[target]))
    x, values = bits(rows("normal", m, k, int(fresh.integers(1 << 30))), kind)
    tile = next(each for each in tiles_of(layout_of(host.format), "float16") if each.columns == split[0])
    end, added, sizes = addends((m, n), card.memory, fresh)
    RUNG.launch(there(card, x), q, y[1:-1], split=MmaSplit(tile, split[1]), end=end)
    got = np.asarray(y[1:-1])
    assert (np.asarray(y)[[0, -1]] == 9).all(), "written past its outputs"
    arithmetic = "exact" if kind == "float16" else "bf16x"
    product = gq.reference.linear(values, host, arithmetic)
    want = product + added
    limit = gq.reference.bound(values, host, "bf16x") + 2.0**-23 * (np.abs(want) + np.abs(product) + sizes)
    if target == "bfloat16":
        got = (got.astype(np.uint32) << 16).view(np.float32)
    limit += np.abs(want) * {"float32": 0, "float16": 2.0**-11, "bfloat16": 2.0**-8}[target] + 1e-7
    assert (np.abs(got.astype(np.float64) - want) <= limit).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "kind", "target", "split"),
    [
        (("q4_K", 21, 18, 256), "float16", "float16", (32, 2)),
        (("q6_K", 7, 18, 256), "bfloat16", "float32", (16, 1)),
    ],
    ids=str,
)
def test_as_bytes_on_an_emulated_card(case, kind, target, split, card, monkeypatch, fresh):
    """Rows and columns that fill no tile, with a bias and a residual: q8 but for sums in float32."""
    name, m, n, k = case
    host = weights(name, n, k, int(fresh.integers(1 << 30)))
    q, y = packed(card, monkeypatch, host), there(card, np.full((m + 2, n), 9, DTYPES[target]))
    x, values = bits(rows("normal", m, k, int(fresh.integers(1 << 30))), kind)
    tile = next(each for each in tiles_of(layout_of(host.format), BYTES) if each.columns == split[0])
    end, added, sizes = addends((m, n), card.memory, fresh)
    Q8.launch(there(card, x), q, y[1:-1], split=MmaSplit(tile, split[1]), end=end)
    assert (np.asarray(y)[[0, -1]] == 9).all(), "written past its outputs"
    product = gq.reference.linear(values, host, "q8")
    want = product + added
    limit = (
        gq.reference.bound(values, host, "q8") + 2.0**-23 * (np.abs(want) + np.abs(product) + sizes) + 1e-7
    )
    limit += np.abs(want) * {"float32": 0, "float16": 2.0**-11}[target]
    assert (np.abs(np.asarray(y[1:-1]).astype(np.float64) - want) <= limit).all()


@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("case", "kind", "target", "split"),
    [
        (("q4_K", 21, 18, 256), "float16", "float16", (32, 2)),
        (("q8_0", 7, 18, 96), "float32", "float32", (16, 1)),
        (("q6_K", 9, 18, 256), "bfloat16", "float32", (16, 1)),
    ],
    ids=str,
)
def test_with_sums_of_halves_on_an_emulated_card(case, kind, target, split, card, monkeypatch, fresh):
    """Rows of very different sizes, and one of the largest numbers: nothing overflows on the way."""
    name, m, n, k = case
    host = weights(name, n, k, int(fresh.integers(1 << 30)))
    q, y = packed(card, monkeypatch, host), there(card, np.full((m + 2, n), 9, DTYPES[target]))
    numbers = rows("normal", m, k, int(fresh.integers(1 << 30))) * np.float32(4.0) ** -np.arange(m)[:, None]
    numbers[0] = 65504 if target == "float32" else 1
    x, values = bits(numbers, kind)
    tile = next(each for each in tiles_of(layout_of(host.format), HALF_SUMS) if each.columns == split[0])
    end, added, sizes = addends((m, n), card.memory, fresh)
    HALVES.launch(there(card, x), q, y[1:-1], split=MmaSplit(tile, split[1]), end=end)
    assert (np.asarray(y)[[0, -1]] == 9).all(), "written past its outputs"
    product = gq.reference.linear(values, host, "f16r")
    want = product + added
    limit = (
        gq.reference.bound(values, host, "f16r") + 2.0**-23 * (np.abs(want) + np.abs(product) + sizes) + 1e-7
    )
    limit += np.abs(want) * {"float32": 0, "float16": 2.0**-11}[target]
    assert (np.abs(np.asarray(y[1:-1]).astype(np.float64) - want) <= limit).all()


@pytest.mark.parametrize("kind", ["float16", BYTES, HALF_SUMS])
def test_blocks_fit_beside_each_other(kind):
    """On a card with 99 KB for a block, two stages at least, for all types."""
    for layout in layouts():
        for tile in tiles_of(layout, kind):
            assert tile.stages(layout) >= 2, (layout.name, tile)
            assert tile.blocks * (tile.shared(layout) + RESERVED) <= SHARED, (layout.name, tile)


@pytest.mark.parametrize("name", [fmt.name for fmt in BLOCK_FORMATS if can_fold(layout_of(fmt))])
def test_codes_times_sub_scales_are_halves(name, fresh):
    """Of random blocks, each product is an integer that a half holds."""
    fmt, blocks = FORMATS[name], fresh.integers(0, 256, (500, FORMATS[name].dtype.itemsize), np.uint8)
    fields = blocks.view(fmt.dtype)[:, 0]
    for half in halves(fmt):
        fields[half] = 1
    codes, scale, _ = fmt.unpack(fields)
    assert np.abs(codes.reshape(500, -1, fmt.group) * scale[..., None]).max() <= MOST_EXACT


def test_tiles_follow_from_the_card_and_the_shape():
    """Few rows split the columns until all multiprocessors work; q4_K takes wide tiles for many halves."""
    card = card_named("test", "sm_89")
    for name, kind, m, columns in (
        ("q4_0", BYTES, 4096, 128),
        ("q4_0", "float16", 4096, 64),
        ("q4_K", "float16", 4096, 128),
        ("q4_K", "bfloat16", 4096, 64),
    ):
        split = best_split(card, layout_of(FORMATS[name]), kind, m, 4096, 64)
        assert split.tile.columns == columns
        assert split.splits == 1
    assert best_split(card, layout_of(FORMATS["q4_0"]), "float16", 40, 1024, 224).splits > 1
