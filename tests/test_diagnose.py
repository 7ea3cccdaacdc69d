"""Diagnose: each fault is named, right kernels are left alone, and the report says what it must."""

from __future__ import annotations

from pathlib import Path

import mutation
import numpy as np
import pytest
import wrong_kernels

import ggmlq as gq
from ggmlq.faults import CATALOGUE
from ggmlq.testing.cases import weights
from ggmlq.testing.products import products
from ggmlq.testing.rows import KINDS, rows

GOLDEN = Path(__file__).parent / "golden"
SHAPE = (9, 33, 768)
NORMAL = np.random.default_rng(3)


def some(name="q4_0", m=9, n=24, k=256, seed=0):
    """Activations and weights."""
    return np.random.default_rng(seed).standard_normal((m, k)).astype(np.float32), weights(name, n, k, seed)


# --- each fault -----------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [f for f in CATALOGUE if f not in ("unknown", "out-of-bounds")])
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
    """``drawn(cases, n)``: with ``--long`` all cases, else n of each fault, others in each run."""

    def draw(cases, n):
        of = {}
        for case in cases(int(fresh.integers(1 << 20)), mutation.FEW):
            of.setdefault(case[0], []).append(case)
        if request.config.option.long:
            return [case for some in of.values() for case in some]
        return [some[i] for some in of.values() for i in fresh.permutation(len(some))[:n]]

    return draw


def test_the_mutation_suite(drawn):
    """Wrong kernels in plain loops, fresh data: at least 95 % named rightly, no right one accused."""
    found, missed = mutation.tried(drawn(mutation.cases, 2))
    right = sum(n for (given, said), n in found.items() if given == said)
    shown = "\n".join(f"{args}: {said.fault}, {said.text}" for args, said in missed)
    assert right >= 0.95 * found.total(), shown
    assert found["correct", "correct"] == sum(n for (given, _), n in found.items() if given == "correct")


def test_a_fault_beside_an_unlisted_difference_is_that_fault_or_unknown(drawn):
    found, missed = mutation.tried(drawn(mutation.mixtures, 1))
    wrongly = [(args, said.text) for args, said in missed if said.fault != "unknown"]
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


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_llama_cpp_itself_is_right(backend):
    """Real products, of rows of 1e4 noise too; without a claim where all of them are finite."""
    for name in ("q4_0", "q5_1", "q8_0", "q2_K", "q4_K", "q6_K", "iq1_s", "iq2_xxs", "iq4_xs", "mxfp4"):
        for p in products(GOLDEN, name, backend):
            if len(p.x) not in (1, 8, 9, 33):
                continue
            found = gq.diagnose(p.y, p.x, p.q, arithmetic=p.arithmetic)
            assert found.ok, f"{name}, M={len(p.x)}: {found.text}"
            if np.isfinite(p.y).all():
                found = gq.diagnose(p.y, p.x, p.q)
                assert found.ok, f"{name}, M={len(p.x)}: {found.text}"


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


def test_an_empty_product_is_right():
    x, q = some()
    assert gq.diagnose(np.zeros((0, 24), np.float32), x[:0], q).ok


# --- what a report holds --------------------------------------------------------------------


def test_sums_of_codes_are_a_fault_only_against_a_claim():
    y, x, q, asked = mutation.case("sum-of-codes-vs-floats", "q5_1", SHAPE, "cpu", 0, 5, 0)
    assert gq.diagnose(y, x, q).ok
    found = gq.diagnose(y, x, q, **asked)
    assert not found.ok
    assert "half(Σx)" in found.text


def test_a_race_says_where():
    x, q = some()
    y = x @ q.T
    other = y.copy()
    other[4:6, 8:16] += 1
    found = gq.diagnose(y, x, q, repeats=[y, other])
    assert found.fault == "race"
    assert found.where["tiles"] == [(4, 6, 8, 16)]
    assert gq.diagnose(y, x, q, repeats=[y * np.float32(1 + 1e-7)]).ok  # another order of sums


