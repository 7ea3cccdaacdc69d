"""Kernels that ``auto`` takes on cards of a table, and the records of ``gq.kernels`` about them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")

from scripts import load
from stale import demand, is_stale, skip_if_stale

import ggmlq as gq
from ggmlq.cuda.driver import coverage, served
from ggmlq.cuda.kernels.cost import choice, roof
from ggmlq.cuda.ladder.scaled_linear import r2_dequant
from ggmlq.dispatch import ladder, listing
from ggmlq.dispatch.card import CARDS, Card, card_named, target
from ggmlq.dispatch.ladder import explain
from ggmlq.dispatch.problems import ExpertLinear, Linear, ScaledLinear
from ggmlq.formats import BLOCK_FORMATS, FORMATS

table, dry_runs = load("tools", "table"), load("tools", "_dry_runs")
ROOT = Path(__file__).parents[1]
RUNGS = [ladder.rungs(op, "cuda") for op in ("linear", "scaled_linear", "expert_linear")]  # all are imported
EVERY = bool(os.environ.get("GGMLQ_EVERY_KERNEL"))
NAMES = [card.name for card in CARDS]
STORED = [fmt.name for fmt in BLOCK_FORMATS if fmt.name not in ("q8_1", "q8_K")]
TEACHING = {
    "linear": {"naive_f32", "naive", "tiled", "vectorized", "mma"},
    "scaled_linear": {"naive", "tiled"},
    "expert_linear": {"each_f32"},
}


# --- default paths --------------------------------------------------------------------------


def all_packed(lacking, message):
    """An error where kernels that the package should have are not in it."""
    listed = [str(kernel.origin) for kernel in lacking]
    demand(not listed, served.STORE, f"{message}: {', '.join(listed)}")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.drawn(4)
def test_no_default_path_of_blocks_compiles_or_calls_a_library_or_teaches(name, fresh):
    card = card_named("test", name)
    rows = (
        listing.grid() if EVERY else fresh.integers(1, 4097, 3).tolist() + fresh.integers(1, 65, 3).tolist()
    )
    names = STORED if EVERY else fresh.choice(STORED, 4, replace=False).tolist()
    n, k = ((4096, 4096), (896, 4864), (14336, 4096), (1024, 12288))[fresh.integers(4)]
    for fmt in names:
        if k % FORMATS[fmt].block_size:
            continue
        problems = [Linear(FORMATS[fmt], m, n, k, device="cuda", card=card) for m in rows]
        for problem in problems:
            kernel = explain(problem).rung.name
            assert kernel != choice.LIBRARY, problem
            assert kernel.removeprefix("cuda:") not in TEACHING["linear"], problem
        all_packed(coverage.unpacked(problems), f"{fmt} on {name} for rows {rows}")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.drawn(2)
def test_default_paths_of_codes_and_experts_do_not_teach(name, fresh):
    card = card_named("test", name)
    for m in [*fresh.integers(1, 4097, 4).tolist(), 1, 64]:
        for code in ("e4m3", "e5m2", "int8"):
            problem = ScaledLinear.shown(code, "cuda", card, (1024, 2048))[0].with_rows(m)
            kernel = explain(problem).rung.name.removeprefix("cuda:")
            assert kernel not in TEACHING["scaled_linear"], problem
            if card.capability >= (8, 0) and (code != "e5m2" or card.capability != (9, 0)):
                groups = replace(problem, x=problem.x._replace(c=128), w=problem.w._replace(c=128))
                all_packed(coverage.unpacked([problem, groups]), problem)
                tile, capability = (1, None) if code == "int8" else (128, 128), card.capability
                floats = dry_runs.float_kernels(code, tile, card, [(1024, 2048)], [m])
                all_packed(
                    [k for k in floats if not served.is_served(k.origin, capability, k.exact)], problem
                )
        problem = ExpertLinear.shown(fresh.choice(STORED), "cuda", card, (256, 1024))[0].with_rows(m % 64 + 1)
        assert explain(problem).rung.name.removeprefix("cuda:") not in TEACHING["expert_linear"]
        all_packed(coverage.unpacked([problem]), problem)


def test_floats_of_8_bits_before_8_0_are_decoded_for_the_library(fresh, monkeypatch):
    """Right, in NumPy's hands; no other card takes it."""
    monkeypatch.setattr(r2_dequant, "dequantize", lambda s, dtype: s.dequantize(dtype))
    monkeypatch.setattr(r2_dequant, "cupy", lambda: np)
    x, w = (gq.quantize_scaled(fresh.standard_normal((rows, 256)), "e4m3", tile=(1, 128)) for rows in (5, 9))
    out = np.full((5, 9), np.nan, np.float32)
    r2_dequant.launch.launch(x, w, out)
    np.testing.assert_allclose(out, gq.reference.scaled_linear(x, w), rtol=1e-4, atol=1e-4)
    r2_dequant.launch.launch(x[:0], w, out[:0])
    for code in ("e4m3", "int8"):
        for name in ("sm_75", "sm_80", "sm_90"):
            problem = ScaledLinear.shown(code, "cuda", card_named("test", name))[0]
            assert (r2_dequant.refuses(problem) is None) is (code == "e4m3" and name == "sm_75")
            assert (explain(problem).rung is r2_dequant.launch) is (code == "e4m3" and name == "sm_75")
    summed = replace(ScaledLinear.shown("e4m3", "cuda", card_named("test", "sm_75"))[0], accumulate="int32")
    assert "int32 was asked for" in r2_dequant.refuses(summed)


