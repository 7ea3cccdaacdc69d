"""The choice of ``kernel="auto"`` for blocks on Hopper: estimates from the shape and the card."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")

from test_choice import H200, ROOM, problem

from ggmlq.cuda.kernels.cost import choice, mma, warp_specialized
from ggmlq.cuda.kernels.cost.stage import KINDS, PLACE, constants, stage_us
from ggmlq.cuda.kernels.cost.warp_specialized import TILES
from ggmlq.cuda.kernels.mma.kernel import BYTES, HALF_SUMS, tiles_of
from ggmlq.cuda.kernels.mma.transposed import TRANSPOSED_TILES
from ggmlq.cuda.layouts.layout import layout_of, layouts
from ggmlq.dispatch.card import CARDS, Card
from ggmlq.dispatch.ladder import choose, explain
from ggmlq.formats import BLOCK_FORMATS, FORMATS

H100 = Card("NVIDIA H100 80GB HBM3", (9, 0), 132, ROOM, bandwidth=3352, clock=1.98)
# The kernels that were fastest on it by 7 % and more (bench/notes/choice.md): type, M, N, K.
FASTEST = {
    ("q4_0", 8, 5120, 13824): "cuda:gemv",
    ("q4_K", 16, 8192, 4096): "cuda:gemv",
    ("q6_K", 16, 4096, 4096): "cuda:gemv",
    ("mxfp4", 16, 20480, 2560): "cuda:gemv",
    ("q6_K", 32, 4096, 4096): "cuda:gemv",
    ("q4_0", 16, 5120, 13824): "cuda:warp_specialized",
    ("q4_K", 16, 5120, 13824): "cuda:warp_specialized",
    ("q4_0", 24, 8192, 4096): "cuda:warp_specialized",
    ("q6_K", 32, 896, 5120): "cuda:warp_specialized",
    ("q8_0", 32, 8192, 4096): "cuda:warp_specialized",
    ("q8_0", 32, 4096, 4096): "cuda:warp_specialized",  # of an H200: 10.9 µs, cuda:gemv 13.1
    ("mxfp4", 32, 6144, 2560): "cuda:warp_specialized",
    ("q8_0", 64, 1536, 8192): "cuda:warp_specialized",
}


def test_hopper_is_estimated():
    for name in ("q4_0", "q6_K", "iq1_s"):
        rung, why = explain(problem(name))
        assert (rung.name, why) == ("cuda:gemv_int16", "estimated from its shape")
        for m, n, k in ((200, 5120, 13824), (777, 3584, 14336), (4096, 4096, 4096), (64, 151936, 4096)):
            assert choose(problem(name, m, n, k)).name == "cuda:warp_specialized"
            order = choice.preference(problem(name, m, n, k)).kernels
            assert not any("cublas" in each or "dequant" in each for each in order), "cannot be captured"
    half = Card("half of an H200", (9, 0), 66, ROOM)
    taken = {card: choose(problem("q4_0", 16, 8192, 4096, card=card)).name for card in (H200, half)}
    assert taken == {H200: "cuda:gemv", half: "cuda:warp_specialized"}, "large for that card"


@pytest.mark.parametrize("case", FASTEST, ids=str)
def test_what_was_fastest_is_taken(case):
    assert choose(problem(*case, card=H100)).name == FASTEST[case]


def test_stages_take_longer_where_more_is_unpacked():
    for blocks in (1, 2):
        us = [stage_us(layout_of(FORMATS[name]), 32, blocks) for name in ("q4_0", "mxfp4", "q4_K", "q6_K")]
        assert us == sorted(us)
    for fmt in BLOCK_FORMATS:
        widest = [stage_us(layout_of(each), 256) for each in (fmt, FORMATS["q4_0"])]
        assert widest[0] < 1.2 * widest[1], "tensor cores take the same time for any format"
        for tile in TILES:
            assert 0.1 < stage_us(layout_of(fmt), tile.columns, tile.blocks) < 3


def test_constants_are_few_and_whole():
    """tools/fit.py writes them; there were 398 once."""
    assert set(json.loads(PLACE.read_text())) == {"what", *KINDS}
    assert sum(map(len, constants())) <= 60
    assert all(value > 0 for part in constants() for value in part)


def test_rows_that_are_alike_have_the_same_estimates(fresh):
    for eight in (0, 8, *fresh.integers(0, 150, 20) * 8):
        layout = layouts()[fresh.integers(len(layouts()))]
        for tiles in (TILES, TRANSPOSED_TILES):
            down, stages, plain = fresh.integers(1, 120), fresh.integers(1, 60), bool(fresh.integers(2))
            shape = warp_specialized.WarpSpecializedShape(0, int(down), int(stages), layout, 132, plain=plain)
            for m in range(int(eight) + 1, int(eight) + 9):
                there = shape._replace(m=m)
                alike = shape._replace(m=warp_specialized.rows_alike(m))
                assert warp_specialized.estimates(there, tiles) == warp_specialized.estimates(alike, tiles)


def test_the_split_of_tiles_of_mma_has_the_shortest_estimate(fresh):
    for _ in range(20):
        card, layout = CARDS[fresh.integers(len(CARDS))], layouts()[fresh.integers(len(layouts()))]
        (m, n), steps = fresh.integers(1, 5000, 2).tolist(), int(fresh.integers(1, 80))
        for kind in ("float16", "bfloat16", BYTES, HALF_SUMS):
            shape, most = (m, n, steps), max(1, min(mma.MAX_SPLITS, steps // mma.MIN_STEPS))
            all_splits = [
                mma.MmaSplit(tile, splits) for tile in tiles_of(layout, kind) for splits in range(1, most + 1)
            ]
            best = min(all_splits, key=lambda split: mma.split_us(card, layout, kind, split, *shape))
            assert mma.best_split(card, layout, kind, *shape) == best
