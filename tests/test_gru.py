"""The GRU in floats and in integers: formulas, accuracy, what a caller gets, what is refused."""

from __future__ import annotations

import gru_cases as cases
import numpy as np
import pytest

import ggmlq as gq
from ggmlq.errors import CalibrationError
from ggmlq.gru import SaturationWarning, from_torch_order, to_torch_order
from ggmlq.gru.widths import NAMES
from ggmlq.reference.gru import STAGES, compensation, exact

gru = gq.reference.gru


def error(f, g, x):
    """Mean squared error, cosine."""
    y, want = f(x)[0].astype(float), g(x.astype(np.float64))[0]
    return ((y - want) ** 2).mean(), (y * want).sum() / np.sqrt((y**2).sum() * (want**2).sum())


# --- floats ---------------------------------------------------------------------------------------


def test_floats_are_those_of_a_scalar_loop(fresh):
    parts = cases.arrays(fresh, 3, 4, 2, np.float64)
    x, h0 = fresh.uniform(-2, 2, (6, 2, 3)), fresh.uniform(-1, 1, (2, 4))
    want = cases.scalar_gru(*parts, x, h0)
    y, h = gq.GRU(*parts)(x, h0)
    assert np.abs(y - want).max() < 1e-12
    assert (h == y[-1]).all()
    turned = [to_torch_order(part) for part in parts]
    assert (gq.GRU(*turned, order="rzn")(x, h0)[0] == y).all()
    assert all((from_torch_order(a) == b).all() for a, b in zip(turned, parts, strict=True))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ggmlq.gru.SaturationWarning")  # h0 goes anywhere
def test_both_directions_are_two_gru(fresh):
    one, two = (cases.arrays(fresh, 3, 5) for _ in range(2))
    both = gq.GRU(*zip(one, two, strict=True))
    x, h0 = cases.inputs(fresh, 9, 4, 3), fresh.uniform(-0.05, 0.05, (2, 4, 5)).astype(np.float32)
    singles = [gq.GRU(*one), gq.GRU(*two)]
    for g, part in ((both, x), (singles[0], x), (singles[1], x[::-1])):
        g.observe(part)
    f, f1, f2 = both.fixed("int8"), *(g.fixed("int8") for g in singles)
    y, h, v = f(x, h0, return_codes=True, return_intermediates=True)
    (y1, h1, v1), (y2, h2, v2) = (
        each(part, start, return_codes=True, return_intermediates=True)
        for each, part, start in ((f1, x, h0[0]), (f2, x[::-1], h0[1]))
    )
    assert (y == np.concatenate([y1, y2[::-1]], -1)).all()
    assert (v == np.concatenate([v1, v2[::-1]], -1)).all()
    assert (h == np.stack([h1, h2])).all()
    assert len(f.parameters) == len(f.codes) == len(gru(f, x)) == len(f.diagnostics()) == 2
    assert np.allclose(both(x, h0)[0][..., 5:], singles[1](x[::-1], h0[1])[0][::-1])


# --- integers -------------------------------------------------------------------------------------


def test_the_worked_example_has_every_intermediate():
    f, x = cases.worked()
    found = gru(f, x)
    for name, want in cases.WORKED.items():
        assert found[name][:, 0].tolist() == want, name
    w, r = (f.codes[name].astype(np.int64) for name in ("W", "R"))
    assert exact(found["x"][:, 0], w).tolist() == [[6500, -1850, -8050], [-10210, 7219, 12383]]
    scene = type("Scene", (), {"formats": f.parameters})
    assert compensation(scene, w, "x").tolist() == [-200, -970, 310]
    assert compensation(scene, r, "h").tolist() == [200, -125, 300]
    assert exact(found["h"][:1, 0], r).tolist() == [[-1280, 800, -1920]]
    assert f(x)[0][:, 0, 0].tolist() == pytest.approx([-0.28906, 0.52344], abs=1e-5)


