"""The doctor on products with experts: mutants are named, right kernels are not accused."""

from __future__ import annotations

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.arrays.blocks import random_blocks
from ggmlq.formats import FORMATS


class Mixture:
    """A random product with experts, and ways to make it wrong."""

    def __init__(self, rng, arithmetic="q8", name="q4_0", apart=None, t=None):
        self.rng, self.arithmetic = rng, arithmetic
        self.e, self.u = int(rng.integers(4, 20)), int(rng.integers(2, 5))
        self.t, self.n = t or int(rng.integers(12, 70)), int(rng.integers(17, 60))
        fmt, k = FORMATS[name], 128
        blocks = random_blocks(fmt, self.e * self.n, k // fmt.block_size, int(rng.integers(1 << 31)))
        self.q = gq.QuantArray.from_bytes(np.ascontiguousarray(blocks).tobytes(), fmt, (self.e, self.n, k))
        self.ids = np.argsort(rng.random((self.t, self.e)), axis=1)[:, : self.u]
        if rng.integers(2):  # skewed: many go to one expert
            picked = rng.random(self.t) < 0.4
            free = picked & ~(self.ids == 0).any(axis=1)
            self.ids[free, 0] = 0
        apart = bool(rng.integers(2)) if apart is None else apart
        self.x = rng.standard_normal((self.t, self.u, k) if apart else (self.t, k)).astype(np.float32)

    def duplicates(self):
        """Some tokens use an expert twice."""
        for t in self.rng.choice(self.t, max(2, self.t // 4), replace=False):
            a, b = self.rng.choice(self.u, 2, replace=False)
            self.ids[t, a] = self.ids[t, b]

    def product(self, ids=None, x=None):
        x = self.x if x is None else x
        ids = self.ids if ids is None else ids
        return gq.reference.expert_linear(x, self.q, ids, self.arithmetic).astype(np.float32)

    def diagnosis(self, y, **more):
        return gq.diagnose(y, self.x, self.q, ids=self.ids, **more)


def wrong_expert(m):
    step = int(m.rng.integers(1, m.e))
    ids, some = m.ids.copy(), m.rng.random(m.ids.shape) < m.rng.choice([0.1, 0.5, 1.0])
    some[0, 0] = True
    ids[some] = (ids[some] + step) % m.e
    return m.product(ids)


def swapped_matrices(m):
    """The matrices of two experts lie in each other's places."""
    a, b = m.rng.choice(np.unique(m.ids), 2, replace=False)
    table = np.arange(m.e)
    table[[a, b]] = b, a
    return m.product(table[m.ids])


def rows_exchanged(m):
    y = m.product().reshape(-1, m.n)
    count = int(m.rng.integers(2, max(3, len(y) // 2)))
    picked = m.rng.choice(len(y), count, replace=False)
    y[picked] = y[np.roll(picked, 1)]
    return y.reshape(m.t, m.u, m.n)


def gathered_in_another_order(m):
    """Within each expert activations are gathered in one order, results put back in another."""
    x = m.x if m.x.ndim == 3 else np.repeat(m.x[:, None], m.u, axis=1)
    rows, flat = x.reshape(-1, x.shape[-1]).copy(), m.ids.reshape(-1)
    for e in np.unique(flat):
        mine = np.flatnonzero(flat == e)
        rows[mine] = rows[mine[::-1]]
    return m.product(x=rows.reshape(x.shape))


def transposed_ids(m):
    return m.product(m.ids.reshape(-1)[np.arange(m.ids.size).reshape(m.u, m.t).T])


def stride(m):
    step = int(m.rng.choice([s for s in range(2 * m.u) if s != m.u]))
    at = np.arange(m.t)[:, None] * step + np.arange(m.u)
    return m.product(m.ids.reshape(-1)[at % m.ids.size])


def beyond_tiles(m):
    y, tile, flat = m.product(), int(m.rng.choice([4, 8, 16])), m.ids.reshape(-1)
    lines = y.reshape(-1, m.n)
    for e in np.unique(flat):
        mine = np.flatnonzero(flat == e)
        lines[mine[len(mine) // tile * tile :]] = m.rng.choice([0, 0, np.nan])
    return y


def beyond_a_limit(m):
    y, flat = m.product(), m.ids.reshape(-1)
    limit = max(1, int(np.bincount(flat).max()) // 2)
    for e in np.unique(flat):
        y.reshape(-1, m.n)[np.flatnonzero(flat == e)[limit:]] = 0
    return y


def once(m):
    y, keep_last = m.product(), m.rng.integers(2)
    for t in range(m.t):
        for e in np.unique(m.ids[t]):
            mine = np.flatnonzero(m.ids[t] == e)
            y[t, mine[:-1] if keep_last else mine[1:]] = 0
    return y


MUTANTS = {
    wrong_expert: "expert-wrong",
    swapped_matrices: "expert-wrong",
    rows_exchanged: "expert-rows-exchanged",
    gathered_in_another_order: "expert-rows-exchanged",
    transposed_ids: "expert-ids-stride",
    stride: "expert-ids-stride",
    beyond_tiles: "expert-tokens-dropped",
    beyond_a_limit: "expert-tokens-dropped",
    once: "expert-duplicates",
}


@pytest.mark.slow
def test_mutants_are_named(fresh):
    """At least 95 in 100; none is called right."""
    missed, tried = [], 0
    for mutant, fault in MUTANTS.items():
        for _ in range(8):
            m = Mixture(fresh, str(fresh.choice(["q8", "ggml-cpu", "ggml-mmvq", "f32"])))
            if mutant is once or fresh.integers(3) == 0:
                m.duplicates()
            y = mutant(m)
            if np.array_equal(y, m.product(), equal_nan=True):
                continue
            tried += 1
            found = m.diagnosis(y)
            assert not found.ok, mutant.__name__
            if fault != found.fault and fault not in found.alternatives:
                missed.append((mutant.__name__, found.fault, found.text[:200]))
    assert len(missed) <= 0.05 * tried, missed


def test_nobody_right_is_accused(fresh):
    for arithmetic in ("q8", "ggml-cpu", "ggml-mmvq", "ggml-mmq", "f32", "f16", "bf16"):
        m = Mixture(fresh, arithmetic)
        if fresh.integers(2):
            m.duplicates()
        found = m.diagnosis(m.product())
        assert found.ok, (arithmetic, found.text)
        assert m.diagnosis(m.product(), arithmetic=arithmetic).ok
    m = Mixture(fresh, name="q5_0")
    assert m.diagnosis(gq.expert_linear(m.x, m.q, m.ids)).ok
    assert m.diagnosis(gq.expert_linear(m.x, m.q, m.ids, dtype=np.float16)).ok


def test_rows_and_experts_that_are_alike(fresh):
    """Tokens of zeros, equal tokens, equal experts: nothing can be told, nobody is accused."""
    m = Mixture(fresh, apart=False)
    m.x[::3], m.x[1::3] = 0, m.x[1]
    raw = np.array(m.q.raw)
    raw[1] = raw[0]
    m.q = gq.QuantArray.from_bytes(raw.tobytes(), m.q.format, m.q.shape)
    assert m.diagnosis(m.product()).ok


def test_a_mistake_within_experts(fresh):
    """The doctor of single matrices has the word."""
    m = Mixture(fresh, "exact", t=60)
    w = m.q.dequantize().reshape(m.e, m.n, -1) + 8 * m.q.blocks["d"].astype(np.float32).repeat(32, axis=-1)
    x = m.x if m.x.ndim == 3 else m.x[:, None]
    y = np.einsum("tuk,tunk->tun", np.broadcast_to(x, (m.t, m.u, x.shape[2])), w[m.ids])
    found = m.diagnosis(y.astype(np.float32))
    assert found.fault == "offset-missing", found.text
    assert "In the product of expert" in found.text


def test_scaled(fresh):
    q = gq.quantize_scaled(fresh.standard_normal((5, 32, 256)), "e4m3", (32, 128))
    x, ids = fresh.standard_normal((20, 256)).astype("f4"), np.argsort(fresh.random((20, 5)), axis=1)[:, :2]
    y = gq.expert_linear(x, q, ids)
    assert gq.diagnose(y, x, q, ids=ids).ok
    assert gq.diagnose(gq.expert_linear(x, q, (ids + 1) % 5), x, q, ids=ids).fault == "expert-wrong"
    y[3:5] = y[4:2:-1]
    assert gq.diagnose(y, x, q, ids=ids).fault == "expert-rows-exchanged"


def test_errors(fresh):
    m = Mixture(fresh)
    y = m.product()
    for wrong, match in (
        ({"ids": m.ids + m.e}, "experts"),
        ({"ids": m.ids[1:]}, "ids"),
        ({"arithmetic": "q9"}, "q9"),
        ({"activations": ("int8", (1, None))}, "activations"),
    ):
        with pytest.raises(gq.GGMLQError, match=match):
            gq.diagnose(y, m.x, m.q, **({"ids": m.ids} | wrong))
    m.x[0] = np.inf
    with pytest.raises(gq.GGMLQError, match="not finite"):
        m.diagnosis(y)
