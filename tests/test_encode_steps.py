"""Every step of ggml's searches shows in the bytes of the stored rows: a changed step is noticed.

Each case changes one thing in the text of a function and expects other bytes than ggml's, in at
least one of the formats that use it.
"""

from __future__ import annotations

import inspect
import textwrap

import pytest

from ggmlq.formats import (
    FORMATS,
    _extremes,
    _kquants,
    _levels,
    _round,
    _search,
    _weigh,
    iq4_xs,
    mxfp4,
    nvfp4,
    q1_0,
    q2_k,
    q3_k,
    q4_0,
    q4_1,
    q4_k,
    q5_k,
    q6_k,
    q8_k,
    tq1_0,
)

OFFSET = ("q2_K", "q4_K", "q5_K", "q4_1", "q5_1")
QP = ("q2_K", "q4_K", "q5_K")
SIGNED = ("q3_K", "q6_K", "q4_0", "q5_0")

CHANGES = [
    (_extremes.extreme, "absolute(v) > absolute(peak)", "absolute(v) >= absolute(peak)", ("q6_K", "iq4_nl")),
    (_search.fit_signed, "range(-9, 10)", "range(-9, 9)", SIGNED),
    (_search.fit_signed, "range(-9, 10)", "range(-8, 10)", SIGNED),
    (_search.fit_signed, "lx * lx > best * l2", "lx * lx >= best * l2", SIGNED),
    (_search.fit_signed, "np.float32(0.1)", "np.float32(0.11)", SIGNED),
    (_search.fit_signed, "absolute(largest) < TINY", "absolute(largest) < 0", SIGNED),
    (_search.fit_signed, "where(l2 != 0, lx / l2, np.float32(0))", "np.float32(1) / keep", SIGNED),
    (_search._moments, "weight * v * code", "weight * (v * code)", SIGNED),
    (_search._moments, "weight * code * code", "weight * (code * code)", SIGNED),
    (_search._moments, "-top, top - 1", "-top, top", SIGNED),
    (_search.fit_by_sweeps, "range(5)", "range(4)", ("q3_K",)),
    (_search.fit_by_sweeps, "(rest_lx > 0) & ", "", ("q3_K",)),
    (_search.fit_by_sweeps, "new_lx * new_lx * l2 > lx * lx * new_l2", "new_l2 > 0", ("q3_K",)),
    (_search.fit_offset, "range(steps + 1)", "range(steps)", OFFSET),
    (_search.fit_offset, "range(steps + 1)", "range(1, steps + 1)", OFFSET),
    (_search.fit_offset, "/ (high - low)\n        sum_l =", "/ (high - keep_low)\n        sum_l =", OFFSET),
    (_search.fit_offset, "keep_low = where(better, low, keep_low)", "keep_low = keep_low", OFFSET),
    (_search.fit_offset, "weighted * v", "get(w, i) * (code * v)", OFFSET),
    (_search.fit_offset, "(det > 0) & ", "", OFFSET),
    (_search.fit_offset, "above = new_low > 0", "above = new_low > 1e30", OFFSET),
    (_search.fit_offset, "where(above, sum_lx / sum_l2, new_scale)", "new_scale", OFFSET),
    (_search.fit_offset, "error < best", "error <= best", OFFSET),
    (_search._bounds, "where(low > 0, np.float32(0), low)", "low", OFFSET),
    (_search._error, "absolute(off) if linear else off * off", "off * off", ("q2_K",)),
    (_search.fit_positive, "range(-4, 5)", "range(-4, 4)", QP),
    (_search.fit_positive, "largest < TINY", "largest < 0", QP),
    (_search._sweeps, "_at_most(nearest(v * rest_l2 / rest_lx), top)", "nearest(v * rest_l2 / rest_lx)", QP),
    (_search.fit_positive, "error < best", "error <= best", QP),
    (_search._sweeps, "range(5)", "range(1)", QP),
    (_levels.fit_levels, "range(-7, 8)", "range(-7, 7)", ("iq4_nl", "iq4_xs")),
    (_levels.fit_levels, "range(-7, 8)", "range(-6, 8)", ("iq4_nl", "iq4_xs")),
    (_levels.fit_levels, "absolute(largest) < TINY", "absolute(largest) < 0", ("iq4_nl", "iq4_xs")),
    (_levels.fit_levels, "(-largest / LEVELS[0])", "(largest / LEVELS[0])", ("iq4_nl", "iq4_xs")),
    (_weigh.weigh, "mean_square + v * v", "v * v", ("q4_0", "q2_K", "q4_K", "iq4_xs")),
    (_weigh.weigh_by_size, "mean + ", "", ("q4_K", "q5_K")),
    (_kquants.recode, "(get(x, i) + low) / d", "(get(x, i) + low) * (np.float32(1) / d)", OFFSET[:3]),
    (_kquants.recode, "where(d != 0, code, get(codes, i))", "code", ("q2_K", "q3_K", "q4_K", "q6_K")),
    (_kquants.six_bits, "where(code < 63, code, 63)", "where(code < 62, code, 62)", ("q4_K", "q5_K")),
    (_kquants.fit_runs, "np.float32(2) * power", "power", ("q4_K", "q5_K")),
    (q2_k.fit_groups, "power(x, 256) / np.float32(256)", "power(x, 256) / np.float32(128)", ("q2_K",)),
    (q3_k.fit_groups, "np.float32(2) * power", "power", ("q3_K",)),
    (q3_k.fit_groups, "where(largest != 0, code, 0)", "code", ("q3_K",)),
    (q6_k.encode, "where(code < 127, code, 127)", "code", ("q6_K",)),
    (q6_k.encode, "absolute(largest) < TINY", "absolute(largest) < 0", ("q6_K",)),
    (iq4_xs.fit_runs, "2 / 256", "1 / 256", ("iq4_xs",)),
    (iq4_xs.encode, "np.float32(-32)", "np.float32(32)", ("iq4_xs",)),
    (q4_k.encode, "np.float32(-1), np.float32(0.1), 20", "np.float32(-0.9), np.float32(0.1), 20", ("q4_K",)),
    (q4_k.encode, "np.float32(0.05), 36", "np.float32(0.05), 35", ("q4_K",)),
    (
        q5_k.encode,
        "np.float32(-0.5), np.float32(0.1), 15",
        "np.float32(-0.5), np.float32(0.1), 14",
        ("q5_K",),
    ),
    (q4_0.encode, "get(mean_square, 0)", "zeros(x)", ("q4_0",)),
    (q4_1.encode, "low = -low", "low = low", ("q4_1",)),
    (_extremes.bounds, "v < low", "v <= low", ("q4_1", "q5_1")),
    (_round.half_away, "BELOW_HALF", "np.float32(0)", ("q8_0", "q8_1", "tq1_0", "tq2_0", "q2_0")),
    (_levels.nearest_fp4, "closer = distance < best", "closer = distance <= best", ("mxfp4", "nvfp4")),
    (q4_0.encode, "np.float32(8.5)", "np.float32(8)", ("q4_0",)),
    (q4_0.encode, "smaller(code, 15)", "code", ("q4_0",)),
    (q1_0.encode, " + np.float32(0)", "", ("q1_0",)),
    (mxfp4.exponent, "e - 2 + 127", "e - 1 + 127", ("mxfp4",)),
    (nvfp4.ue4m3, "byte < 15 << 3", "byte < 16 << 3", ("nvfp4",)),
    (q8_k.encode, "total >> 8", "total >> 9", ("q8_K",)),
    (tq1_0.put_trits, "+ 242", "+ 241", ("tq1_0",)),
]