def test_the_zero_state_is_exact(fresh):
    f, _, x = cases.fixed(fresh, 5, 3, 4, 6)
    rows = exact(np.full((1, 6), f.parameters["h"].zero), f.codes["R"].astype(np.int64))
    assert (rows == f.parameters["h"].zero * f.codes["R"].sum(1, dtype=np.int64)).all()
    start = f(x, np.zeros((3, 6)), return_codes=True)
    assert all((a == b).all() for a, b in zip(start, f(x, return_codes=True), strict=True))


def test_compensation_is_the_product_with_deviations(fresh):
    q, w = fresh.integers(-128, 128, (5, 33)), fresh.integers(-127, 128, (12, 33))
    for zero in fresh.integers(-128, 128, 4):
        assert (exact(q, w) - zero * w.sum(1) == (q - zero) @ w.T).all()


def test_every_stage_is_within_a_code_of_its_formula(fresh):
    f, _, x = cases.fixed(fresh, 12, 4, 6, 9, "int16", observer="minmax")
    q, p = gru(f, x), f.parameters
    real = {name: p[name].decode(q[name], np.float64) for name in q if name in p}
    bx, br = (p[name].decode(f.codes[name], np.float64) for name in ("bx", "br"))
    before = np.concatenate([p["h"].decode(q["h0"], float)[None], real["h"][:-1]])
    z, r, g = (slice(i * 9, i * 9 + 9) for i in range(3))
    want = {
        "Wx": real["x"] @ p["W"].decode(f.codes["W"], float).T,
        "Rh": before @ p["R"].decode(f.codes["R"], float).T,
        "z_pre": real["Wx"][..., z] + real["Rh"][..., z] + bx[z] + br[z],
        "r_pre": real["Wx"][..., r] + real["Rh"][..., r] + bx[r] + br[r],
        "z_out": 1 / (1 + np.exp(-real["z_pre"])), "r_out": 1 / (1 + np.exp(-real["r_pre"])),
        "Rh_add_br": real["Rh"][..., g] + br[g], "rRh": real["r_out"] * real["Rh_add_br"],
        "g_pre": real["Wx"][..., g] + real["rRh"] + bx[g], "g_out": np.tanh(real["g_pre"]),
        "old": real["z_out"] * before, "new": (1 - real["z_out"]) * real["g_out"],
        "h": real["old"] + real["new"],
    }  # fmt: skip
    terms = {"z_pre": 4, "r_pre": 4, "g_pre": 3, "Rh_add_br": 2, "h": 2}
    for name, values in want.items():
        codes = p[name]
        inside = (q[name] > codes.low) & (q[name] < codes.high)
        off = np.abs(real[name] - values)[inside] * 2.0**codes.exponent
        assert off.max(initial=0) <= 0.5 * terms.get(name, 1) + 1e-6, name


@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.parametrize("tables", ["direct", "pwl16", "interpolated"])
def test_accuracy(tables):
    rng = np.random.default_rng(7)  # fixed: the margins are what the document measured
    g, x = cases.made(rng, 48, 64), cases.inputs(rng, 25, 16, 48)
    g.observe(x)
    held_out = cases.inputs(rng, 25, 16, 48)
    for widths, observer, mse, cosine in (
        ("int8", "ema", 4e-5, 0.998), ("mixed", "ema", 4e-5, 0.998), ("int16", "ema", 1e-5, 0.9995),
        ("int16", "minmax", 1e-6, 0.99999), ("int8", "sqnr", 8e-5, 0.997),
        ("int8", "percentile", 8e-5, 0.998),
    ):  # fmt: skip
        found = error(g.fixed(widths, tables=tables, observer=observer), g, held_out)
        assert found[0] < mse, (widths, observer, found)
        assert found[1] > cosine, (widths, observer, found)


