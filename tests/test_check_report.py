"""The output of `ggmlq check`: lines, votes, what right cases say, and how many cases are diagnosed."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from test_diagnose import some

import ggmlq as gq
from ggmlq.check import report
from ggmlq.check.cases import Case
from ggmlq.check.judge import judge
from ggmlq.check.outcome import Outcome
from ggmlq.check.report import contrasts
from ggmlq.check.run import Diagnoser
from ggmlq.faults.blocks.operand import operand
from ggmlq.llama.bridge import Measurement
from ggmlq.llama.guards import UNWRITTEN


def outcome(verdict="ok", shape=(9, 64, 1024), data="normal", name="q4_0", **more):
    return Outcome(Case(gq.formats[name], *shape, data), verdict, "ggml-cpu", 1e-13, 1e-4, **more)


def printed(outcomes, every=False):
    said = []
    lines = report.Lines(said.append, every=every)
    for one in outcomes:
        lines.add(one)
    lines.close()
    return said


def test_right_cases_of_a_type_share_a_line():
    outcomes = [outcome(), outcome(shape=(1, 1, 32)), outcome(layout="AMX"), outcome(name="q8_0")]
    said = printed(outcomes)
    assert len(said) == 3
    assert said[0].split()[:3] == ["q4_0", "2", "cases"]
    assert "ok (AMX)" in said[1]
    assert len(printed(outcomes, every=True)) == 4
    assert report.last_sentence(outcomes) == "4 cases, all right."


def test_wrong_cases_that_were_not_diagnosed_have_a_line_and_then_share_one():
    wrong = [outcome("wrong", fault="nan", text="why")] + [outcome("wrong")] * 20
    said = printed([*wrong, outcome()])
    assert sum(len(part.splitlines()) for part in said) < 16
    assert "15 more cases WRONG" in said[-2]
    assert said[1].endswith("WRONG")
    assert report.last_sentence(wrong) == "21 cases, 21 of them not right."
    assert report.votes(wrong) == "nan in 1 of 1 diagnosed"


def test_reasons_that_are_alike_are_told_once():
    idle = [
        outcome("not run", name=name, text=f"mul_mat of {name} weights: the device does not")
        for name in ("q4_0", "q4_0", "q8_0")
    ]
    assert report.reasons(idle) == ["q4_0, q8_0 in 3 cases: the device does not"]


@pytest.mark.parametrize(
    ("wrong", "right", "words"),
    [
        ([{"data": "normal"}] * 2, [{"data": "constant"}] * 2, "right where all activations"),
        ([{"shape": (9, 64, 512), "name": "q4_K"}] * 2, [{"shape": (9, 64, 256), "name": "q4_K"}] * 2,
         "right where K is one block"),
        ([{"shape": (33, 64, 512)}] * 2, [{"shape": (8, 64, 512)}] * 2, "wrong from 33 rows of"),
        ([{"threads": 32}] * 2, [{"threads": 1}, {"threads": 2}], "wrong from 32 threads on, right up to 2"),
        ([{"layout": "AMX"}] * 2, [{}] * 2, "wrong only in AMX"),
        ([{"shape": (9, 33, 512)}] * 2, [{"shape": (9, 64, 512)}] * 2, "only where N is no multiple of 32"),
        ([{"data": "huge"}] * 2, [{"data": "normal"}] * 2, "wrong only with huge activations"),
    ],
)  # fmt: skip
def test_right_cases_say_something_of_wrong_ones(wrong, right, words):
    outcomes = [outcome("wrong", **more) for more in wrong] + [outcome(**more) for more in right]
    assert words in " ".join(contrasts(outcomes))
    assert not contrasts([outcome(**more) for more in right])


# --- how much is diagnosed ------------------------------------------------------------------


def product(weights=None, m=9, k=128, **settings):
    """A product of q4_0 whose kernel multiplies with other weights; one alone where a race is threads'."""
    x, q = some("q4_0", m, 16, k)
    how = SimpleNamespace(backend="CPU", repack=False, arithmetic=None, threads=4, **settings)
    dense = operand(q.format, q.blocks).dense if weights is None else weights(q)

    def multiply(x, *, threads=None, repeats=1):
        y = (x @ dense.T).astype(np.float32)
        return Measurement(y, (y,) * (repeats - 1), (), "CPU")

    case = Case(q.format, m, 16, k)
    arrays = {"x": x, "raw": q.raw}
    return SimpleNamespace(case=case, x=x, q=q, ids=None, how=how, multiply=multiply, arrays=arrays)


def halved(q):
    """Weights that no entry of the list explains: every seventh code is another's."""
    dense = operand(q.format, q.blocks).dense.copy()
    dense[:, ::7] = np.roll(dense, 5, axis=0)[:, ::7] * 1.25
    return dense


def bad(made, result):
    judged = judge(result.y, made.x, made.q, ["f32"], ~result.unwritten)
    return Outcome(
        made.case, "wrong", "f32", judged.distance, out=judged.out, unwritten=int(result.unwritten.sum())
    )


def test_an_unknown_fault_has_its_weights_read_once():
    diagnoser, told = Diagnoser(), []
    for _ in range(4):
        made = product(halved)
        result = made.multiply(made.x)
        told.append(diagnoser.diagnosed(bad(made, result), made, result))
    assert [one.fault for one in told] == ["unknown"] * 2 + [""] * 2
    assert sum("Fed with unit vectors" in one.text for one in told) == 1
    assert "k 0, 7, 14" in told[0].text
    assert all("raw" in one.arrays for one in told)


def test_a_fault_that_came_twice_is_told_no_more():
    diagnoser, told = Diagnoser(), []
    for _ in range(4):
        made = product(lambda q: np.roll(operand(q.format, q.blocks).dense, 1, axis=0)[:, :])
        result = made.multiply(made.x)
        told.append(diagnoser.diagnosed(bad(made, result), made, result))
    assert [one.fault for one in told] == ["rows-permuted"] * 2 + [""] * 2
    assert [one.text == "" for one in told] == [False] * 2 + [True] * 2
    assert told[1].text.startswith("Here:")


def test_what_was_never_written_is_the_fault_and_the_rest_is_right():
    made = product()
    y = made.multiply(made.x).y
    y[:, 15].view(np.uint32)[:] = UNWRITTEN
    result = Measurement(y, (), (), "CPU")
    one = bad(made, result)
    assert one.out == 0
    told = Diagnoser().diagnosed(one, made, result)
    assert told.fault == "unwritten"
    assert "the last of 16 columns" in told.text


@pytest.mark.parametrize(("weights", "words"), [(None, "it is the threads that race"), (halved, "but wrong")])
def test_a_race_is_run_with_one_thread(weights, words):
    made = product(weights, m=4, k=64)
    y = made.multiply(made.x).y
    other = y.copy()
    other[3:] += 1
    result = Measurement(other, (y, other), (), "CPU")
    told = Diagnoser().diagnosed(bad(made, result), made, result)
    assert told.fault == "race"
    assert words in told.text
    assert "compute-sanitizer" not in told.text
