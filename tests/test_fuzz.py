"""Products that nobody thought of: drawn shapes, layouts, types, streams, threads and graphs, for a while.

On a GPU about two and a half minutes: half of them with kernels whose code comes with the package, for any
format; then each rung in turn, for one format a run, since those have to be compiled.
"""

from __future__ import annotations

import time

import numpy as np
import pytest
from drawn_products import DTYPES, FORMS, PARTS, Product, check, matrix, outside, product, rung_of

import ggmlq as gq
from ggmlq.dispatch.ladder import rungs
from ggmlq.formats import FORMATS, BlockFormat

BLOCKS = [fmt.name for fmt in FORMATS.values() if isinstance(fmt, BlockFormat)]
PREBUILT = ("auto", "cuda:gemv", "cuda:warp_specialized", "cuda:dequant_bf16")
SECONDS = 150


@pytest.mark.cuda
def test_on_a_gpu(cupy, fresh, rounds, capsys):
    others = fresh.permutation([r.name for r in rungs("linear", "cuda") if r.name not in PREBUILT]).tolist()
    compiled, served = str(fresh.choice(["q4_0", "q8_0", "q4_K", "q6_K"])), {}
    spent, turn = [0.0, 0.0], 0
    for _ in rounds(SECONDS):
        kind, began = int(spent[1] < spent[0]), time.monotonic()
        name, kernels = str(fresh.choice(BLOCKS)), PREBUILT
        if kind:
            name, kernels, turn = compiled, [others[turn % len(others)]], turn + 1
        for rung in check(cupy, fresh, name, kernels):
            served[rung] = served.get(rung, 0) + 1
        spent[kind] += time.monotonic() - began
    with capsys.disabled():
        print(f"\n{sum(spent):.0f} s, products by rung: {served}", end="")
    assert served


def test_on_the_host(fresh, rounds):
    """The same rounds with NumPy: the kernels of the CPU, and the rounds themselves, beside the oracle."""
    kernels = ["auto", *(rung.name for rung in rungs("linear", "cpu"))]
    for _ in rounds(2):
        assert isinstance(check(np, fresh, str(fresh.choice(["q4_0", "q8_0", "q6_K"])), kernels), list)


def test_everything_is_drawn(fresh):
    """Shapes beside the edges of tiles, all layouts and types; each in its bounds."""
    found = []
    for _ in range(600):
        of = matrix(fresh, str(fresh.choice(BLOCKS)))
        assert 0 < of.n <= 768
        assert not of.k % FORMATS[of.format].block_size
        found.append((of, product(fresh, of, ["auto"], ["call", "graph"])))
    assert {of.part for of, _ in found} == {*PARTS}
    for field, values in (
        ("x_form", FORMS),
        ("out_form", (*FORMS, None)),
        ("dtype", DTYPES),
        ("x_dtype", DTYPES),
    ):
        assert {getattr(each, field) for _, each in found} == {*values}
    assert {1, 8, 9, 65, 127} <= {each.m for _, each in found} | {of.n for of, _ in found}


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_wrong_element_is_seen(dtype, fresh):
    """Of a product of normal rows: an element that is off by a thousandth of the largest."""
    of = matrix(fresh, "q8_0")._replace(n=33, k=256, part="backwards")
    each = Product("auto", 7, "normal", np.float32, "plain", dtype, None, True, "call", 5)
    q, x = of.of(of.whole()), each.x(of.k)
    y = gq.linear(x, q, dtype=dtype, bias=each.added(of.n))
    rung = rung_of(of, each, "cpu")
    assert not outside(each, rung, x, y, q).any()
    at = tuple(fresh.integers(y.shape))
    y[at] += np.abs(y).max() / (100 if dtype == np.float16 else 1000)
    assert np.argwhere(outside(each, rung, x, y, q)).tolist() == [list(at)]