def test_a_shift_that_cuts_off_is_seen(fresh, monkeypatch):
    """The mutant of all mutants: floor for round."""
    f, g, x = cases.fixed(fresh, 50, 8, 64, 64, "int8")
    want = g(x)[0]
    module = __import__("ggmlq.reference.gru", fromlist=["gru"])
    monkeypatch.setattr(
        module, "shifted_array", lambda v, n: np.where(n <= 0, v << np.maximum(-n, 0), v >> np.clip(n, 0, 62))
    )
    wrong = f.parameters["h"].decode(gru(f, x)["h"])
    right = f(x)[0]
    assert ((wrong - want) ** 2).mean() > 8 * ((right - want) ** 2).mean()


def test_a_narrow_update_gate_has_a_zero_point(fresh):
    W, R, bx, br = cases.arrays(fresh, 32, 32, 0.3)
    bx[:32], br[:32] = -1, -1
    g = gq.GRU(W, R, bx, br)
    x = cases.inputs(fresh, 40, 16, 32)
    g.observe(x)
    f = g.fixed("int8", observer="minmax")
    assert f.parameters["z_out"].zero > 0
    assert f.parameters["z_out"].exponent == 8
    assert error(f, g, x)[0] < 2e-5
    assert (f(x, return_codes=True)[0] == gru(f, x)["h"]).all()


def test_a_sequence_may_be_run_in_parts(fresh):
    for widths in ("int8", "int16"):
        f, _, x = cases.fixed(fresh, 20, 3, 5, 7, widths)
        y, h = f(x)
        codes = f(x, return_codes=True)[0]
        cut = int(fresh.integers(0, 21))
        first, state = f(x[:cut])
        second, last = f(x[cut:], state)
        assert (np.concatenate([first, second]) == y).all()
        assert (last == h).all()
        assert (f.parameters["h"].decode(codes) == y).all()
        state, steps = None, []
        for row in x:
            out, state = f(row[None], state)
            steps.append(out[0])
        assert (np.stack(steps) == y).all()


@pytest.mark.filterwarnings("ignore::ggmlq.gru.SaturationWarning")  # h0 goes anywhere
def test_shapes_and_what_is_left_out(fresh):
    f, g, x = cases.fixed(fresh, 6, 4, 3, 5)
    y, h, v = f(x, return_intermediates=True)
    turned = f(x.swapaxes(0, 1), batch_first=True, return_intermediates=True)
    assert (turned[0] == y.swapaxes(0, 1)).all()
    assert (turned[1] == h).all()
    assert (turned[2] == v.swapaxes(0, 1)).all()
    assert v.shape == (6, 4, 20)
    assert (g(x.swapaxes(0, 1), batch_first=True)[0] == g(x)[0].swapaxes(0, 1)).all()
    h0 = fresh.uniform(-0.3, 0.3, (4, 5))
    for t, n in ((0, 4), (6, 0)):
        empty = x[:t, :n]
        out = f(empty, return_codes=True, return_intermediates=True)
        assert [part.shape for part in out] == [(t, n, 5), (n, 5), (t, n, 20)]
        assert g(empty)[0].shape == (t, n, 5)
        assert gru(f, empty)["h"].shape == (t, n, 5)
    assert np.allclose(f(x[:0], h0)[1], h0)
    plain = gq.GRU(g.W, g.R)
    plain.observe(x)
    no_bias = plain.fixed()
    assert not no_bias.codes["bx"].any()
    assert (no_bias(x, return_codes=True)[0] == gru(no_bias, x)["h"]).all()


def test_the_format_of_x_may_follow_x(fresh):
    f, g, x = cases.fixed(fresh, 20, 4, 6, 8, "int16", dynamic_x=True, observer="minmax")
    for scale in (1, 0.01, 0.9):
        part = x * np.float32(scale)
        assert (f(part, return_codes=True)[0] == gru(f, part)["h"]).all()
    small = x * np.float32(1e-3)
    static = g.fixed("int16", observer="minmax")
    assert error(f, g, small)[0] <= error(static, g, small)[0] * 1.5


def test_rounding_concerns_floats_alone(fresh):
    g, x = cases.made(fresh, 2, 3), np.round(cases.inputs(fresh, 8, 2, 2) * 64) / 128
    g.observe(x)
    for rounding in ("half_away", "half_even"):
        f = g.fixed("int8", rounding=rounding)
        assert (f(x, return_codes=True)[0] == gru(f, x)["h"]).all()


