"""cuda:warp_specialized: how tiles are shared out, and its kernels on an emulated card."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test or cuda)")

from emulated_gpu import put_emulated
from emulated_strips import strips_of
from fake_cupy import on_device

import ggmlq as gq
from ggmlq.cuda.cost.sharing import LARGEST, Shares, Turn, room, shares
from ggmlq.cuda.cost.stage import SHARE
from ggmlq.cuda.cost.warp_specialized import TILES, Shape, best
from ggmlq.cuda.linear import r16_warp_specialized
from ggmlq.cuda.machine import device, tensor_maps
from ggmlq.cuda.machine.launch import Kernel
from ggmlq.cuda.packed.layout import layout_of
from ggmlq.cuda.packed.pack import Strips
from ggmlq.cuda.schedule import work_units as parting
from ggmlq.cuda.schedule.raster import Bands
from ggmlq.cuda.schedule.work_units import bounds_of, next_piece, shared_out, sharers_of
from ggmlq.cuda.warp_specialized import late_activations
from ggmlq.dispatch.card import UNKNOWN, clusters
from ggmlq.formats import FORMATS
from ggmlq.testing.cases import BLOCKS, weights

RUNG = next(each for each in gq.kernels(device="cuda") if each.name == "cuda:warp_specialized")


def plain(function):
    return getattr(function, "py_func", function)


@pytest.fixture
def on_the_host(monkeypatch):
    """The functions of pieces.py as Python has them."""
    monkeypatch.setattr(parting, "rank_of", plain(parting.rank_of))


def words(*given):
    return tuple(map(np.uint32, given))


def bounds(rank, stages, share):
    return map(int, plain(bounds_of)(np.uint32(rank), np.uint32(stages), words(*share.words)))


def pieces(tiles, stages, share):
    """Of each block: (tile, first stage, the one after the last)."""
    found = []
    for rank in range(share.blocks):
        begin, end = bounds(rank, stages, share)
        left, whole, own = end - begin, rank, []
        while left > 0 or whole < tiles - share.divided:
            given = words(left, end, whole, stages, share.blocks, tiles - share.divided)
            number, first, last, left, whole = map(int, plain(next_piece)(*given))
            own.append((number, first, last))
        found.append(own)
    return found


def test_every_stage_is_made_once(on_the_host, fresh):
    aligned = clustered = 0
    for _ in range(200):
        tiles, stages = int(fresh.integers(1, 400)), int(fresh.integers(1, 60))
        blocks, columns = int(fresh.integers(1, 270)), int(fresh.choice([32, 64, 128, 256]))
        share, us = shares(tiles, stages, Turn(blocks, 1, columns, columns / 200))
        assert us > tiles * stages * columns / 200 / blocks
        assert 0 < share.blocks <= blocks
        aligned += share.parts > 0
        if share.cluster > 1:
            clustered += 1
            assert share.cluster == share.parts <= LARGEST
            assert share.blocks % share.cluster == 0
            assert share.blocks <= clusters(blocks, share.cluster) * share.cluster
        made, makers = np.zeros((tiles, stages), int), {}
        of_blocks, wholes = pieces(tiles, stages, share), tiles - share.divided
        for rank, own in enumerate(of_blocks):
            numbers = [number for number, _, _ in own]
            assert numbers == sorted(numbers)
            for number, first, last in own:
                assert first < last
                made[number, first:last] += 1
                if last - first < stages:
                    makers.setdefault(number, []).append(rank)
        assert (made == 1).all()
        for number, ranks in makers.items():
            first, count = plain(sharers_of)(*words(number - wholes, stages), words(*share.words))
            assert ranks == [*range(int(first), int(first) + int(count))]
            assert wholes <= number
    assert 0 < clustered < aligned < 200


def test_what_a_kernel_shares_out_itself(on_the_host, fresh):
    """As the host thinks it might, within the room that it has for parts; each stage is made once."""
    shared = 0
    for _ in range(300):
        tiles, stages, blocks, worth = (int(fresh.integers(1, most)) for most in (900, 60, 270, 20))
        found = tuple(map(int, plain(shared_out)(*words(tiles, stages, blocks, worth))))
        divided, sharing, parts, *_ = found
        assert sharing + divided <= room(blocks, stages, worth)
        if parts:
            shared += 1
            assert sharing <= blocks
            assert -(-stages // parts) + worth <= stages
        assert divided == (tiles % blocks if parts else 0)
        made = np.zeros((divided, stages), int)
        for own in pieces(divided, stages, Shares(blocks, *found)):
            for number, first, last in own:
                made[number, first:last] += 1
        assert (made == 1).all()
    assert shared > 20


def test_a_tile_is_filled_up_little(fresh):
    for m in fresh.integers(1, 5000, 200).tolist():
        down, stages = int(fresh.integers(1, 300)), int(fresh.integers(1, 120))
        tile = best(Shape(m, down, stages, layout_of(BLOCKS[m % len(BLOCKS)]), 132)).tile
        assert tile in TILES
        assert -(-m // tile.columns) * tile.columns < 2 * m + 32
    assert best(Shape(4096, 32, 112, layout_of(FORMATS["q4_0"]), 132)).tile.columns >= 192


def test_blocks_read_together_what_no_cache_holds(fresh):
    """Over the ends of tiles each would read for itself: 117 MB of activations seven times."""
    layout, tile = layout_of(FORMATS["q8_0"]), TILES[-1]
    large, small = Shape(4096, 7, 112, layout, 132), Shape(4096, 7, 20, layout, 132)
    found = [shares(7 * 16, shape.stages, shape.turn(tile, 1))[0] for shape in (large, small)]
    assert not any(share.each for share in found)
    apart = [shape.turn(tile, 1).apart_us / shape.stages for shape in (large, small)]
    assert apart[0] > 2 * apart[1]
    alone = Shape(int(fresh.integers(1, 257)), 40, 112, layout, 132).turn(tile, 1)
    read = 112 * (alone.read_us + 256 * 256 / 1e6 / 40 / SHARE / UNKNOWN)
    assert alone.apart_us < 1.7 * read, "one column of tiles: nobody else wants its weights"


def test_so_much_is_ordered_before_as_the_first_tiles_would_wait_for(fresh):
    order = Bands(16, 16, 112, 112)
    for _ in range(50):
        turn_us, steps = float(fresh.uniform(20, 400)), 8 * int(fresh.integers(1, 30))
        make = late_activations.making(order, True, 256, steps, 0, 0, turn_us)
        numbers = 16 * 256 * steps * 64
        if make.tickets:
            assert make.ready >= min(late_activations.AHEAD, make.parts)
            late = numbers * (1 - make.ready / make.parts) * late_activations.NUMBER_US
            assert late <= max(turn_us, 1e-9)
            assert (make.parts - make.ready) * make.of_part == make.tickets


FEW = 5, 140, 512, TILES[0]  # M, N, K, tile
DRAWN = [(130, 384), (70, 128), (300, 1152)]  # N, K
WIDE = [tile for tile in TILES if tile.wide]


@pytest.fixture(scope="module")
def tiles_of_run(request):
    """Two of this run, for a kernel of one takes half a minute to compile: any, and a wide one."""
    rng = np.random.default_rng(request.config.option.seed)
    return {"drawn": TILES[rng.integers(len(TILES))], "wide": WIDE[rng.integers(len(WIDE))]}


def drawn(name, tile, rng):
    """A case: of any tile with a part of the next one, or of a wide one with three tiles for two blocks, each
    a band of its own, and five parts along K.
    """
    if name == "wide":
        return 2 * tile.columns + int(rng.integers(1, 48)), 70, 2304, tile
    return int(rng.integers(1, tile.columns + 9)), *DRAWN[rng.integers(len(DRAWN))], tile


@pytest.mark.drawn(1)
@pytest.mark.parametrize("way", ["one by one", "at one time", "clusters"])
@pytest.mark.parametrize("case", ["few", "drawn", "wide"])
def test_a_launch(case, way, tiles_of_run, monkeypatch, fresh):
    """Blocks one after the other leave all slices to the first of a tile; at one time each has its own.

    Those of a cluster hand out what they have. Activations of wide tiles are ordered by the product itself,
    but for the beginning.
    """
    monkeypatch.setattr(late_activations, "LEAST", 0)
    cut = int(fresh.integers(2, LARGEST + 1))

    def shared(tiles, stages, turn):
        """In clusters: the last of three tiles by two blocks, or all tiles by as many blocks as may be."""
        if case == "wide":
            return Shares(2, 1, 2, 2, 0, 0, 2), 0.0
        if stages == 1:  # nothing to cut
            return shares.__wrapped__(tiles, stages, turn)
        parts = min(cut, stages)
        return Shares(tiles * parts, tiles, tiles * parts, parts, 0, 0, parts), 0.0

    monkeypatch.setattr(Turn, "takes_clusters", lambda *_: False)
    monkeypatch.setattr(r16_warp_specialized, "shares", shared if way == "clusters" else shares.__wrapped__)
    if case == "wide":
        monkeypatch.setattr(
            r16_warp_specialized, "bands", lambda across, down, *_: Bands(across, 1, down, across * down)
        )
    m, n, k, tile = FEW if case == "few" else drawn(case, tiles_of_run[case], fresh)
    state, host = put_emulated(monkeypatch), weights("q4_0", n, k, int(fresh.integers(1 << 30)))
    records, layout = strips_of(host)
    records = on_device(records)
    state.memory.add(records)
    monkeypatch.setattr(r16_warp_specialized, "strips", lambda q: Strips(records, layout))
    monkeypatch.setattr(tensor_maps, "map_array", state.memory.map)
    monkeypatch.setattr(device, "resident_blocks", lambda blocks, shared: blocks)
    q = gq.QuantArray(host.format, (n, k), on_device(host.raw))
    x = fresh.standard_normal((m, k), np.float32)
    x = x.astype(np.float16) if case == "drawn" else x
    y = on_device(np.full((m + 2, n), np.nan, np.float32))
    state.memory.add(y)
    given = on_device(x)
    state.memory.add(given)
    call = Kernel.__call__

    def launched(kernel, grid, block, *arguments, cluster=1, max_blocks=0):
        roles = kernel.name.startswith("roles")
        assert not roles or (cluster > 1) == (way == "clusters" and k > 128)
        call(kernel, grid, block, *arguments, cluster=cluster, together=roles and way == "at one time")

    monkeypatch.setattr(Kernel, "__call__", launched)
    RUNG.launch(given, q, y[1:-1], tile=tile)
    assert np.isnan(y[[0, -1]]).all(), "written past its outputs"
    assert (
        gq.nmse(np.asarray(y[1:-1]), gq.reference.linear(x.astype(np.float32), host, arithmetic="bf16s"))
        < 1e-10
    )
