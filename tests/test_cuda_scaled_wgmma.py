"""Rungs for Hopper's wgmma: the problems they take, their machine code, and on a card their results."""

from __future__ import annotations

import ctypes
import re
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")
pytest.importorskip("cuda.core", reason="cuda-core is not installed (extra test-cuda)")

from fake_cupy import put_gpu
from test_cuda_assemble import BY_LTO, FAMILIES
from test_cuda_scaled_linear import SPREAD, card, error, problem_of, scaled

import ggmlq as gq
from ggmlq.cuda.driver import device, launch, submit, tensor_maps
from ggmlq.cuda.driver.launch import Kernel
from ggmlq.cuda.driver.tensor_maps import Box
from ggmlq.cuda.kernels.codes8.small_m import TILES
from ggmlq.cuda.kernels.codes8.tiles import (
    COLUMN_SCALE_TILES,
    CONSUMER_REGISTERS,
    FLOAT_TILES,
    INTEGER_TILES,
    PAIR_TILE,
    PRODUCER_REGISTERS,
    BoxTile,
    SharedLayout,
    expert_variants,
    float_variants,
    integer_variants,
    split_variants,
)
from ggmlq.cuda.ladder.scaled_linear import r9_persistent, r10_small_m, r11_split_k
from ggmlq.dispatch import ladder
from ggmlq.dispatch.checks import float_dtype
from ggmlq.dispatch.problems import Operand, ScaledLinear

HOPPER = (r9_persistent.launch, r10_small_m.launch, r11_split_k.launch)
# --- machine code -----------------------------------------------------------------------------


def assert_assembled_well(kernel):
    """The assembler neither spills, nor serialises wgmma, nor ignores setmaxnreg (all C75xx)."""
    code, said = kernel.linked((9, 0))
    assert not re.search(r"C7\d\d\d|warning", said), (kernel.name, said)
    found = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores", said)
    assert found.groups() == ("0", "0"), kernel.name
    registers = int(re.search(r"Used (\d+) registers", said)[1])
    assert registers <= 65536 // (kernel.threads * kernel.blocks) // 8 * 8, kernel.name
    assert re.fullmatch(r"\w+", launch.name_in(code))
    assert kernel.shared * kernel.blocks + 1024 * kernel.blocks <= 228 << 10, kernel.name


@pytest.mark.slow
@pytest.mark.drawn(3)
@pytest.mark.parametrize("name", BY_LTO)
def test_machine_code(name, fresh):
    """A kernel of the family, drawn."""
    family = FAMILIES[name]
    assert_assembled_well(family.make(*family.cases[fresh.integers(len(family.cases))]))


MAKERS = [float_variants, integer_variants, split_variants, expert_variants]


@pytest.mark.parametrize("make", MAKERS)
def test_a_tile_adds_up(make):
    for (variant,) in make():
        layout = variant.layout
        assert layout.fits, variant
        assert variant.tile.halves * 64 * variant.tile.groups == variant.tile.rows
        assert (
            layout.tile.stage % 1024
            == layout.outputs % 1024
            == layout.barriers % 8
            == layout.scale_bytes % 128
            == 0
        )
        assert variant.tile.columns % variant.columns_per_scale == 0
        sums = variant.form.halves * variant.form.sums + (0 if variant.integer else variant.form.sums)
        assert sums + 24 <= CONSUMER_REGISTERS, f"{variant} has no registers for {sums} sums"
    moved = 2 * CONSUMER_REGISTERS + PRODUCER_REGISTERS
    assert 128 * moved <= 65536


def test_few_rows_add_up():
    for tile in TILES:
        assert (tile.shared + tile.list_bytes + 1024) * tile.blocks <= 228 << 10
        assert tile.stage % 1024 == tile.sums % 16 == tile.barriers % 8 == tile.pitch % 16 == 0
        assert tile.stages % tile.step_groups == 0
        assert tile.columns * tile.pitch <= tile.scales  # what is sent lies in the stages
    assert SharedLayout(BoxTile(256, 256, 4)).fits is False


# --- the host ---------------------------------------------------------------------------------


