"""Memory that changes between the nodes of a trace, on tensors of our own; and the lines of wrong nodes."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from ggmlq.trace import Product
from ggmlq.trace.lifetimes import LARGEST_LEAF, Changed, Lifetimes
from ggmlq.trace.report import NAMES, Lines, summary


class Memory:
    """Tensors of a graph in one array; a view has the number of its origin."""

    def __init__(self, fresh):
        self.bytes = fresh.integers(0, 256, 64, np.uint8)
        self.all = {}

    def tensor(self, number, name, start, length, origin=0, sources=()):
        at = SimpleNamespace(name=name, span=(start, start + length), origin=origin, sources=list(sources))
        self.all[number] = at
        return number

    def origin(self, t):
        return self.all[t].origin

    def sources(self, t):
        return self.all[t].sources

    def span(self, t):
        return self.all[t].span

    def nbytes(self, t):
        return self.all[t].span[1] - self.all[t].span[0]

    def readable(self, t):
        return True

    def describe(self, t):
        return {"name": self.all[t].name, "ne": [self.nbytes(t), 1, 1, 1]}

    def read(self, t, into):
        start, end = self.all[t].span
        into[:] = self.bytes[start:end]


@pytest.fixture
def memory(fresh):
    return Memory(fresh)


def run(memory, lifetimes, op, tensor, writes=None):
    """A node that adds one to its result, or to other bytes; what it read that had changed."""
    changed = [Changed(**one).sentence(memory.all[tensor].name) for one in lifetimes.read(op, tensor)]
    memory.bytes[slice(*(writes or memory.span(tensor)))] += 1
    lifetimes.wrote(tensor)
    return changed


def graph(memory, norm, view=0):
    """A residual in bytes 0 to 16, a norm of it at ``norm``, and the sum of both."""
    memory.tensor(1, "inp", 16, 16)
    memory.tensor(2, "l_out-6", 0, 16, sources=[1])
    memory.tensor(3, "norm-7", norm, 16, sources=[2])
    memory.tensor(4, "l_out-6 (view)", 4, 8, origin=2)
    memory.tensor(5, "ffn_inp-7", 48, 16, sources=[3, 4 if view else 2])
    return Lifetimes(memory, {"weights"})


@pytest.mark.parametrize("view", [0, 1])
def test_a_result_over_one_that_is_still_read(memory, view):
    lifetimes = graph(memory, 8, view)
    assert run(memory, lifetimes, "GET_ROWS", 2) == run(memory, lifetimes, "RMS_NORM", 3) == []
    said = ["l_out-6 changed after it was computed: norm-7 lies over it."]
    assert run(memory, lifetimes, "ADD", 5) == said
    assert run(memory, lifetimes, "ADD", 5) == []  # told once


def test_a_kernel_that_writes_beside_its_result(memory):
    lifetimes = graph(memory, 32)
    run(memory, lifetimes, "GET_ROWS", 2)
    run(memory, lifetimes, "RMS_NORM", 3, writes=(15, 48))
    (said,) = run(memory, lifetimes, "ADD", 5)
    assert said.endswith("after it was computed, and no result lies over it: norm-7 wrote beside its own.")
    run(memory, lifetimes, "RMS_NORM", 3)
    run(memory, lifetimes, "ADD", 5, writes=(0, 20))
    said = run(memory, lifetimes, "GET_ROWS", 2)
    assert said == [
        "inp changed after it was last used, and no result lies over it: one of l_out-6 … ffn_inp-7 wrote "
        "beside its own."
    ]


def test_what_a_graph_may_do(memory):
    """Results in place of what nobody reads again, views that write, other graphs at the same addresses."""
    lifetimes = graph(memory, 8)
    memory.tensor(6, "cache", 32, 16)
    memory.tensor(7, "cache (view)", 40, 8, origin=6, sources=[3, 6])
    memory.tensor(8, "kq", 48, 16, sources=[7, 6])
    memory.tensor(9, "kq", 0, 16, sources=[8])
    steps = ["GET_ROWS", 2], ["RMS_NORM", 3], ["SET_ROWS", 7], ["MUL_MAT", 8], ["SCALE", 9]
    for _ in range(2):  # the graph runs again, on other inputs
        lifetimes.begin()
        memory.bytes[16:32] += 1
        assert [run(memory, lifetimes, op, tensor) for op, tensor in steps] == [[]] * 5
    memory.all[2].name = "another graph's"
    memory.bytes += 1
    assert run(memory, lifetimes, "RMS_NORM", 3) == []


def test_a_product_over_its_own_source_and_what_is_not_watched(memory):
    lifetimes = graph(memory, 8)
    (said,) = lifetimes.read("MUL_MAT", 3)
    assert Changed(**said).sentence("norm-7").endswith("the result of norm-7 lies over it.")
    memory.tensor(6, "weights", 0, 8)
    memory.tensor(7, "CUDA0#l_out-6#0", 0, 8)
    memory.tensor(8, "cache", 0, LARGEST_LEAF + 1)
    memory.tensor(9, "y", 32, 8, sources=[6, 7, 8])
    run(memory, lifetimes, "ADD", 9)
    memory.bytes += 1
    assert run(memory, lifetimes, "ADD", 9) == []
    assert list(lifetimes.unwatched) == ["cache"]


def record(i, verdict="wrong", fault="node-stride", op="ROPE"):
    facts = f"Qcur-{i}", op, 0, "", "f32", "CPU", "CPU", 1, 1, 1
    return Product(*facts, verdict=verdict, fault=fault, text=f"row {i} is wrong\nwhat it means")


def test_one_line_for_nodes_that_are_wrong_alike():
    said = []
    lines = Lines(said.append, every=False)
    records = [record(0, "ok", "", "MUL"), *map(record, range(60)), record(60, op="ADD")]
    for one in records:
        lines.add(one)
    lines.close()
    text = "\n".join(said)
    assert text.count("what it means") == 1
    assert "row 60 is wrong" in text
    assert "59 more nodes like Qcur-0 (ROPE, f32): Qcur-1, Qcur-2" in text
    assert f"{59 - NAMES} more (--verbose lists them)" in " ".join(text.split())
    assert len(text.splitlines()) < 12
    assert "1 more kind of nodes" in summary(records)
    assert "1 more kind of nodes" not in summary(records, every=True)
    assert "MUL" in summary(records[:1])
