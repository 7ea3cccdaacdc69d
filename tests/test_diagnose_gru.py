"""The doctor for GRUs in integers: wrong programs are named, right ones are not accused."""

from __future__ import annotations

import gru_cases as cases
import numpy as np
import pytest
from gru_mutants import MUTANTS, program

import ggmlq as gq
from ggmlq.faults.catalogue import GRU_FAULTS
from ggmlq.faults.gru.machine import checked
from ggmlq.faults.gru.mistakes import candidates
from ggmlq.reference.gru import STAGES

pytestmark = pytest.mark.filterwarnings("ignore::ggmlq.gru.SaturationWarning")
WIDTHS = ("int8", "mixed", "int16", {"h": {"bits": 6}, "Wx": {"bits": 10}, "z_pre": {"bits": 12}})
TRIED = 8  # mutants a run of the tests


def drawn(rng, c=None, h=None):
    """A FixedGRU with any widths and tables, an x that goes a little further than its calibration, an h0."""
    t, n = int(rng.integers(8, 24)), int(rng.integers(1, 5))
    c, h = c or int(rng.integers(2, 16)), h or int(rng.integers(3, 16))
    parts = cases.arrays(rng, c, h, float(rng.choice([0.5, 1, 3])))
    parts[2] += rng.uniform(-0.5, 0.2, 3 * h).astype(np.float32)
    g = gq.GRU(*parts)
    g.observe(cases.inputs(rng, 40, 3, c))
    tables = ("direct", "pwl16", "interpolated")[int(rng.integers(3))]
    f = g.fixed(WIDTHS[int(rng.integers(4))], tables=tables)
    h0 = rng.uniform(-0.4, 0.4, (n, h)) if rng.integers(2) else None
    return f, cases.inputs(rng, t, n, c) * float(rng.choice([1, 2])), h0


def test_the_program_of_the_mutants_is_right(fresh):
    f, x, h0 = drawn(fresh)
    y, h, v = program(f, x, h0)
    found = f(x, h0, return_codes=True, return_intermediates=True)
    assert all((a == b).all() for a, b in zip((y, h, v), found, strict=True))


@pytest.mark.slow
def test_wrong_programs_are_named(fresh):
    tried, missed = 0, []
    for fault, given_how in [MUTANTS[i] for i in fresh.permutation(len(MUTANTS))[:TRIED]]:
        f, x, h0 = drawn(fresh)
        how = given_how(f) if callable(given_how) else given_how
        right = program(f, x, h0)
        y, h, v = program(f, x, h0, **how)
        if (y == right[0]).all():
            assert gq.diagnose_gru((y, h), f, x, h0).ok
            continue
        tried += 1
        found = gq.diagnose_gru((y, h, v) if fresh.integers(2) else (y, h), f, x, h0)
        assert not found.ok
        if found.fault != fault and fault not in found.alternatives:
            missed.append((fault, how.keys(), found.fault, found.text[:300]))
    assert len(missed) <= max(1, 0.05 * tried), missed


@pytest.mark.slow
def test_nobody_right_is_accused(fresh, rounds):
    for _ in rounds(2):
        f, x, h0 = drawn(fresh)
        found = f(x, h0, return_codes=True, return_intermediates=True)
        for codes in (found, found[:2], found[0]):
            d = gq.diagnose_gru(codes, f, x, h0)
            assert d.ok, d.text
            assert d.fault == "correct"
        turned = f(x.swapaxes(0, 1), h0, batch_first=True, return_codes=True)
        assert gq.diagnose_gru(turned, f, x.swapaxes(0, 1), h0, batch_first=True).ok