class Library:
    """The driver's functions that maps need."""

    def __init__(self):
        self.encoded, self.copies, self.modes, self.status = [], [], [], 0

    def cuTensorMapEncodeTiled(self, at, kind, rank, address, shape, pitch, box, every, *how):
        assert at.value % 64 == 0
        self.encoded.append((kind, rank.value, address.value, *shape, *pitch, *box, *every, *how))
        return self.status

    def cuThreadExchangeStreamCaptureMode(self, mode):
        self.modes.append(mode._obj.value)
        mode._obj.value = 0
        return 0

    def cuMemcpyHtoDAsync_v2(self, to, words, size, stream):
        self.copies.append((to.value, len(words), size.value, stream.value))
        return 0


@pytest.fixture
def library(monkeypatch):
    encoded = tensor_maps.encoded
    gpu, made = put_gpu(monkeypatch), Library()
    monkeypatch.setattr(tensor_maps, "encoded", encoded)  # by the driver, which is ``made``
    gpu.cupy.cuda.Memory = lambda size: SimpleNamespace(ptr=1 << 20)
    gpu.cupy.cuda.Stream = lambda non_blocking: SimpleNamespace(ptr=7, synchronize=lambda: None)
    monkeypatch.setattr(tensor_maps, "library", lambda: made)
    monkeypatch.setattr(device, "current", lambda: 0)
    tensor_maps._slots.cache_clear()
    made.gpu = gpu
    yield made
    tensor_maps._slots.cache_clear()


def box(address=4096, **more):
    facts = {"rows": 5, "columns": 256, "pitch": 512, "kind": "uint8", "box_rows": 64, "box_columns": 128}
    return Box(address, **{**facts, **more})


def test_a_map_is_made_once(library):
    at = tensor_maps.map_address(box())
    assert library.encoded == [(0, 2, 4096, 256, 5, 512, 128, 64, 1, 1, 0, 3, 3, 0)]
    assert library.copies == [(at, 128, 128, 7)]
    assert at % 128 == 0
    assert library.modes == [tensor_maps.RELAXED, 0]
    assert tensor_maps.map_address(box()) == at
    other = tensor_maps.map_address(box(kind="float32", pitch=1024, swizzled=False))
    assert other != at
    assert library.encoded[1][0] == 7
    assert library.encoded[1][-3] == 0
    assert len(library.copies) == 2


def test_slots_that_no_graph_has_are_used_again(library, monkeypatch):
    monkeypatch.setattr(tensor_maps, "MOST", 3)
    monkeypatch.setattr(tensor_maps, "SLAB", 3)
    slabs = iter(range(1 << 20, 1 << 30, 1 << 20))
    library.gpu.cupy.cuda.Memory = lambda size: SimpleNamespace(ptr=next(slabs))
    library.gpu.capturing = True
    held = tensor_maps.map_address(box(16))
    library.gpu.capturing = False
    places = [tensor_maps.map_address(box(64 * i)) for i in range(1, 30)]
    assert library.gpu.device_waits > 1
    assert held not in places
    assert tensor_maps.map_address(box(16)) == held
    assert len(set(places)) < 29
    assert tensor_maps.map_address(box(64 * 29)) == places[-1]


def test_a_map_that_the_driver_refuses(library):
    library.status = 1
    with pytest.raises(gq.GGMLQError, match="multiples of 16 bytes"):
        tensor_maps.map_address(box())


def test_a_cluster_is_an_attribute_of_a_launch(monkeypatch):
    put_gpu(monkeypatch)
    found = []
    monkeypatch.setattr(submit, "driver_launch", lambda: lambda *given: found.append(given) or 0)
    kernel = Kernel("nothing", lambda *_: None, threads=32)
    kernel._loaded[0] = SimpleNamespace(ptr=5), 0, True
    kernel((8,), (32,), cluster=4)
    facts = submit.SHAPE.unpack(ctypes.string_at(found[0][0], submit.SHAPE.size))
    *_, attributes, count = facts
    assert count == 2
    words = (ctypes.c_uint32 * 36).from_address(attributes)
    assert (words[0], words[2]) == (6, 1)
    assert (words[18], *words[20:23]) == (4, 4, 1, 1)


