"""What ``kernel="auto"`` takes on a CPU: what was measured on such a one, or what is usual."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scripts import load

import ggmlq as gq
from ggmlq.arrays.rows import rows
from ggmlq.base import threads
from ggmlq.cpu import choice
from ggmlq.cpu.machine.target import target
from ggmlq.cpu.panels.layout import layout_of
from ggmlq.dispatch import ladder, tuned
from ggmlq.dispatch.ladder import choose, explain, rungs
from ggmlq.dispatch.problems import Linear
from ggmlq.formats import FORMATS, BlockFormat
from ggmlq.testing.cases import weights
from ggmlq.testing.oracle import assert_right

table = load("tools", "table")
cpu_choice = load("tools", "tables.cpu_choice")
HERE = choice.Cpu("This One", "thisone", target().dot)
SPANS = [[2, ["cpu:lines", "cpu:tiles"]], [None, ["cpu:tiles", "cpu:gone"]]]
ROW = {"format": "iq2_s", "N": 64, "K": 256, "up to": SPANS}
ENTRY = {**HERE._asdict(), "commit": "abc", "linear": [ROW]}


@pytest.fixture(autouse=True)
def entries(monkeypatch):
    """What was measured: nothing yet."""
    found = []
    monkeypatch.setattr(choice, "table", lambda: found)
    monkeypatch.setattr(choice, "here", lambda: HERE)
    ladder.forget_choices()
    yield found
    ladder.forget_choices()


@pytest.fixture(params=[True, False], ids=["matrix unit", "none"])
def matrix(request, matrix_unit):
    """A CPU that may use a matrix unit, and one that may not."""
    matrix_unit(request.param)
    return request.param


@pytest.fixture
def no_matrix_unit(matrix_unit):
    matrix_unit(False)


def problem(name, m):
    return Linear(FORMATS[name], m, 4096, 4096, device="cpu")


def test_on_an_unknown_cpu_the_highest_but_few_rows_for_lines(no_matrix_unit):
    for m in (1, 3, 4, 512):
        order = choice.usual(problem("iq2_s", m))
        assert ("cpu:lines" in order) is (m <= 3)
        assert choice.MATRIX not in order
        found = explain(problem("iq2_s", m))
        assert (found.rung.name, found.why) == (order[not target().shuffles], choice.USUAL)
    assert choose(problem("f16", 512)).name == "cpu:dequant"
    assert choose(problem("q4_0", 512), arithmetic="f32").name == "cpu:dequant"


@pytest.mark.skipif(layout_of(FORMATS["iq2_s"]) is None, reason="a matrix unit reads panels")
def test_a_matrix_unit_is_taken_with_many_rows_on_any_cpu(entries, matrix):
    for known in ([], [ENTRY]):
        entries[:] = known
        ladder.forget_choices()
        for m in (choice.MATRIX_ROWS - 1, choice.MATRIX_ROWS, 512):
            found = explain(problem("iq2_s", m))
            assert (found.rung.name == choice.MATRIX) is (matrix and m >= choice.MATRIX_ROWS)
            assert (found.why == choice.MATRIX_FIRST) is (found.rung.name == choice.MATRIX)
        assert choose(problem("iq2_s", 512), arithmetic="q8").name != choice.MATRIX
        assert explain(problem("f16", 512)).why != choice.MATRIX_FIRST


def test_on_a_known_one_what_was_measured(entries, no_matrix_unit):
    entries.append(ENTRY)
    assert {m: choose(problem("iq2_s", m)).name for m in (1, 2, 3, 512)} == {
        1: "cpu:lines", 2: "cpu:lines", 3: "cpu:tiles", 512: "cpu:tiles",
    }  # fmt: skip
    assert explain(problem("iq2_s", 3)).why == "measured on This One at abc"
    assert explain(problem("iq2_xs", 3)).why == "measured on This One at abc with iq2_s"
    assert explain(problem("f16", 3)).rung.name == "cpu:floats"
    assert "measured on This One at abc" in repr(gq.kernels(format="iq2_s", device="cpu"))


@pytest.mark.parametrize("other", [{"compiled_for": "another"}, {"dot": "another"}])
def test_an_entry_of_another_cpu_says_nothing(entries, other):
    entries.append({**ENTRY, **other})
    assert explain(problem("iq2_s", 3)).why == choice.USUAL


def test_lines_take_many_rows_too():
    """Up to how many it pays is no reason to refuse."""
    q, x = weights("iq2_s", 33, 1024, seed=3), rows("normal", 70, 1024, seed=1)
    y = gq.linear(x, q, kernel="cpu:lines")
    assert_right(y, x, q, next(rung for rung in rungs("linear", "cpu") if rung.name == "cpu:lines"))


def test_no_two_arithmetics_are_compared(no_matrix_unit):
    for name in ("q4_0", "q6_K", "iq2_s"):
        for m in (1, 64):
            compared = cpu_choice.candidates(problem(name, m))
            assert {rung.arithmetic for rung in compared if rung.name != choice.MATRIX} == {"q8"}
            assert compared[0] is choose(problem(name, m))


def test_what_is_usual_stays_where_the_difference_is_noise():
    assert tuned.ranked({"a": 1.0, "b": 0.95}) == ["a", "b"]
    assert tuned.ranked({"a": 1.0, "b": 0.5}) == ["b", "a"]
    assert tuned.ranked({"a": 1.0, "b": 0.95, "c": 0.8}) == ["c", "a", "b"]
    assert tuned.ranked({"a": 1.0, "b": 9.0}) == ["a", "b"]  # who comes next where the first refuses


def test_the_tool_measures_and_writes(entries, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(table, "ROOT", tmp_path)
    monkeypatch.setattr(choice, "TABLE", tmp_path / "ggmlq" / "cpu" / "choice.json")
    choice.TABLE.parent.mkdir(parents=True)
    monkeypatch.setattr(cpu_choice, "SIZE", 512)
    before = threads.num_threads()
    try:
        for name in ("tq2_0", "q8_0"):
            table.main(["cpu_choice", "--formats", name, "--rows", "1", "4", "--turns", "1"])
    finally:
        gq.set_num_threads(before)
    (entry,) = json.loads(choice.TABLE.read_text())["cpus"]
    assert choice.fits(entry, HERE)
    assert [row["format"] for row in entry["linear"]] == ["q8_0", "tq2_0"]
    assert "tq2_0    M    4  ms: " in capsys.readouterr().out


# --- the table that ships ---------------------------------------------------------------------


def test_the_table_is_whole():
    known = json.loads(choice.TABLE.read_text())["cpus"]
    names = {rung.name: rung for rung in rungs("linear", "cpu")}
    assert known
    for cpu in known:
        assert {"cpu", "compiled_for", "dot", "commit", "date", "linear"} <= set(cpu)
        assert {row["format"] for row in cpu["linear"]} == {
            fmt.name for fmt in FORMATS.values() if isinstance(fmt, BlockFormat)
        }
        for row in cpu["linear"]:
            ends = [math.inf if most is None else most for most, _ in row["up to"]]
            assert ends == sorted(set(ends))
            assert ends[-1] == math.inf
            for _, kernels in row["up to"]:
                assert {names[kernel].arithmetic for kernel in kernels} - {"bf16"} == {"q8"}


def test_a_product_by_the_table_is_right(entries):
    entries += [{**cpu, **HERE._asdict()} for cpu in json.loads(choice.TABLE.read_text())["cpus"]]
    for m in (1, 6, 40):
        q, x = weights("iq3_xxs", 33, 512, seed=m), np.float32(rows("normal", m, 512, seed=m))
        assert_right(gq.linear(x, q), x, q)
