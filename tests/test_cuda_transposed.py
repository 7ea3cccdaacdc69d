"""``y @ q`` on Hopper: the kernel of packed weights on an emulated card, its splits, and the choice."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")

from block_cases import weights
from emulated_gpu import put_emulated
from emulated_packed import pack_blocks
from fake_cupy import on_device

import ggmlq as gq
from ggmlq.cuda.driver import device, tensor_maps
from ggmlq.cuda.kernels.gemv.stages import HOPPER_SHARED, RESERVED
from ggmlq.cuda.kernels.hopper import kernel as hopper_kernel
from ggmlq.cuda.kernels.mma import transposed
from ggmlq.cuda.kernels.mma.transposed import TRANSPOSED_COLUMNS, TransposedStage
from ggmlq.cuda.layouts import to_bf16
from ggmlq.cuda.layouts.layout import layouts
from ggmlq.cuda.layouts.pack import PackedWeights

CASES = [  # type, M, N, K, blocks of a cluster, kind of y
    ("q4_0", 1, 70, 288, 2, np.float32),
    ("q4_K", 3, 130, 256, 1, np.float16),
    ("q6_K", 8, 40, 256, 4, np.float32),
    ("q8_0", 13, 300, 96, 2, np.float16),
    ("iq4_xs", 16, 33, 256, 1, np.float32),
    ("q5_1", 32, 24, 160, 1, np.float32),
]
TILES = [  # type, M, N, K, kind of y, and the most squared error
    ("q4_0", 20, 200, 288, np.float32, 1e-5),
    ("q3_K", 33, 88, 256, np.float16, 3e-7),
    ("q5_1", 17, 33, 160, np.float16, 3e-7),
    ("q6_K", 70, 264, 256, np.float32, 1e-5),
    ("q8_0", 18, 304, 96, np.float32, 1e-5),
    ("iq4_xs", 19, 40, 256, np.float16, 3e-7),
    ("mxfp4", 130, 64, 96, np.float32, 1e-5),
]


def check(monkeypatch, fresh, name, m, n, k, kind, most):
    """A product with its bias on an emulated card is that of decoded weights, and writes nothing else."""
    state, host = put_emulated(monkeypatch), weights(name, n, k, int(fresh.integers(1 << 30)))
    fragments, layout = pack_blocks(host)
    fragments, y = on_device(fragments), on_device(fresh.standard_normal((m, n)).astype(kind))
    bias = on_device(fresh.standard_normal(k).astype(np.float32))
    out = on_device(np.full((m + 2, k), np.nan, kind))
    for place in (transposed, hopper_kernel):
        monkeypatch.setattr(place, "packed_weights", lambda q: PackedWeights(fragments, layout))
    monkeypatch.setattr(tensor_maps, "map_array", state.memory.map)
    monkeypatch.setattr(device, "resident_blocks", lambda blocks, shared: blocks)
    for array in (fragments, y, bias, out):
        state.memory.add(array)
    transposed.multiply(y, gq.QuantArray(host.format, (n, k), on_device(host.raw)), out[1:-1], bias, False)
    assert np.isnan(out[[0, -1]]).all(), "written past its outputs"
    rounded = np.asarray(y).astype(np.float32)
    want = rounded.astype(np.float64) @ host.dequantize(np.float64) + np.asarray(bias)
    sizes = np.abs(rounded) @ np.abs(host.dequantize(np.float64)) + np.abs(np.asarray(bias))
    assert (np.abs(np.asarray(out[1:-1]) - want) <= 2.0**-7 * sizes + 1e-30).all()
    assert gq.nmse(np.asarray(out[1:-1]), want) < most


@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.parametrize("case", [*CASES, *TILES], ids=lambda case: f"{case[0]}, {case[1]} rows")
def test_a_launch(case, monkeypatch, fresh):
    """Few rows: weights rounded to bfloat16 are multiplied; tiles: float16 is, where scales are halves."""
    if case in TILES:
        monkeypatch.setattr(transposed, "MIN_SHARE_BUSY", 100)
        check(monkeypatch, fresh, *case)
        return
    name, m, n, k, splits, kind = case
    monkeypatch.setattr(transposed, "splits_for", lambda *facts: splits)
    monkeypatch.setattr(transposed, "MIN_SHARE_BUSY", 0)
    check(monkeypatch, fresh, name, m, n, k, kind, 3e-5)


@pytest.mark.parametrize("layout", layouts(), ids=lambda layout: layout.name)
def test_tiles_have_room_for_their_stages(layout):
    """Two fragments side by side in each; four stages or more hide a fetch."""
    for tile in transposed.TRANSPOSED_TILES:
        assert tile.fragments == 2
        assert not tile.wide
        assert tile.stages(layout) >= 4


def test_blocks_find_room_and_splits_have_a_place(fresh):
    """For any layout, and the fullest multiprocessor has no more to do than with one block a tile."""
    for layout in layouts():
        for columns, most in TRANSPOSED_COLUMNS.items():
            stage = TransposedStage.of(layout, columns)
            assert stage.blocks * (stage.shared + RESERVED) <= HOPPER_SHARED
            tiles, height = int(fresh.integers(1, 300)), int(fresh.integers(1, 2000))
            splits = transposed.splits_for(tiles, height, stage, 132)
            assert splits in transposed.SPLIT_ROUNDS
            assert splits <= most
            assert stage.partials_at + 4 * splits * columns * stage.rows <= stage.shared


@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.parametrize("name", ["q4_0", "q4_K", "q6_K"])
def test_float16_times_a_power_of_two(name, monkeypatch, fresh):
    """The nearest float16 of each weight times the power, which is exact but in float16's small numbers."""
    n, k = 21, 256
    state, host = put_emulated(monkeypatch), weights(name, n, k, int(fresh.integers(1 << 30)))
    fragments, layout = pack_blocks(host)
    fragments, out = on_device(fragments), on_device(np.full((n + 2, k), 7, np.float16))
    for array in (fragments, out):
        state.memory.add(array)
    values = host.dequantize()
    power = 14 - int(np.floor(np.log2(np.abs(values).max())))
    to_bf16.decode_halves(PackedWeights(fragments, layout), 0, out[1:-1], power)
    assert (out[[0, -1]] == 7).all(), "written past its outputs"
    assert np.array_equal(np.asarray(out[1:-1]), np.ldexp(values, power).astype(np.float16))