def problem(code="e4m3", x=128, w=128, m=64, capability=(9, 0), zeros=False, k=4096, accumulate=None):
    a, b = Operand(code, 1, x, zeros), Operand(code, 128, w)
    return ScaledLinear(a, b, m, 4096, k, accumulate, device="cuda", card=card(capability))


def test_what_they_refuse():
    for rung in HOPPER:
        assert rung.refuses(problem()) is None
        assert "9.0" in rung.refuses(problem(capability=(10, 0)))
        assert "128 columns of K" in rung.refuses(problem(x=64))
        assert rung.refuses(problem(x=4096, w=256)) is None
        assert rung.caution is None
    for rung in HOPPER[:2]:
        assert rung.refuses(problem("int8", 4096, 4096, zeros=True)) is None
        assert "vary" in rung.refuses(problem("int8"))
        assert "int32" in rung.refuses(problem("int8", 1 << 20, 1 << 20, k=1 << 20))
        assert "int16" in rung.refuses(problem("int16", 4096, 4096))
    assert "64 rows" in HOPPER[1].refuses(problem(m=65))
    assert ladder.choose(problem()).name == "cuda:small_m"
    assert "floats" in HOPPER[2].refuses(problem("int8", 4096, 4096))
    assert ladder.choose(problem(m=65)).name == "cuda:split_k"
    assert ladder.choose(problem(m=1000)).name == "cuda:persistent"
    assert ladder.choose(problem("int8")).name == "cuda:mma_int8"


# --- on a GPU ---------------------------------------------------------------------------------


@pytest.fixture
def hopper(cupy):
    if device.capability() != (9, 0):
        pytest.skip("these instructions are those of compute capability 9.0 alone")
    return cupy


@pytest.mark.cuda
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_halves(kind, hopper, fresh):
    for code, tiles in (("e4m3", ((1, 128), (128, 128))), ("int8", ((1, None), (1, None)))):
        for m, n, k in ((40, 200, 512), (300, 333, 1024), (129, 1024, 256)):
            x, w = scaled(fresh, code, tiles[0], m, k), scaled(fresh, code, tiles[1], n, k)
            x.scales[...] *= np.float32(1e-5)
            want = gq.reference.scaled_linear(x, w)
            for rung in HOPPER:
                if rung.refuses(problem_of(x, w)) is None:
                    y = hopper.full((m, n), 0x7FFF, hopper.uint16).view(float_dtype("a product", kind))
                    rung.launch(x.to("cuda"), w.to("cuda"), y)
                    wrong = error(y.get().astype(np.float32), want)
                    assert wrong <= 3e-3, (rung.name, m, n, k, wrong)


@pytest.mark.cuda
@pytest.mark.parametrize("kind", ["int8", "e4m3"])
@pytest.mark.parametrize("rung", HOPPER, ids=lambda rung: rung.name[5:])
def test_endings_are_what_one_step_after_the_other_gives(rung, kind, hopper, fresh):
    """A bias and codes, by the kernel that multiplies: the same bits. A few cases, for each is compiled."""
    tiles = ((1, None), (1, None)) if kind == "int8" else ((1, 128), (128, 128))
    for m in (fresh.integers(1, 65), 300):
        n, k = (int(v) for v in fresh.integers(16, 1500, 2))
        x, w = scaled(fresh, kind, tiles[0], m, k).to("cuda"), scaled(fresh, kind, tiles[1], n, k).to("cuda")
        if rung.refuses(problem_of(x, w)) is not None:
            continue
        y = gq.scaled_linear(x, w, kernel=rung.name)
        most, told = float(hopper.abs(y).max()), (rung.name, m, n, k)
        bias = (hopper.asarray(fresh.standard_normal(n)) * most).astype(fresh.choice(["f4", "f2"]))
        ended = y + bias
        found = gq.scaled_linear(x, w, kernel=rung.name, bias=bias, dtype=np.float16)
        assert bool((found == ended.astype(np.float16)).all()), told
        for along in (False, True):
            code = fresh.choice(["int8", "int8_full", "uint8", "e4m3", "e5m2"])
            rows, columns = fresh.choice([1, m]), n if along else 1
            scales = hopper.asarray((fresh.uniform(0.5, 2, (rows, columns)) * most / 100).astype("f4"))
            tile = (1 if rows > 1 else None, 1 if columns > 1 else None)
            want = gq.quantize_scaled(ended, code, tile, scales=scales)
            found = gq.scaled_linear(x, w, kernel=rung.name, bias=bias, requantize=(code, scales))
            assert bool((found.codes == want.codes).all()), (*told, code, along)
            assert bool((found.scales == want.scales).all())