def test_float64_is_quantized_as_such(fresh):
    f, _, x = cases.fixed(fresh, 8, 2, 3, 4, "int16")
    x = x.astype(np.float64) + fresh.uniform(-1e-9, 1e-9, x.shape)
    assert (f(x, return_codes=True)[0] == gru(f, x)["h"]).all()


def test_saturation_is_told_once_and_counted(fresh):
    f, _, x = cases.fixed(fresh, 10, 4, 3, 5)
    f(x)
    with pytest.warns(SaturationWarning, match=r"f\.diagnostics\(\)"):
        f(x * 50)
    f(x * 50)  # a second warning would be an error
    found = f.diagnostics()
    assert found["x"].saturated > 100
    assert found["x"].of == 3 * x.size
    assert 0 < found["x"].share < 1
    assert "saturated" in str(found)
    other, _, x = cases.fixed(fresh, 10, 4, 3, 5)
    with pytest.warns(SaturationWarning, match="h0"):
        other(x, np.full((4, 5), 9.0))
    assert other.diagnostics()["h0"].saturated == 20


def test_half_of_the_codes_of_a_gate_may_be_unused(fresh):
    W, R, bx, br = cases.arrays(fresh, 4, 4)
    bx[:4] = 9
    g, x = gq.GRU(W, R, bx, br), cases.inputs(fresh, 10, 4, 4)
    g.observe(x)
    f = g.fixed("int8")
    assert f.parameters["z_out"].exponent == 7
    assert f.diagnostics()["z_out"].used < 0.51


# --- refused --------------------------------------------------------------------------------------


def test_calibration_is_asked_for(fresh):
    g, x = cases.made(fresh, 3, 4), cases.inputs(fresh, 5, 2, 3)
    with pytest.raises(CalibrationError, match="observe"):
        g.fixed()
    g.observe(x)
    g.fixed()
    g.W[0, 0] += 1
    for call in (g.fixed, lambda: g.observe(x)):
        with pytest.raises(CalibrationError, match="changed"):
            call()
    g.reset_calibration()
    with pytest.raises(CalibrationError, match="nothing"):
        g.fixed()
    g.observe(x)
    g.fixed()


@pytest.mark.parametrize(
    ("widths", "said"),
    [
        ("int4", "named are"), ({"hh": {"bits": 8}}, "there is no tensor"), ({"h": {"bits": 17}}, "2 to 16"),
        ({"h": {"bits": 1}}, "2 to 16"), ({"h": {"bits": 8.5}}, "2 to 16"), ({"h": 8}, "takes a mapping"),
        ({"h": {"bit": 8}}, "takes a mapping"), ({"W": {"symmetric": False}}, "one correction"),
        ({"x": {"signed": 1}}, "True or False"), (8, "widths are a"),
        ({"r_pree": {}}, "did you mean 'r_pre'"),
    ],
)  # fmt: skip
def test_widths_are_refused_in_words(fresh, widths, said):
    _, g, _ = cases.fixed(fresh, 3, 2, 2, 2)
    with pytest.raises(gq.GGMLQError, match=said):
        g.fixed(widths)