def test_blocks_of_k_are_found_by_linear_algebra():
    x, q = some(m=16, n=24, k=512)
    w = np.asarray(q).copy()
    w[:, 128:192] = 0
    found = gq.diagnose(x @ w.T, x, q)
    assert found.fault == "unknown"
    assert found.where["K-blocks"] == {"missing": [(128, 192)]}


@pytest.mark.parametrize("name", ["q4_K", "q6_K"])
def test_a_first_block_that_is_missing_is_no_neighbours_scale(name):
    """Scales of neighbouring blocks of 256 activations are nearly alike, so that mistake comes near."""
    for _ in range(3):
        x, q = some(name, m=9, n=16, k=512)
        w = np.asarray(q).copy()
        w[:, :256] = 0
        found = gq.diagnose(x @ w.T, x, q)
        assert (found.fault, found.where["K-blocks"]) == ("unknown", {"missing": [(0, 256)]})


def test_periods_of_columns():
    x, q = some(n=32)
    y = x @ q.T
    y[:, 3::8] += 1
    found = gq.diagnose(y, x, q)
    assert found.where["column period"] == 8
    assert "every 8 columns" in found.text


def test_two_faults_that_fit_alike_are_both_named_and_an_input_is_proposed():
    x, q = some(m=1, n=4, k=256)
    found = gq.diagnose(np.zeros((1, 4), np.float32), x, q)
    assert found.alternatives
    assert found.confidence <= 0.5
    assert "--make-input" in found.text
    assert found.telling_input.shape == (33, 256)
    assert found.telling_input.dtype == np.float32


def test_formulas_are_those_of_the_format():
    x, q = some("q4_K", m=9, n=24, k=512)
    codes, scale, offset = q.format.unpack(q.blocks)
    exchanged = codes.reshape(24, -1, 2, 32)[:, :, ::-1].reshape(24, -1, 8, 32)
    w = exchanged * scale.reshape(24, -1, 8)[..., None] - offset.reshape(24, -1, 8)[..., None]
    found = gq.diagnose(x @ w.reshape(24, 512).T, x, q)
    assert found.fault == "nibbles-exchanged"
    assert "Right: q[j] = qs[j] & 15, q[j+32] = qs[j] >> 4" in found.text
    assert "Wrong: q[j+32] = qs[j] & 15, q[j] = qs[j] >> 4" in found.text
    assert "interleaved" not in found.text
    assert "j+16" not in found.text


def test_tokens_exchanged_are_rows_of_y():
    x, q = some(m=12)
    y = x @ q.T
    y[[5, 9]] = y[[9, 5]]
    found = gq.diagnose(y, x, q)
    assert found.fault == "tokens-permuted"
    assert "Rows of y, that is tokens" in found.text
    assert "columns of y" not in found.text
    assert "row 5 holds 9" in found.text


def test_a_result_far_off_names_no_nearest_kernel():
    x, q = some()
    found = gq.diagnose(x @ np.where(np.arange(256) % 7, np.asarray(q), 2).T, x, q)
    assert found.fault == "unknown"
    assert "NMSE" not in found.text
    assert found.text.count("unknown") == 1


@pytest.mark.parametrize("rest", ["correct", "nibble-order", "unknown"])
def test_elements_that_were_never_written_are_judged_apart(rest):
    x, q = some(m=9, n=24)
    y = x @ q.T
    if rest == "nibble-order":
        y = wrong_kernels.run("q4_0", q.raw, x, fault=rest)
    if rest == "unknown":
        y = x @ np.where(np.arange(256) % 7, np.asarray(q), 2).T
    y[:, 21:] = np.nan
    found = gq.diagnose(y, x, q, unwritten=np.isnan(y))
    assert found.fault == ("nibble-order" if rest == "nibble-order" else "unwritten")
    assert "27 of 216 elements of y were never written: the last 3 of 24 columns" in found.text
    assert found.figures["elements not finite"] == 0
    if rest == "correct":
        assert gq.diagnose(y, x, q).fault == "n-tail"  # whoever cannot know
    with pytest.raises(gq.errors.ShapeError, match="unwritten is bool"):
        gq.diagnose(y, x, q, unwritten=np.isnan(y)[:3])


