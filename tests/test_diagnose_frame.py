"""The frame of a diagnosis, on every kind of product: races, shapes, places, blocks of K, no terms."""

from __future__ import annotations

import numpy as np
import pytest
import scaled_mutants
from test_diagnose import some

import ggmlq as gq

MATRICES = ("q4_0", "scaled")  # kinds with one matrix of weights
KINDS = (*MATRICES, "experts")


class Product:
    """Operands of one kind, and their right result."""

    def __init__(self, kind, m=6, n=24, k=512):
        rng = np.random.default_rng(5)
        self.x, self.q = some("q4_0", m, n, k)
        self.more = {}
        if kind == "scaled":
            w = rng.standard_normal((n, k)).astype(np.float32)
            self.x, self.q = (
                gq.quantize_scaled(a, "int8", tile) for a, tile in ((self.x, (1, 64)), (w, (4, 64)))
            )
            self.y = gq.reference.scaled_linear(self.x, self.q).astype(np.float32)
        elif kind == "experts":
            self.q = gq.QuantArray.from_bytes(self.q.raw.tobytes(), "q4_0", (3, n // 3, k))
            self.more = {"ids": np.argsort(rng.random((m, 3)), axis=1)[:, :2]}
            self.y = gq.reference.expert_linear(self.x, self.q, self.more["ids"], "q8").astype(np.float32)
        else:
            self.y = self.x @ self.q.T

    def diagnosis(self, y, x=None, **more):
        return gq.diagnose(y, self.x if x is None else x, self.q, **self.more, **more)

    def without(self, keep):
        """The result of a kernel that leaves out the other columns of K."""
        if isinstance(self.q, gq.ScaledArray):
            a, b = map(scaled_mutants.Operand, (self.x, self.q))
            return scaled_mutants.multiplied(a, b, q=(a.less * keep, b.less * keep))
        return self.x @ np.where(keep, np.asarray(self.q), 0).T


@pytest.mark.parametrize("kind", KINDS)
def test_right_results_and_races(kind):
    p = Product(kind)
    assert p.diagnosis(p.y).ok
    assert p.diagnosis(p.y, repeats=[p.y * np.float32(1 + 1e-7)]).ok  # another order of sums
    other = p.y.copy()
    other[4:6, ..., :8] += np.abs(p.y).max()
    found = p.diagnosis(p.y, repeats=[p.y, other])
    assert found.fault == "race"
    assert found.where["rows"] == ([(8, 12)] if kind == "experts" else [(4, 6)])
    assert found.where["columns"] == [(0, 8)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_of_another_shape_is_an_error(kind):
    p = Product(kind)
    with pytest.raises(gq.errors.ShapeError, match=r"y has shape \(4, "):
        p.diagnosis(p.y[:4])
    with pytest.raises(gq.errors.ShapeError, match=r"repeats\[0\]"):
        p.diagnosis(p.y, repeats=[p.y[:4]])


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_product_is_right(kind):
    p = Product(kind, m=0)
    assert p.diagnosis(p.y).ok


@pytest.mark.parametrize("kind", MATRICES)
def test_any_rank_and_flat_and_transposed_dumps(kind):
    p = Product(kind)
    assert p.diagnosis(p.y.T).fault == "transposed"
    deep = p.x
    if kind == "scaled":
        deep = gq.ScaledArray(deep.codes.reshape(2, 3, 512), deep.scales, "int8", deep.tile)
    else:
        deep = deep.reshape(2, 3, 512)
        assert gq.diagnose(p.y[0], p.x[0], p.q).ok
    assert p.diagnosis(p.y.reshape(2, 3, 24), deep).ok
    assert p.diagnosis(p.y, deep).ok


@pytest.mark.parametrize("kind", MATRICES)
def test_a_large_case_is_sampled_for_the_reason_and_judged_in_full(kind):
    p = Product(kind, 60, 200, 256)
    assert p.diagnosis(p.y).ok
    p.y[59, 199] += 1
    found = p.diagnosis(p.y)
    assert not found.ok
    assert (found.where["rows"], found.where["columns"]) == ([(59, 60)], [(199, 200)])


@pytest.mark.parametrize("kind", MATRICES)
def test_blocks_of_k_are_found_by_linear_algebra(kind):
    p = Product(kind, m=16)
    found = p.diagnosis(p.without(np.arange(512) // 64 != 2))
    assert found.fault == "unknown"
    assert found.where["K-blocks"] == {"missing": [(128, 192)]}


def nothing(kind):
    """Operands of a product whose K is 0, and the result's shape."""
    x = np.zeros((2, 0), np.float32)
    if kind == "scaled":
        return x, gq.quantize_scaled(np.zeros((8, 0), np.float32), "int8", (1, None)), {}, (2, 8)
    if kind == "experts":
        q = gq.QuantArray.from_bytes(b"", "q4_0", (3, 8, 0))
        return x, q, {"ids": np.array([[0, 1], [2, 0]])}, (2, 2, 8)
    return x, gq.QuantArray.from_bytes(b"", kind, (8, 0)), {}, (2, 8)


@pytest.mark.parametrize("kind", ["q4_0", "q4_K", "q8_0", "f16", "scaled", "experts"])
def test_sums_of_nothing(kind):
    """Zeros are right where K is 0, and nothing else is."""
    x, q, more, shape = nothing(kind)
    y = np.zeros(shape, np.float32)
    assert gq.diagnose(y, x, q, repeats=[y], **more).ok
    left = y.copy()
    left[1, ..., 3] = np.nan
    assert gq.diagnose(y, x, q, repeats=[left], **more).fault == "race"
    found = gq.diagnose(left, x, q, **more)
    assert not found.ok
    assert "K is 0" in found.text
    assert "columns 3" in found.text
