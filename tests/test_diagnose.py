"""Diagnose: each fault is named, right kernels are left alone, and the report says what it must."""

from __future__ import annotations

from pathlib import Path

import mutation
import numpy as np
import pytest
import wrong_kernels
from block_cases import weights
from right import products

import ggmlq as gq
from ggmlq.arrays.rows import KINDS, rows
from ggmlq.faults import CATALOGUE

GOLDEN = Path(__file__).parent / "golden"
SHAPE = (9, 33, 768)
ELSEWHERE = (
    "unknown", "out-of-bounds", "sign-bits", "grid-index", "code-book", "exponent-bias", "codes-misread",
    "scale-misread", "value-rounding", "encode-error",
)  # fmt: skip
NORMAL = np.random.default_rng(3)


def some(name="q4_0", m=9, n=24, k=256, seed=0):
    """Activations and weights."""
    return np.random.default_rng(seed).standard_normal((m, k)).astype(np.float32), weights(name, n, k, seed)


# --- each fault -----------------------------------------------------------------------------


@pytest.mark.drawn(4)
@pytest.mark.parametrize("fault", [f for f in CATALOGUE if f not in ELSEWHERE])
def test_each_fault_is_named(fault):
    name = mutation.FAULTS.get(fault, ("q4_0",))[0]
    y, x, q, asked = mutation.case(fault, name, SHAPE, "cuda", 1, 77, 2)
    found = gq.diagnose(y, x, q, **asked)
    assert found.fault == fault, found.text
    assert found.ok == (fault == "correct")
    assert 0 < found.confidence <= 1
    assert str(found) == found.text
    if fault != "correct":
        assert CATALOGUE[fault].says in found.text
        assert found.where["rows"]


@pytest.fixture
def drawn(fresh, request):
    """``drawn(cases, share)``: with ``--long`` all cases, else one of each fault, of some faults."""

    def draw(cases, share):
        of = {}
        for case in cases(int(fresh.integers(1 << 20)), mutation.FEW):
            of.setdefault(case[0], []).append(case)
        if request.config.option.long:
            return [case for some in of.values() for case in some]
        faults = fresh.permutation(len(of))[: int(share * len(of))]
        return [some[fresh.integers(len(some))] for i, some in enumerate(of.values()) if i in faults]

    return draw


@pytest.mark.slow
def test_the_mutation_suite(drawn):
    """Wrong kernels in plain loops, fresh data: at least 95 % named rightly, no right one accused."""
    found, missed = mutation.tried(drawn(mutation.cases, 1))
    right = sum(n for (given, said), n in found.items() if given == said)
    shown = "\n".join(f"{args}: {said.fault}, {said.text}" for args, said, *_ in missed)
    assert right >= 0.95 * found.total(), shown
    assert found["correct", "correct"] == sum(n for (given, _), n in found.items() if given == "correct")


@pytest.mark.slow
def test_a_fault_beside_an_unlisted_difference_is_that_fault_or_unknown(drawn):
    found, missed = mutation.tried(drawn(mutation.mixtures, 0.5))
    wrongly = [(args, said.text) for args, said, *_ in missed if said.fault != "unknown"]
    assert not wrongly
    assert found.total() - len(missed) > found.total() / 2


# --- right kernels --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "huge"])
@pytest.mark.parametrize("convention", ["cpu", "cuda"])
def test_a_right_kernel_is_right_on_any_data(kind, convention):
    for i, (name, m, n, blocks) in enumerate(
        [("q4_0", 1, 1, 1), ("q5_1", 2, 5, 33), ("q8_0", 8, 16, 5), ("q4_K", 9, 3, 1), ("q6_K", 3, 7, 3)]
    ):
        _, q = some(name, m, n, blocks * gq.formats[name].block_size, seed=i)
        x = rows(kind, m, q.shape[1], seed=i)
        if kind in ("outliers", "near_powers"):
            x = x / np.float32(64)  # CUDA's half(Σx) overflows beyond
        y = wrong_kernels.run(name, q.raw, x, convention, order=i % 2)
        found = gq.diagnose(y, x, q)
        assert found.ok, f"{name}: {found.text}"