def test_what_the_right_arithmetic_overflows_in_is_no_overflow():
    x, q = some("q4_0", m=9, n=24, k=512)
    x[3] *= np.float32(2.0**25)
    moved = np.asarray(q).reshape(24, -1, 2, 16)[:, :, ::-1].reshape(24, 512)
    with np.errstate(over="ignore"):
        right = gq.reference.linear(x, q, "ggml-cpu")
        wrong = gq.reference.linear(x, gq.quantize(moved, "q4_0"), "ggml-cpu").astype(np.float32)
    assert not np.isfinite(right).all()
    assert (np.isfinite(wrong) == np.isfinite(right)).all()
    assert gq.diagnose(wrong, x, q).fault != "scale-f16-overflow"


def test_shapes_of_any_rank_and_a_device():
    x, q = some(m=6)
    y = (x @ q.T).reshape(2, 3, 24)
    assert gq.diagnose(y, x.reshape(2, 3, 256), q).ok
    assert gq.diagnose(x[0] @ q.T, x[0], q).ok


def test_a_large_case_is_sampled_for_the_reason_and_judged_in_full():
    x, q = some("q4_0", 48, 200, 512)
    y = x @ q.T
    y[47, 199] += 1
    found = gq.diagnose(y, x, q)
    assert not found.ok
    assert (found.where["rows"], found.where["columns"]) == ([(47, 48)], [(199, 200)])


# --- bad input ------------------------------------------------------------------------------


def test_what_cannot_be_judged_is_an_error():
    x, q = some()
    y = x @ q.T
    with pytest.raises(gq.errors.ShapeError, match=r"y has shape \(8, 24\)"):
        gq.diagnose(y[:8], x, q)
    with pytest.raises(gq.errors.ShapeError, match=r"repeats\[0\]"):
        gq.diagnose(y, x, q, repeats=[y[:8]])
    with pytest.raises(gq.errors.ShapeError, match="last axis of both is K"):
        gq.diagnose(y, x[:, :32], q)
    with pytest.raises(gq.errors.DTypeError):
        gq.diagnose(y.astype(int), x, q)
    with pytest.raises(gq.errors.DTypeError):
        gq.diagnose(y, x, np.asarray(q))
    with pytest.raises(gq.errors.UnsupportedError, match="no such arithmetic"):
        gq.diagnose(y, x, q, arithmetic="f8")
    x[2, 5] = np.nan
    with pytest.raises(gq.errors.NonFiniteError, match=r"x\[2, 5\] is nan"):
        gq.diagnose(y, x, q)


# --- stores, strides, factors and moves beside other arithmetics ----------------------------


