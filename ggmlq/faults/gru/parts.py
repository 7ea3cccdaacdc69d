"""Mistakes of one stage: gates, tables, biases, terms, the reset, 1 - z."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import permutations
from typing import Any

import numpy as np

from ...fixed.shift import shifted_array
from ...fixed.tables import TABLES, table_of
from ...gru.cell import TABLE_OF
from ...reference.gru import STAGES, Codes, compensation, exact
from .inputs import Run
from .mistake import Mistake
from .shifts import TERMS

GATES = "zrg"


def orders() -> Iterator[Mistake]:
    """Gates that take the rows of another gate."""
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


def _look(table: Any, source: str, base: Callable[[Any], int] | None = None, wrap: int = 0) -> Any:
    """A stage that looks up another table, or at another place."""

    def stage(scene: Any, q: Any) -> Codes:
        at = q[source] - (scene.formats[source].low if base is None else base(scene.formats[source]))
        at = at & (wrap - 1) if wrap else np.clip(at, 0, len(table) - 1)
        found: Codes = np.asarray(table, np.int64)[np.clip(at, 0, len(table) - 1)]
        return found

    return stage


def tables(run: Run) -> Iterator[Mistake]:
    """Gates that look up the table of another gate, or the right one at a wrong place."""
    for name, (source, target) in TABLE_OF.items():
        own = run.codes[name]
        key = ("stage", target)
        for other in TABLE_OF:
            if other != name:
                yield Mistake(
                    "table-of-other-gate",
                    f"{target} looks up {other}",
                    {key: _look(run.codes[other], source)},
                )
        for words, base, wrap in (
            ("codes without their least one taken off, as unsigned", _zero, len(own)),
            ("the codes less their zero point", _zero_point, 0),
            ("one further", _beside(-1), 0),
            ("one before", _beside(1), 0),
        ):
            yield Mistake("table-index", f"{target}: {words}", {key: _look(own, source, base, wrap)})
        f, t = run.formats[source], run.formats[target]
        right = "tanh" if name == "table_g" else "sigmoid"
        for function in ("sigmoid", "tanh"):
            for how in TABLES:
                made = table_of(function, how, f, t)
                if not np.array_equal(made, own):
                    fault = "table-function" if function != right else "table-kind"
                    yield Mistake(fault, f"{target}: {function}, {how}", {key: _look(made, source)})
        for words, wrong in (
            ("the zero point of its input is missing", (f._replace(zero=0), t)),
            ("the zero point of its output is missing", (f, t._replace(zero=0))),
        ):
            for made in (table_of(right, how, *wrong) for how in dict.fromkeys((run.tables, "direct"))):
                yield Mistake("table-zero-point", f"{target}: {words}", {key: _look(made, source)})
    yield from _all_tables(run)
    z, r = (_look(run.codes[f"table_{a}"], f"{b}_pre") for a, b in (("r", "z"), ("z", "r")))
    settings = {("stage", "z_out"): z, ("stage", "r_out"): r}
    yield Mistake("table-of-other-gate", "the tables of z and r are exchanged", settings)


def _all_tables(run: Run) -> Iterator[Mistake]:
    """All three at once."""
    own = {target: (run.codes[name], source) for name, (source, target) in TABLE_OF.items()}
    for words, by in (("one further", -1), ("one before", 1)):
        settings = {("stage", t): _look(table, source, _beside(by)) for t, (table, source) in own.items()}
        yield Mistake("table-index", f"all gates: {words}", settings)
    unsigned = {("stage", t): _look(table, source, _zero, len(table)) for t, (table, source) in own.items()}
    yield Mistake("table-index", "all gates: codes without their least one taken off, as unsigned", unsigned)
    for words, side in (("inputs", 0), ("outputs", 1)):
        settings = {}
        for name, (source, target) in TABLE_OF.items():
            pair = [run.formats[source], run.formats[target]]
            pair[side] = pair[side]._replace(zero=0)
            made = table_of("tanh" if name == "table_g" else "sigmoid", run.tables, pair[0], pair[1])
            settings[("stage", target)] = _look(made, source)
        yield Mistake("table-zero-point", f"those of {words} are missing in all tables", settings)


def _zero(_: Any) -> int:
    return 0


def _zero_point(f: Any) -> int:
    return int(f.zero + f.low)


def _beside(by: int) -> Callable[[Any], int]:
    return lambda f: int(f.low + by)


# --- terms --------------------------------------------------------------------------------------


def terms() -> Iterator[Mistake]:
    """Biases and other terms of a sum that are forgotten, counted twice, or have the wrong sign."""
    for times, fault, words in (
        (0, "missing", "missing"),
        (2, "twice", "counted twice"),
        (-1, "sign", "subtracted"),
    ):
        for names in (("bx", "br"), ("bx",), ("br",)):
            says = f"{' and '.join(names)} {words}"
            yield Mistake(f"bias-{fault}", says, {("bias", name): times for name in names})
        for source, target in TERMS:
            if source in ("bx", "br"):
                settings = {("bias", source, target): times}
                yield Mistake(f"bias-{fault}", f"{source} in {target} {words}", settings)
            else:
                yield Mistake("term", f"{source} in {target} {words}", {("term", source, target): times})
    for mine, other in (("bx", "br"), ("br", "bx")):
        yield Mistake("bias-exchanged", f"{other} stands in place of {mine}", _biases({mine: other}))
    yield Mistake("bias-exchanged", "bx and br are exchanged", _biases({"bx": "br", "br": "bx"}))


def _biases(taken: dict[str, str]) -> dict[tuple[str, ...], Any]:
    """Gates whose biases are looked up under another name."""

    def with_other(stage: Any) -> Any:
        def run(scene: Any, q: Any) -> Codes:
            codes, formats = dict(scene.codes), dict(scene.formats)
            for mine, other in taken.items():
                codes[mine], formats[mine] = scene.codes[other], scene.formats[other]
            replaced = type(scene)(formats, codes)
            replaced.settings, replaced.rows = scene.settings, scene.rows
            found: Codes = stage(replaced, q)
            return found

        return run

    return {("stage", name): with_other(STAGES[name]) for name in ("z_pre", "r_pre", "Rh_add_br", "g_pre")}


# --- reset --------------------------------------------------------------------------------------


def resets() -> Iterator[Mistake]:
    """The reset gate at another place."""
    for exactly in (False, True):
        for via in (True, False):
            how = "kept wide" if exactly else "rounded to the format of h"
            where = (
                "R_g (r·h) + b_rg goes through the format of r·(R_g h + b_rg)"
                if via
                else "and added as it is"
            )
            settings = {("stage", "Rh"): _reset_state(exactly), ("stage", "rRh"): _no_reset,
                        **({} if via else {("stage", "g_pre"): _without_rrh})}  # fmt: skip
            yield Mistake("reset-before-product", f"r·h is {how}, {where}", settings)
    yield Mistake("reset-missing", "", {("stage", "rRh"): _no_reset})
    yield Mistake("reset-missing", "added as it is", {("stage", "g_pre"): _without_rrh})
    yield Mistake(
        "reset-without-bias",
        "b_rg is added after the product",
        {("stage", "rRh"): _reset_bare, ("stage", "g_pre"): _bias_late},
    )
    yield Mistake("reset-without-bias", "b_rg is lost", {("bias", "br", "Rh_add_br"): 0})
    yield Mistake("reset-by-z", "", {("stage", "rRh"): _reset_by("z_out")})
    yield Mistake("reset-complement", "", {("stage", "rRh"): _reset_complement})


def _reset_state(exactly: bool) -> Any:
    """Rh whose rows of g are R_g (r·h); r does not depend on these rows."""

    def stage(scene: Any, q: Any) -> Codes:
        f, g = scene.formats, scene.gate(2)
        plain = STAGES["Rh"](scene, q)
        inner = {**q, "Rh": plain}
        inner["r_pre"] = STAGES["r_pre"](scene, inner)
        r = scene.settings.get(("stage", "r_out"), STAGES["r_out"])(scene, inner)
        both = (r - f["r_out"].zero) * (q["before"] - f["h"].zero)
        w, e = scene.codes["R"].astype(np.int64)[g], f["R"].exponent[g] + f["h"].exponent
        if exactly:
            v = scene.rescaled(exact(both, w), e + f["r_out"].exponent, "Rh")
        else:
            codes = np.clip(shifted_array(both, f["r_out"].exponent) + f["h"].zero, f["h"].low, f["h"].high)
            v = scene.rescaled(exact(codes, w) - compensation(scene, w, "h"), e, "Rh")
        found = plain.copy()
        found[:, g] = scene.clamped(v, "Rh")
        return found

    return stage


def _no_reset(scene: Any, q: Any) -> Codes:
    f = scene.formats
    found: Codes = scene.clamped(
        scene.rescaled(scene.deviation(q, "Rh_add_br"), f["Rh_add_br"].exponent, "rRh"), "rRh"
    )
    return found


def _without_rrh(scene: Any, q: Any) -> Codes:
    rows = scene.gate(2)
    total = scene.term(q, "Wx", "g_pre", rows) + scene.term(q, "Rh_add_br", "g_pre")
    found: Codes = scene.clamped(total + scene.bias("bx", rows, "g_pre"), "g_pre")
    return found


def _reset_bare(scene: Any, q: Any) -> Codes:
    f = scene.formats
    both = scene.deviation(q, "r_out") * scene.deviation(q, "Rh")[:, scene.gate(2)]
    found: Codes = scene.clamped(scene.rescaled(both, f["r_out"].exponent + f["Rh"].exponent, "rRh"), "rRh")
    return found


def _bias_late(scene: Any, q: Any) -> Codes:
    f, rows = scene.formats, scene.gate(2)
    total = scene.term(q, "Wx", "g_pre", rows) + scene.term(q, "rRh", "g_pre")
    late = scene.bias("br", rows, "g_pre")
    found: Codes = np.clip(
        total + scene.bias("bx", rows, "g_pre") + late + f["g_pre"].zero, f["g_pre"].low, f["g_pre"].high
    )
    return found


def _reset_by(gate: str) -> Any:
    def stage(scene: Any, q: Any) -> Codes:
        f = scene.formats
        both = scene.deviation(q, gate) * scene.deviation(q, "Rh_add_br")
        found: Codes = scene.clamped(
            scene.rescaled(both, f[gate].exponent + f["Rh_add_br"].exponent, "rRh"), "rRh"
        )
        return found

    return stage


def _reset_complement(scene: Any, q: Any) -> Codes:
    f = scene.formats
    both = ((1 << f["r_out"].exponent) - scene.deviation(q, "r_out")) * scene.deviation(q, "Rh_add_br")
    found: Codes = scene.clamped(
        scene.rescaled(both, f["r_out"].exponent + f["Rh_add_br"].exponent, "rRh"), "rRh"
    )
    return found
