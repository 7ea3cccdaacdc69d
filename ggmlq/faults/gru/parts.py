"""Mistakes in one stage of a GRU step that the doctor imitates: order of gates, tables, terms, the reset."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import permutations
from typing import Any

import numpy as np

from ...fixed.shift import shifted_array
from ...fixed.tables import TABLES, table_of
from ...gru.cell import TABLE_OF
from ...reference.gru import STAGES, Codes, Tensors, compensation, exact
from ..findings import Mistake
from .machine import Candidate, Mistaken, Run, Stage, in_all
from .shifts import TERMS

GATES = "zrg"


def orders() -> Iterator[Candidate]:
    """Mistakes in the order of gates: a gate takes the rows of another gate."""
    parts = {
        "": ("Wx", "Rh", "b"), " in W and R, not in the biases": ("Wx", "Rh"), " in W": ("Wx",),
        " in R": ("Rh",), " in the biases": ("b",), " in W and the biases": ("Wx", "b"),
        " in R and the biases": ("Rh", "b"),
    }  # fmt: skip
    for order in permutations(range(3)):
        if order != (0, 1, 2):
            named = ", ".join(f"{GATES[i]} takes {GATES[j]}" for i, j in enumerate(order) if i != j)
            for words, names in parts.items():
                yield Mistake("gate-order", f"{named}{words}", {("order", name): order for name in names})


# --- tables -------------------------------------------------------------------------------------


def _look(table: Any, source: str, base: Callable[[Any], int] | None = None, wrap: int = 0) -> Stage:
    """A stage that looks up another table, or at another place."""

    def stage(s: Mistaken, q: Tensors) -> Codes:
        f = s.formats[source]
        at = q[source] - (f.low if base is None else base(f))
        at = at & (wrap - 1) if wrap else at
        return np.asarray(table, np.int64)[np.clip(at, 0, len(table) - 1)]

    return stage


def _beside(by: int) -> Callable[[Any], int]:
    return lambda f: int(f.low + by)


UNSIGNED = "codes without their least one taken off, as unsigned"


def tables(run: Run) -> Iterator[Candidate]:
    """Mistakes in tables: a gate looks up another gate's table, or its own at a wrong place."""
    for name, (source, target) in TABLE_OF.items():
        for fault, words, stage in _tables_of_gate(run, name, source, target):
            yield Mistake(fault, f"{target}{words}", {("stage", target): stage})
    yield from _all_tables(run)
    z, r = (_look(run.codes[f"table_{a}"], f"{b}_pre") for a, b in (("r", "z"), ("z", "r")))
    exchanged = {("stage", "z_out"): z, ("stage", "r_out"): r}
    yield Mistake("table-of-other-gate", "the tables of z and r are exchanged", exchanged)


def _tables_of_gate(run: Run, name: str, source: str, target: str) -> Iterator[tuple[str, str, Stage]]:
    """Fault, words and stage of each."""
    right = run.codes[name]
    for other in TABLE_OF:
        if other != name:
            yield "table-of-other-gate", f" looks up {other}", _look(run.codes[other], source)
    places: tuple[tuple[str, Callable[[Any], int], int], ...] = (
        (UNSIGNED, lambda f: 0, len(right)),
        ("the codes less their zero point", lambda f: int(f.zero + f.low), 0),
        ("one further", _beside(-1), 0),
        ("one before", _beside(1), 0),
    )
    for words, base, wrap in places:
        yield "table-index", f": {words}", _look(right, source, base, wrap)
    f, t = run.formats[source], run.formats[target]
    for function in ("sigmoid", "tanh"):
        for how in TABLES:
            table = table_of(function, how, f, t)
            if not np.array_equal(table, right):
                fault = "table-kind" if function == _function(name) else "table-function"
                yield fault, f": {function}, {how}", _look(table, source)
    for words, formats in (("input", (f._replace(zero=0), t)), ("output", (f, t._replace(zero=0)))):
        for how in dict.fromkeys((run.tables, "direct")):
            stage = _look(table_of(_function(name), how, *formats), source)
            yield "table-zero-point", f": the zero point of its {words} is missing", stage


def _function(table: str) -> str:
    return "tanh" if table == "table_g" else "sigmoid"


def _all_tables(run: Run) -> Iterator[Candidate]:
    """Mistakes in all three tables at once."""
    right = {target: (run.codes[name], source) for name, (source, target) in TABLE_OF.items()}
    for words, by in (("one further", -1), ("one before", 1)):
        settings = {("stage", t): _look(table, source, _beside(by)) for t, (table, source) in right.items()}
        yield Mistake("table-index", f"all gates: {words}", settings)
    unsigned = {
        ("stage", t): _look(table, source, lambda f: 0, len(table)) for t, (table, source) in right.items()
    }
    yield Mistake("table-index", f"all gates: {UNSIGNED}", unsigned)
    for words, side in (("inputs", 0), ("outputs", 1)):
        settings = {}
        for name, (source, target) in TABLE_OF.items():
            pair = [run.formats[source], run.formats[target]]
            pair[side] = pair[side]._replace(zero=0)
            settings[("stage", target)] = _look(table_of(_function(name), run.tables, *pair), source)
        yield Mistake("table-zero-point", f"those of {words} are missing in all tables", settings)


# --- terms --------------------------------------------------------------------------------------


