"""Diagnose on scaled products: each mistake is named, right kernels of every kind are left alone."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import scaled_mutants as mutants

import ggmlq as gq
from ggmlq.cli import main
from ggmlq.faults.catalogue import SCALED

TIMES = 3
DRAWN = 5


def some(code="int8", tiles=((1, 64), (4, 64)), shape=(5, 12, 512), seed=0, zeros=False):
    """Operands."""
    rng, (m, n, k) = np.random.default_rng(seed), shape
    x, w = (
        gq.quantize_scaled(rng.standard_normal((r, k)).astype(np.float32), code, t, zeros=zeros, ragged="pad")
        for r, t in zip((m, n), tiles, strict=True)
    )
    return x, w


# --- each fault -----------------------------------------------------------------------------


def test_mistakes_are_named(fresh, request):
    """Wrong kernels on fresh data: at least 95 % named rightly."""
    times = 20 * TIMES if request.config.option.long else TIMES
    cases = [(fault, int(fresh.integers(1 << 30))) for fault in mutants.MUTANTS for _ in range(times)]
    found, missed = mutants.tried(cases)
    named = sum(n for (given, said), n in found.items() if given == said)
    shown = "\n".join(
        f"{fault}, seed {seed}: {said.fault}, {x!r}, {w!r}" for (fault, seed), said, x, w in missed
    )
    assert named >= 0.95 * found.total(), shown


@pytest.mark.parametrize("fault", mutants.MUTANTS)
def test_each_mistake_is_named_with_its_words(fault):
    y, x, w, more = mutants.case(fault, np.random.default_rng([11, len(fault)]))
    found = gq.diagnose(y, x, w, **more)
    assert found.fault == fault, found.text
    assert not found.ok
    assert 0 < found.confidence <= 1
    assert SCALED[fault].says in found.text
    assert found.where["rows"]


@pytest.mark.parametrize("fault", ["scale-neighbour", "scale-missing", "k-tail-dropped", "rows-permuted"])
def test_a_mistake_beside_a_result_in_half(fault, fresh):
    missed = []
    while len(missed) < DRAWN:
        y, x, w, _ = mutants.case(fault, fresh)
        if np.median(np.abs(y)) > 1e-2 and np.abs(y).max() < 6e4:
            found = gq.diagnose(y.astype(np.float16), x, w)
            missed.append("" if found.fault == fault else found.text)
    assert missed.count("") >= DRAWN - 1, missed  # one row of few values can be told in more than one way


@pytest.mark.parametrize("fault", ["scale-neighbour", "scale-missing", "k-tail-dropped", "scale-once"])
def test_a_mistake_beside_floats_that_are_quantized_here(fault, fresh):
    missed = []
    while len(missed) < DRAWN:
        x = fresh.standard_normal((6, 640)).astype(np.float32)
        w = some("e4m3", shape=(1, 14, 640), seed=int(fresh.integers(1 << 30)))[1]
        made = gq.quantize_scaled(x, "e4m3", (1, 128))
        with np.errstate(all="ignore"):
            y = mutants.MUTANTS[fault](mutants.Operand(made), mutants.Operand(w), fresh)
        if y is not None and mutants.shows(y, gq.reference.scaled_linear(made, w), 1e-2):
            found = gq.diagnose(y, x, w)
            missed.append("" if found.fault == fault else found.text)
    assert missed.count("") >= DRAWN - 1, missed


def test_many_wrapped_codes_whose_amounts_are_unknown(fresh):
    x = fresh.standard_normal((8, 512)).astype(np.float32)
    w = some(shape=(1, 10, 512))[1]
    scale = np.float32(2 / 127)  # 5 % of the codes lie beyond
    made = gq.quantize_scaled(x, "int8", (None, None), scales=scale)
    taken = mutants.Operand(made)
    taken.less = np.rint(x / scale).astype(np.int64).astype(np.int8).astype(np.float64)
    found = gq.diagnose(mutants.multiplied(taken, mutants.Operand(w)), made, w)
    assert found.fault == "no-saturation", found.text
    told = gq.diagnose(
        mutants.multiplied(taken, mutants.Operand(w)), x, w, activations=("int8", (None, None), scale)
    )
    assert told.fault == "no-saturation"
    assert told.confidence > found.confidence


def cut_off(x, w, promote, fresh):
    """As a matrix unit may really add: each product cut off below the largest of a step, and the sum too."""
    qa, qb = (gq.codes[s.code.name].decode(np.asarray(s.codes)).astype(np.float64) for s in (x, w))
    total = np.zeros((len(qa), len(qb)))
    for start in range(0, qa.shape[1], promote):
        inner = np.zeros(total.shape)
        for at in range(start, min(start + promote, qa.shape[1]), 32):
            parts = qa[:, None, at : at + 32] * qb[None, :, at : at + 32]
            parts = np.concatenate([parts, inner[..., None]], axis=-1)
            unit = 2.0 ** (np.frexp(np.abs(parts).max(axis=-1))[1] - 14)[..., None]
            inner = (np.trunc(parts / unit) * unit).sum(axis=-1)
        total += inner
    return (total * x.scales * w.scales.T).astype(np.float32)


def test_a_unit_that_cuts_off_otherwise_than_the_reference(fresh):
    """Without promotion it is recognised by what is lost; promoted it is right."""
    seed = int(fresh.integers(1 << 30))
    x, w = some("e4m3", ((1, None), (1, None)), (8, 16, 4096), seed)
    found = gq.diagnose(cut_off(x, w, 4096, fresh), x, w)
    assert found.fault == "no-promotion", found.text
    found = gq.diagnose(cut_off(x, w, 128, fresh), x, w)
    assert found.ok, found.text


# --- right kernels --------------------------------------------------------------------------


@pytest.mark.slow
def test_no_right_kernel_is_accused(fresh, request):
    accused = Counter()
    for i in range(1200 if request.config.option.long else 60):
        x, w = mutants.drawn(fresh)
        with np.errstate(all="ignore"):
            y = mutants.right(mutants.Operand(x), mutants.Operand(w), fresh)
        found = gq.diagnose(y, x, w)
        if not found.ok:
            accused[found.text, repr(x), repr(w), i] += 1
    assert not accused


SIZES = (1e-22, 1e-18, 1, 1e18)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("code", ["e4m3", "e5m2", "int8", "uint8", "int16"])
def test_tiny_and_extreme_scales_are_right(code, size, fresh):
    for tiles in (((1, None), (1, None)), ((1, 32), (4, 64)), ((None, None), (128, 128))):
        x, w = (fresh.standard_normal((r, 130)).astype(np.float32) for r in (3, 5))
        x *= np.float32(10) ** fresh.integers(-9, 9, (3, 1)).astype(np.float32) * np.float32(size)
        w[:, 70:] = 0
        made = [
            gq.quantize_scaled(v, code, t, zeros=code == "uint8", ragged="pad")
            for v, t in zip((x, w * np.float32(size)), tiles, strict=True)
        ]
        with np.errstate(all="ignore"):
            y = gq.scaled_linear(*made, kernel="cpu:naive")
        found = gq.diagnose(y, *made)
        assert found.ok, found.text


@pytest.mark.parametrize("how", [None, "int8", ("int8", (1, 64)), ("int8", (None, None))])
def test_floats_quantized_in_any_usual_way_are_right(how, fresh):
    x, w = fresh.standard_normal((4, 512)).astype(np.float32), some(tiles=((1, 64), (4, 64)))[1]
    y = gq.scaled_linear(x, w, activations=how, kernel="cpu:naive")
    assert gq.diagnose(y, x, w, activations=how).ok
    assert gq.diagnose((x @ np.asarray(w).T).astype(np.float32), x, w).ok  # not quantized at all
    if isinstance(how, tuple) and how[1] != (1, 64):
        assert gq.diagnose(y, x, w).ok


def test_nan_in_the_operands_is_no_fault():
    x, w = some("e4m3", zeros=False)
    codes = x.codes.copy()
    codes[2, 7] = 0x7F
    x = gq.ScaledArray(codes, x.scales, "e4m3", x.tile)
    y = gq.scaled_linear(x, w, kernel="cpu:naive")
    assert not np.isfinite(y).all()
    found = gq.diagnose(y, x, w)
    assert found.ok, found.text
    assert "not finite" in found.text
    y[2] = 0
    assert not gq.diagnose(y, x, w).ok


def test_what_the_operands_cannot_show_is_right():
    """All scales alike: which goes with which group cannot be told, and nothing is claimed."""
    x, w = some()
    even = [gq.ScaledArray(s.codes, s.scales * 0 + 1, "int8", s.tile) for s in (x, w)]
    a, b = map(mutants.Operand, even)
    y = mutants.multiplied(a, b, scales=[s.at(s.i, (s.g + 1) % s.grid.shape[1]) for s in (a, b)])
    assert gq.diagnose(y, *even).ok


# --- what a report holds --------------------------------------------------------------------


def test_one_scale_for_all_of_k_in_a_large_case():
    x, w = some(shape=(60, 200, 256), tiles=((1, 128), (128, 128)))
    assert gq.diagnose(gq.reference.scaled_linear(x, w).astype(np.float32), x, w).ok
    a, b = map(mutants.Operand, (x, w))
    y = mutants.multiplied(a, b, scales=[a.at(a.i, a.g * 0), b.scale])
    assert gq.diagnose(y, x, w).fault == "scale-once"


def test_a_claim_of_all_of_y_being_nan_is_a_guess():
    x, w = some("e4m3", ((1, 128), (1, 128)))
    found = gq.diagnose(np.full((5, 12), np.nan, np.float32), x, w)
    assert found.confidence <= 0.5
    assert "nan" in (found.fault, *found.alternatives)


# --- bad input ------------------------------------------------------------------------------


def test_what_cannot_be_judged_is_an_error():
    x, w = some()
    y = gq.reference.scaled_linear(x, w)
    with pytest.raises(gq.errors.UnsupportedError, match="leave it out"):
        gq.diagnose(y, x, w, arithmetic="q8")
    with pytest.raises(gq.errors.DTypeError, match="quantized already"):
        gq.diagnose(y, x, w, activations=("int8", (1, None)))
    with pytest.raises(gq.errors.ShapeError, match="last axis of both is K"):
        gq.diagnose(y, np.zeros((5, 100), np.float32), w)
    with pytest.raises(gq.errors.CodeError):
        gq.diagnose(y, some("e4m3")[0], w)
    q = gq.quantize(np.zeros((12, 512), np.float32), "q8_0")
    with pytest.raises(gq.errors.UnsupportedError, match="beside a ScaledArray"):
        gq.diagnose(y, np.zeros((5, 512), np.float32), q, activations=("int8", (1, None)))


# --- the command ----------------------------------------------------------------------------


def dumped(path, y, **arrays):
    """An npz of a product."""
    held = {"y": y}
    for name, s in arrays.items():
        parts = {"codes": s.codes, "scales": s.scales, "code": s.code.name, "tile": [n or 0 for n in s.tile]}
        held |= {f"{name}_{part}": np.asarray(array) for part, array in parts.items()}
        if s.zeros is not None:
            held[f"{name}_zeros"] = s.zeros
    np.savez(path, **held)
    return str(path)


def test_the_command_reads_one_file(tmp_path, capsys):
    x, w = some("uint8", ((1, None), (1, None)), zeros=True)
    y = gq.reference.scaled_linear(x, w).astype(np.float32)
    assert main(["diagnose", dumped(tmp_path / "right.npz", y, x=x, w=w)]) == 0
    a, b = map(mutants.Operand, (x, w))
    wrong = dumped(tmp_path / "wrong.npz", mutants.multiplied(a, b, q=(a.q, b.less)), x=x, w=w)
    assert main(["diagnose", wrong]) == 1
    assert "zero-missing" in capsys.readouterr().out
    assert main(["diagnose", wrong, wrong, wrong]) == 2
    assert main(["diagnose", "--list"]) == 0
    assert "scale-transposed" in capsys.readouterr().out
