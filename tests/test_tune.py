"""Times of kernels that were measured on this machine: first products, ``ggmlq tune``, files from anybody."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from block_cases import weights
from host_calls import python_calls

import ggmlq as gq
from ggmlq.base import missing
from ggmlq.cli import main
from ggmlq.cpu import choice
from ggmlq.cuda.kernels.cost import choice as card_choice
from ggmlq.dispatch import ladder, tuned
from ggmlq.dispatch.card import card_named
from ggmlq.dispatch.ladder import explain
from ggmlq.dispatch.problems import Linear
from ggmlq.dispatch.tuned import NOTHING
from ggmlq.formats import BLOCK_FORMATS, FORMATS
from ggmlq.ops import dry_run, tuning

CPU = choice.here()._replace(name="This One", compiled_for="thisone")


@pytest.fixture(autouse=True)
def place(monkeypatch, tmp_path, matrix_unit):
    """A CPU that nobody measured, with an empty cache; this process measures."""
    matrix_unit(False)
    monkeypatch.setenv("GGMLQ_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv(tuned.SWITCH, "1")
    monkeypatch.delenv(tuned.FILE, raising=False)
    monkeypatch.setattr(choice, "here", lambda: CPU)
    monkeypatch.setattr(tuned, "table", dict)
    _forget()
    yield tmp_path
    _forget()


def _forget():
    tuned.forget()
    ladder.forget_choices()


@pytest.fixture
def timed(monkeypatch):
    """Cases that products time, with made-up times: the last kernel of the list is the fastest."""
    cases = []

    def times_of(names, problem, x, q, turns=3):
        cases.append((problem, len(x)))
        return {name: 100.0 / 2**i for i, name in enumerate(names)}

    monkeypatch.setattr(tuning, "times_of", times_of)
    monkeypatch.setattr(choice, "shortlist", lambda problem: ("cpu:panels", "cpu:tiles"))
    monkeypatch.setattr(choice, "candidates", lambda problem: ("cpu:panels", "cpu:tiles", "cpu:lines"))
    monkeypatch.setattr(tuning, "LEAST_WORK", 64 * 256)
    return cases


def first(m=1, fmt="iq2_s", n=64, k=256, kernel="auto", arithmetic=None):
    """The choice of a kernel for a product, which nobody computes; and its problem."""
    q, x = weights(fmt, n, k, seed=3), np.ones((m, k), np.float32)
    problem = Linear(FORMATS[fmt], m, n, k, device="cpu")
    return tuning.chosen(problem, (x, q), kernel, arithmetic), problem


# --- first products -------------------------------------------------------------------------


def test_a_case_is_timed_once_and_remembered_by_other_processes(timed):
    rung, problem = first(5)
    assert rung.name == "cpu:tiles"
    assert [case for case, _ in timed] == [problem]
    assert explain(problem) == (choice.by_name()["cpu:tiles"], "timed on this machine")
    for m in (6, 8, 5):
        first(m)
    assert len(timed) == 1
    _forget()  # as another process
    assert first(5)[0] is rung
    assert len(timed) == 1
    assert tuned.remembered(choice.processor(problem)) == {
        tuned.Case("iq2_s", 64, 256, 5, 8): {"cpu:panels": 100.0, "cpu:tiles": 50.0},
    }  # fmt: skip
    first(9)
    first(200)
    assert [(case.m, rows) for case, rows in timed[1:]] == [(9, 9), (200, tuning.MOST_TIMED)]
    (record,) = (
        r for r in gq.kernels(format="iq2_s", device="cpu", shape=(64, 256), rows=7) if "tiles" in r.name
    )
    assert record.estimate == 50.0
    assert record.taken[0] == range(5, 17)


def test_a_case_that_comes_again_is_looked_up_in_a_few_steps(timed):
    first(5)
    q, x = weights("iq2_s", 64, 256, seed=3), np.ones((5, 256), np.float32)
    problem = Linear(FORMATS["iq2_s"], 5, 64, 256, device="cpu")
    for most in (40, 14):  # the first time what depends on the problem alone is found
        calls = python_calls(lambda: tuning.chosen(problem, (x, q), "auto", None))
        assert calls.total() <= most, calls
    assert len(timed) == 1


def test_a_product_takes_what_was_timed(fresh, monkeypatch):
    """The whole way, with real times of kernels whose code is at hand."""
    monkeypatch.setattr(tuning, "LEAST_WORK", 64 * 256)
    q, x = weights("q4_0", 64, 256, seed=3), fresh.standard_normal((4, 256)).astype(np.float32)
    problem = Linear(FORMATS["q4_0"], 4, 64, 256, device="cpu")
    usual = explain(problem).rung.name
    monkeypatch.setattr(choice, "shortlist", lambda problem: (usual, "cpu:dequant"))
    y = gq.linear(x, q)
    (times,) = tuned.remembered(choice.processor(problem)).values()
    assert set(times) == {usual, "cpu:dequant"}
    order = tuned.ranked(times)
    kernel = usual if order[0] == "cpu:dequant" else order[0]  # dequant is no candidate
    np.testing.assert_array_equal(y, gq.linear(x, q, kernel=kernel))


def test_rows_that_depend_on_no_others_are_chosen_without_a_clock(timed):
    """Nothing is timed for them, and times that came later do not change their bits."""
    q, x = weights("iq2_s", 64, 256, seed=3), np.ones((8, 256), np.float32)
    problem = Linear(FORMATS["iq2_s"], 8, 64, 256, device="cpu")
    before = tuning.chosen(problem, (x, q), "auto", None, invariant=True)
    assert not timed
    assert first(8)[0].name == "cpu:tiles" != before.name
    assert tuning.chosen(problem, (x, q), "auto", None, invariant=True) == before


def test_nothing_is_timed_for_what_a_caller_names_for_little_work_or_where_it_is_off(timed, monkeypatch):
    first(kernel="cpu:tiles")
    first(arithmetic="q8")
    first(fmt="f16")
    first(n=1)
    for setting in ("0", "off"):
        monkeypatch.setenv(tuned.SWITCH, setting)
        first()
    monkeypatch.delenv(tuned.SWITCH)
    first()  # a test
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    monkeypatch.setenv("CI", "true")
    first()
    monkeypatch.setenv(tuned.SWITCH, "1")
    monkeypatch.setattr(tuned, "table", lambda: {CPU: tuned.Entry({})})  # one that was measured
    first()
    assert not timed


def test_what_is_remembered_is_not_used_where_it_is_off(timed, monkeypatch):
    _, problem = first()
    assert choice.preference(problem).why == "timed on this machine"
    monkeypatch.setenv(tuned.SWITCH, "0")
    assert choice.preference(problem).why == choice.USUAL
    assert choice.estimate(problem, "cpu:tiles") is None


def test_kernels_are_timed_in_turns_on_the_operands(fresh):
    """The real thing, once: two rungs whose code is at hand, or is compiled here."""
    q, x = weights("q4_0", 32, 256, seed=1), fresh.standard_normal((40, 256)).astype(np.float32)
    problem = Linear(FORMATS["q4_0"], 80, 32, 256, device="cpu")
    names = choice.shortlist(problem)
    times = tuning.times_of(names, problem, x, q, 2)
    assert tuple(times) == names
    assert all(0 < us < 1e7 for us in times.values())


def test_the_shortlist_is_short_and_needs_no_compiler(matrix_unit):
    for fmt in ("q4_0", "iq1_m", "q8_K"):
        for m in (1, 8, 64):
            problem = Linear(FORMATS[fmt], m, 4096, 4096, device="cpu")
            names = choice.shortlist(problem)
            assert names[0] == explain(problem).rung.name
            assert len(names) <= 3
            if choice.by_name()["cpu:panels"].refuses(problem) is None:
                assert names == ("cpu:panels",)
            assert set(names) <= set(choice.candidates(problem))


def test_a_matrix_unit_is_among_those_that_are_timed(matrix_unit):
    matrix_unit(True)
    ladder.forget_choices()
    names = {m: choice.shortlist(Linear(FORMATS["q4_0"], m, 64, 64, device="cpu")) for m in (1, 8, 64)}
    if "cpu:panels" in names[1]:
        assert names == {1: ("cpu:panels",), 8: ("cpu:panels", "cpu:amx"), 64: ("cpu:amx", "cpu:panels")}


def test_a_line_is_said_on_a_terminal_alone(timed, monkeypatch, capsys):
    first()
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(tuning, "is_terminal", lambda stream: stream is sys.stderr)
    first(3)
    assert capsys.readouterr().err == (
        "ggmlq: timed for iq2_s 64×256 with up to 4 rows: cpu:panels 100 µs, cpu:tiles 50 µs\n"
    )


def test_a_damaged_entry_of_the_cache_is_as_good_as_none(place, timed):
    _, problem = first()
    (entry,) = (place / "cache" / "compiled" / "kernels").glob("cpu-tuned-*")
    entry.write_bytes(entry.read_bytes()[:-5])
    _forget()
    assert choice.preference(problem).why == choice.USUAL


# --- cards: the same frame, made-up times ---------------------------------------------------


with_rungs = pytest.mark.skipif(
    not missing.has("numba_cuda"), reason="numba-cuda is not installed (extra test-cuda)"
)


@with_rungs
def test_cards_that_were_not_measured_take_what_was_timed(monkeypatch):
    card = replace(card_named("test", "rtx 3060"), here=True)
    problem = Linear(FORMATS["q4_0"], 16, 4096, 4096, device="cuda", card=card)
    timed = ("cuda:gemv", "cuda:mma_f16", "cuda:mma_bf16")
    assert set(card_choice.shortlist(problem)) == set(card_choice.candidates(problem)) == set(timed)
    for card, name in (
        ("rtx 3060", "q3_K"),
        ("A10", "q4_0"),
    ):  # in no pack, and no gain
        other = replace(problem, card=replace(card_named("test", card), here=True), format=FORMATS[name])
        assert card_choice.shortlist(other) == ("cuda:gemv", "cuda:mma_bf16")
    processor = card_choice.processor(problem)
    assert processor == ("cuda", "NVIDIA GeForce RTX 3060", "sm_86", "", 0)
    assert not card_choice.is_measured(problem)
    tuned.remember(processor, {tuned.case_of(problem): {"cuda:gemv": 30.0, "cuda:mma_bf16": 20.0}})
    assert explain(problem).rung.name == "cuda:mma_bf16"
    assert explain(problem).why == "timed on this machine"
    assert explain(problem.with_rows(17)).why != "timed on this machine"
    for name in ("NVIDIA H200", "NVIDIA H100 PCIe"):
        hopper = replace(problem, card=card_named("test", name))
        assert card_choice.is_measured(hopper)
    there = replace(
        problem, card=card_named("test", "rtx 3060")
    )  # of the table: nothing of this machine holds
    assert explain(there).rung.name == "cuda:gemv"


@with_rungs
def test_nothing_is_timed_on_paper():
    """Cards of the table are not here."""
    problem = Linear(FORMATS["q4_0"], 16, 4096, 4096, device="cuda", card=card_named("test", "rtx 3060"))
    assert dry_run.kernels_of(problem)
    assert not tuned.remembered(card_choice.processor(problem))


# --- the command ----------------------------------------------------------------------------


def test_the_command_times_and_writes_what_the_variable_reads(place, timed, monkeypatch, capsys):
    out = place / "tuned.json"
    shapes = ["--shapes", "64x256", "32x512"]
    assert (
        main(["tune", "--formats", "iq2_s", "q4_0", *shapes, "--rows", "1", "3", "--out", str(out), "--json"])
        == 0
    )
    facts = json.loads(capsys.readouterr().out)
    assert facts["complete"]
    assert len(facts["linear"]) == 8
    assert facts["linear"][1] == {
        "format": "iq2_s", "n": 64, "k": 256, "rows": [3, 4],
        "us": {"cpu:panels": 100.0, "cpu:tiles": 50.0, "cpu:lines": 25.0},
    }  # fmt: skip
    for source in ("cache", "file"):
        _forget()
        if source == "file":
            monkeypatch.setenv(tuned.SWITCH, "0")
            monkeypatch.setenv(tuned.FILE, str(out))
        problem = Linear(FORMATS["iq2_s"], 3, 64, 256, device="cpu")
        assert choice.preference(problem).kernels[0] == "cpu:lines"
    assert choice.preference(problem).why == "timed, says tuned.json"
    assert choice.preference(Linear(FORMATS["iq2_xs"], 3, 100, 512, device="cpu")).kernels[0] == "cpu:lines"
    assert choice.preference(Linear(FORMATS["q4_0"], 5, 64, 256, device="cpu")).why == choice.USUAL
    assert choice.preference(Linear(FORMATS["q4_0"], 2, 64, 256, device="cpu")).why == choice.USUAL


def test_the_command_takes_a_model_and_shares_what_is_remembered(place, timed, capsys):
    tensors = {"a": weights("q4_0", 32, 64), "b": weights("q4_0", 32, 64), "c": np.ones((3, 4), np.float32)}
    tensors["e"] = weights("q8_0", 64, 32).reshape(2, 32, 32)
    gq.save(place / "m.gguf", tensors)
    assert main(["tune", str(place / "m.gguf"), "--rows", "7"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:5] == ["q4_0", "32", "64", "8", "cpu:lines"]
    assert lines[-1] == "remembered for This One"
    count = len(timed)
    assert main(["tune", "--share"]) == 0
    text = capsys.readouterr().out
    assert len(timed) == count
    (place / "shared.json").write_text(text)
    (entry,) = tuned.read(place / "shared.json").items()
    assert (entry[0], entry[1].times) == (choice.processor(None), tuned.remembered(choice.processor(None)))
    assert str(Path.home()) not in text
    assert os.uname().nodename not in text


def test_a_table_keeps_what_it_has_of_others(place, timed, capsys):
    """As the shipped one is made again: other processors stay, and other weights of this one."""
    out, words = place / "table.json", ["--shapes", "32x256", "--rows", "1", "--out"]
    old = {tuned.Case(name, 32, 256, 1, None): {"cpu:tiles": None} for name in ("q4_0", "q8_0")}
    other = CPU._replace(compiled_for="another")
    before = {other: tuned.Entry(old, "before"), choice.processor(None): tuned.Entry(old, "before")}
    out.write_text(tuned.text_of(before))
    assert main(["tune", "--formats", "q8_0", *words, str(out)]) == 0
    table = tuned.read(out)
    assert table[other] == before[other]
    assert [case[3:] for case in table[choice.processor(None)].times] == [(1, None), (1, 1)]
    words[3:3] = ["2", "9"]
    assert main(["tune", "--formats", "q8_0", *words, str(out)]) == 0
    spans = [case[3:] for case in tuned.read(out)[choice.processor(None)].times if case.format == "q8_0"]
    assert spans == [(1, 1), (2, 2), (9, 16)]
    words[3:5] = []
    assert main(["tune", "--formats", "all", *words, str(out)]) == 0
    assert len(tuned.read(out)[choice.processor(None)].times) == len(BLOCK_FORMATS) + 2
    out.write_text("mine")
    capsys.readouterr()
    assert main(["tune", "--formats", "q8_0", *words, str(out)]) == 2
    assert "is no table to add to" in " ".join(capsys.readouterr().err.split())
    assert out.read_text() == "mine"


def test_ctrl_c_keeps_what_was_timed(place, timed, monkeypatch, capsys):
    times_of = tuning.times_of

    def interrupted(names, problem, x, q, turns=3):
        if timed:
            raise KeyboardInterrupt
        return times_of(names, problem, x, q, turns)

    monkeypatch.setattr(tuning, "times_of", interrupted)
    out = place / "tuned.json"
    assert main(["tune", "--formats", "q4_0", "--shapes", "32x64", "--out", str(out)]) == 130
    assert capsys.readouterr().out.splitlines()[-1] == f"remembered for This One, written to {out}"
    assert len(tuned.read(out)[choice.processor(None)].times) == 1


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--device", "tpu"], "no such device; devices are cpu, cuda"),
        (["--formats", "q4_K", "--shapes", "64x100"], "rows are whole blocks of 256"),
        (["--formats", "f16"], "only blocks are timed"),
        (["model.gguf", "--formats", "q4_0"], "a model has its formats and shapes"),
        (["--share", "--json"], "--share prints JSON already"),
        (
            ["--out", "/no/such/folder/x.json", "--formats", "q4_0", "--shapes", "32x32", "--rows", "1"],
            "system refused",
        ),
    ],
)
def test_the_command_refuses(words, text, timed, capsys):
    assert main(["tune", *words]) == 2
    assert text in " ".join(capsys.readouterr().err.split())


# --- files from anybody ---------------------------------------------------------------------

ROW = {"format": "q4_0", "n": 64, "k": 64, "rows": [3, 4], "us": {"cpu:panels": 1.0}}
PROCESSOR = {
    "device": "cpu", "name": "A", "compiled_for": "a", "dot": "", "threads": 2, "at": "0", "linear": [ROW],
}  # fmt: skip
WHOLE = {"kind": tuned.KIND, "format": tuned.VERSION, "processors": [PROCESSOR]}


def changed(**fields):
    return {**WHOLE, "processors": [{**PROCESSOR, "linear": [{**ROW, **fields}]}]}


BAD = {
    "no JSON": b"{",
    "no object": [1],
    "another kind": {**WHOLE, "kind": "other"},
    "another version": {**WHOLE, "format": 1},
    "a bool for a number": {**WHOLE, "format": True},
    "a field too many": {**WHOLE, "run": "rm"},
    "a field missing": {k: v for k, v in WHOLE.items() if k != "processors"},
    "many processors": {**WHOLE, "processors": [PROCESSOR] * (tuned.MAX_PROCESSORS + 1)},
    "a name with escapes": {**WHOLE, "processors": [{**PROCESSOR, "name": "\x1b[2J"}]},
    "a long name": {**WHOLE, "processors": [{**PROCESSOR, "name": "x" * 201}]},
    "threads as text": {**WHOLE, "processors": [{**PROCESSOR, "threads": "2"}]},
    "an unknown format": changed(format="q9_9"),
    "floats": changed(format="f32"),
    "a torn block": changed(k=65),
    "a negative shape": changed(n=-1),
    "a huge shape": changed(n=1 << 40),
    "rows of one number": changed(rows=4),
    "rows that fall": changed(rows=[4, 3]),
    "rows of nothing": changed(rows=[0, 1]),
    "rows without a first": changed(rows=[None, 4]),
    "half rows": changed(rows=[1, 1.5]),
    "rows that are true": changed(rows=[True, 4]),
    "three rows": changed(rows=[1, 2, 3]),
    "many rows": changed(rows=[1, 1 << 31]),
    "no times": changed(us={}),
    "many times": changed(us={f"cpu:k{i}": 1.0 for i in range(65)}),
    "a path for a kernel": changed(us={"cpu:../x": 1.0}),
    "a negative time": changed(us={"cpu:panels": -1.0}),
    "a time as text": changed(us={"cpu:panels": "1"}),
    "infinity": json.dumps(changed(us={"cpu:panels": 0.5})).replace("0.5", "Infinity").encode(),
    "1e999": json.dumps(changed(us={"cpu:panels": 0.5})).replace("0.5", "1e999").encode(),
    "NaN": json.dumps(changed(us={"cpu:panels": 0.5})).replace("0.5", "NaN").encode(),
    "deep": b"[" * 100_000,
    "large": b" " * (tuned.MAX_FILE_BYTES + 1),
    "no UTF-8": b"\xff\xfe\x00",
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_refused_in_words(place, case):
    path = place / "tuned.json"
    content = BAD[case]
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    with pytest.raises(
        gq.GGMLQError, match=r"^GGMLQ_TUNE=.*tuned.json: .*; the file is not used; write one with"
    ) as e:
        tuned.read(path)
    assert str(e.value).isprintable()
    assert len(str(e.value)) < 2000


def test_a_good_file_is_read_and_a_missing_one_is_an_error(place, monkeypatch):
    path = place / "tuned.json"
    path.write_text(json.dumps(WHOLE))
    times = {tuned.Case("q4_0", 64, 64, 3, 4): ROW["us"]}
    assert tuned.read(path) == {tuned.Processor("cpu", "A", "a", "", 2): tuned.Entry(times, "0")}
    monkeypatch.setenv(tuned.FILE, str(place / "none.json"))
    with pytest.raises(gq.GGMLQError, match=r"none\.json: the file cannot be read: .*leave the variable out"):
        first(fmt="q4_0", k=64)
    monkeypatch.setenv(tuned.FILE, str(path))
    first(fmt="q4_0", k=64)  # times of another CPU


def test_a_pipe_is_not_waited_for(place):
    if not hasattr(os, "mkfifo"):
        pytest.skip("this system has no pipes with names")
    os.mkfifo(place / "pipe")
    with pytest.raises(gq.GGMLQError, match="no regular file; the file is not used"):
        tuned.read(place / "pipe")


def test_random_changes_of_a_file_are_read_or_refused(place, fresh, rounds, monkeypatch):
    """Never another error, and never a kernel that is not among the candidates."""
    entries = {CPU: tuned.Entry({tuned.Case("q4_0", 64, 64, 3, 4): {"cpu:naive": 1.0}}, "0")}
    text = tuned.text_of(entries).encode()
    path = place / "tuned.json"
    for _ in rounds(0.3):
        bad = bytearray(text)
        for at in fresh.integers(0, len(bad), int(fresh.integers(0, 4))).tolist():
            bad[at] = int(fresh.integers(32, 127))
        path.write_bytes(bad)
        with contextlib.suppress(gq.GGMLQError):
            tuned.read(path)
    path.write_bytes(text)
    _forget()
    problem = Linear(FORMATS["q4_0"], 4, 64, 64, device="cpu")
    monkeypatch.setenv(tuned.FILE, str(path))
    assert tuned.preference(problem, CPU, lambda problem: ["cpu:naive"], NOTHING).kernels == ("cpu:naive",)
    assert tuned.preference(problem, CPU, choice.candidates, NOTHING) is NOTHING