def multiplied(name, arithmetic):
    """Whether anybody multiplies this type so."""
    try:
        return bool(gq.reference.rule(name, arithmetic))
    except gq.errors.UnsupportedError:
        return False


BLOCKS = [fmt.name for fmt in gq.formats.values() if fmt.block_size > 1]
ON_BLOCKS = [how for how in gq.reference.ARITHMETICS if how not in gq.reference.ONE_TYPE]
PAIRS = [(name, how) for name in BLOCKS for how in ON_BLOCKS if multiplied(name, how)]


@pytest.mark.parametrize(("name", "arithmetic"), PAIRS)
def test_every_arithmetic_is_right_and_named(name, arithmetic):
    x, q = some(name, m=5, n=9, k=512)
    y = gq.reference.linear(x, q, arithmetic).astype(np.float32)
    found = gq.diagnose(y, x, q, arithmetic=arithmetic)
    assert found.ok, found.text
    assert gq.diagnose(y, x, q).ok or not np.isfinite(y).all()  # weights beyond a half


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["cpu", "cuda"])
@pytest.mark.parametrize(
    "name", ["q4_0", "q5_1", "q8_0", "q2_K", "q4_K", "q6_K", "iq1_s", "iq2_xxs", "iq4_xs", "mxfp4"]
)
def test_llama_cpp_itself_is_right(name, backend):
    """Real products, of rows of 1e4 noise too; without a claim where all of them are finite."""
    for p in products(GOLDEN, name, backend):
        if len(p.x) not in (1, 8, 9, 33):
            continue
        found = gq.diagnose(p.y, p.x, p.q, arithmetic=p.arithmetic)
        assert found.ok, f"M={len(p.x)}: {found.text}"
        if np.isfinite(p.y).all():
            found = gq.diagnose(p.y, p.x, p.q)
            assert found.ok, f"M={len(p.x)}: {found.text}"


def test_orders_that_no_list_holds_are_found():
    """Shuffled codes, bits and sub-scales: any order, found from the outputs alone."""
    x, q = some("q5_0", m=9, n=33, k=768)
    codes, scale, _ = q.format.unpack(q.blocks)
    stored = codes.astype(np.float32) + 16
    shuffled = np.random.default_rng(9).permutation(32)
    mixed = stored % 16 + stored[..., shuffled] // 16 * 16
    for fault, wrong in (("nibble-order", stored[..., shuffled]), ("high-bits", mixed)):
        w = ((wrong - 16) * scale).reshape(33, 768)
        found = gq.diagnose(x @ w.T, x, q)
        assert found.fault == fault, found.text
    x, q = some("q6_K", m=9, n=33, k=768)
    codes, scale, _ = q.format.unpack(q.blocks)
    taken = scale[..., np.random.default_rng(9).permutation(16)].repeat(16, axis=-1)
    found = gq.diagnose(x @ (codes * taken).reshape(33, 768).T, x, q)
    assert found.fault == "sub-scale-order"


def test_sums_in_float32_one_after_the_other_are_right():
    x, q = np.ones((2, 2048), np.float32), some(n=3, k=2048)[1]
    y = np.zeros((2, 3), np.float32)
    for k, column in enumerate(np.asarray(q).T):
        y += x[:, k, None] * column
    assert gq.diagnose(y, x, q).ok


def test_scalar_weights():
    x, _ = some()
    q = gq.quantize(NORMAL.standard_normal((12, 256)), "f16")
    assert gq.diagnose(x @ q.T, x, q).ok
    assert gq.diagnose((x @ q.T)[:, ::-1], x, q).fault == "rows-permuted"


def test_a_result_in_half_precision_is_right_if_it_came_as_such():
    x, q = some()
    y = x @ q.T
    assert gq.diagnose(y.astype(np.float16), x, q).ok
