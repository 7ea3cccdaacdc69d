"""The bound of each element: right kernels keep it, whatever they sum first; faults break it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from block_cases import weights as random_weights
from right import products

import ggmlq as gq
from ggmlq.arrays.rows import rows
from ggmlq.formats import FORMATS
from ggmlq.reference import activations, bound, linear, multiply, rule, weights
from ggmlq.reference.rules import NOT_ON_CUDA, ONLY_ACTIVATIONS

GOLDEN = Path(__file__).parent / "golden"
BLOCKS = [fmt.name for fmt in FORMATS.values() if fmt.block_size > 1]
GGML = [name for name in BLOCKS if name not in ONLY_ACTIVATIONS]


def normal_weights(name, n, k, seed):
    """Encoded where this version can, else random bytes: a random mxfp4 is one huge block."""
    if FORMATS[name].can_quantize:
        return gq.quantize(rows("normal", n, k, seed), name)
    return random_weights(name, n, k, seed)


def share_out_of_bound(y, x, q, arithmetic):
    """How many of the finite elements lie outside."""
    want, most = linear(x, q, arithmetic), bound(x, q, arithmetic)
    finite = np.isfinite(want)
    outside = ~(np.abs(y[finite] - want[finite]) <= most[finite])
    return np.count_nonzero(outside) / max(outside.size, 1)


# --- it holds -------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
@pytest.mark.parametrize("name", [*GGML, "f16", "bf16"])
def test_it_holds_for_llama_cpp(name, backend):
    found = list(products(GOLDEN, name, backend))
    assert found or name in NOT_ON_CUDA
    for p in found:
        y = np.nan_to_num(p.y) if not rule(name, p.arithmetic).bounded else p.y
        assert share_out_of_bound(y, p.x, p.q, p.arithmetic) == 0, f"M={len(p.x)}"


@np.errstate(over="ignore", invalid="ignore")
def one_by_one(x, q, arithmetic, backwards=False):
    """A plain kernel: block after block into one float32, zeros and minima taken off through a sum."""
    w, a, how = weights(q, arithmetic), activations(x, q.format, arithmetic), rule(q.format, arithmetic)
    f32, group = np.float32, w.group
    y = np.zeros((len(x), len(q)), f32)
    order = range(q.shape[1] // group)
    for g in reversed(order) if backwards else order:
        at = slice(g * group, (g + 1) * group)
        if w.values is not None:
            y += a.values[:, at].astype(f32) * w.values[:, at].astype(f32).T
            continue
        zero = 0 if how.zero_in_code else w.zero
        codes = a.codes[:, at].astype(f32)
        d, scale = a.scale[:, g * group // a.run].astype(f32)[:, None], w.scale[:, g].astype(f32)
        both = (d * scale).astype(np.float16) if how.half_products else d * scale
        y += both * (codes @ (w.codes[:, at] + f32(zero)).T)
        kept = how.sums == "kept" and a.sums is not None
        s = a.sums[:, g].astype(f32) if kept else codes.sum(axis=1) * d[:, 0]
        if w.offset is not None or zero:
            off = s[:, None] * (scale * f32(zero) if w.offset is None else w.offset[:, g].astype(f32))
            y -= off.astype(np.float16) if how.half_products else off
    return y


@pytest.mark.parametrize("arithmetic", ["f32", "q8", "ggml-ref", "ggml-cpu", "ggml-mmvq", "ggml-mmq"])
@pytest.mark.parametrize("kind", ["normal", "constant", "ramp", "outliers", "spikes", "heavy_tails"])
@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q8_0", "q4_K"])
def test_it_holds_for_plain_sums_of_hard_rows(name, kind, arithmetic):
    k = 512 if arithmetic == "f32" else 2048
    for x_kind in ("normal", "constant", "ramp", "half_integers"):
        x = rows(x_kind, 5, k, seed=1)
        w = rows(kind, 6, k, seed=2)
        q = gq.quantize(w, name) if FORMATS[name].can_quantize else random_weights(name, 6, k, seed=2)
        for backwards in (False, True):
            y = one_by_one(x, q, arithmetic, backwards)
            assert share_out_of_bound(y, x, q, arithmetic) == 0, (x_kind, backwards)


def test_a_code_on_a_tie_may_go_either_way():
    x = rows("ties", 4, 256, seed=3)
    for name in ("q8_0", "q4_0", "q4_1", "q6_K", "iq2_s"):
        q = random_weights(name, 8, 256, seed=4)
        for one, other in (("ggml-ref", "ggml-cpu"), ("ggml-cpu", "ggml-ref")):
            y = linear(x, q, one)
            assert name in ("q6_K", "iq2_s") or not np.allclose(y, linear(x, q, other), rtol=1e-5)
            assert share_out_of_bound(y, x, q, other) == 0
    off_ties = x * np.float32(1.001)
    off_ties[np.abs(x) == 127] = 127
    assert not activations(off_ties, "q8_0", "ggml-cpu").ties.all()


@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q4_K", "q2_K", "iq2_s"])
@pytest.mark.parametrize("arithmetic", ["ggml-mmvq", "ggml-mmq"])
def test_a_scale_near_the_middle_of_two_halves_may_go_either_way(name, arithmetic):
    """127 / amax and back is an ulp beside amax / 127: a GPU's quick division rounds to the other half."""
    how = rule(name, arithmetic).quantizer
    if how.scale != "half":
        pytest.skip("this scale is kept as float32")
    x, q = rows("normal", 6, 256, seed=3), normal_weights(name, 8, 256, seed=4)
    middle = np.float32((1 + 2.0**-11) * 127 / 64)  # amax / 127 is half way between 1 / 64 and the next half
    x[:, 0] = middle * (1 + np.arange(-3, 3) * np.float32(2**-20))  # and far from it, beside 0
    x[:, 1:] = np.clip(x[:, 1:], -1.9, 1.9)
    a = activations(x, name, arithmetic)
    assert np.flatnonzero(a.steps[:, 0]).tolist() == [3]
    assert np.count_nonzero(a.steps) == 1
    assert a.steps[3, 0] == 2.0**-16
    for sign in (-1, 1):
        moved = a.scale + sign * a.steps
        w = weights(q, arithmetic)
        y = multiply(w, replace(a, scale=moved), rule(name, arithmetic))
        out = np.abs(y - linear(x, q, arithmetic)) > bound(x, q, arithmetic)
        assert not out.any()
        far = multiply(w, replace(a, scale=a.scale + 3 * sign * a.steps), rule(name, arithmetic))
        assert (np.abs(far - linear(x, q, arithmetic)) > bound(x, q, arithmetic))[3].any()


