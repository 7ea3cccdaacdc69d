"""What ``kernel="auto"`` takes on a CPU: what was measured on such a one, or what is usual."""

from __future__ import annotations

import numpy as np
import pytest
from block_cases import weights
from right import assert_right

import ggmlq as gq
from ggmlq.arrays.rows import rows
from ggmlq.cpu import choice
from ggmlq.cpu.machine.target import target
from ggmlq.cpu.panels.layout import layout_of
from ggmlq.dispatch import ladder, tuned
from ggmlq.dispatch.ladder import choose, explain, rungs
from ggmlq.dispatch.problems import Linear
from ggmlq.formats import BLOCK_FORMATS, FORMATS

HERE = tuned.Processor("cpu", "This One", "thisone", target().dot)
ENTRY = tuned.Entry(
    {
        tuned.Case("iq2_s", 64, 256, 1, 2): {"cpu:lines": None, "cpu:tiles": None},
        tuned.Case("iq2_s", 64, 256, 3, None): {"cpu:tiles": 1.0, "cpu:gone": 2.0},
    },
    "abc",
)


@pytest.fixture(autouse=True)
def entries(monkeypatch):
    """What was measured: nothing yet."""
    found = {}
    monkeypatch.setattr(tuned, "table", lambda: found)
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
    for known in ({}, {HERE: ENTRY}):
        entries |= known
        ladder.forget_choices()
        for m in (choice.MATRIX_ROWS - 1, choice.MATRIX_ROWS, 512):
            found = explain(problem("iq2_s", m))
            assert (found.rung.name == choice.MATRIX) is (matrix and m >= choice.MATRIX_ROWS)
            assert (found.why == choice.MATRIX_FIRST) is (found.rung.name == choice.MATRIX)
        assert choose(problem("iq2_s", 512), arithmetic="q8").name != choice.MATRIX
        assert explain(problem("f16", 512)).why != choice.MATRIX_FIRST


def test_on_a_known_one_what_was_measured(entries, no_matrix_unit):
    entries[HERE] = ENTRY
    assert {m: choose(problem("iq2_s", m)).name for m in (1, 2, 3, 512)} == {
        1: "cpu:lines", 2: "cpu:lines", 3: "cpu:tiles", 512: "cpu:tiles",
    }  # fmt: skip
    assert explain(problem("iq2_s", 3)).why == "measured on This One at abc"
    assert explain(problem("iq2_xs", 3)).why == "measured on This One at abc with iq2_s"
    assert explain(problem("f16", 3)).rung.name == "cpu:floats"
    assert "measured on This One at abc" in repr(gq.kernels(format="iq2_s", device="cpu"))


@pytest.mark.parametrize("other", [{"compiled_for": "another"}, {"dot": "another"}])
def test_an_entry_of_another_cpu_says_nothing(entries, other):
    entries[HERE._replace(**other)] = ENTRY
    assert explain(problem("iq2_s", 3)).why == choice.USUAL


def test_lines_take_many_rows_too():
    """Up to how many it pays is no reason to refuse."""
    q, x = weights("iq2_s", 33, 1024, seed=3), rows("normal", 70, 1024, seed=1)
    y = gq.linear(x, q, kernel="cpu:lines")
    assert_right(y, x, q, next(rung for rung in rungs("linear", "cpu") if rung.name == "cpu:lines"))


def test_no_two_arithmetics_are_compared(no_matrix_unit):
    """By ``ggmlq tune``, which makes the table."""
    for name in ("q4_0", "q6_K", "iq2_s"):
        for m in (1, 64):
            compared = [choice.by_name()[kernel] for kernel in choice.candidates(problem(name, m))]
            assert {rung.arithmetic for rung in compared if rung.name != choice.MATRIX} == {"q8"}
            assert compared[0] is choose(problem(name, m))


def test_what_is_usual_stays_where_the_difference_is_noise():
    assert tuned.ranked({"a": 1.0, "b": 0.95}) == ["a", "b"]
    assert tuned.ranked({"a": 1.0, "b": 0.5}) == ["b", "a"]
    assert tuned.ranked({"a": 1.0, "b": 0.95, "c": 0.8}) == ["c", "a", "b"]
    assert tuned.ranked({"a": 1.0, "b": 9.0}) == ["a", "b"]  # who comes next where the first refuses


# --- the table that ships ---------------------------------------------------------------------


def test_the_table_is_whole():
    known = tuned.read(tuned.TABLE)
    names = {rung.name: rung for rung in rungs("linear", "cpu")}
    assert known
    for processor, (cases, at) in known.items():
        assert processor.device == "cpu"
        assert at
        assert {case.format for case in cases} == {fmt.name for fmt in BLOCK_FORMATS}
        shapes = {case[:3] for case in cases}
        for shape in shapes:
            spans = [case[3:] for case in cases if case[:3] == shape]
            assert [first for first, _ in spans] == [1, *(last + 1 for _, last in spans[:-1])]
            assert spans[-1][1] is None
        for kernels in cases.values():
            assert {names[kernel].arithmetic for kernel in kernels} - {"bf16"} == {"q8"}


def test_a_product_by_the_table_is_right(entries):
    for entry in tuned.read(tuned.TABLE).values():
        entries[HERE] = entry
        ladder.forget_choices()
        for m in (1, 6, 40):
            q, x = weights("iq3_xxs", 33, 512, seed=m), np.float32(rows("normal", m, 512, seed=m))
            assert_right(gq.linear(x, q), x, q)
