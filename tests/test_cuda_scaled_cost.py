"""Tiles and splits of K that Hopper's rungs choose: legal for every shape, and as was measured."""

from __future__ import annotations

import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")

from test_cuda_scaled_linear import card

from ggmlq.cuda.kernels.codes8 import small_m
from ggmlq.cuda.kernels.codes8.tiles import SPLIT_TILES
from ggmlq.cuda.kernels.cost import codes8
from ggmlq.dispatch import ladder
from ggmlq.dispatch.problems import Operand, ScaledLinear


def drawn(rng):
    m, n, k = (int(2 ** rng.uniform(0, most)) for most in (14, 18, 16))
    return codes8.CodesShape(m, n, k, int(rng.choice([2, 78, 114, 132])))


def test_plans_are_legal(fresh):
    for _ in range(300):
        shape = drawn(fresh)
        for make, most in ((codes8.small_m, 8), (codes8.split_k, 8), (codes8.persistent, 1)):
            tile, splits, us = make(shape)
            assert 1 <= splits <= min(most, shape.steps), (shape, make)
            assert us > 0
        tile, splits, _ = codes8.small_m(shape)
        assert tile.columns >= min(shape.m, 64)
        assert splits in small_m.SPLITS


def test_what_is_given_is_taken(fresh):
    shape = drawn(fresh)._replace(k=9000)
    for tile in small_m.TILES:
        assert codes8.small_m(shape, (tile,), (4,))[:2] == (tile, 4)
    for tile in SPLIT_TILES:
        assert codes8.split_k(shape, (tile,), (5,))[:2] == (tile, 5)
    assert codes8.split_k(shape._replace(k=300), splits=range(1, 9)).splits <= 3


def test_more_work_takes_longer(fresh):
    for _ in range(100):
        shape = drawn(fresh)
        shape = shape._replace(k=max(shape.k, 1024))  # or there is nothing to divide
        more = shape._replace(n=4 * shape.n, k=4 * shape.k)
        for make in (codes8.small_m, codes8.split_k, codes8.persistent):
            assert make(more).us >= make(shape).us, (shape, make)


MEASURED = [  # M, N, K, rung, rows and columns of its tile, parts: the fastest on an H200
    (1, 7168, 2048, "small_m", 64, 8, 1), (8, 4096, 7168, "small_m", 64, 8, 2),
    (64, 4096, 7168, "small_m", 64, 64, 2), (64, 24576, 1536, "persistent", 128, 192, 1),
    (128, 2112, 7168, "split_k", 128, 64, 3), (128, 4096, 7168, "split_k", 128, 64, 2),
    (128, 7168, 16384, "split_k", 128, 128, 2), (128, 7168, 2048, "persistent", 128, 64, 1),
    (4096, 7168, 16384, "persistent", 256, 128, 1),
]  # fmt: skip


@pytest.mark.parametrize("case", MEASURED, ids=str)
def test_as_was_measured(case):
    m, n, k, name, rows, columns, splits = case
    tile, cut, _ = getattr(codes8, name)(codes8.CodesShape(m, n, k, 132))
    assert (tile.rows, tile.columns, cut) == (rows, columns, splits)
    problem = ScaledLinear(
        Operand("e4m3", 1, 128), Operand("e4m3", 128, 128), m, n, k, device="cuda", card=card((9, 0))
    )
    chosen = ladder.explain(problem)
    assert chosen.rung.name == f"cuda:{name}"
    assert "estimated" in chosen.why


def test_memory_and_l2_are_those_of_the_card():
    few = [
        codes8.small_m(codes8.CodesShape(8, 7168, 2048, 132, *memory)).us
        for memory in ((), (4.456,), (1.8,), (0.36,))
    ]
    assert few[0] == few[1] <= few[2] < few[3]
    large = [codes8.persistent(codes8.CodesShape(4096, 4096, 7168, count)).us for count in (132, 114, 66)]
    assert large[0] <= large[1] < large[2]