@pytest.mark.cuda
def test_a_graph_with_maps_that_are_made_while_it_is_recorded(hopper, fresh):
    for rung in HOPPER:
        x, w = scaled(fresh, "e4m3", (1, 128), 60, 512), scaled(fresh, "e4m3", (128, 128), 256, 512)
        dx, dw, want = x.to("cuda"), w.to("cuda"), gq.reference.scaled_linear(x, w)
        first, out = hopper.empty((60, 256), np.float32), hopper.zeros((60, 256), np.float32)
        rung.launch(dx, dw, first)
        moved = gq.ScaledArray(dx.codes.copy(), dx.scales.copy(), "e4m3", (1, 128))
        stream = hopper.cuda.Stream(non_blocking=True)
        with stream:
            stream.begin_capture()
            rung.launch(moved, dw, out)
            graph = stream.end_capture()
            for _ in range(3):
                out.fill(0)
                graph.launch(stream)
            stream.synchronize()
        assert error(out.get(), want) <= SPREAD, rung.name


@pytest.mark.cuda
def test_other_tiles(hopper, fresh):
    x, w = scaled(fresh, "e4m3", (1, 128), 400, 1280), scaled(fresh, "e4m3", (128, 128), 520, 1280)
    want, dx, dw = gq.reference.scaled_linear(x, w), x.to("cuda"), w.to("cuda")
    for wave in (*FLOAT_TILES, *COLUMN_SCALE_TILES):
        y = hopper.full((400, 520), np.nan, np.float32)
        r9_persistent.launch.launch(dx, dw, y, wave.tile)
        assert error(y.get(), want) <= SPREAD, wave
    x, w = scaled(fresh, "int8", (1, None), 400, 1280), scaled(fresh, "int8", (1, None), 520, 1280)
    want, dx, dw = gq.scaled_linear(x, w, kernel="cpu:naive"), x.to("cuda"), w.to("cuda")
    for wave in INTEGER_TILES:
        y = hopper.full((400, 520), np.nan, np.float32)
        r9_persistent.launch.launch(dx, dw, y, wave.tile)
        assert np.array_equal(y.get(), want), wave


def test_long_products_are_made_by_pairs():
    """Where an even number of tiles lies in a row, and the product takes some 200 microseconds."""
    tile, gains = FLOAT_TILES[0].tile, r9_persistent._gains_by_pairs
    assert gains(tile, 4096, 7168, 16384)
    assert PAIR_TILE.divides(7100)
    assert not gains(tile, 4096, 7168 + 128, 16384)
    assert not gains(tile, 4096, 4096, 4096)
    assert not gains(FLOAT_TILES[1].tile, 4096, 7168, 16384)


@pytest.mark.cuda
def test_pairs_have_the_bits_of_single_blocks(hopper, fresh):
    for m, n, k in ((1000, 2500, 1408), (77, 256, 128)):
        x = scaled(fresh, "e4m3", (1, 128), m, k).to("cuda")
        w = scaled(fresh, "e4m3", (128, 128), n, k).to("cuda")
        one, two = (hopper.full((m, n), np.nan, np.float32) for _ in "ab")
        r9_persistent.launch.launch(x, w, one, FLOAT_TILES[0].tile)
        r9_persistent.launch.launch(x, w, two, PAIR_TILE)
        assert np.array_equal(one.get(), two.get())
