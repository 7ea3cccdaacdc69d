"""The ladder with several rungs: which one is chosen, and what is listed."""

from __future__ import annotations

import numpy as np
import pytest

import ggmlq as gq
from ggmlq import ladder
from ggmlq.formats import FORMATS
from ggmlq.ladder import Problem, choose, register, rungs

Q4_0, Q8_0 = FORMATS["q4_0"], FORMATS["q8_0"]


@pytest.fixture
def fake(monkeypatch):
    """Three rungs beside the real ones: a slow one, a fast one for q4_0 only, and one on the GPU."""
    rungs("linear", "cpu"), rungs("linear", "cuda")  # load the real ones first
    monkeypatch.setattr(ladder, "_RUNGS", dict(ladder._RUNGS))
    only_q4_0 = lambda problem: None if problem.format is Q4_0 else "is written for q4_0"

    def make(stem, device="cpu", **facts):
        facts = {"arithmetic": "f32", "accumulate": "f32", **facts}
        module = f"ggmlq.{device}.linear.{stem}"
        return register(module, f"Teach {stem}.\n\nMore.", **facts)(lambda x, q, out: out.fill(1))

    return {
        "fast": make("r9_fast", refuses=only_q4_0),
        "slow": make("r8_slow", arithmetic="q8", accumulate="int32"),
        "gpu": make("r9_gpu", device="cuda"),
    }


def problem(fmt, device="cpu"):
    return Problem("linear", fmt, 4, 8, 32, device)


def test_a_rung_is_named_by_its_file(fake):
    fast = fake["fast"]
    assert (fast.name, fast.op, fast.device, fast.level, fast.teaches) == (
        "cpu:fast", "linear", "cpu", 9, "Teach r9_fast.",
    )  # fmt: skip


def test_the_highest_that_does_not_refuse(fake):
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
