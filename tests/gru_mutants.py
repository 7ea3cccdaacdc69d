"""Wrong programs for a GRU in integers, written as such programs are: a loop over steps, in their own words.

Each returns (y, h, v) for a FixedGRU of one direction; what a mutant does is a keyword of the program or a
change of what it is given. Nothing here is shared with the doctor.
"""

from __future__ import annotations

import numpy as np

from ggmlq.fixed import table_of


def away(v, n):
    v, n = np.asarray(v, np.int64), np.asarray(n, np.int64)
    down = np.maximum(n, 1)
    return np.where(n > 0, np.sign(v) * ((np.abs(v) + (1 << (down - 1))) >> down), v << np.maximum(-n, 0))


def floor(v, n):
    return np.where(
        np.asarray(n) > 0, np.asarray(v) >> np.maximum(n, 0), np.asarray(v) << np.maximum(-np.asarray(n), 0)
    )


def toward_zero(v, n):
    return np.sign(v) * floor(np.abs(v), n)


def half_up(v, n):
    n = np.asarray(n)
    return np.where(n > 0, (np.asarray(v) + (1 << np.maximum(n - 1, 0))) >> np.maximum(n, 0), floor(v, n))


def clip(v, f):
    return np.clip(v, f.low, f.high)


def wrap(v, f):
    return (v - f.low) % (1 << f.bits) + f.low


USUAL = {
    "shift": {}, "end": {}, "comp": (1, 1), "reset": "after", "one": 0, "bias": {}, "order": (0, 1, 2),
    "tables": "zrg", "table": {}, "dt": 0, "dn": 0, "carry": "yes", "backwards": False, "zero": {},
    "first": "h0", "k": 0, "R": None, "exchanged": False, "once": False, "index": 0,
}  # fmt: skip


def program(f, x, h0=None, **changed):
    """All of it, as one loop."""
    how = {**USUAL, **changed}
    assert how.keys() == USUAL.keys()
    p, codes = f.parameters, f.codes
    units = codes["R"].shape[1]

    def rs(v, n, target):
        return how["shift"].get(target, how["shift"].get("all", away))(v, n)

    def end(v, target):
        v = v + p[target].zero * how["zero"].get(target, 1)
        return how["end"].get(target, how["end"].get("all", clip))(v, p[target])

    W, R, bx, br = (codes[name].astype(np.int64) for name in ("W", "R", "bx", "br"))
    if how["R"] is not None:
        R = how["R"](R)
    if how["k"]:
        W = W.copy()
        W[:, -how["k"] :] = 0
    which = [slice(i * units, (i + 1) * units) for i in how["order"]]
    qx = p["x"].encode(x).astype(np.int64)
    t, n, _ = qx.shape
    if how["backwards"]:
        qx = qx[::-1]
    qx = np.roll(qx, how["dn"], 1)
    total = qx @ W.T - how["comp"][0] * p["x"].zero * codes["W"].astype(np.int64).sum(1)
    wx = end(rs(total, p["W"].exponent + p["x"].exponent - p["Wx"].exponent, "Wx"), "Wx")
    start = (
        p["h"].encode(np.zeros((n, units)) if h0 is None or how["first"] == "zeros" else h0).astype(np.int64)
    )
    if how["first"] == "code 0":
        start = np.zeros_like(start)
    h, older, ys, vs = start, start, [], []
    for step in range(t):
        before = {"yes": h, "no": start, "stale": older}[how["carry"]]
        at = step + how["dt"]
        part = wx[np.clip(at, 0, t - 1)]
        state = one_step(how, p, codes, part, before, R, bx, br, which, rs, end)
        older, h = h, state[0]
        ys.append(h)
        vs.append(np.concatenate(state[1], 1))
    return np.array(ys), h, np.array(vs)