def cut_off(x, w):
    """Products of halves as a tensor core sums them: 16 at a time, cut where the exponents stored say."""
    exponent = lambda v: np.maximum(np.frexp(v)[1], -13)  # of halves below 2**-14 too
    y = np.zeros((len(x), len(w)))
    for at in range(0, x.shape[1], 16):
        a, b = x[:, None, at : at + 16], w[None, :, at : at + 16]
        largest = np.where(a * b != 0, exponent(a) + exponent(b), -999).max(-1)
        largest = np.maximum(largest, np.where(y != 0, np.frexp(y)[1], -999))
        unit = np.exp2(largest.astype(np.float64) - 25)[..., None]
        y += (np.trunc(a * b / unit) * unit).sum(-1)
    return y


@pytest.mark.parametrize("size", [2.0**-24, 2.0**-20, 2.0**-12, 1.0])
def test_it_holds_for_small_halves_on_tensor_cores(size):
    """A step's small weight is cut at the exponent of the large one's product, which is that of 2**-14."""
    x = rows("normal", 9, 256, 3) * (np.arange(256) % 64 < 2) * size
    q = gq.quantize(rows("normal", 31, 256, 4) * np.where(np.arange(256) % 2, 20, 0.05), "f16")
    halves, values = x.astype(np.float16).astype(np.float64), q.dequantize(np.float64)
    y, want = cut_off(halves, values), linear(x.astype(np.float32), q, "f16")
    assert (np.abs(y - want) <= bound(x.astype(np.float32), q, "f16")).all()