def test_how_is_refused_in_words(fresh):
    f, g, x = cases.fixed(fresh, 3, 2, 2, 3)
    for how in ({"tables": "lut"}, {"observer": "mean"}, {"rounding": "up"}):
        with pytest.raises(gq.GGMLQError, match="known are"):
            g.fixed(**how)
    bad = x.copy()
    bad[1, 1, 1] = np.nan
    for call in (f, g, g.observe):
        with pytest.raises(gq.GGMLQError, match=r"x\[1, 1, 1\] is nan"):
            call(bad)
        with pytest.raises(gq.GGMLQError, match=r"\[T, N, 2\]"):
            call(x[..., :1])
        with pytest.raises(gq.GGMLQError, match=r"\(2, 3\)"):
            call(x, np.zeros((3, 3)))
        with pytest.raises(gq.GGMLQError, match="x is int64"):
            call(x.astype(int))
    with pytest.raises(gq.GGMLQError, match="no such kernel"):
        f(x, kernel="cpu:none")
    with pytest.raises(gq.GGMLQError, match="devices are"):
        f.to("tpu")
    for parts in ((np.ones((6, 2)), np.ones((6, 3))), (np.ones((6, 2), int), np.ones((6, 2)))):
        with pytest.raises(gq.GGMLQError):
            gq.GRU(*parts)
    with pytest.raises(gq.GGMLQError, match="order"):
        gq.GRU(g.W, g.R, order="zrn")
    with pytest.raises(gq.GGMLQError, match="no pair"):
        gq.GRU((g.W, g.W), g.R)


def test_inputs_of_any_size_are_told_or_run(fresh):
    g = cases.made(fresh, 2, 3)
    for scale in (1e-30, 1e30):
        x = cases.inputs(fresh, 4, 2, 2) * np.float32(scale)
        g.reset_calibration()
        g.observe(x)
        f = g.fixed()
        assert (f(x, return_codes=True)[0] == gru(f, x)["h"]).all()
    g.reset_calibration()
    g.observe(np.full((4, 2, 2), 1e300))
    with pytest.raises(gq.GGMLQError, match="float32"):
        g.fixed()


def test_stages_may_be_replaced(fresh):
    """What a doctor does: run a mutant."""
    f, _, x = cases.fixed(fresh, 5, 2, 3, 4)
    wrong = gru(f, x, stages={**STAGES, "rRh": lambda scene, q: q["Rh_add_br"]})
    right = gru(f, x)
    assert (wrong["Rh"][0] == right["Rh"][0]).all()
    assert (wrong["rRh"] != right["rRh"]).any()


# --- what a tensor costs -------------------------------------------------------------------------


def test_codes_are_not_spent_where_a_gate_is_flat(fresh):
    """Inputs of the tables reach far; their formats end where the outputs end, without a warning."""
    W, R, bx, br = cases.arrays(fresh, 8, 8)
    g, x = gq.GRU(40 * W, R, bx, br), cases.inputs(fresh, 40, 8, 8)
    g.observe(x)
    for observer in ("ema", "minmax", "sqnr", "percentile"):
        f = g.fixed("int8", observer=observer)
        p = f.parameters
        assert (p["z_pre"].exponent, p["r_pre"].exponent, p["g_pre"].exponent) >= (4, 4, 5)
        assert (f(x, return_codes=True)[0] == gru(f, x)["h"]).all()
        assert f.diagnostics()["z_pre"].saturated > 0
        for table in ("table_z", "table_r", "table_g"):  # both ends are the gate's own
            codes = f.codes[table].astype(int)
            assert abs(codes[-1] - codes[-2]) <= 1
            assert abs(codes[1] - codes[0]) <= 1


def test_a_cost_is_the_error_that_widening_takes_away(fresh):
    """One step from drawn states: a tensor of 3 bits among those of 16, beside what its cost announces."""
    g = cases.made(fresh, 24, 24)
    x, h = cases.inputs(fresh, 1, 400, 24), fresh.uniform(-0.5, 0.5, (400, 24))
    truth = g.observe(x, h)[0]
    every = {name: {"bits": 16} for name in NAMES}
    for name in ("x", "W", "R", "Wx", "Rh", "z_pre", "r_pre", "g_pre", "r_out", "rRh", "new", "h"):
        f = g.fixed({**every, name: {"bits": 5 if name in ("x", "W", "R") else 6}}, observer="minmax")
        error = float(np.sqrt(((f(x, h)[0] - truth) ** 2).mean()))
        cost = f.diagnostics()[name].cost
        assert max(f.diagnostics().values(), key=lambda use: use.cost).cost == cost, name
        assert 0.4 < error / cost < 2.5, (name, error, cost)
