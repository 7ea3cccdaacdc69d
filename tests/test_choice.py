"""What ``kernel="auto"`` takes on a GPU: the measured table, how far it reaches, and what comes after it."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")

from stale import skip_if_stale

import ggmlq as gq
from ggmlq import doctor
from ggmlq.cuda.cost import choice
from ggmlq.cuda.linear import _gemv
from ggmlq.cuda.machine import coverage, device, served
from ggmlq.cuda.packed.layout import layout_of
from ggmlq.dispatch import ladder, tuned
from ggmlq.dispatch.card import Card
from ggmlq.dispatch.ladder import choose, explain, register, rungs
from ggmlq.dispatch.problems import ExpertLinear, Linear, Operand
from ggmlq.formats import FORMATS, BlockFormat

ROOM = 227 << 10  # bytes of shared memory
H200 = Card("NVIDIA H200", (9, 0), 132, ROOM)
A100 = Card("NVIDIA A100", (8, 0), 108, ROOM)
CUBLAS_PROBLEM = device._cublas_problem
T4 = Card("Tesla T4", (7, 5), 40, 64 << 10)
SPANS = [[4, ["cuda:mma", "cuda:dp4a"]], [90, ["cuda:gone", "cuda:registers"]], [None, ["cuda:dequant_bf16"]]]
TABLE = [
    {
        "card": "NVIDIA H200", "capability": [9, 0], "multiprocessors": 132, "commit": "abc",
        "linear": [
            {"format": "q4_0", "N": 4096, "K": 4096, "up to": SPANS},
            {"format": "q4_0", "N": 4096, "K": 14336, "up to": [[None, ["cuda:mma_magic"]]]},
            {"format": "q4_K", "N": 4096, "K": 4096, "up to": [[None, ["cuda:dp4a"]]]},
            {"format": "q6_K", "N": 4096, "K": 4096, "up to": [[None, ["cuda:tiled"]]]},
        ],
    },
    {
        "card": "NVIDIA A100", "capability": [8, 0], "multiprocessors": 108, "commit": "def",
        "linear": [{"format": "q4_0", "N": 4096, "K": 4096, "up to": [[None, ["cuda:vectorized"]]]}],
    },
]  # fmt: skip


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


def put_table(monkeypatch, cards):
    ladder.forget_choices()
    monkeypatch.setattr(choice, "HOPPER", None)  # whose products are estimated
    monkeypatch.setattr(choice, "table", lambda: cards)


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
    assert taken[4096, 14336] == taken[4096, 65536] == "cuda:mma_magic"
    assert choose(problem(n=0, k=0)).name == "cuda:mma"


def test_formats_that_stand_for_others():
    known = ["q4_0", "q8_0", "q4_K", "q6_K"]
    want = {"q4_0": "q4_0", "iq4_nl": "q4_0", "q5_1": "q4_K", "q3_K": "q6_K", "nvfp4": "q6_K", "q8_K": "q8_0"}
    assert {name: tuned.stand_in(FORMATS[name], known) for name in want} == want
    for fmt in FORMATS.values():
        if isinstance(fmt, BlockFormat):
            assert tuned.stand_in(fmt, ["mxfp4"]) == "mxfp4"


def test_why_says_what_stood_in(table):
    assert explain(problem("q5_0"))[1] == "measured on NVIDIA H200 at abc with q4_0"
    h100 = Card("NVIDIA H100 PCIe", (9, 0), 114, ROOM)
    assert explain(problem(card=h100))[1] == "measured on NVIDIA H200 at abc, the nearest card"
    assert explain(problem("f32")) == (by_name("cuda:dequant"), ladder.HIGHEST)


@pytest.mark.parametrize(
    ("card", "kernel"),
    [
        (None, "cuda:mma"),
        (Card("NVIDIA B200", (10, 0), 148, ROOM), "cuda:mma"),
        (Card("NVIDIA GeForce RTX 4090", (8, 9), 128, 99 << 10), "cuda:dp4a"),
        (Card("NVIDIA A100-SXM4-80GB", (8, 0), 108, 163 << 10), "cuda:vectorized"),
        (T4, "cuda:vectorized"),
    ],
)
def test_the_nearest_card(table, card, kernel):
    assert choose(problem(card=card)).name == kernel


def measured_card(name="NVIDIA H200", multiprocessors=132, bandwidth=4917.0, capability=(9, 0)):
    return Card(name, capability, multiprocessors, ROOM, bandwidth, 1.98)


def test_another_card_is_asked_about_its_own_share():
    """As many rows a multiprocessor, and as many of x as take as long beside a byte that is fetched."""
    entry = {**TABLE[0], "bandwidth": 4917, "clock": 1.98}

    def as_there(card, m=64, n=4096):
        found = choice._as_there(problem(m=m, n=n, card=card), entry)
        return found.m, found.n

    assert as_there(measured_card()) == (64, 4096)
    assert as_there(measured_card("NVIDIA H100", bandwidth=4917 / 2)) == (32, 4096)
    assert as_there(measured_card("NVIDIA H20", 66)) == (128, 8192)
    assert as_there(measured_card("NVIDIA A100", capability=(8, 0))) == (128, 4096)
    assert as_there(measured_card("NVIDIA H100", bandwidth=0.0)) == (64, 4096)  # the driver does not tell
    assert as_there(measured_card("NVIDIA H100", bandwidth=49.17), m=1) == (1, 4096)
    assert as_there(measured_card("NVIDIA H20", 66), m=0) == (0, 8192)


def test_where_kernels_change_places_scales_with_the_card(monkeypatch):
    """registers, which fetches more and multiplies faster, comes later where memory is slow."""
    spans = [[90, ["cuda:mma"]], [None, ["cuda:registers"]]]
    entry = {"format": "q4_0", "N": 4096, "K": 4096, "up to": spans}
    put_table(monkeypatch, [{**TABLE[0], "linear": [entry], "bandwidth": 4917, "clock": 1.98}])
    for bandwidth, rows in ((4917.0, 91), (4917 / 2, 182)):
        card = measured_card("NVIDIA H100", bandwidth=bandwidth)
        assert choose(problem(m=rows, card=card)).name == "cuda:registers"
        assert choose(problem(m=rows - 1, card=card)).name == "cuda:mma"


def test_no_library_while_a_graph_is_recorded(table):
    """CuPy refuses its calls then; a kernel that is named says so itself."""
    many = problem(m=4097, card=Card("NVIDIA H100 PCIe", (9, 0), 114, ROOM))
    assert choose(many).name in choice.LIBRARY
    captured = replace(many, captured=True)
    assert choose(captured).name not in choice.LIBRARY
    with pytest.raises(gq.GGMLQError, match="calls cuBLAS by CuPy, which no CUDA graph records"):
        choose(captured, "cuda:dequant_bf16")


def test_a_card_that_was_not_measured_takes_no_library_up_to_4096_rows(table):
    """It cannot be recorded in a graph; and who says that it is ahead there?"""
    other = Card("NVIDIA H100 PCIe", (9, 0), 114, ROOM)
    for card in (other, A100, H200):
        names = {m: choose(problem(m=m, card=card)).name for m in (91, 4096, 4097)}
        assert (names[4096] in choice.LIBRARY) is (names[91] in choice.LIBRARY) is (card is H200)
    assert choose(problem(m=4097, card=other)).name == "cuda:dequant_bf16"


def test_the_measured_card_says_what_it_has():
    """Without these facts nothing scales."""
    for entry in choice.table():
        assert entry["bandwidth"] > 100
        assert 0.5 < entry["clock"] < 4


def test_cards_of_one_capability(monkeypatch):
    names = {"NVIDIA H20": 78, "NVIDIA H200": 132, "NVIDIA H100": 114}
    cards = [{"card": name, "capability": [9, 0], "multiprocessors": count} for name, count in names.items()]
    for name, count, want in (
        ("NVIDIA H200", 132, "NVIDIA H200"),
        ("NVIDIA H100 80GB HBM3", 132, "NVIDIA H100"),
        ("NVIDIA GH100", 120, "NVIDIA H100"),
        ("another", 80, "NVIDIA H20"),
    ):
        card = Card(name, (9, 0), count, ROOM)
        assert min(cards, key=lambda entry: choice._distance(card, entry))["card"] == want


def test_a_rung_that_refuses_is_passed_over(table, monkeypatch):
    put_table(monkeypatch, TABLE[:1])
    old = Card("NVIDIA H200 of old", (7, 5), 132, ROOM)
    assert choose(problem(card=old)).name == "cuda:dp4a"
    assert choose(problem(m=500, card=old)).name == "cuda:registers"  # bfloat16 needs 8.0, floats are slower


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
    for name in ("cuda:dequant_bf16", "cuda:streamk", "cuda:mma_magic", "cuda:dequant_cublas"):
        for m in (1, 64, 512, 4096):
            assert choose(problem(m=m), name).name == name


def test_auto_does_not_risk_an_overflow(table, monkeypatch):
    """A rung with a caution comes last, wherever a table names it."""
    put_table(monkeypatch, [dict(TABLE[0], linear=[
        {"format": "q4_0", "N": 1, "K": 1, "up to": [[None, ["cuda:dequant_cublas", "cuda:naive"]]]}
    ])])  # fmt: skip
    assert choose(problem()).caution is None
    assert by_name("cuda:dequant_cublas").caution
    assert by_name("cuda:naive").caution


def test_no_table_at_all(monkeypatch):
    put_table(monkeypatch, [])
    able = [r for r in rungs("linear", "cuda") if not (r.caution or r.refuses(problem()))]
    assert explain(problem()) == (able[-1], ladder.HIGHEST)
    assert choice.formats(H200) == []


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"cards": 3'])
def test_a_damaged_table_only_costs_time(text, tmp_path, monkeypatch):
    place = tmp_path / "choice.json"
    if text is not None:
        place.write_text(text)
    monkeypatch.setattr(choice, "TABLE", place)
    choice.table.cache_clear()
    try:
        assert choose(problem()).device == "cuda"
    finally:
        choice.table.cache_clear()


def test_a_format_of_another_version_is_passed_over(table, monkeypatch):
    entry = {**TABLE[0], "linear": [{"format": "q9_X", "N": 1, "K": 1, "up to": []}, *TABLE[0]["linear"]]}
    put_table(monkeypatch, [entry])
    assert choose(problem()).name == "cuda:mma"


def test_another_card_is_another_choice(table, monkeypatch):
    """What was chosen is remembered for a card, and forgotten when a rung is registered."""
    assert choose(problem()) is choose(problem())
    assert choose(problem(card=A100)).name == "cuda:vectorized"
    monkeypatch.setattr(ladder, "_RUNGS", dict(ladder._RUNGS))
    facts = {"arithmetic": "q8", "accumulate": "int32"}
    fresh = register("ggmlq.cuda.linear.r3_vectorized", "Another.", **facts)(lambda x, q, out: None)
    assert choose(problem(card=A100)) is fresh


# --- the table that ships ---------------------------------------------------------------------


def test_the_table_is_whole():
    known = json.loads(choice.TABLE.read_text())
    names = {rung.name: rung for rung in rungs("linear", "cuda")}
    assert known["cards"]
    for card in known["cards"]:
        assert {"card", "capability", "multiprocessors", "commit", "linear"} <= set(card)
        for row in card["linear"]:
            assert isinstance(FORMATS[row["format"]], BlockFormat)
            ends = [math.inf if most is None else most for most, _ in row["up to"]]
            assert ends == sorted(set(ends))
            assert ends[-1] == math.inf
            for _, kernels in row["up to"]:
                assert kernels
                assert all(names[kernel].caution is None for kernel in kernels)


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
    assert report["auto"]["kernels"][0] == {
        "format": "q4_0", "M": 1, "kernel": "cuda:mma", "why": "measured on NVIDIA H200 at abc",
    }  # fmt: skip
    said = doctor.describe(json.loads(json.dumps(report)))
    assert "kernels that auto takes on NVIDIA H200, by rows of activations:" in said
    taken = "cuda:mma for 1-4, compiled when first used; cuda:registers for 5-90; cuda:dequant_bf16 for 91-"
    assert any(line.split(maxsplit=1) == ["q4_0", taken] for line in said.splitlines())
    assert report["auto"]["taken"][1]["rows"] == [[5, 90]]
    assert "kernels that auto takes on this CPU, by rows of activations:" in said
    assert "(measured on NVIDIA H200 at abc; others: gq.kernels" in said
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