def test_nothing_is_promised_where_halves_are_summed():
    q, x = random_weights("f16", 3, 64), rows("normal", 2, 64)
    assert np.isinf(bound(x, q, "ggml-mmq")).all()
    assert np.isfinite(bound(x, q, "ggml-cpu")).all()


# --- it is tight ----------------------------------------------------------------------------

ARITHMETICS = ("q8", "ggml-cpu", "ggml-mmvq", "ggml-mmq")


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("name", ["q4_0", "q5_1", "q4_K", "q6_K", "q8_0", "mxfp4", "iq2_s"])
def test_faults_break_it(name, arithmetic):
    k = 2048
    q, x = normal_weights(name, 40, k, seed=5), rows("normal", 12, k, seed=6)
    how = rule(name, arithmetic)
    w, a = weights(q, arithmetic), activations(x, name, arithmetic)
    faults = {
        "one code of a row is wrong by one": replace(w, codes=bumped(w.codes)),
        "scale of the next block": replace(w, scale=np.roll(w.scale, -1, axis=1)),
        "last block missing": replace(w, scale=without_last(w.scale), offset=without_last(w.offset)),
    }
    if w.offset is not None:
        faults["offset missing"] = replace(w, offset=0 * w.offset)
        faults["offset twice"] = replace(w, offset=2 * w.offset)
    for fault, wrong in faults.items():
        y = multiply(wrong, a, how)
        assert share_out_of_bound(y, x, q, arithmetic) > 0.25, fault
    half_sums = one_by_one(x, q, "f16").astype(np.float16) if name == "q8_0" else None
    truncating = replace(a, codes=np.trunc(x / a.scale.repeat(a.run, axis=1)).astype(np.int8))
    assert share_out_of_bound(multiply(w, truncating, how), x, q, arithmetic) > 0.9
    assert half_sums is None or share_out_of_bound(half_sums, x, q, arithmetic) > 0.9


def bumped(codes):
    codes = codes.copy()
    codes[:, 77] += np.where(codes[:, 77] < 7, 1, -1).astype(np.int8)
    return codes


def without_last(scale):
    if scale is None:
        return None
    scale = scale.copy()
    scale[:, -1] = 0
    return scale


@pytest.mark.parametrize("name", ["q4_0", "q5_0", "q4_1", "q4_K"])
def test_the_two_conventions_of_the_sum_are_told_apart(name):
    """Σ of the floats where d·Σ of the codes belongs, and the other way round."""
    q, x = random_weights(name, 40, 1024, seed=7), rows("normal", 8, 1024, seed=8)
    claimed = "ggml-mmq" if name == "q4_K" else "ggml-mmvq"
    other = linear(x, q, replace(rule(name, claimed), sums="codes"))
    assert share_out_of_bound(other, x, q, claimed) > 0.5
    assert share_out_of_bound(linear(x, q, claimed), x, q, "q8") > 0.5


def test_it_is_within_a_thousandth_of_typical_results():
    x = rows("normal", 8, 4096, seed=9)
    for name in GGML:
        q = random_weights(name, 16, 4096, seed=10)
        for arithmetic in ARITHMETICS:
            if name in NOT_ON_CUDA and "mm" in arithmetic:
                continue
            y, most = linear(x, q, arithmetic), bound(x, q, arithmetic)
            if rule(name, arithmetic).bounded:
                assert np.median(most / np.sqrt((y**2).mean(axis=0))) < 1.5e-3, (name, arithmetic)


@pytest.mark.parametrize("arithmetic", ["exact", "f32", "q8", "ggml-mmvq"])
def test_a_sum_of_nothing_is_zero(arithmetic):
    q = gq.QuantArray.from_bytes(b"", "q4_0", (8, 0))
    x = np.zeros((2, 0), np.float32)
    assert (linear(x, q, arithmetic) == 0).all()
    assert (bound(x, q, arithmetic) == 0).all()