def test_teaching_rungs_are_taken_nowhere_and_all_others_somewhere():
    """On the cards of the table and without a format: the list tells them apart."""
    for op in ("linear", "scaled_linear"):
        taken = {
            rung.name.removeprefix("cuda:")
            for name in ("Tesla T4", "NVIDIA A100 80GB PCIe", "sm_89", "NVIDIA H200", "sm_121")
            for rung in gq.kernels(op, card=name)
            if rung.taken
        }
        every = {rung.name.removeprefix("cuda:") for rung in gq.kernels(op, device="cuda")}
        assert every - taken - {"dequant_cublas", "mma_q8"} == TEACHING[op]  # the latter by its arithmetic


def test_lists_of_other_operations_tell_them_apart_too():
    """On the CPU; rows of a GRU are sequences."""
    for op in ("gru", "scaled_linear"):
        records = gq.kernels(op, device="cpu")
        assert {bool(record.taken) for record in records} == {True, False}
        assert not records[0].taken
    assert "N=1 " in repr(gq.kernels("gru", format="mixed", device="cpu"))


def test_modules_that_a_dry_run_imports_are_whole():
    """Whatever they take by name is CuPy's, or what stands for it while it is missing; not the paper's."""
    skip_if_stale(served.STORE)
    code = (
        "import ggmlq as gq; assert 'yes' in repr(gq.kernels(format='q4_0', card='sm_89'))\n"
        "from ggmlq.cuda.ladder.linear import r6_dequant; from ggmlq.cuda.driver import device\n"
        "assert r6_dequant.cupy is device.cupy and device._usable == [None]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- records --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.drawn(3)
def test_records_say_what_is_taken_and_what_it_costs(name, fresh):
    fmt, shape = str(fresh.choice(STORED)), (int(fresh.integers(1, 20000)), 256 * int(fresh.integers(1, 60)))
    rows = int(fresh.integers(1, 33))
    records = gq.kernels(format=fmt, card=name.upper(), shape=shape, rows=rows)
    spans = sorted((span.start, span.stop, r.name) for r in records for span in r.taken)
    assert [start for start, *_ in spans] == [1, *(stop for _, stop, _ in spans[:-1])]
    assert spans[-1][1] == listing.MOST_ROWS + 1
    card = card_named("test", name)
    for m in fresh.integers(1, 4097, 9).tolist():
        kernel = explain(Linear(FORMATS[fmt], m, *shape, device="cuda", card=card)).rung.name
        assert [r.name for r in records if any(m in span for span in r.taken)] == [kernel]
    for r in records:
        assert r.estimate is None or 0 < r.floor <= r.estimate
        assert r.packed or not r.taken or is_stale(served.STORE.prebuilt)
        other_rows = r.refuses(Linear(FORMATS[fmt], rows, *shape, device="cuda", card=card)) is not None
        assert r.packed in (True, False) or other_rows
        assert not r.taken or r.estimate or other_rows
    assert f"{name}, M={rows}, N={shape[0]}, K={shape[1]}" in repr(records)
    assert " floor, µs" in repr(records).splitlines()[0]


@pytest.mark.parametrize(
    "wrong", [{"rows": (1, 8)}, {"rows": 0}, {"shape": 4096}, {"shape": (4096, 1.5)}], ids=str
)
def test_shapes_that_are_none(wrong):
    with pytest.raises(gq.errors.ShapeError, match=r"the shape of weights is \(N, K\), and rows"):
        gq.kernels("linear", format="q4_0", card="NVIDIA H200", **wrong)


def test_floors_are_bytes_through_memory_or_operations_on_tensor_cores():
    def floor(rows, **more):
        (record,) = (r for r in gq.kernels(rows=rows, shape=(4096, 14336), **more) if r.name == "cuda:gemv")
        return record.floor

    few = floor(1, format="q4_0", card="NVIDIA GeForce RTX 4090")
    assert few == pytest.approx((4096 * 14336 * 18 / 32 + 2 * 14336 + 2 * 4096) / 1008e3)
    for card, teraflops in (("sm_89", 330.3), ("sm_80", 312), ("sm_90", 1070), ("sm_86", 142.7)):
        facts = card_named("test", card)
        assert roof.peak(facts, "bfloat16") == pytest.approx(teraflops * 1e3, rel=0.01)
    many = Linear(FORMATS["q4_0"], 4096, 4096, 14336, device="cuda", card=card_named("test", "sm_80"))
    assert roof.floor(many, "cuda:mma_bf16") == pytest.approx(2 * 4096 * 4096 * 14336 / 312e6, rel=0.01)
    assert roof.floor(many, "cuda:mma_bf16") == pytest.approx(2 * roof.floor(many, "cuda:mma"))


def test_estimates_of_the_measured_card_are_what_it_took():
    """cuda:gemv and warp_specialized have estimates of their own; others agree with the ladder's figures."""
    run = json.loads((ROOT / "bench" / "results" / "ladder_h200.json").read_text())
    card = card_named("test", run["device"])
    for row in run["rows"]:
        if row["format"] == "q4_0" and row["kernel"] in set(roof.COSTS) - {"cuda:gemv"}:
            problem = Linear(FORMATS["q4_0"], row["M"], row["N"], row["K"], device="cuda", card=card)
            us = roof.estimate(problem, row["kernel"])
            if row["M"] in (1, 4096) and row["K"] == 14336:
                assert us == pytest.approx(row["us"], rel=0.05), row
            assert us == pytest.approx(row["us"], rel=2), row


def test_a_card_without_facts_has_no_figures():
    card = Card("NVIDIA Unknown", (8, 6), 20, 99 << 10)
    problem = Linear(FORMATS["q4_0"], 1, 64, 64, device="cuda", card=card)
    assert roof.floor(problem, "cuda:gemv") is roof.estimate(problem, "cuda:gemv") is None


def test_another_process_answers_where_cupy_is_loaded(monkeypatch):
    """On paper other functions stand in CuPy's place, which a process that uses the GPU must not see."""
    skip_if_stale(served.STORE)
    monkeypatch.setitem(sys.modules, "cupy", ModuleType("cupy"))
    monkeypatch.setattr(coverage, "unpacked", None)
    card = card_named("test", "sm_86")
    problems = [Linear(FORMATS["q4_0"], 8, 256, 256, device="cuda", card=card)]
    found = coverage.packed({"cuda:gemv": problems, "cuda:mma": problems})
    assert isinstance(found["cuda:gemv"], bool), "whether it is stale is another question"
    assert found["cuda:mma"] is False
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    assert coverage.packed({"cuda:gemv": problems}) == {"cuda:gemv": None}


def test_ranges_of_rows_in_words():
    assert listing.in_words((range(1, 2), range(3, 9), range(64, 4097))) == "1, 3-8, 64-"
    parts = [range(5, 9), range(1, 3), range(3, 5), range(20, 21)]
    assert listing.joined(parts) == (range(1, 9), range(20, 21))


# --- the table ------------------------------------------------------------------------------


def test_the_table_is_whole():
    assert len({name.casefold() for name in NAMES}) == len(CARDS) >= 20
    for card in CARDS:
        assert not card.here
        assert 16 <= card.multiprocessors <= 200
        assert 100 < card.bandwidth < 10000
        assert 1 < card.clock < 3
        assert 2 << 20 < card.cache < 200 << 20
        assert card.shared in {(7, 5): (64 << 10,), (8, 0): (163 << 10,), (9, 0): (227 << 10,)}.get(
            card.capability, (99 << 10, 227 << 10)
        )
        assert card_named("test", card.name.swapcase()) is card
        assert card_named("test", target(card)).capability == card.capability


def test_names_of_cards_may_be_short():
    assert card_named("test", "rtx 4090").name == "NVIDIA GeForce RTX 4090"
    assert card_named("test", "sm_90a") is card_named("test", "h200")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"card": "RTX 4909"}, "no card of the table is called so; it has Tesla T4.*sm_121"),
        ({"card": "NVIDIA GeForce RTX 4091"}, "did you mean 'NVIDIA GeForce RTX 4090'"),
        ({"card": "RTX"}, "several cards are called so; it has NVIDIA GeForce RTX 2080 Ti"),
        ({"card": "sm_70"}, "no card of the table"),
        ({"card": "sm_89", "device": "cpu"}, "a card is a GPU; leave out device="),
        ({"card": "sm_89", "shape": (4096,)}, r"the shape of weights is \(N, K\)"),
        ({"card": "sm_89", "shape": (4096, 0)}, "all integers from 1 on"),
        ({"card": "sm_89", "rows": 1.5}, "all integers from 1 on"),
        (
            {"op": "gated_linear", "card": "sm_89"},
            'its two products; this version has .* pass "linear", for',
        ),
        ({"format": "q4_K", "card": "sm_89", "shape": (64, 100)}, "K is a multiple of that; pass 256"),
    ],
)
def test_bad_arguments(arguments, words):
    with pytest.raises(gq.GGMLQError, match=words):
        gq.kernels(**arguments)


def test_the_dry_run_uses_cards_of_the_table():
    assert set(dry_runs.CARDS) < set(CARDS)
