"""What ``kernel="auto"`` takes on a GPU: by a measured table, how far it reaches, and without one."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")

from stale import skip_if_stale

import ggmlq as gq
from ggmlq import doctor
from ggmlq.cuda.driver import coverage, device, served
from ggmlq.cuda.kernels.cost import choice
from ggmlq.cuda.kernels.gemv import launch as _gemv
from ggmlq.cuda.layouts.layout import layout_of
from ggmlq.dispatch import ladder, tuned
from ggmlq.dispatch.card import Card, card_named
from ggmlq.dispatch.ladder import choose, explain, register, rungs
from ggmlq.dispatch.problems import ExpertLinear, Linear, Operand
from ggmlq.formats import FORMATS, BlockFormat

ROOM = 227 << 10  # bytes of shared memory
H200 = Card("NVIDIA H200", (9, 0), 132, ROOM)
A100 = Card("NVIDIA A100", (8, 0), 108, ROOM)
CUBLAS_PROBLEM = device._cublas_problem
T4 = Card("Tesla T4", (7, 5), 40, 64 << 10)


def times(name, n, k, *spans):
    """The rows of a table for a format and a shape: kernels up to a number of rows, the fastest first."""
    first, rows = 1, {}
    for last, kernels in spans:
        rows[tuned.Case(name, n, k, first, last)] = dict.fromkeys(kernels)
        first = (last or 0) + 1
    return rows


SPANS = (4, ["cuda:mma", "cuda:dp4a"]), (90, ["cuda:gone", "cuda:registers"]), (None, ["cuda:dequant_bf16"])
TABLE = {
    tuned.Processor("cuda", "NVIDIA H200", "sm_90"): tuned.Entry(
        {
            **times("q4_0", 4096, 4096, *SPANS),
            **times("q4_0", 4096, 14336, (None, ["cuda:mma_bf16"])),
            **times("q4_K", 4096, 4096, (None, ["cuda:dp4a"])),
            **times("q6_K", 4096, 4096, (None, ["cuda:tiled"])),
        },
        "abc",
    ),
    tuned.Processor("cuda", "NVIDIA A100", "sm_80"): tuned.Entry(
        times("q4_0", 4096, 4096, (None, ["cuda:vectorized"])), "def"
    ),
}


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """CuBLAS is there, and nothing is remembered."""
    monkeypatch.setattr(device, "_cublas_problem", lambda: None)
    ladder.forget_choices()
    yield
    ladder.forget_choices()


@pytest.fixture
def table(monkeypatch):
    """A made-up table, and an H200 that is not there."""
    put_table(monkeypatch, TABLE)
    monkeypatch.setattr(choice, "card", lambda: H200)


def put_table(monkeypatch, entries):
    ladder.forget_choices()
    monkeypatch.setattr(tuned, "table", lambda: entries)


def one_row(*kernels):
    """A table of one case, which stands for all others."""
    processor = tuned.Processor("cuda", "NVIDIA H200", "sm_90")
    return {processor: tuned.Entry(times("q4_0", 1024, 32, (None, kernels)))}


def problem(name="q4_0", m=1, n=4096, k=4096, card=H200):
    return Linear(FORMATS[name], m, n, k, device="cuda", card=card)


def test_the_measured_one(table):
    for m, kernel in ((0, "mma"), (1, "mma"), (4, "mma"), (91, "dequant_bf16"), (1 << 20, "dequant_bf16")):
        assert explain(problem(m=m)) == (by_name(f"cuda:{kernel}"), "measured on NVIDIA H200 at abc")


def by_name(name):
    return next(rung for rung in rungs("linear", "cuda") if rung.name == name)


def test_an_unknown_name_is_passed_over(table):
    assert choose(problem(m=64)).name == "cuda:registers"


def test_the_nearest_shape(table):
    taken = {
        (n, k): choose(problem(n=n, k=k)).name for n in (32, 4096, 200000) for k in (32, 4096, 14336, 65536)
    }
    assert taken[4096, 4096] == taken[32, 32] == taken[200000, 4096] == "cuda:mma"
    assert taken[4096, 14336] == taken[4096, 65536] == "cuda:mma_bf16"
    assert choose(problem(n=0, k=0)).name == "cuda:mma"


def test_formats_that_stand_for_others():
    known = ["q4_0", "q8_0", "q4_K", "q6_K"]
    want = {"q4_0": "q4_0", "iq4_nl": "q4_0", "q5_1": "q4_K", "q3_K": "q6_K", "nvfp4": "q6_K", "q8_K": "q8_0"}
    assert {name: tuned.nearest_format(FORMATS[name], known) for name in want} == want
    for fmt in FORMATS.values():
        if isinstance(fmt, BlockFormat):
            assert tuned.nearest_format(fmt, ["mxfp4"]) == "mxfp4"


def test_why_says_what_stood_in(table):
    assert explain(problem("q5_0"))[1] == "measured on NVIDIA H200 at abc with q4_0"
    assert explain(problem(card=A100))[1] == "measured on NVIDIA A100 at def"
    assert explain(problem(card=replace(A100, name="NVIDIA A30")))[1] == choice.USUAL
    assert explain(problem("f32")) == (by_name("cuda:dequant"), ladder.HIGHEST)


@pytest.mark.parametrize("name", ["NVIDIA A100-SXM4-80GB", "NVIDIA GeForce RTX 3060", "NVIDIA B200"])
def test_a_card_that_was_not_measured_takes_what_is_usual(name):
    """Up to 4096 rows no library: it cannot be recorded in a graph; and who says that it is ahead there?"""
    card = card_named("test", name)
    taken = {m: explain(problem("q3_K", m, card=card)) for m in (1, 32, 33, 4096, 4097)}
    assert {choice.USUAL} == {why for _, why in taken.values()}
    assert [rung.name.removeprefix("cuda:") for rung, _ in taken.values()] == [
        "gemv", "gemv", "mma_bf16", "mma_bf16", "dequant_bf16",
    ]  # fmt: skip


def test_no_library_while_a_graph_is_recorded(table):
    """CuPy refuses its calls then; a kernel that is named says so itself."""
    many = problem(m=4097)
    assert choose(many).name == choice.LIBRARY
    captured = replace(many, captured=True)
    assert choose(captured).name != choice.LIBRARY
    with pytest.raises(gq.GGMLQError, match="calls cuBLAS by CuPy, which no CUDA graph records"):
        choose(captured, "cuda:dequant_bf16")


def test_a_rung_that_refuses_is_passed_over(table, monkeypatch):
    old = tuned.Processor("cuda", "Tesla T4", "sm_75")
    put_table(monkeypatch, {old: tuned.Entry(times("q4_0", 32, 32, (None, ["cuda:gemv", "cuda:dp4a"])))})
    assert choose(problem(m=500, card=T4)).name == "cuda:dp4a"


def test_a_gpu_with_less_shared_memory(table):
    assert by_name("cuda:gemv").refuses(problem(m=32)) is None
    small = problem(m=32, card=replace(H200, shared=64 << 10))
    reasons = {rung.name: rung.refuses(small) for rung in rungs("linear", "cuda")}
    assert "this GPU has 64" in reasons["cuda:gemv"]
    assert "this GPU has 64" in reasons["cuda:mma"]
    assert reasons["cuda:mma_bf16"] is None


def test_arithmetic_goes_before_speed(table):
    assert choose(problem(), arithmetic="q8").name == "cuda:mma"
    assert choose(problem(), arithmetic="bf16").name == "cuda:dequant_bf16"
    assert choose(problem(), arithmetic="f16").name == "cuda:dequant_cublas"
    for m in (1, 500):
        for arithmetic in ("q8", "ggml-mmvq"):
            assert choose(problem(m=m), arithmetic=arithmetic).arithmetic == arithmetic
    with pytest.raises(gq.GGMLQError, match="cuda:naive: multiplies in ggml-mmvq, exact was asked for"):
        choose(problem(), arithmetic="exact")


def test_a_named_one_is_not_refused_for_being_slow(table):
    for name in ("cuda:dequant_bf16", "cuda:mma", "cuda:dequant_cublas"):
        for m in (1, 64, 512, 4096):
            assert choose(problem(m=m), name).name == name


def test_auto_does_not_risk_an_overflow(table, monkeypatch):
    """A rung with a caution comes last, wherever a table names it."""
    put_table(monkeypatch, one_row("cuda:dequant_cublas", "cuda:naive"))
    assert choose(problem()).caution is None
    assert by_name("cuda:dequant_cublas").caution
    assert by_name("cuda:naive").caution


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"processors": 3'])
def test_a_damaged_table_only_costs_time(text, tmp_path, monkeypatch):
    place = tmp_path / "measured.json"
    if text is not None:
        place.write_text(text)
    monkeypatch.setattr(tuned, "TABLE", place)
    tuned.table.cache_clear()
    try:
        assert choose(problem()).device == "cuda"
    finally:
        tuned.table.cache_clear()


def test_another_card_is_another_choice(table, monkeypatch):
    """What was chosen is remembered for a card, and forgotten when a rung is registered."""
    assert choose(problem()) is choose(problem())
    assert choose(problem(card=A100)).name == "cuda:vectorized"
    monkeypatch.setattr(ladder, "_RUNGS", dict(ladder._RUNGS))
    facts = {"arithmetic": "q8", "accumulate": "int32"}
    fresh = register("ggmlq.cuda.ladder.linear.r3_vectorized", "Another.", **facts)(lambda x, q, out: None)
    assert choose(problem(card=A100)) is fresh


# --- no table ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_every_problem_has_a_kernel(name):
    """On any card, whatever is asked: by default one of sound arithmetic."""
    rng, fmt = np.random.default_rng(), FORMATS[name]
    for capability in ((7, 5), (8, 0), (9, 0), (12, 0)):
        card = Card("some card", capability, int(rng.integers(10, 200)), int(rng.integers(48, 228)) << 10)
        for _ in range(20):
            m, n, blocks = (int(2 ** rng.uniform(0, 14)) for _ in range(3))
            asked = problem(name, m, n, blocks * fmt.block_size, card)
            rung = choose(asked)
            assert rung.refuses(asked) is None
            assert rung.caution is None


# --- who says so ------------------------------------------------------------------------------


def test_kernels_say_what_auto_takes(table):
    found = gq.kernels(format="q4_0", device="cuda")
    assert [(taken.problem.m, taken.kernel) for taken in found.auto] == [
        (1, "cuda:mma"), (8, "cuda:registers"), (64, "cuda:registers"), (512, "cuda:dequant_bf16"),
    ]  # fmt: skip
    assert "auto, M=512  cuda:dequant_bf16  measured on NVIDIA H200 at abc" in repr(found)
    assert {c.device for c in gq.kernels(format="q4_0").auto} == {"cpu", "cuda"}
    assert gq.kernels(device="cuda").auto == []


def test_doctor_says_it_too(table, monkeypatch):
    skip_if_stale(served.STORE)
    facts = {"name": "NVIDIA H200", "device": "cuda:0", "compute_capability": "9.0", "memory_bytes": 1 << 37}
    monkeypatch.setattr(device, "describe", lambda: [facts])
    every = coverage.families()  # to make all their kernels takes 7 s
    some = dict(sorted(every.items())[:4])
    monkeypatch.setattr(coverage, "families", lambda: some)
    report = doctor.examine()
    assert report["auto"]["taken"][0]["why"] == "measured on NVIDIA H200 at abc"
    said = doctor.describe(json.loads(json.dumps(report)))
    assert "kernels that auto takes on NVIDIA H200, by rows of activations:" in said
    taken = "cuda:mma for 1-4, compiled when first used; cuda:registers for 5-90; cuda:dequant_bf16 for 91-"
    assert any(line.split(maxsplit=1) == ["q4_0", taken] for line in said.splitlines())
    assert report["auto"]["taken"][1]["rows"] == [[5, 90]]
    assert "kernels that auto takes on this CPU, by rows of activations:" in said
    why = "measured on NVIDIA H200 at abc"
    assert f"({why}; {why} with q4_0; others: gq.kernels" in said
    assert "kernels come with the package for compute capability 9.0; numba-cuda" in said.replace("\n", " ")


def test_doctor_without_a_gpu(monkeypatch):
    monkeypatch.setattr(choice, "card", lambda: None)
    assert doctor.examine()["auto"] == {"error": "there is no GPU"}


def test_older_gpus_have_registers_for_fewer_fragments(table, monkeypatch):
    fmt = FORMATS["q4_0"]
    for capability, span in (((9, 0), 2), ((8, 6), 1)):
        card = replace(H200, capability=capability)
        monkeypatch.setattr(device, "card", lambda card=card: card)
        assert _gemv.stage_for(layout_of(fmt), 32).span == span
        assert _gemv.stage_for(layout_of(fmt), 16).span == 2


def test_a_gpu_that_refuses_all_that_was_measured():
    """Before 8.0: dp4a, which is 3.6 times as fast for one row as the highest that is left."""
    assert {m: choose(problem(m=m, card=T4)).name for m in (1, 8, 64, 65)} == {
        1: "cuda:dp4a", 8: "cuda:dp4a", 64: "cuda:dp4a", 65: "cuda:registers",
    }  # fmt: skip
    assert choose(problem(card=A100), arithmetic="q8").name == "cuda:mma_q8"


def test_without_cublas_others_serve(monkeypatch):
    monkeypatch.setattr(device, "_cublas_problem", lambda: "needs cuBLAS: it is not there")
    assert choose(problem(m=4096)).name == "cuda:warp_specialized"
    for name in ("cuda:dequant_bf16", "cuda:dequant_cublas", "cuda:dequant"):
        with pytest.raises(gq.GGMLQError, match=f"{name}: needs cuBLAS"):
            choose(problem(m=4096), name)
    assert choose(problem(m=4096, card=A100)).name == "cuda:mma_bf16"


def test_cublas_is_asked_for_where_cupy_finds_it(monkeypatch):
    """CuPy's package loads the library when asked for the name; its module alone would not."""

    def refuse(name):
        raise ImportError("libcublas.so.13: not found\nand much more")

    asked = []

    class Libs:
        def __getattr__(self, name):
            return refuse(name)

    monkeypatch.setattr(device, "import_module", lambda name: asked.append(name) or Libs())
    monkeypatch.setattr(device, "_cublas_problem", CUBLAS_PROBLEM)
    CUBLAS_PROBLEM.cache_clear()
    device.cublas.cache_clear()
    try:
        assert device.lacks_cublas(None) is None
        assert asked == []
        words = r"needs cuBLAS: .*\(libcublas\.so\.13: not found\).*pip install .*\"nvidia-cublas"
        assert [bool(re.fullmatch(words + ".*", device.lacks_cublas(H200))) for _ in range(2)] == [True, True]
        assert asked == ["cupy_backends.cuda.libs"]
    finally:
        CUBLAS_PROBLEM.cache_clear()