def terms() -> Iterator[Candidate]:
    """Mistakes in biases and other terms of a sum: forgotten, counted twice, or with the wrong sign."""
    changes = ((0, "missing", "missing"), (2, "twice", "counted twice"), (-1, "sign", "subtracted"))
    for times, fault, words in changes:
        for names in (("bx", "br"), ("bx",), ("br",)):
            yield Mistake(f"bias-{fault}", f"{' and '.join(names)} {words}", in_all("bias", names, times))
        for source, target in TERMS:
            bias = source in ("bx", "br")
            settings = {("bias" if bias else "term", source, target): times}
            yield Mistake(f"bias-{fault}" if bias else "term", f"{source} in {target} {words}", settings)
    for name, other in (("bx", "br"), ("br", "bx")):
        yield Mistake("bias-exchanged", f"{other} stands in place of {name}", _biases({name: other}))
    yield Mistake("bias-exchanged", "bx and br are exchanged", _biases({"bx": "br", "br": "bx"}))


def _biases(names: Mapping[str, str]) -> dict[tuple[str, ...], Stage]:
    """Gates whose biases are looked up under another name."""

    def with_other(stage: Any) -> Stage:
        def exchanged(s: Mistaken, q: Tensors) -> Codes:
            codes, formats = dict(s.codes), dict(s.formats)
            for name, other in names.items():
                codes[name], formats[name] = s.codes[other], s.formats[other]
            replaced = Mistaken(formats, codes)
            replaced.settings, replaced.rows = s.settings, s.rows
            result: Codes = stage(replaced, q)
            return result

        return exchanged

    return {("stage", name): with_other(STAGES[name]) for name in ("z_pre", "r_pre", "Rh_add_br", "g_pre")}


# --- reset --------------------------------------------------------------------------------------


def resets() -> Iterator[Candidate]:
    """Mistakes in the reset: at another place, left out, or by another gate."""
    rrh, g_pre = ("stage", "rRh"), ("stage", "g_pre")
    for wide, how in ((False, "rounded to the format of h"), (True, "kept wide")):
        early = {("stage", "Rh"): _reset_state(wide), rrh: _no_reset}
        via = "R_g (r·h) + b_rg goes through the format of r·(R_g h + b_rg)"
        yield Mistake("reset-before-product", f"r·h is {how}, {via}", early)
        yield Mistake(
            "reset-before-product", f"r·h is {how}, and added as it is", {**early, g_pre: _without_rrh}
        )
    yield Mistake("reset-missing", "", {rrh: _no_reset})
    yield Mistake("reset-missing", "added as it is", {g_pre: _without_rrh})
    late = {rrh: _reset_bare, g_pre: _bias_late}
    yield Mistake("reset-without-bias", "b_rg is added after the product", late)
    yield Mistake("reset-without-bias", "b_rg is lost", {("bias", "br", "Rh_add_br"): 0})
    yield Mistake("reset-by-z", "", {rrh: _reset_by_z})
    yield Mistake("reset-complement", "", {rrh: _reset_complement})


def _reset_state(wide: bool) -> Stage:
    """Rh whose rows of g are R_g (r·h); r does not depend on these rows."""

    def stage(s: Mistaken, q: Tensors) -> Codes:
        f, g = s.formats, s.gate(2)
        plain = STAGES["Rh"](s, q)
        inner = {**q, "Rh": plain}
        inner["r_pre"] = STAGES["r_pre"](s, inner)
        r = s.settings.get(("stage", "r_out"), STAGES["r_out"])(s, inner)
        both = (r - f["r_out"].zero) * (q["before"] - f["h"].zero)
        w, e = s.codes["R"].astype(np.int64)[g], f["R"].exponent[g] + f["h"].exponent
        if wide:
            v = s.rescaled(exact(both, w), e + f["r_out"].exponent, "Rh")
        else:
            codes = np.clip(shifted_array(both, f["r_out"].exponent) + f["h"].zero, f["h"].low, f["h"].high)
            v = s.rescaled(exact(codes, w) - compensation(s, w, "h"), e, "Rh")
        result = plain.copy()
        result[:, g] = s.clamped(v, "Rh")
        return result

    return stage


def _no_reset(s: Mistaken, q: Tensors) -> Codes:
    return s.into("rRh", s.deviation(q, "Rh_add_br"), "Rh_add_br")


def _without_rrh(s: Mistaken, q: Tensors) -> Codes:
    rows = s.gate(2)
    total = s.term(q, "Wx", "g_pre", rows) + s.term(q, "Rh_add_br", "g_pre")
    return s.clamped(total + s.bias("bx", rows, "g_pre"), "g_pre")


def _reset_bare(s: Mistaken, q: Tensors) -> Codes:
    return s.into("rRh", s.deviation(q, "r_out") * s.deviation(q, "Rh")[:, s.gate(2)], "r_out", "Rh")


def _bias_late(s: Mistaken, q: Tensors) -> Codes:
    f, rows = s.formats["g_pre"], s.gate(2)
    total = s.term(q, "Wx", "g_pre", rows) + s.term(q, "rRh", "g_pre")
    total = total + s.bias("bx", rows, "g_pre") + s.bias("br", rows, "g_pre")
    result: Codes = np.clip(total + f.zero, f.low, f.high)
    return result


def _reset_by_z(s: Mistaken, q: Tensors) -> Codes:
    return s.into("rRh", s.deviation(q, "z_out") * s.deviation(q, "Rh_add_br"), "z_out", "Rh_add_br")


def _reset_complement(s: Mistaken, q: Tensors) -> Codes:
    rest = (1 << s.formats["r_out"].exponent) - s.deviation(q, "r_out")
    return s.into("rRh", rest * s.deviation(q, "Rh_add_br"), "r_out", "Rh_add_br")