def told_apart(fmt, inputs, stored):
    """Whether some bytes of a set of stored rows are not ggml's."""
    for kind in ("steps", "edges", "extremes", "normal", "uniform"):
        x = inputs[kind]
        for key, weights in (("blocks", None), ("weighted", inputs["importance"][: x.shape[1]])):
            if (
                f"{kind}/{key}" in stored
                and fmt.encode(x, weights).tobytes() != stored[f"{kind}/{key}"].tobytes()
            ):
                return True
    return False


@pytest.mark.parametrize(
    ("function", "text", "changed", "names"),
    CHANGES,
    ids=[f"{c[0].__name__}: {c[1]} -> {c[2]}" for c in CHANGES],
)
def test_a_changed_step_shows(function, text, changed, names, golden, monkeypatch):
    source = textwrap.dedent(inspect.getsource(function))
    assert text in source
    names_of_module = dict(function.__globals__) | {"zeros": _search.zeros}
    exec(compile(source.replace(text, changed), "changed", "exec"), names_of_module)
    function.__globals__.setdefault("zeros", _search.zeros)
    monkeypatch.setattr(function, "__code__", names_of_module[function.__name__].__code__)
    found = [name for name in names if told_apart(FORMATS[name], golden("inputs"), golden(name))]
    assert found, f"no stored row of {', '.join(names)} shows it"


def test_unchanged_steps_show_nothing(golden):
    for name in {name for *_, names in CHANGES for name in names}:
        assert not told_apart(FORMATS[name], golden("inputs"), golden(name)), name
