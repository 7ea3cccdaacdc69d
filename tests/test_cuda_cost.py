"""The choice of ``kernel="auto"`` for blocks on Hopper: estimates from the shape and the card."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")

from test_choice import H200, ROOM, problem

from ggmlq.cuda.cost import choice
from ggmlq.cuda.cost.stage import KINDS, PLACE, constants, stage_us
from ggmlq.cuda.cost.warp_specialized import TILES
from ggmlq.cuda.packed.layout import layout_of
from ggmlq.dispatch.card import Card
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
