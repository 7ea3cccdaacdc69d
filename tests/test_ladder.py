"""The ladder with several rungs: which one is chosen, and what is listed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.dispatch import ladder, listing, tuned
from ggmlq.dispatch.ladder import Problem, choose, explain, register, rungs
from ggmlq.dispatch.problems import Linear
from ggmlq.formats import FORMATS

Q4_0, Q8_0 = FORMATS["q4_0"], FORMATS["q8_0"]


@pytest.fixture
def fake(monkeypatch):
    """Three rungs beside the real ones: a slow one, a fast one for q4_0 only, and one on the GPU."""
    rungs("linear", "cpu"), rungs("linear", "cuda")  # load the real ones first
    monkeypatch.setattr(ladder, "_RUNGS", dict(ladder._RUNGS))
    monkeypatch.setattr(tuned, "table", dict)  # this CPU was not measured
    ladder.forget_choices()
    only_q4_0 = lambda problem: None if problem.format is Q4_0 else "is written for q4_0"

    def make(stem, device="cpu", **facts):
        facts = {"arithmetic": "f32", "accumulate": "f32", **facts}
        module = f"{ladder.package_of('linear', device)}.{stem}"
        return register(module, f"Teach {stem}.\n\nMore.", **facts)(lambda x, q, out: out.fill(1))

    yield {
        "fast": make("r9_fast", refuses=only_q4_0),
        "slow": make("r8_slow", arithmetic="q8", accumulate="int32"),
        "gpu": make("r9_gpu", device="cuda"),
    }
    ladder.forget_choices()


def problem(fmt, device="cpu"):
    return Linear(fmt, 4, 8, 32, device=device)


def test_a_rung_is_named_by_its_file(fake):
    fast = fake["fast"]
    assert (fast.name, fast.op, fast.device, fast.level, fast.teaches) == (
        "cpu:fast", "linear", "cpu", 9, "Teach r9_fast.",
    )  # fmt: skip


ALONE = {"linear": 11, "scaled_linear": 3, "expert_linear": 3}  # the last rung that teaches, by operation


@pytest.mark.parametrize("op", ALONE)
def test_a_rung_that_teaches_stands_alone(op):
    """A learner reads one file: nothing of another rung is in it by import."""
    imported = re.compile(r"^from [\w.]* import .*\br\d+_|^from [\w.]*\.r\d+_", re.MULTILINE)
    for path in (ladder.PACKAGE / "cuda" / "ladder" / op).glob("r[0-9]*.py"):
        if int(path.stem[1:].partition("_")[0]) <= ALONE[op]:
            assert not imported.search(path.read_text("utf-8")), path


def test_the_highest_that_does_not_refuse(fake):
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")
    assert choose(problem(Q4_0)) is fake["fast"]
    assert choose(problem(Q8_0)) is fake["slow"]
    assert choose(problem(Q4_0, "cuda")).device == "cuda"


def test_by_name_and_by_arithmetic(fake):
    assert choose(problem(Q4_0), "cpu:slow") is fake["slow"]
    assert choose(problem(Q4_0), arithmetic="q8") is fake["slow"]
    assert choose(problem(Q8_0), arithmetic="f32").name == "cpu:dequant"


def test_a_refusal_lists_every_reason(fake):
    with pytest.raises(gq.GGMLQError) as error:
        choose(problem(Q8_0), "cpu:fast")
    for words in ("cpu:fast: is written for q4_0", "cpu:slow: not the one asked for", "cpu:dequant: not"):
        assert words in str(error.value)


def test_linear_runs_the_chosen_one(fake):
    x = np.zeros((3, 32), np.float32)
    q = gq.quantize(np.ones((2, 32), np.float32), "q4_0")
    assert (x @ q.T == 1).all()
    assert (gq.linear(x, q, kernel="cpu:dequant") == 0).all()


def test_the_list_goes_up_and_is_filtered(fake):
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")
    names = [rung.name for rung in gq.kernels(device="cpu")]
    assert names[0] == "cpu:naive"
    assert names[-2:] == ["cpu:slow", "cpu:fast"]
    levels = [rung.level for rung in gq.kernels(device="cpu")]
    assert levels == sorted(levels)
    assert "cpu:fast" not in [rung.name for rung in gq.kernels(format="q8_0")]
    assert "cpu:fast" in [rung.name for rung in gq.kernels(format="q4_0", device="cpu:0")]
    assert "cuda:gpu" in [rung.name for rung in gq.kernels()]
    assert "cuda:gpu" not in names
    assert "Teach r8_slow." in repr(gq.kernels())


def test_the_print_tells_lessons_from_what_is_taken(fake):
    rungs = gq.kernels(device="cpu")
    assert any(rung.taken for rung in rungs)
    assert "A kernel without any is a lesson" in repr(rungs)
    rungs[:] = [rung for rung in rungs if rung.taken]
    assert "lesson" not in repr(rungs)


# --- another operation --------------------------------------------------------------------------


@pytest.fixture
def sorting(monkeypatch):
    """An operation that nobody has thought of, with a kind of problem and one rung of its own."""
    monkeypatch.setattr(ladder, "KINDS", dict(ladder.KINDS))
    monkeypatch.setattr(ladder, "_RUNGS", dict(ladder._RUNGS))
    monkeypatch.setattr(listing, "KINDS", ladder.KINDS)

    @dataclass(frozen=True)
    class Sorting(Problem, op="sorting"):
        length: int
        falling: bool = False

        setting: ClassVar[str] = "whole numbers"

        def __str__(self):
            return f"sorting[{self.length}{', falling' * self.falling}, {self.device}]"

        @property
        def case(self):
            return f"{self.length} of them"

        @classmethod
        def shown(cls, format, device, card, shape=None):
            return [cls(length, device=device, card=card) for length in (10, 1000)]

    @register(
        "ggmlq.cpu.sorting.r0_bubble", "Swap neighbours.", arithmetic="exact", accumulate="none",
        refuses=lambda problem: "only rises" if problem.falling else None,
    )  # fmt: skip
    def launch(numbers, *, key):
        numbers.sort(key=key)

    yield Sorting
    ladder.forget_choices()


def test_another_operation_has_a_ladder(sorting):
    rung, why = explain(sorting(3, device="cpu"))
    assert (rung.op, rung.name, rung.level, why) == ("sorting", "cpu:bubble", 0, ladder.HIGHEST)
    numbers = [3, -5, 4]
    rung.launch(numbers, key=abs)
    assert numbers == [3, 4, -5]
    assert rungs("linear", "cpu")[0].name == "cpu:naive"


def test_another_operation_is_refused_in_its_own_words(sorting):
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")
    for asked, words in [
        (sorting(3, True, device="cpu"), r"sorting\[3, falling, cpu\].*cpu:bubble: only rises"),
        (sorting(3, device="cuda"), r"sorting\[3, cuda\].*no kernel for cuda arrays; .* host arrays move"),
    ]:
        with pytest.raises(gq.GGMLQError, match=words):
            choose(asked)
    with pytest.raises(gq.GGMLQError, match="the operands are cpu arrays; pass CuPy arrays"):
        choose(sorting(3, device="cpu"), "cuda:bubble")


def test_another_operation_is_listed(sorting):
    assert [rung.name for rung in gq.kernels("sorting")] == ["cpu:bubble"]
    found = gq.kernels("sorting", format="anything", device="cpu")
    assert [(taken.problem.length, taken.kernel) for taken in found.auto] == [
        (10, "cpu:bubble"), (1000, "cpu:bubble"),
    ]  # fmt: skip
    assert "whole numbers" in repr(found)
    assert "auto, 10 of them" in repr(found)
    with pytest.raises(gq.GGMLQError, match="has expert_linear, gru, linear, scaled_linear, sorting"):
        gq.kernels("sifting")


def test_two_kinds_never_share_a_cached_choice(sorting):
    """Fields may be equal; the kind of problem is part of the key."""
    q8 = Linear(Q8_0, 4, 8, 32, device="cpu")
    assert choose(sorting(Q8_0, device="cpu")).op == "sorting"
    assert choose(q8).op == "linear"
