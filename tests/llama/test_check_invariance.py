"""``ggmlq check --invariance``: what bits of a row depend on, for known functions and for real ones."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ggmlq.check import invariance
from ggmlq.check.invariance import OURS, PROMISE, Subject, examine
from ggmlq.cli import main
from ggmlq.errors import GGMLQError, UnsupportedError
from ggmlq.llama import Bridge


def subject(run, op="f"):
    """A function of rows as a subject."""
    return Subject(op, "f32", OURS, run, 40)


def test_what_bits_depend_on():
    same = examine(subject(lambda x, threads: x * 2))
    assert same.invariant
    assert not same.broken
    wide = examine(subject(lambda x, threads: x * (2 if len(x) < 9 else 3)))
    assert wide.beside == (9, 16, 17, 33, 64, 65)
    assert (wide.place, wide.threads, wide.invariant) == ((), (), False)
    odd = examine(subject(lambda x, threads: x + np.arange(len(x), dtype=np.float32)[:, None] % 8))
    assert odd.place == invariance.PLACES  # 33 rows are no multiple of 8: those that wrap meet other numbers
    assert examine(subject(lambda x, threads: x + np.float32(threads > 2))).threads == (3, 5)
    alone = examine(subject(lambda x, threads: x + np.float32(threads > 2 and len(x) == 1)))
    assert alone.threads == (3, 5)
    assert examine(subject(lambda x, threads: x + len(x), f"f{PROMISE}")).broken


def test_a_subject_that_cannot_run_is_told():
    def refuse(x, threads):
        raise UnsupportedError("no such kernel")

    outcome = examine(subject(refuse))
    assert outcome.invariant is None
    assert outcome.facts()["text"] == "no such kernel"


def test_rows_find_the_same_experts_anywhere(fresh):
    x = fresh.standard_normal((9, 40)).astype(np.float32)
    ids = invariance.experts_of(x)
    assert np.array_equal(invariance.experts_of(x[::-1]), ids[::-1])
    assert (ids[:, 0] != ids[:, 1]).all()


@pytest.mark.drawn(3)
@pytest.mark.parametrize("op", [f"{name}{more}" for name in ("gq.linear", "gq.expert_linear", "gq.attention")
                                for more in ("", PROMISE)])  # fmt: skip
def test_ours_keep_their_promises(op, fresh):
    seed = int(fresh.integers(1 << 30))
    subjects = [s for s in invariance.of_ours(["q8_0"], seed) if s.op == op]
    for one in subjects:
        outcome = examine(one, seed)
        assert outcome.invariant is not None, outcome.text
        assert not outcome.broken


@pytest.mark.llama
def test_the_command(capsys):
    try:
        with Bridge(timeout=60):
            pass
    except GGMLQError as error:
        pytest.skip(str(error))
    assert main(["check", "--invariance", "--types", "q8_0", "--ops", "MUL_MAT,RMS_NORM", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [(o["op"], o["type"], o["who"]) for o in facts["outcomes"]] == [
        ("MUL_MAT", "q8_0", "llama.cpp"), ("RMS_NORM", "f32", "llama.cpp"),
    ]  # fmt: skip
    assert all(isinstance(o["invariant"], bool) for o in facts["outcomes"])
    assert facts["outcomes"][1]["invariant"]
    assert main(["check", "--invariance", "--ops", "SILU"]) == 0
    out = capsys.readouterr().out
    assert "1 of 1 give a row the same bits" in out
    for words, text in ((["--ops", "ROPE"], "is not tried so"), (["--shapes", "1x2x32"], "cases of its own")):
        assert main(["check", "--invariance", *words]) == 2
        assert text in capsys.readouterr().err