@pytest.mark.slow
def test_where_it_began(fresh):
    f, _, _ = cases.fixed(fresh, 30, 3, 6, 8)
    x = cases.inputs(fresh, 12, 3, 6)
    y, h = f(x, return_codes=True)
    r = gq.reference.gru(f, x)
    wrong = y.astype(np.int64)
    wrong[7, 1, 4] += 3 if wrong[7, 1, 4] < 100 else -3
    found = gq.diagnose_gru((wrong, h), f, x)
    assert (found.where["step"], found.where["sequence"], found.where["unit"]) == (7, 1, 4)
    assert "step 7, sequence 1, unit 4" in found.text
    v = np.concatenate([r[name] for name in ("z_out", "r_out", "g_out", "Rh_add_br")], -1)
    v[3, 0, 2] += 1
    found = gq.diagnose_gru((y, h, v), f, x)
    assert (found.fault, found.where["stage"], found.where["step"]) == ("intermediates", "z_out", 3)
    assert gq.diagnose_gru((y, y[0]), f, x).fault == "last-state"
    stages = {**STAGES, "rRh": lambda s, q: s.clamped(s.term(q, "Rh_add_br", "rRh"), "rRh")}
    found = gq.diagnose_gru(gq.reference.gru(f, x, stages=stages)["h"], f, x)
    assert (found.fault, found.where["stage"]) == ("reset-missing", "rRh")
    assert found.as_dict()["where"]["stage"] == "rRh"


@pytest.mark.slow
def test_two_mistakes_and_mistakes_of_a_part(fresh):
    f, x, _ = drawn(fresh, 6, 12)
    y, _, _ = program(f, x, carry="stale", bias={"br": 0})
    found = gq.diagnose_gru(y, f, x)
    assert {"state-stale", "bias-missing"} & {found.fault}, found.text
    y = np.array(f(x, return_codes=True)[0], np.int64)
    other = program(f, x, comp=(0, 0))[0]
    r = gq.reference.gru(f, x)
    assert (r["h"] == y).all()
    y[:, :, 8:] = 0
    found = gq.diagnose_gru(y, f, x)
    assert not found.ok
    assert not gq.diagnose_gru(other, f, x).ok


@pytest.mark.slow
def test_both_directions(fresh):
    f, _, x = cases.fixed(fresh, 14, 2, 4, 5, both=True)
    y, h = f(x, return_codes=True)
    assert gq.diagnose_gru((y, h), f, x).ok
    found = gq.diagnose_gru((np.roll(y, 5, -1), h), f, x)
    assert found.fault == "directions-exchanged"
    unturned = y.copy()
    unturned[..., 5:] = y[::-1, :, 5:]
    found = gq.diagnose_gru((unturned, h), f, x)
    assert (found.fault, found.where["direction"]) == ("direction", "backward")
    last = h.copy()
    last[1] = y[-1, :, 5:]
    found = gq.diagnose_gru((y, last), f, x)
    assert found.fault == "last-state"
    assert "the last of x" in found.text


def test_nothing_and_errors(fresh):
    f, _, x = cases.fixed(fresh, 6, 2, 3, 4)
    y, h = f(x, return_codes=True)
    empty = f(x[:0], return_codes=True)
    assert gq.diagnose_gru(empty, f, x[:0]).ok
    assert gq.diagnose_gru(f(x[:, :0], return_codes=True), f, x[:, :0]).ok
    assert gq.diagnose_gru((y.astype(float), h), f, x).ok
    for codes, match in (
        ((y + 0.5, h), "integers"),
        ((y[1:], h), "shape"),
        ((y, h, y), "v has shape"),
        ((y, h, y, y), "parts"),
        (("a", h), "integers"),
        ((y, h[0]), "h has shape"),
    ):
        with pytest.raises(gq.GGMLQError, match=match):
            gq.diagnose_gru(codes, f, x)
    with pytest.raises(gq.GGMLQError, match="FixedGRU"):
        gq.diagnose_gru(y, None, x)
    with pytest.raises(gq.GGMLQError, match="x has shape"):
        gq.diagnose_gru(y, f, x[0])
    far = y.astype(np.int64)
    far[2:] = 1 << 62
    assert not gq.diagnose_gru(far, f, x).ok


def test_every_fault_has_words(fresh):
    f, _, x = cases.fixed(fresh, 6, 2, 20, 24)
    run = checked(f(x, return_codes=True), f, x, None, False)[0]
    named = {one.fault for one in candidates(run)}
    judged = {
        "correct", "unknown", "last-state", "intermediates", "directions-exchanged", "x-format", "table-kind",
    }  # fmt: skip
    assert named | judged | {"x-saturation", "x-rounding"} == set(GRU_FAULTS)
    assert all(fault.says for fault in GRU_FAULTS.values())
