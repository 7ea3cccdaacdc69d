"""Kernels of a GRU in integers on the CPU: the oracle's codes on every rung, whatever the widths."""

from __future__ import annotations

import gru_cases as cases
import numpy as np
import pytest

import ggmlq as gq
from ggmlq.base.threads import num_threads
from ggmlq.cpu.lanes import load, store
from ggmlq.cpu.machine import target as targets
from ggmlq.cpu.machine.jit import jit
from ggmlq.gru.cpu import layout, vectors
from ggmlq.gru.run import INTERMEDIATE

pytestmark = pytest.mark.filterwarnings("ignore::ggmlq.gru.SaturationWarning")  # h0 goes anywhere here
RUNGS = [rung.name for rung in gq.kernels("gru", device="cpu")]


def check(f, x, h0=None, kernel="auto"):
    """Codes, states and intermediates are those of the oracle."""
    want = gq.reference.gru(f, x, h0)
    y, h, v = f(x, h0, return_codes=True, return_intermediates=True, kernel=kernel)
    assert y.dtype == f.parameters["h"].dtype
    assert (y == want["h"]).all()
    assert (v == np.concatenate([want[name] for name in INTERMEDIATE], -1)).all()
    assert (h == (want["h"][-1] if len(x) else want["h0"])).all()
    plain, last = f(x, h0, kernel=kernel)
    assert (plain == f.parameters["h"].decode(y)).all()
    assert plain.dtype == last.dtype == np.float32


def test_there_is_a_ladder():
    assert RUNGS[0] == "cpu:naive"
    assert len(RUNGS) > 1
    assert "cpu:tiles" in str(gq.kernels("gru"))


@pytest.mark.slow
@pytest.mark.drawn(4)
@pytest.mark.parametrize("kernel", RUNGS)
@pytest.mark.parametrize(
    "widths",
    ["int8", "mixed", "int16", cases.ODD, cases.UNSIGNED],
    ids=["int8", "mixed", "int16", "odd", "unsigned"],
)
def test_every_rung_has_the_oracle_s_codes(kernel, widths, fresh):
    for c, h in ((1, 1), (5, 7), (int(fresh.integers(2, 70)), int(fresh.integers(2, 70)))):
        g = cases.made(fresh, c, h)
        for n in (1, 3, int(fresh.integers(4, 40))):
            x = cases.inputs(fresh, int(fresh.integers(1, 12)), n, c)
            g.observe(x)
            check(g.fixed(widths), x, fresh.uniform(-0.4, 0.4, (n, h)), kernel)


@pytest.mark.parametrize("kernel", RUNGS[1:])
def test_ordinary_sizes(kernel, fresh):
    for t, n, c, h in ((4, 64, 128, 256), (50, 1, 128, 64), (2, 17, 5, 256)):
        f, _, x = cases.fixed(fresh, t, n, c, h, "int8")
        check(f, x, kernel=kernel)


def test_counts_are_the_same_on_every_rung(fresh):
    for h in (7, 40):
        g, x = cases.made(fresh, 5, h), cases.inputs(fresh, 12, 9, 5)
        g.observe(x[:3] / 2)
        found = []
        for kernel in RUNGS:
            f = g.fixed("int8")
            f.warned = True
            f(x, kernel=kernel)
            found.append({name: use.saturated for name, use in f.diagnostics().items()})
        assert all(each == found[0] for each in found)
        assert found[0]["x"]


def test_threads_do_not_change_codes(fresh):
    whole, both = (
        cases.fixed(fresh, 10, 37, 9, 33, "int8"),
        cases.fixed(fresh, 9, 3, 9, 33, "int8", both=True),
    )
    before = num_threads()
    try:
        for f, _, x in (whole, both):
            want = f(x, return_codes=True, kernel="cpu:naive")[0]
            for n in (1, 2, 3):
                gq.set_num_threads(n)
                assert (f(x, return_codes=True)[0] == want).all()
    finally:
        gq.set_num_threads(before)


def test_the_ends_of_sixteen_bits(fresh):
    """Sums of products of -32768 with itself pass int32."""
    h = 8
    R = np.full((3 * h, h), -1.0, np.float32)
    g = gq.GRU(np.full((3 * h, 40), -1.0, np.float32), R)
    x = np.full((3, 2, 40), -1.0, np.float32)
    g.observe(np.concatenate([x, -x * np.float32(32767 / 32768)]))
    f = g.fixed(
        {"x": {"bits": 16, "symmetric": True}, "W": {"bits": 16}, "R": {"bits": 16}, "h": {"bits": 16}}
    )
    assert f.codes["W"].min() == f.parameters["x"].encode(x).min() == -32768
    for kernel in RUNGS:
        check(f, x, kernel=kernel)


def test_entries_of_tables(fresh):
    """Short ones lie in registers where the CPU permutes words, others in memory; both find every entry."""
    look, lanes = vectors.looker(True), vectors.LANES

    @jit
    def every(table, places, out):
        for i in range(0, len(places), lanes):
            store(out, i, look(table, load(places, i, lanes)))

    ends = np.iinfo(np.int16)
    for size, low, high in ((256, ends.min, ends.max), (5, -3, 4), (256, ends.min - 1, 0), (1024, -9, 9)):
        values = fresh.integers(low, high, size, endpoint=True).astype(np.int32)
        values[:2] = low, high
        table = layout._table(values, True)
        assert table.dtype == np.int32 or (table.dtype == np.int16 and len(table) == vectors.SHORT)
        places = fresh.permutation(np.resize(np.arange(size, dtype=np.int32), 1024))
        out = np.empty_like(places)
        every(table, places, out)
        assert (out == values[places]).all()


@pytest.mark.parametrize("kind", ["AVX2", "PLAIN"])
def test_other_cpus_layouts(kind, fresh, monkeypatch):
    """What stored codes are where dot products want signed ones; AVX2 runs where this CPU has it."""
    from ggmlq.cpu.machine.features import compiled_for
    from ggmlq.gru.cpu import r1_tiles

    if not targets.NEEDS[getattr(targets, kind)] <= compiled_for():
        pytest.skip(f"this CPU has no {kind}")
    monkeypatch.setattr(r1_tiles, "target", lambda: getattr(targets, kind))
    f, _, x = cases.fixed(fresh, 6, 5, 9, 20, "int8")
    check(f, x, kernel="cpu:tiles")
