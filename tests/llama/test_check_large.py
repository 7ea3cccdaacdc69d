"""``ggmlq check --large``: more rows than 65535; what does not fit into memory is said, not tried."""

from __future__ import annotations

import math

import pytest

from ggmlq.check import cases, ops
from ggmlq.check.opcases import CASES, LARGE
from ggmlq.errors import GGMLQError
from ggmlq.formats import FORMATS
from ggmlq.llama import Bridge


def test_large_cases_are_large():
    assert LARGE.keys() <= CASES.keys()
    for make in LARGE.values():
        for case in make(0):
            lengths = [leaf.ne for leaf in case.program.leaves]
            assert any(math.prod(ne) >= 16 * 65535 for ne in lengths), case
            assert "large" in str(case)
    assert cases.large(FORMATS["q4_K"], 0).m > 65535


def test_a_case_that_does_not_fit_is_not_run(monkeypatch):
    """Nothing is allocated: the bridge is not asked."""
    monkeypatch.setattr(ops, "free_memory", lambda: 1 << 30)
    case = next(case for case in LARGE["CPY"](0) if case.needs > 8 << 30)
    outcome = ops.run_case(None, case, "CPU", "CPU", 1, 1)
    assert outcome.verdict == "not run"
    assert outcome.text == "it takes 64 GiB of memory, 1 GiB are free"


@pytest.mark.llama
@pytest.mark.drawn(1)
@pytest.mark.parametrize("op", ["ADD", "NORM", "SET_ROWS", "CONCAT"])
def test_no_false_alarm_of_large_cases(op, fresh):
    try:
        bridge = Bridge(timeout=60)
    except GGMLQError as error:
        pytest.skip(str(error))
    with bridge:
        case = next(LARGE[op](int(fresh.integers(1 << 30))))
        assert ops.run_case(bridge, case, "CPU", "CPU", 2, 1).verdict == "ok"