def outlying(name, m=33, n=40, k=768, seed=1001):
    """Activations with columns of outliers: another rounding of them costs much."""
    x, q = some(name, m, n, k, seed)
    x[:, np.random.default_rng(seed).integers(0, k, k // 100)] *= 40
    return x, q


@pytest.mark.parametrize("claim", [None, "f32"])
@pytest.mark.parametrize("scale", [1, 1e-4])
@pytest.mark.parametrize("m", [1, 9])
def test_a_right_result_cast_to_half_and_back_is_right(m, scale, claim):
    x, q = some(m=m)
    y = (np.float32(scale) * x @ q.T).astype(np.float16)
    found = gq.diagnose(y.astype(np.float32), np.float32(scale) * x, q, arithmetic=claim)
    assert found.ok, found.text
    assert "stored as half" in found.text
    assert gq.diagnose(y, np.float32(scale) * x, q).ok


def test_sums_kept_in_half_are_still_a_fault():
    for m in (1, 9):
        x, q = some(m=m, k=1024)
        total = np.zeros((m, 24), np.float16)
        for k in range(0, 1024, 32):
            total += (x[:, k : k + 32] @ np.asarray(q)[:, k : k + 32].T).astype(np.float16)
        assert gq.diagnose(total.astype(np.float32), x, q).fault == "f16-accumulation"


def test_one_wrong_element_beside_a_store_in_half_is_found():
    x, q = some()
    y = (x @ q.T).astype(np.float16).astype(np.float32)
    y[4, 5] += 64
    found = gq.diagnose(y, x, q)
    assert not found.ok
    assert found.where["elements"] == 1


@pytest.mark.parametrize("extra", [2, -2])
@pytest.mark.parametrize("name", ["q4_0", "q6_K", "q8_0"])
def test_a_stride_whose_scales_are_not_finite_is_still_a_stride(name, extra):
    x, q = some(name, m=9, n=48, k=1024)
    flat, row = q.raw.reshape(-1), q.raw.shape[1]
    at = (np.arange(48)[:, None] * (row + extra) + np.arange(row)) % flat.size
    with np.errstate(all="ignore"):
        w = q.format.unpack(np.ascontiguousarray(flat[at]).view(q.format.dtype))
        scale = np.repeat(w[1], w[0].shape[-1] // w[1].shape[-1], axis=-1)
        dense = (w[0] * scale).reshape(48, 1024)
        y = (x @ dense.T).astype(np.float32)
    assert not np.isfinite(y).all()
    found = gq.diagnose(y, x, q)
    assert found.fault == "row-stride", found.text


def test_a_nan_beside_no_stride_is_a_nan():
    x, q = some()
    y = x @ q.T
    y[2, 3] = np.nan
    assert gq.diagnose(y, x, q).fault == "nan"


@pytest.mark.parametrize("factor", [16, 100, 1000])
def test_a_large_factor_beside_half_sums(factor):
    x, q = outlying("q4_0")
    y = wrong_kernels.run("q4_0", q.raw, x, "cuda", order=0) * np.float32(factor)
    assert gq.diagnose(y, x, q).fault == "scaled"


@pytest.mark.parametrize(("name", "convention"), [("q4_0", "cuda"), ("q5_0", "cuda"), ("q5_0", "cpu")])
def test_exchanged_columns_beside_an_arithmetic_that_only_they_show(name, convention):
    x, q = outlying(name)
    y = wrong_kernels.run(name, q.raw, x, convention, order=0)
    for order in (np.arange(40) ^ 7, np.random.default_rng(2).permutation(40)):
        found = gq.diagnose(y[:, order], x, q)
        assert found.fault == "rows-permuted", found.text
    y[:, 8:] = np.tile(y[:, :8], 4)
    assert gq.diagnose(y, x, q).fault == "tile-duplicated"


@pytest.mark.parametrize("convention", ["cpu", "cuda"])
def test_one_tile_repeated_in_a_single_row(convention):
    x, q = some("q4_0", m=1, n=64, k=512)
    y = wrong_kernels.run("q4_0", q.raw, x, convention, order=0)
    y[:, 8:] = np.tile(y[:, :8], 7)
    found = gq.diagnose(y, x, q)
    assert found.fault == "tile-duplicated", found.text


# --- K of 0 ---------------------------------------------------------------------------------


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
    x, q, asked, shape = nothing(kind)
    y = np.zeros(shape, np.float32)
    assert gq.diagnose(y, x, q, repeats=[y], **asked).ok
    left = y.copy()
    left[1, ..., 3] = np.nan
    assert gq.diagnose(y, x, q, repeats=[left], **asked).fault == "race"
    found = gq.diagnose(left, x, q, **asked)
    assert not found.ok
    assert "K is 0" in found.text
    assert "columns 3" in found.text
