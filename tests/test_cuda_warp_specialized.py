"""cuda:warp_specialized: how blocks split tiles, and its kernels on an emulated card."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")

from block_cases import BLOCKS, weights
from emulated_gpu import addends_or_gate, put_emulated
from emulated_packed import pack_blocks, pack_q4_0
from fake_cupy import decoded, encoded, on_device

import ggmlq as gq
from ggmlq.cuda.driver import device, tensor_maps
from ggmlq.cuda.driver.launch import Kernel
from ggmlq.cuda.intrinsics import hopper
from ggmlq.cuda.intrinsics.language import elements_of
from ggmlq.cuda.kernels.cost.stage import SHARE
from ggmlq.cuda.kernels.cost.warp_specialized import (
    CLEAR_US,
    EMPTY_PART,
    MAX_CLUSTER,
    MAX_EMPTY_ROWS,
    TILES,
    Split,
    WarpSpecializedShape,
    Wave,
    best_split,
    best_tile,
    most_partials,
)
from ggmlq.cuda.kernels.epilogue.results import MAX_GATED_COLUMNS
from ggmlq.cuda.kernels.hopper import kernel, tiles
from ggmlq.cuda.kernels.hopper.tiles import (
    Raster,
    TileSplit,
    blocks_of_tile,
    next_work_unit,
    shared_stages,
    split_last_wave,
)
from ggmlq.cuda.ladder.linear import r16_warp_specialized
from ggmlq.cuda.layouts.layout import layout_of
from ggmlq.cuda.layouts.pack import PackedWeights
from ggmlq.dispatch.card import CARDS, UNKNOWN, clusters
from ggmlq.formats import FORMATS

RUNG = next(each for each in gq.kernels(device="cuda") if each.name == "cuda:warp_specialized")


def plain(function):
    return getattr(function, "py_func", function)


@pytest.fixture
def on_the_host(monkeypatch):
    """The functions of tiles.py as Python has them."""
    monkeypatch.setattr(tiles, "block_of_stage", plain(tiles.block_of_stage))


def uint32s(*numbers):
    return tuple(map(np.uint32, numbers))


def bounds(rank, stages, split):
    return map(int, plain(shared_stages)(np.uint32(rank), np.uint32(stages), tile_split(split)))


def tile_split(split):
    """A split as kernels have it."""
    return TileSplit(*uint32s(*split.arguments))


def units_of_blocks(tiles, stages, split):
    """The work units of each block: (tile, first stage, the one after the last)."""
    blocks, whole_tiles = [], tiles - split.split_tiles
    for rank in range(split.blocks):
        begin, end = bounds(rank, stages, split)
        left, whole, units = end - begin, rank, []
        while left > 0 or whole < whole_tiles:
            numbers = uint32s(left, end, whole, stages, split.blocks, whole_tiles)
            tile, first, last, left, whole = map(int, plain(next_work_unit)(*numbers))
            units.append((tile, first, last))
        blocks.append(units)
    return blocks


def test_every_stage_is_computed_once(on_the_host, fresh):
    aligned = clustered = 0
    for _ in range(200):
        tiles, stages = int(fresh.integers(1, 400)), int(fresh.integers(1, 60))
        blocks, columns = int(fresh.integers(1, 270)), int(fresh.choice([32, 64, 128, 256]))
        split, us = best_split(tiles, stages, Wave(blocks, 1, columns, columns / 200))
        assert us > tiles * stages * columns / 200 / blocks
        assert 0 < split.blocks <= blocks
        aligned += split.splits > 0
        if split.cluster > 1:
            clustered += 1
            assert split.cluster == split.splits <= MAX_CLUSTER
            assert split.blocks % split.cluster == 0
            assert split.blocks <= clusters(blocks, split.cluster) * split.cluster
        times, sharers = np.zeros((tiles, stages), int), {}
        whole_tiles = tiles - split.split_tiles
        for rank, units in enumerate(units_of_blocks(tiles, stages, split)):
            order = [tile for tile, _, _ in units]
            assert order == sorted(order)
            for tile, first, last in units:
                assert first < last
                times[tile, first:last] += 1
                if last - first < stages:
                    sharers.setdefault(tile, []).append(rank)
        assert (times == 1).all()
        for tile, ranks in sharers.items():
            place = uint32s(tile - whole_tiles, stages)
            first, count = plain(blocks_of_tile)(*place, tile_split(split))
            assert ranks == [*range(int(first), int(first) + int(count))]
            assert whole_tiles <= tile
    assert 0 < clustered < aligned < 200


def test_a_kernel_splits_the_last_wave_itself(on_the_host, fresh):
    """The split needs no more room for partial sums than the host gave it; each stage is computed once."""
    shared = 0
    for _ in range(300):
        tiles, stages, blocks, least = (int(fresh.integers(1, most)) for most in (900, 60, 270, 20))
        fields = tuple(map(int, plain(split_last_wave)(*uint32s(tiles, stages, blocks, least))))
        split_tiles, split_blocks, splits, *_ = fields
        assert split_blocks + split_tiles <= most_partials(blocks, stages, least)
        if splits:
            shared += 1
            assert split_blocks <= blocks
            assert -(-stages // splits) + least <= stages
        assert split_tiles == (tiles % blocks if splits else 0)
        times = np.zeros((split_tiles, stages), int)
        for units in units_of_blocks(split_tiles, stages, Split(blocks, *fields)):
            for tile, first, last in units:
                times[tile, first:last] += 1
        assert (times == 1).all()
    assert shared > 20


def test_a_tile_is_filled_up_little(fresh):
    for m in fresh.integers(1, 5000, 200).tolist():
        down, stages = int(fresh.integers(1, 300)), int(fresh.integers(1, 120))
        tile = best_tile(WarpSpecializedShape(m, down, stages, layout_of(BLOCKS[m % len(BLOCKS)]), 132)).tile
        assert tile in TILES
        assert -(-m // tile.columns) * tile.columns < 2 * m + 32
    assert best_tile(WarpSpecializedShape(4096, 32, 112, layout_of(FORMATS["q4_0"]), 132)).tile.columns >= 192


def test_where_plain_rows_pay(fresh):
    """No kernel before saves time, at most; wide tiles, empty boxes and fp4 keep x_tiles."""
    for m in fresh.integers(9, 4097, 40).tolist():
        down, stages, name = int(fresh.integers(8, 300)), int(fresh.integers(8, 120)), BLOCKS[m % len(BLOCKS)]
        shapes = [WarpSpecializedShape(m, down, stages, layout_of(name), 132, 4.5, plain) for plain in (0, 1)]
        x_tiles, plain = map(best_tile, shapes)
        assert plain.us <= x_tiles.us + CLEAR_US
        for tile in TILES:
            rows = -(-m // tile.columns) * tile.columns
            empty = rows - m > max(MAX_EMPTY_ROWS, rows // (8 * EMPTY_PART) * 8)
            reads = not (tile.wide or layout_of(name).fp4 or empty)
            assert shapes[1].reads_plain(tile) == reads
            assert not shapes[0].reads_plain(tile)


def test_blocks_read_together_what_no_cache_holds(fresh):
    """Blocks that go over the ends of tiles would each read 117 MB of activations, seven times in all."""
    layout, tile = layout_of(FORMATS["q8_0"]), TILES[-1]
    large, small = (WarpSpecializedShape(4096, 7, stages, layout, 132) for stages in (112, 20))
    splits = [best_split(7 * 16, shape.stages, shape.wave(tile, 1))[0] for shape in (large, small)]
    assert not any(split.block_stages for split in splits)
    apart = [shape.wave(tile, 1).apart_us / shape.stages for shape in (large, small)]
    assert apart[0] > apart[1]
    alone = WarpSpecializedShape(int(fresh.integers(1, 257)), 40, 112, layout, 132).wave(tile, 1)
    read = 112 * (alone.read_us + 256 * 256 / 1e6 / 40 / SHARE / UNKNOWN)
    assert alone.apart_us < 2 * read, "one column of tiles: nobody else wants its weights"


def test_the_first_tiles_do_not_wait_for_late_activations(fresh):
    order = Raster(16, 16, 112, 112)
    for _ in range(50):
        wave_us, steps = float(fresh.uniform(20, 400)), 8 * int(fresh.integers(1, 30))
        late = tiles.plan_late(order, True, 256, steps, 0, 0, wave_us)
        numbers = 16 * 256 * steps * 64
        if late.tickets:
            assert late.ready >= min(tiles.MIN_SECTIONS_BEFOREHAND, late.sections)
            late_us = numbers * (1 - late.ready / late.sections) * tiles.NUMBER_US
            assert late_us <= max(wave_us, 1e-9)
            assert (late.sections - late.ready) * late.section_tickets == late.tickets


def test_the_map_of_x_lies_where_the_copy_engine_can_take_it():
    at = 0
    words = [word for kind in kernel.BEFORE_MAP for word in elements_of(kind)]
    assert len(words) == kernel.X_MAP
    for word in words:
        size = word.bitwidth // 8
        at = -(-at // size) * size + size
    assert (hopper.PARAMETERS + at) % 128 == 0


def test_a_map_as_words_of_a_launch(monkeypatch):
    """The address alone depends on the matrix; None for a driver whose maps are others."""
    box, calls = tensor_maps.Box(0, 70, 384, 768, "float16", 64, 64), []

    def made(box):
        calls.append(box)
        return encoded(box)

    monkeypatch.setattr(tensor_maps, "encoded", made)
    tensor_maps.words_behind_address.cache_clear()
    for _ in range(3):
        words = tensor_maps.words_behind_address(box)
    assert decoded((16 * 99, *words)) == box._replace(address=16 * 99)
    assert len(calls) == 2, "two addresses, once for a shape"
    tensor_maps.words_behind_address.cache_clear()
    monkeypatch.setattr(tensor_maps, "encoded", lambda box: encoded(box)[::-1])
    assert tensor_maps.words_behind_address(box) is None
    tensor_maps.words_behind_address.cache_clear()


def test_rows_alone_have_one_split(fresh, monkeypatch):
    """Whatever their number: then each sum has its products in one order. x is never read as it lies."""
    monkeypatch.setattr(device, "resident_blocks", lambda blocks, shared: blocks)
    card = next(card for card in CARDS if card.name == "NVIDIA H200")
    layout, rows = layout_of(fresh.choice(BLOCKS)), (1, 16, 17, 64, 65, 128)
    for _ in range(20):
        n, steps = fresh.integers(1, (40000, 300)).tolist()
        plans = [r16_warp_specialized.plan_alone(m, card, layout, n, steps) for m in rows]
        assert len({(plan.split, plan.tile.fragments, plan.order) for plan in plans}) == 1
        assert all(plan.tile.columns >= m and not plan.plain for plan, m in zip(plans, rows, strict=True))


FEW = 5, 140, 512, TILES[0]  # M, N, K, tile
DRAWN = [(130, 384), (70, 128), (300, 1152)]  # N, K
WIDE = [tile for tile in TILES if tile.wide]


@pytest.fixture(scope="module")
def tiles_of_run(request):
    """Two tiles for this run, any and a wide one, and a type for few rows: a kernel takes long to compile."""
    rng = np.random.default_rng(request.config.option.seed)
    return {
        "drawn": TILES[rng.integers(len(TILES))],
        "wide": WIDE[rng.integers(len(WIDE))],
        "few": str(rng.choice(["q4_0", "mxfp4", "nvfp4"])),
    }


def drawn(name, tile, rng):
    """A case: any tile and a part of the next one, or three wide tiles for two blocks.

    Each of the three is a raster sweep of its own, with five sections along K.
    """
    if name == "wide":
        return 2 * tile.columns + int(rng.integers(1, 48)), 70, 2304, tile
    return int(rng.integers(1, tile.columns + 9)), *DRAWN[rng.integers(len(DRAWN))], tile


def on_card(name, n, k, monkeypatch, fresh):
    """An emulated card, weights on the host, and there."""
    state, host = put_emulated(monkeypatch), weights(name, n, k, int(fresh.integers(1 << 30)))
    fragments, layout = pack_q4_0(host) if name == "q4_0" else pack_blocks(host)
    fragments = on_device(fragments)
    state.memory.add(fragments)
    for module in (r16_warp_specialized, kernel):
        monkeypatch.setattr(module, "packed_weights", lambda q: PackedWeights(fragments, layout))
    monkeypatch.setattr(tensor_maps, "map_array", state.memory.map)
    monkeypatch.setattr(device, "resident_blocks", lambda blocks, shared: blocks)
    q = gq.QuantArray(host.format, (n, k), on_device(host.raw))
    return state, host, q


@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.parametrize("way", ["one by one", "at one time", "clusters"])
@pytest.mark.parametrize("case", ["few", "drawn", "wide"])
def test_a_launch(case, way, tiles_of_run, monkeypatch, fresh):
    """Blocks that run in turn leave all slices to the first of a tile; at one time each finishes its own.

    Blocks of a cluster send their sums to each other. The product itself makes the x_tiles of wide tiles,
    except the first ones. A bias and a residual of some kind are added, or a gate multiplies.
    """
    monkeypatch.setattr(tiles, "MIN_NUMBERS_LEFT", 0)
    cut = int(fresh.integers(2, MAX_CLUSTER + 1))

    def shared(tiles, stages, wave):
        """A split in clusters: two blocks for the last of three tiles, or as many as may be for each."""
        if case == "wide":
            return Split(2, 1, 2, 2, 0, 0, 2), 0.0
        if stages == 1:  # nothing to cut
            return best_split.__wrapped__(tiles, stages, wave)
        parts = min(cut, stages)
        return Split(tiles * parts, tiles, tiles * parts, parts, 0, 0, parts), 0.0

    monkeypatch.setattr(Wave, "takes_clusters", lambda *_: False)
    monkeypatch.setattr(
        r16_warp_specialized, "best_split", shared if way == "clusters" else best_split.__wrapped__
    )
    if case == "wide":
        monkeypatch.setattr(
            r16_warp_specialized,
            "plan_raster",
            lambda across, down, *_: Raster(across, 1, down, across * down),
        )
    m, n, k, tile = FEW if case == "few" else drawn(case, tiles_of_run[case], fresh)
    name = tiles_of_run["few"] if case == "few" else "q4_0"
    state, host, q = on_card(name, n, k, monkeypatch, fresh)
    x = fresh.standard_normal((m, k), np.float32)
    given = x = x.astype(np.float16) if case == "drawn" else x
    if case != "wide" and fresh.integers(2):
        given = (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)  # of bfloat16
        x = (given.astype(np.uint32) << 16).view(np.float32)
    y = on_device(np.full((m + 2, n), np.nan, np.float32))
    state.memory.add(y)
    given = on_device(given)
    state.memory.add(given)
    call, before = Kernel.__call__, []

    def launched(kernel, grid, block, *arguments, cluster=1, max_blocks=0):
        product = kernel.name.startswith("warp_specialized")
        before.extend([] if product else [kernel.name])
        assert not product or (cluster > 1) == (way == "clusters" and k > 128)
        call(kernel, grid, block, *arguments, cluster=cluster, together=product and way == "at one time")

    monkeypatch.setattr(Kernel, "__call__", launched)
    end, factor, added = addends_or_gate((m, n), state.memory, fresh, tile.columns <= MAX_GATED_COLUMNS)
    RUNG.launch(given, q, y[1:-1], tile=tile, end=end)
    assert np.isnan(y[[0, -1]]).all(), "written past its outputs"
    assert len(before) <= 1
    full = -(-m // tile.columns) * tile.columns <= m + MAX_EMPTY_ROWS
    if full and given.dtype.itemsize == 2 and not tile.wide and name == "q4_0" and way == "clusters":
        assert not before, "rows are read as they lie, and there are no flags"
    arithmetic = "f16" if given.dtype == np.float16 else "bf16s"
    want = gq.reference.linear(x.astype(np.float32), host, arithmetic) * factor + added
    assert gq.nmse(np.asarray(y[1:-1]), want) < 1e-10


@pytest.mark.slow
def test_rows_alone_keep_their_bits(monkeypatch, fresh):
    """Those of tiles of three widths, in blocks that run in turn or in clusters."""
    split = Split(6, 2, 6, 3, 0, 0, 3) if fresh.integers(2) else Split(2, 0, 0, 0, 0, 0)
    monkeypatch.setattr(r16_warp_specialized, "best_split", lambda *_: (split, 0.0))
    n, k, kind = int(fresh.integers(129, 257)), 512, fresh.choice([np.float32, np.float16])
    state, host, q = on_card("q4_0", n, k, monkeypatch, fresh)
    x, whole = fresh.standard_normal((40, k), np.float32).astype(kind), None
    for first, end in ((0, 40), (3, 20), (int(fresh.integers(40)), 40)):
        rows = on_device(x[first:end].copy())
        y = on_device(np.full((len(rows) + 2, n), np.nan, np.float32))
        for array in (rows, y):
            state.memory.add(array)
        RUNG.invariant(rows, q, y[1:-1])
        assert np.isnan(y[[0, -1]]).all(), "written past its outputs"
        sums = np.array(y[1:-1])
        whole = sums if whole is None else whole
        assert np.array_equal(sums, whole[first:end])
    want = gq.reference.linear(x.astype(np.float32), host, "f16" if kind == np.float16 else "bf16s")
    assert gq.nmse(whole, want) < 1e-10