def one_step(how, p, codes, wx, h, R, bx, br, which, rs, end):
    e = {name: p[name].exponent for name in p}
    z_rows, r_rows, g_rows = which

    def dev(q, name):
        return q - p[name].zero

    def look(gate, q, source, target):
        table = how["table"].get(gate, codes[f"table_{how['tables']['zrg'.index(gate)]}"]).astype(np.int64)
        return table[np.clip(q - p[source].low + how["index"], 0, len(table) - 1)]

    def bias(name, rows, target):
        times = how["bias"].get((name, target), how["bias"].get(name, 1))
        source = {"bx": bx, "br": br}[name][rows]
        return times * rs(source, e[name][rows] - e[target], target)

    def hidden(q, rows=slice(None), comp=True):
        total = q @ R[rows].T - how["comp"][1] * p["h"].zero * codes["R"].astype(np.int64)[rows].sum(1)
        return end(rs(total, e["R"][rows] + e["h"] - e["Rh"], "Rh"), "Rh")

    rh = hidden(h)
    pre = {}
    for gate, rows in (("z", z_rows), ("r", r_rows)):
        to = f"{gate}_pre"
        if how["once"]:
            parts = ((dev(wx[:, rows], "Wx"), e["Wx"]), (dev(rh[:, rows], "Rh"), e["Rh"]),
                     (bx[rows], e["bx"][rows]), (br[rows], e["br"][rows]))  # fmt: skip
            real = sum(v * np.exp2(-np.asarray(n, float)) for v, n in parts) * 2.0 ** e[to]
            pre[gate] = end(np.trunc(real + np.copysign(0.5, real)).astype(np.int64), to)
        else:
            total = rs(dev(wx[:, rows], "Wx"), e["Wx"] - e[to], to) + rs(
                dev(rh[:, rows], "Rh"), e["Rh"] - e[to], to
            )
            pre[gate] = end(total + bias("bx", rows, to) + bias("br", rows, to), to)
    z, r = (look(gate, pre[gate], f"{gate}_pre", f"{gate}_out") for gate in "zr")
    dr = dev(r, "r_out")
    if how["reset"] == "before":
        rh_state = end(rs(dr * dev(h, "h"), e["r_out"], "h"), "h")
        rh_g = hidden(rh_state, g_rows)
    else:
        rh_g = rh[:, g_rows]
    added = end(
        rs(dev(rh_g, "Rh"), e["Rh"] - e["Rh_add_br"], "Rh_add_br") + bias("br", g_rows, "Rh_add_br"),
        "Rh_add_br",
    )
    if how["reset"] == "after":
        both = end(rs(dr * dev(added, "Rh_add_br"), e["r_out"] + e["Rh_add_br"] - e["rRh"], "rRh"), "rRh")
    else:
        both = end(rs(dev(added, "Rh_add_br"), e["Rh_add_br"] - e["rRh"], "rRh"), "rRh")
    total = rs(dev(wx[:, g_rows], "Wx"), e["Wx"] - e["g_pre"], "g_pre") + rs(
        dev(both, "rRh"), e["rRh"] - e["g_pre"], "g_pre"
    )
    g = look("g", end(total + bias("bx", g_rows, "g_pre"), "g_pre"), "g_pre", "g_out")
    one = (1 << e["z_out"]) + p["z_out"].zero
    up, left = dev(z, "z_out"), one - z + how["one"] * p["z_out"].zero
    if how["exchanged"]:
        up, left = left, up
    old = end(rs(up * dev(h, "h"), e["z_out"] + e["h"] - e["old"], "old"), "old")
    new = end(rs(left * dev(g, "g_out"), e["z_out"] + e["g_out"] - e["new"], "new"), "new")
    state = end(
        rs(dev(old, "old"), e["old"] - e["h"], "h") + rs(dev(new, "new"), e["new"] - e["h"], "h"), "h"
    )
    return state, (z, r, g, added)


def transposed(R):
    return np.concatenate([part.T for part in np.split(R, 3)])


def next_unit(R):
    return np.concatenate([np.roll(part, 1, 0) for part in np.split(R, 3)])


def sigmoid_for_tanh(f):
    p = f.parameters
    return {"table": {"g": table_of("sigmoid", "direct", p["g_pre"], p["g_out"])}}


def without_zero(f):
    p = f.parameters
    return {"table": {"z": table_of("sigmoid", "direct", p["z_pre"]._replace(zero=0), p["z_out"])}}


SUMS = ("Wx", "Rh", "z_pre", "r_pre", "Rh_add_br", "rRh", "g_pre", "old", "new", "h")
MUTANTS = [
    ("compensation-missing", {"comp": (0, 0)}), ("compensation-missing", {"comp": (0, 1)}),
    ("compensation-missing", {"comp": (1, 0)}), ("compensation-twice", {"comp": (2, 2)}),
    ("compensation-twice", {"comp": (1, 2)}), ("compensation-sign", {"comp": (-1, -1)}),
    ("compensation-sign", {"comp": (1, -1)}),
    ("shift-floor", {"shift": {"all": floor}}), ("shift-toward-zero", {"shift": {"all": toward_zero}}),
    ("shift-half-up", {"shift": {"all": half_up}}),
    *(("shift-floor", {"shift": {name: floor}}) for name in SUMS),
    *(("shift-toward-zero", {"shift": {name: toward_zero}}) for name in SUMS),
    ("shift-floor", {"shift": dict.fromkeys(("Wx", "Rh"), floor)}),
    ("shift-floor", {"shift": dict.fromkeys(("Rh", "g_pre", "old"), floor)}),
    ("gate-order", {"order": (1, 0, 2)}), ("gate-order", {"order": (2, 0, 1)}),
    ("reset-before-product", {"reset": "before"}), ("reset-missing", {"reset": "never"}),
    ("one-minus-z-zero-point", {"one": -1}), ("one-minus-z-zero-point", {"one": 1}),
    ("update-exchanged", {"exchanged": True}),
    ("table-of-other-gate", {"tables": "rzg"}), ("table-of-other-gate", {"tables": "zzg"}),
    ("table-of-other-gate", {"tables": "zrr"}), ("table-function", sigmoid_for_tanh),
    ("table-zero-point", without_zero), ("table-index", {"index": 1}),
    ("saturation-wraps", {"end": {"all": wrap}}), ("saturation-missing", {"end": {"h": lambda v, f: v}}),
    *(("saturation-wraps", {"end": {name: wrap}}) for name in SUMS),
    ("x-step", {"dt": 1}), ("x-step", {"dt": -1}), ("x-sequence", {"dn": 1}),
    ("bias-missing", {"bias": {"bx": 0}}), ("bias-missing", {"bias": {"br": 0}}),
    ("bias-missing", {"bias": {"bx": 0, "br": 0}}), ("bias-missing", {"bias": {("br", "z_pre"): 0}}),
    ("bias-twice", {"bias": {"bx": 2}}), ("bias-twice", {"bias": {("br", "Rh_add_br"): 2}}),
    ("state-not-carried", {"carry": "no"}), ("state-stale", {"carry": "stale"}),
    ("direction", {"backwards": True}), ("h0", {"first": "zeros"}), ("h0", {"first": "code 0"}),
    *(("zero-point", {"zero": {name: 0}}) for name in ("Wx", "Rh", "Rh_add_br", "rRh", "old", "new", "h")),
    ("tail-of-k", {"k": 1}), ("weights-transposed", {"R": transposed}), ("weights-rows", {"R": next_unit}),
    ("terms-rounded-once", {"once": True}),
]  # fmt: skip