def test_a_card_with_less_shared_memory_holds_fewer_blocks(monkeypatch):
    """Of 66 KB a block, of which Hopper holds two and an sm_86 one."""
    monkeypatch.setattr(device, "current", lambda: 0)
    for whole, want in ((228, 2), (100, 1), (16, 1)):
        monkeypatch.setattr(device, "_attribute", lambda which, index, whole=whole: whole << 10)
        assert device.resident_blocks(2, 66 << 10) == want


def test_experts_by_their_uses():
    """Kernels that read ids on the device are taken for blocks from 8.0 on."""

    def taken(name, t, card=H200, k=2048):
        return choose(ExpertLinear(FORMATS[name], t, 8, 128, 768, k, device="cuda", card=card)).name

    assert [taken("q4_K", t) for t in (2, 8, 9, 4096)] == ["cuda:gemv"] * 2 + ["cuda:grouped"] * 2
    assert [taken(name, 1) for name in ("q4_K", "mxfp4")] == ["cuda:gemv_int16", "cuda:gemv"]
    assert [taken("q4_0", t) for t in (16, 17)] == ["cuda:gemv", "cuda:grouped"]
    assert [taken("q4_0", t, k=768) for t in (8, 9)] == ["cuda:gemv", "cuda:grouped"]
    assert [taken(name, 8) for name in ("q5_K", "iq2_xs")] == ["cuda:gemv"] * 2
    assert [taken("q4_K", t, A100) for t in (1, 2, 8, 65536)] == ["cuda:gemv"] + ["cuda:grouped_mma"] * 3
    assert taken("q4_K", 65537, A100) == "cuda:each_bf16"
    assert taken("f16", 8) == "cuda:each_f32"
    for code, c in (("e4m3", 128), ("int8", 8192)):
        w, x = Operand(code, 128, c), Operand(code, 1, c)
        sizes = [(1, 2048), (32, 2048), (33, 2048), (64, 8192), (65, 8192)]
        asked = [ExpertLinear(w, t, 8, 128, 768, k, x, device="cuda", card=H200) for t, k in sizes]
        few, many = "cuda:small_m_codes", "cuda:grouped_codes"
        assert [choose(each).name for each in asked] == [few, few, many, few, many]
        assert choose(replace(asked[0], card=A100)).name == "cuda:codes"


@pytest.mark.parametrize("name", ["q4_0", "q4_K"])
def test_eight_bits_are_taken_by_name_alone(name):
    """Where the preferred kernels refuse, others of the same numerics follow."""
    ampere = A100
    many = replace(problem(name, 8192, 4096, 14336, ampere), captured=True)
    assert choose(many, "auto").name == "cuda:mma_bf16"
