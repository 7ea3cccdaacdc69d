"""Rows of activations are multiplied some at a time: each gets the bits that it gets alone."""

from __future__ import annotations

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.cpu.linear import r6_panels
from ggmlq.cpu.machine import features
from ggmlq.cpu.machine.target import AVX2, AVX512
from ggmlq.cpu.panels.layout import FEWER, batch, layout_of
from ggmlq.dispatch.problems import Linear


@pytest.mark.parametrize("most", [12, 8, 2, 1])
def test_batches_are_all_rows(most):
    for m in range(100):
        row, sizes = 0, []
        while row < m:
            sizes.append(batch(m - row, most))
            row += sizes[-1]
        assert row == m
        assert sizes == sorted(sizes, reverse=True)
        assert set(sizes) <= {most, *FEWER}


@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q4_K", "q6_K", "q2_K"])
def test_rows_of_blocks(name, fresh):
    kernel = "cpu:panels"
    if (reason := r6_panels.refuses(Linear(gq.formats[name], 31, 45, 512, device="cpu"))) is not None:
        pytest.skip(reason)
    q = gq.quantize(fresh.standard_normal((45, 512), np.float32), name)
    few, first = r6_panels.MANY - 1, r6_panels.LATER  # between panels are expanded, by the CPU; then on all
    x = fresh.standard_normal((few, 512), np.float32)
    alone = np.concatenate([gq.linear(row[None], q, kernel=kernel) for row in x])
    for m in range(1, len(x) + 1):
        assert np.array_equal(gq.linear(x[:m], q, kernel=kernel), alone[:m])
    many = fresh.standard_normal((first + 32, 512), np.float32)
    whole = gq.linear(many, q, kernel=kernel)
    for m in range(first, len(many)):
        assert np.array_equal(gq.linear(many[:m], q, kernel=kernel), whole[:m])


def test_when_panels_are_expanded(monkeypatch):
    """Later on AMD, where what unpacks has pipes of its own; look-ups have not."""
    plain, offsets, book = (layout_of(gq.formats[name]) for name in ("q4_0", "q4_K", "iq2_s"))
    for cpu, first in (("znver4", 128), ("cascadelake", 32)):
        monkeypatch.setattr(features, "cpu_name", lambda cpu=cpu: cpu)
        assert not r6_panels.expands(plain, AVX512, 4096)
        assert [r6_panels.expands(offsets, AVX512, m) for m in (first - 1, first)] == [False, True]
        assert [r6_panels.expands(book, AVX512, m) for m in (31, 32)] == [False, True]
        assert r6_panels.expands(offsets, AVX2, 32)


@pytest.mark.parametrize("n", [1, 16, 31, 32, 33, 48, 80])
def test_rows_of_codes(n, fresh):
    """Panels in pairs and alone, the last of few columns."""
    w = gq.quantize_scaled(fresh.standard_normal((n, 200), np.float32), "int8", (1, None))
    x = gq.quantize_scaled(fresh.standard_normal((30, 200), np.float32), "int8", (1, None))
    sums = x.codes.astype(np.int64) @ w.codes.astype(np.int64).T
    want = sums.astype(np.float32) * (x.scales * w.scales.T)
    for m in range(1, len(x.codes) + 1):
        assert np.array_equal(gq.scaled_linear(x[:m], w, kernel="cpu:tiles"), want[:m])


@pytest.mark.parametrize(
    ("name", "has", "ahead"),
    [("emeraldrapids", set(), 16384), ("x", {"amx-tile"}, 16384), ("znver4", {"avx512f"}, 0)],
)
def test_weights_are_asked_for_ahead(monkeypatch, name, has, ahead):
    """On Intel's servers, also where a virtual machine hides the matrix unit."""
    monkeypatch.setattr(features, "cpu_name", lambda: name)
    monkeypatch.setattr(features, "compiled_for", lambda: frozenset(has))
    assert features.prefetch_distance.__wrapped__() == ahead
