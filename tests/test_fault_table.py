"""tools/fault_table.py: mistakes that change a result, each once, and its table."""

from __future__ import annotations

from collections import Counter

import numpy as np
from scripts import load

from ggmlq import reference
from ggmlq.check.nodes import Operands
from ggmlq.faults import NODES

tool = load("tools", "fault_table")


def test_mistakes_are_planted_where_they_change_the_result(fresh):
    x = fresh.standard_normal((1, 1, 7, 100)).astype(np.float32)
    params = {"eps": 1e-2, "type": "f32", "shape": x.shape}
    y = reference.node("RMS_NORM", [x], params).value.astype(np.float32)
    every = list(tool.planted(Operands("RMS_NORM", [x], params, y), fresh))
    names = [fault for fault, _ in every]
    assert len(set(names)) == len(names)
    assert {"node-tail", "node-rows", "node-row-sum", "node-unwritten", "node-outside", "node-epsilon"} <= {
        *names
    }
    assert {*names} <= NODES.keys()
    for _, wrong in every:
        assert wrong.shape == y.shape
        assert reference.node("RMS_NORM", [x], params).wrong(wrong).any()


def test_the_table():
    rows = {
        "node-a": Counter(named=3, alternative=1, unknown=1),
        "node-b": Counter({"named": 4, "node-a": 1}),
    }
    text = tool.table(rows)
    assert "| node-a | 5 | 3 | 1 | 1 |  |" in text
    assert "| node-b | 5 | 4 | 0 | 0 | node-a 1 |" in text
    assert "| **all** | 10 | 7 | 1 | | 80.0% |" in text
