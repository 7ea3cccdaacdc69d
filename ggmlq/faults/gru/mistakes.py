"""Every mistake that the doctor tries on a GRU in integers; if several explain its codes, the first is named.

Stages are written as formulas, as the oracle has them: ``g_pre = Wx + rRh + bx`` is a sum whose terms are
rounded one by one, ``[…]`` one that is rounded once, ``·`` a product of deviations that is rounded once, and
``W·x`` or ``R·h`` the product itself, before it is rounded to the format of Wx or Rh.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import permutations
from itertools import product as all_of
from typing import Any

import numpy as np

from ...fixed.shift import shifted_array
from ...fixed.tables import TABLES, table_of
from ...gru.cell import TABLE_OF
from ...reference.gru import STAGES, Codes, Tensors, compensation, exact
from ..findings import Mistake
from .machine import Candidate, Index, Mistaken, Run, Settings, Stage, in_all


def candidates(run: Run) -> Iterator[Candidate]:
    """Every mistake of the catalogue that a step can have."""
    yield from compensations()
    yield from complements(run)
    yield from resets()
    yield from terms()
    yield from orders()
    yield from tables(run)
    yield from roundings()
    yield from states(run)
    yield from inputs(run)
    yield from saturations()
    yield from zero_points(run)
    yield from exponents()
    yield from products(run)
    yield from fused()
    yield from unrounded()


# --- stages as formulas -------------------------------------------------------------------------

GATE = {"z_pre": 0, "r_pre": 1, "Rh_add_br": 2, "rRh": 2, "g_pre": 2}  # whose rows of 3H a stage reads
BIASES = ("bx", "br")
OF_ALL_GATES = ("Wx", "Rh", *BIASES)
SUMS_OF_TERMS = {
    "z_pre": "Wx + Rh + bx + br", "r_pre": "Wx + Rh + bx + br", "Rh_add_br": "Rh + br",
    "g_pre": "Wx + rRh + bx", "h": "old + new",
}  # fmt: skip
TERMS = sorted(  # biases last
    ((term, target) for target, terms in SUMS_OF_TERMS.items() for term in terms.split(" + ")),
    key=lambda pair: pair[0] in BIASES,
)


def stages(*formulas: str) -> Settings:
    """Settings that replace stages by formulas."""
    return {("stage", formula.split(" = ")[0]): _stage(*formula.split(" = ")) for formula in formulas}


def _stage(target: str, formula: str) -> Stage:
    names = formula.strip("[]").split(" + ")

    def rounded_once(s: Mistaken, q: Tensors) -> Codes:
        """Terms added up in the finest of their scales, and rounded once."""
        every = [_unrounded(s, q, name, target) for name in names]
        shifts = [np.asarray(e - s.formats[target].exponent, np.int64) for _, e in every]
        finest = np.maximum(np.max([n.max() for n in shifts]), 0)
        total = sum(v << (finest - n) for (v, _), n in zip(every, shifts, strict=True))
        return s.clamped(shifted_array(total, finest), target)

    def rounded_each(s: Mistaken, q: Tensors) -> Codes:
        total: Any = sum(_rounded(s, q, name, target) for name in names)
        return s.clamped(total, target)

    return rounded_once if formula[0] == "[" else rounded_each


def _rows(s: Mistaken, name: str, target: str) -> slice:
    return s.gate(GATE[target]) if name in OF_ALL_GATES else slice(None)


def _rounded(s: Mistaken, q: Tensors, name: str, target: str) -> Codes:
    """A term in the scale of the target."""
    if "·" in name:
        return s.rescaled(*_unrounded(s, q, name, target), target)
    rows = _rows(s, name, target)
    return s.bias(name, rows, target) if name in BIASES else s.term(q, name, target, rows)


def _unrounded(s: Mistaken, q: Tensors, name: str, target: str) -> tuple[Codes, Any]:
    """A deviation (or a bias, or a product of deviations), and its exponent."""
    f, rows = s.formats, _rows(s, name, target)
    if name in BIASES:
        return s.codes[name].astype(np.int64)[rows], f[name].exponent[rows]
    if name in ("W·x", "R·h"):
        weights, a = name.split("·")
        rows = s.gate(GATE[target])
        w = s.codes[weights].astype(np.int64)[rows]
        total = exact(q["x" if a == "x" else "before"], w) - compensation(s, w, a)
        return total, f[weights].exponent[rows] + f[a].exponent
    v: Any = 1
    exponent: Any = 0
    for factor in name.split("·"):
        tensor = factor.removeprefix("(1-").removesuffix(")")
        deviation = (q["before"] - f["h"].zero) if tensor == "h" else s.deviation(q, tensor)
        deviation = deviation[:, _rows(s, tensor, target)]
        v = v * ((1 << f[tensor].exponent) - deviation if factor[0] == "(" else deviation)
        exponent += f[tensor].exponent
    return v, exponent


# --- products -----------------------------------------------------------------------------------

Change = Callable[[Codes], Codes]
OTHER = {"x": "h", "h": "x"}
WEIGHTS = {"W and R": ("W", "R"), "W": ("W",), "R": ("R",)}
PRODUCTS = {"W and R": "W·x and R·h", "W": "W·x", "R": "R·h"}
CORRECTIONS: tuple[tuple[str, str, Callable[[Mistaken, Codes, str], Any]], ...] = (
    ("compensation-missing", "", lambda s, w, a: 0 * w.sum(1)),
    ("compensation-twice", "", lambda s, w, a: 2 * compensation(s, w, a)),
    ("compensation-sign", "", lambda s, w, a: -compensation(s, w, a)),
    ("compensation-sum", "sums of the rows of z for every gate, ",
     lambda s, w, a: np.tile(compensation(s, w, a)[: len(w) // 3], 3)),
    ("compensation-sum", "K in place of the sum of the row, ",
     lambda s, w, a: np.full(len(w), s.formats[a].zero * w.shape[1], np.int64)),
    ("compensation-sum", "the sum of all rows, ",
     lambda s, w, a: np.full(len(w), s.formats[a].zero * int(w.sum()), np.int64)),
    ("compensation-sum", "the zero point of the other operand, ",
     lambda s, w, a: compensation(s, w, OTHER[a])),
)  # fmt: skip


def compensations() -> Iterator[Candidate]:
    """Mistakes in the compensation: the term of a product that takes the zero point of x or h out."""
    for both, names in WEIGHTS.items():
        for fault, words, correction in CORRECTIONS:
            yield Mistake(fault, f"{words}in {PRODUCTS[both]}", in_all("correction", names, correction))
        words = f"the sum and the correction are rounded apart, in {both}"
        yield Mistake("compensation-after-shift", words, in_all("apart", names, True))


def products(run: Run) -> Iterator[Candidate]:
    """Mistakes in products: wrong weights, or sums in too few bits."""
    for both, names in WEIGHTS.items():
        for bits in (32, 24, 16):
            wrapped = in_all("sum", names, _wrapped(bits))
            yield Mistake("overflow", f"sums of {both} are kept in {bits} bits", wrapped)
        unsigned = in_all("weights", names, _unsigned)
        yield Mistake("weights-sign", f"codes of {both} are read without their sign", unsigned)
        for by, words in ((1, "before"), (-1, "behind")):
            rolled = in_all("weights", names, _by_gate(lambda w, by=by: np.roll(w, by, 0)))
            yield Mistake("weights-rows", f"rows of {both} are those of the unit {words}", rolled)
    transposed = {("weights", "R"): _by_gate(lambda w: w.T)}
    yield Mistake("weights-transposed", "R is R transposed", transposed)
    for name in ("W", "R"):
        columns = run.codes[name].shape[1]
        tails = {f"{columns % tile} columns, beyond whole runs of {tile}": columns % tile
                 for tile in (4, 8, 16, 32, 64, 128) if columns % tile and columns > tile}  # fmt: skip
        tails |= {f"{count} columns": count for count in (1, 2, 4, 8, 16, 32, 64) if columns > count}
        for words, count in tails.items():
            yield Mistake("tail-of-k", f"of {name} the last {words}", {("weights", name): _without(count)})


def _wrapped(bits: int) -> Change:
    return lambda v: _signed(np.asarray(v, np.int64), bits)


def _signed(v: Any, bits: int) -> Any:
    return (v + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))


def _by_gate(change: Callable[..., Codes]) -> Change:
    return lambda w: np.concatenate([change(part) for part in np.split(w, 3)])


def _without(count: int) -> Change:
    return lambda w: np.where(np.arange(w.shape[1]) < w.shape[1] - count, w, 0)


def _unsigned(w: Codes) -> Codes:
    return w & (0xFF if np.abs(w).max(initial=0) <= 128 else 0xFFFF)


# --- the new state, z · h + (1 - z) · g -----------------------------------------------------------


def complements(run: Run) -> Iterator[Candidate]:
    """Mistakes in the new state: other numbers instead of 1 - z or z."""
    f = run.formats["z_out"]
    one, span = 1 << f.exponent, 1 << f.bits
    zero_point, wrong = "one-minus-z-zero-point", "one-wrong"
    weights: tuple[tuple[str, str, Callable[[Codes], Any]], ...] = (
        (zero_point, "it is taken off twice, or never put on", lambda q: one - q),
        (zero_point, "it is put on twice", lambda q: one + 2 * f.zero - q),
        (zero_point, "it is taken off three times", lambda q: one - f.zero - q),
        (zero_point, "that of 1 - z is put on and never taken off", lambda q: one + f.zero - q + f.zero),
        (wrong, "1 is the largest code", lambda q: f.high - q),
        (wrong, "1 is the largest code less the zero point", lambda q: f.high - f.zero - q),
        (wrong, "1 is cut at the largest code", lambda q: min(one + f.zero, f.high) - q),
        (wrong, "1 is one code too small", lambda q: one + f.zero - 1 - q),
        (wrong, "1 is the scale of 8 bits, 256", lambda q: 256 + f.zero - q),
        (wrong, "1 is 2^bits", lambda q: span + f.zero - q),
        (wrong, "1 is half of it", lambda q: one // 2 + f.zero - q),
        (wrong, "1 - z is cut to the codes of z",
         lambda q: np.clip(one + 2 * f.zero - q, f.low, f.high) - f.zero),
        (wrong, "1 - z wraps in the codes of z", lambda q: (one + f.zero - q - f.low) % span + f.low),
        (wrong, "1 - z wraps in a signed number of as many bits",
         lambda q: _signed(one + f.zero - q, f.bits)),
    )  # fmt: skip
    for fault, words, weight in weights:
        yield Mistake(fault, words, {("stage", "new"): _new(weight)})
    new_z, old_1_z = "new = z_out·g_out", "old = (1-z_out)·h"
    yield Mistake("update-exchanged", "z weighs the new part", stages(new_z))
    yield Mistake("update-exchanged", "(1 - z)·h + z·g", stages(new_z, old_1_z))
    yield Mistake("update-exchanged", "1 - z weighs the old part", stages(old_1_z))
    for times, words in ((0, "never taken off"), (2, "taken off twice")):
        yield Mistake("zero-point", f"that of h is {words} in z·h", {("stage", "old"): _old(times)})


def _new(weight: Callable[[Codes], Any]) -> Stage:
    """The new part under another weight than 1 - z."""
    return lambda s, q: s.into("new", weight(q["z_out"]) * s.deviation(q, "g_out"), "z_out", "g_out")


def _old(times: int) -> Stage:
    """The old part, the zero point of h taken off so many times."""
    return lambda s, q: s.into(
        "old", s.deviation(q, "z_out") * (q["before"] - times * s.formats["h"].zero), "z_out", "h"
    )


def fused() -> Iterator[Candidate]:
    """Mistakes where terms are rounded once, as a sum, instead of one by one; and stages that are skipped."""
    z, r, added, g, _ = every = tuple(SUMS_OF_TERMS)
    groups = {"everywhere": every, "before the gates": (z, r, g), "before both sigmoids": (z, r),
              "before r·(…)": (z, r, added), "in all but the state": (z, r, added, g)}  # fmt: skip
    groups |= {f"in {name}": (name,) for name in every}
    for words, names in groups.items():
        once = stages(*(f"{name} = [{SUMS_OF_TERMS[name]}]" for name in names))
        yield Mistake("terms-rounded-once", words, once)
    for words, formula in (
        ("old and new are never rounded to their formats", "h = z_out·h + (1-z_out)·g_out"),
        ("z·h + (1 - z)·g is rounded once, at the end", "h = [z_out·h + (1-z_out)·g_out]"),
        ("r·(R_g h + b_rg) goes into the sum unrounded", "g_pre = Wx + r_out·Rh_add_br + bx"),
    ):
        yield Mistake("stage-skipped", words, stages(formula))
    for bits in (16, 32):
        words = f"r·(R_g h + b_rg) in {bits} bits"
        yield Mistake("product-in-bits", words, {("stage", "rRh"): _narrow(bits)})


def _narrow(bits: int) -> Stage:
    def stage(s: Mistaken, q: Tensors) -> Codes:
        both = _signed(s.deviation(q, "r_out") * s.deviation(q, "Rh_add_br"), bits)
        return s.into("rRh", both, "r_out", "Rh_add_br")

    return stage


def unrounded() -> Iterator[Candidate]:
    """Mistakes where W·x or R·h goes into the gates' sums without being rounded to its format."""
    for wide in (("Wx",), ("Rh",), ("Wx", "Rh")):
        words = f"{' and '.join(wide)} {'are' if len(wide) > 1 else 'is'} never rounded to a format"
        formulas = [f"{target} = {terms}" for target, terms in SUMS_OF_TERMS.items()]
        for name in wide:
            as_product = {"Wx": "W·x", "Rh": "R·h"}[name]
            formulas = [re.sub(rf"\b{name}\b(?= )", as_product, formula) for formula in formulas]
        yield Mistake("stage-skipped", words, stages(*(formula for formula in formulas if "·" in formula)))


# --- reset ------------------------------------------------------------------------------------------


def resets() -> Iterator[Candidate]:
    """Mistakes in the reset: at another place, left out, or by another gate."""
    never, as_it_is = stages("rRh = Rh_add_br"), stages("g_pre = Wx + Rh_add_br + bx")
    for wide, how in ((False, "rounded to the format of h"), (True, "kept wide")):
        early = {("stage", "Rh"): _reset_state(wide), **never}
        via = "R_g (r·h) + b_rg goes through the format of r·(R_g h + b_rg)"
        yield Mistake("reset-before-product", f"r·h is {how}, {via}", early)
        yield Mistake("reset-before-product", f"r·h is {how}, and added as it is", {**early, **as_it_is})
    yield Mistake("reset-missing", "", never)
    yield Mistake("reset-missing", "added as it is", as_it_is)
    late = stages("rRh = r_out·Rh", "g_pre = Wx + rRh + bx + br")
    yield Mistake("reset-without-bias", "b_rg is added after the product", late)
    yield Mistake("reset-without-bias", "b_rg is lost", {("bias", "br", "Rh_add_br"): 0})
    yield Mistake("reset-by-z", "", stages("rRh = z_out·Rh_add_br"))
    yield Mistake("reset-complement", "", stages("rRh = (1-r_out)·Rh_add_br"))


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


# --- terms, gates, tables ---------------------------------------------------------------------------


def terms() -> Iterator[Candidate]:
    """Mistakes in biases and other terms of a sum: forgotten, counted twice, or with the wrong sign."""
    changes = ((0, "missing", "missing"), (2, "twice", "counted twice"), (-1, "sign", "subtracted"))
    for times, fault, words in changes:
        for names in (("bx", "br"), ("bx",), ("br",)):
            yield Mistake(f"bias-{fault}", f"{' and '.join(names)} {words}", in_all("bias", names, times))
        for source, target in TERMS:
            bias = source in BIASES
            settings = {("bias" if bias else "term", source, target): times}
            yield Mistake(f"bias-{fault}" if bias else "term", f"{source} in {target} {words}", settings)
    for name, other in (("bx", "br"), ("br", "bx")):
        yield Mistake("bias-exchanged", f"{other} stands in place of {name}", _biases({name: other}))
    yield Mistake("bias-exchanged", "bx and br are exchanged", _biases({"bx": "br", "br": "bx"}))


def _biases(names: dict[str, str]) -> Settings:
    """Gates whose biases are looked up under another name."""

    def with_other(stage: Any) -> Stage:
        def exchanged(s: Mistaken, q: Tensors) -> Codes:
            codes, formats = ({**each, **{name: each[other] for name, other in names.items()}}
                              for each in (s.codes, s.formats))  # fmt: skip
            other = Mistaken(formats, codes)
            other.settings, other.rows = s.settings, s.rows
            result: Codes = stage(other, q)
            return result

        return exchanged

    return {("stage", name): with_other(STAGES[name]) for name in ("z_pre", "r_pre", "Rh_add_br", "g_pre")}


def orders() -> Iterator[Candidate]:
    """Mistakes in the order of gates: a gate takes the rows of another gate."""
    parts = {
        "": ("Wx", "Rh", "b"), " in W and R, not in the biases": ("Wx", "Rh"), " in W": ("Wx",),
        " in R": ("Rh",), " in the biases": ("b",), " in W and the biases": ("Wx", "b"),
        " in R and the biases": ("Rh", "b"),
    }  # fmt: skip
    for order in permutations(range(3)):
        if order != (0, 1, 2):
            named = ", ".join(f"{'zrg'[i]} takes {'zrg'[j]}" for i, j in enumerate(order) if i != j)
            for words, names in parts.items():
                yield Mistake("gate-order", f"{named}{words}", in_all("order", names, order))


Place = Callable[[Codes, Any, int], Codes]  # of codes in a table of n, by their format
PLACES: dict[str, Place] = {
    "codes without their least one taken off, as unsigned": lambda q, f, n: q & (n - 1),
    "the codes less their zero point": lambda q, f, n: q - f.zero - f.low,
    "one further": lambda q, f, n: q - f.low + 1,
    "one before": lambda q, f, n: q - f.low - 1,
}


def _look(table: Any, source: str, place: Place = lambda q, f, n: q - f.low) -> Stage:
    """A stage that looks up another table, or at another place."""

    def stage(s: Mistaken, q: Tensors) -> Codes:
        at = np.clip(place(q[source], s.formats[source], len(table)), 0, len(table) - 1)
        return np.asarray(table, np.int64)[at]

    return stage


def tables(run: Run) -> Iterator[Candidate]:
    """Mistakes in tables: a gate looks up another gate's table, or its own at a wrong place."""
    without_zero: dict[str, dict[Any, Stage]] = {"inputs": {}, "outputs": {}}
    for name, (source, target) in TABLE_OF.items():
        function = "tanh" if name == "table_g" else "sigmoid"
        f, t, right = run.formats[source], run.formats[target], run.codes[name]
        tried = [("table-of-other-gate", f" looks up {other}", _look(run.codes[other], source))
                 for other in TABLE_OF if other != name]  # fmt: skip
        tried += [("table-index", f": {at}", _look(right, source, place)) for at, place in PLACES.items()]
        for other, how in all_of(("sigmoid", "tanh"), TABLES):
            table = table_of(other, how, f, t)
            if not np.array_equal(table, right):
                fault = "table-kind" if other == function else "table-function"
                tried.append((fault, f": {other}, {how}", _look(table, source)))
        for side, formats in (("inputs", (f._replace(zero=0), t)), ("outputs", (f, t._replace(zero=0)))):
            kinds = dict.fromkeys((run.tables, "direct"))
            looks = [_look(table_of(function, how, *formats), source) for how in kinds]
            words = f": the zero point of its {side[:-1]} is missing"
            tried += [("table-zero-point", words, look) for look in looks]
            without_zero[side]["stage", target] = looks[0]
        for fault, words, stage in tried:
            yield Mistake(fault, f"{target}{words}", {("stage", target): stage})
    for words in ("one further", "one before", next(iter(PLACES))):
        yield Mistake("table-index", f"all gates: {words}", {
            ("stage", target): _look(run.codes[name], source, PLACES[words])
            for name, (source, target) in TABLE_OF.items()
        })  # fmt: skip
    for side, settings in without_zero.items():
        yield Mistake("table-zero-point", f"those of {side} are missing in all tables", settings)
    z, r = (_look(run.codes[f"table_{a}"], f"{b}_pre") for a, b in (("r", "z"), ("z", "r")))
    exchanged = {("stage", "z_out"): z, ("stage", "r_out"): r}
    yield Mistake("table-of-other-gate", "the tables of z and r are exchanged", exchanged)


# --- fixed point: rounding, saturation, zero points, exponents ------------------------------------------

SUMS = ("Wx", "Rh", "z_pre", "r_pre", "Rh_add_br", "rRh", "g_pre", "old", "new", "h")
GROUPS = {
    "everywhere": SUMS,
    "in both products with weights": ("Wx", "Rh"),
    "in all but the products with weights": SUMS[2:],
    "in sums of terms": ("z_pre", "r_pre", "Rh_add_br", "g_pre", "h"),
    "in products of codes": ("rRh", "old", "new"),
    "in all that is multiplied": ("Wx", "Rh", "rRh", "old", "new"),
    "before the three gates": ("z_pre", "r_pre", "g_pre"),
    "before both sigmoids": ("z_pre", "r_pre"),
    "in both parts of the state": ("old", "new"),
    **{f"in {name}": (name,) for name in SUMS},
}
ROUNDINGS: dict[str, tuple[str, Callable[[Codes, Codes], Codes]]] = {  # of v >> n for n of at least 1
    "shift-floor": ("v >> n", lambda v, n: v >> n),
    "shift-toward-zero": ("sign(v)·(|v| >> n)", lambda v, n: np.sign(v) * (np.abs(v) >> n)),
    "shift-half-up": ("(v + 2^(n-1)) >> n", lambda v, n: (v >> n) + ((v >> (n - 1)) & 1)),
    "shift-half-even": ("ties to even", lambda v, n: (v + (1 << (n - 1)) - 1 + ((v >> n) & 1)) >> n),
}


def roundings() -> Iterator[Candidate]:
    """Mistakes in rounding: shifts that do not round half away from zero."""
    for fault, (formula, cut) in ROUNDINGS.items():
        for words, names in GROUPS.items():
            yield Mistake(fault, f"{formula} {words}", in_all("round", names, _shift(cut)))


def _shift(cut: Callable[[Codes, Codes], Codes]) -> Callable[[Any, Any], Codes]:
    """A shift that rounds by ``cut`` on its way down, and shifts up where n is negative."""

    def shift(v: Any, n: Any) -> Codes:
        v, n = np.broadcast_arrays(np.asarray(v, np.int64), np.asarray(n, np.int64))
        return np.where(n > 0, cut(v, np.clip(n, 1, 62)), np.left_shift(v, np.clip(-n, 0, 62)))

    return shift


def saturations() -> Iterator[Candidate]:
    """Mistakes in saturation: sums that do not stop at the ends of their format."""
    for words, names in GROUPS.items():
        wrap = in_all("ends", names, lambda v, f: (v - f.low) % (1 << f.bits) + f.low)
        yield Mistake("saturation-wraps", words, wrap)
        inner = tuple(name for name in names if not name.endswith("_pre"))
        if inner == names or words == "everywhere":
            yield Mistake("saturation-missing", words, in_all("ends", inner, lambda v, f: v))
        even = in_all("ends", names, lambda v, f: np.clip(v, -f.high if f.signed else f.low, f.high))
        int8 = in_all("ends", names, lambda v, f: np.clip(v, -128, 127))
        yield Mistake("saturation-ends", f"at -127 … 127 {words}", even)
        yield Mistake("saturation-ends", f"at those of int8 {words}", int8)


def zero_points(run: Run) -> Iterator[Candidate]:
    """Mistakes in zero points of tensors between the stages; those of x and h are in ``compensations``."""
    outs = ("z_out", "r_out", "g_out")
    inner = [name for name in (*SUMS[:-1], *outs) if run.formats[name].zero]
    for key, words, names in (
        ("less", "taken off", [name for name in inner if not name.endswith("_pre")]),
        ("plus", "put on", [*(name for name in inner if name in SUMS), "h"]),
    ):
        for name in names:
            yield Mistake("zero-point", f"that of {name} is never {words}", {(key, name): 0})
            yield Mistake("zero-point", f"that of {name} is {words} twice", {(key, name): 2})
    yield Mistake("zero-point", "none is taken off", in_all("less", (*SUMS, *outs), 0))
    yield Mistake("zero-point", "none is put on", in_all("plus", SUMS, 0))


ROW_EXPONENTS: dict[str, Change] = {
    "that of the first row for all": lambda e: np.full_like(e, e[0]),
    "the largest for all": lambda e: np.full_like(e, e.max()),
    "the least for all": lambda e: np.full_like(e, e.min()),
    "that of the row before": lambda e: np.roll(e, 1),
    "that of the row behind": lambda e: np.roll(e, -1),
    "those of z for every gate": lambda e: np.tile(e[: len(e) // 3], 3),
}


def exponents() -> Iterator[Candidate]:
    """Mistakes in exponents: shifts by a wrong amount, or the exponent of another row."""
    shifts: dict[str, tuple[str, ...]] = {f"all shifts into {name} are": ("shift", name) for name in SUMS}
    shifts |= {f"the shift of {a} into {b} is": ("shift", a, b) for a, b in TERMS}
    for words, key in shifts.items():
        for by in (-2, -1, 1, 2):
            yield Mistake("exponent", f"{words} {by:+d}", {key: by})
    for name in SUMS:
        back = {("round", name): lambda v, n: shifted_array(v, -np.clip(n, -40, 40))}
        yield Mistake("exponent", f"shifts into {name} go the other way", back)
    for words, names in (("bx is", ("bx",)), ("br is", ("br",)), ("biases are", ("bx", "br"))):
        yield Mistake("exponent", f"{words} added without a shift", in_all("raw", names, True))
    for words, pick in ROW_EXPONENTS.items():
        for both, weights in WEIGHTS.items():
            yield Mistake("exponent-of-row", f"{words}, of {both}", in_all("exponent", weights, pick))


# --- x ------------------------------------------------------------------------------------------


def inputs(run: Run) -> Iterator[Candidate]:
    """Mistakes in codes of x: another rounding, another format, another step or sequence."""
    f = run.formats["x"]
    v = np.clip(np.ldexp(run.values.astype(np.float64), f.exponent), -(2.0**40), 2.0**40)
    rounded = _half_away(v)
    roundings = {
        "floor": np.floor(v), "towards zero": np.trunc(v), "ties to even": np.rint(v),
        "ties away from zero": rounded, "ties up": np.floor(v + 0.5),
        "half away after the zero point": _half_away(v + f.zero) - f.zero,
    }  # fmt: skip
    whole = rounded.astype(np.int64)
    codes_of_x = (
        *(("x-rounding", words, np.clip(v + f.zero, f.low, f.high)) for words, v in roundings.items()),
        ("x-zero-point", "it is never put on", np.clip(whole, f.low, f.high)),
        ("x-zero-point", "it is put on twice", np.clip(whole + 2 * f.zero, f.low, f.high)),
        ("x-saturation", "they wrap", (whole + f.zero - f.low) % (1 << f.bits) + f.low),
        ("x-saturation", "they do not stop", whole + f.zero),
    )
    for fault, words, codes in codes_of_x:
        if not np.array_equal(codes, run.x):
            yield Mistake(fault, words, {("x",): codes.astype(np.int64)})
    if run.known_x != f:
        calibrated = run.known_x.encode(run.values).astype(np.int64)
        settings: dict[Any, Any] = {("x",): calibrated, ("formats",): {"x": run.known_x}}
        yield Mistake("x-format", "that of the calibration", settings)
        settings = {("correction", "W"): lambda s, w, a: run.known_x.zero * w.sum(1)}
        yield Mistake("x-format", "the zero point of the calibration in the compensation", settings)
    for fault, words, rows in ROWS_OF_X:
        yield Mistake(fault, words, {("x rows",): rows})


def _half_away(v: Any) -> Any:
    return np.trunc(v + np.copysign(0.5, v))


Rows = Callable[[Run, Index], Any]  # rows of x in the place of these; -1 beyond the run


def _moved(steps: int, sequences: int) -> Rows:
    def rows(r: Run, at: Index) -> Any:
        t, n = at // r.sequences + steps, (at % r.sequences + sequences) % r.sequences
        return np.where((t < 0) | (t >= r.steps), -1, t * r.sequences + n)

    return rows


def _turned(r: Run, at: Index) -> Any:
    return (r.steps - 1 - at // r.sequences) * r.sequences + at % r.sequences


ROWS_OF_X: tuple[tuple[str, str, Rows], ...] = (
    ("x-step", "of the step before", _moved(-1, 0)),
    ("x-step", "of the step behind", _moved(1, 0)),
    ("x-step", "of the first step", lambda r, at: at % r.sequences),
    ("x-step", "of the last step", lambda r, at: (r.steps - 1) * r.sequences + at % r.sequences),
    ("x-sequence", "of the sequence before", _moved(0, -1)),
    ("x-sequence", "of the sequence behind", _moved(0, 1)),
    ("x-sequence", "of sequence 0", lambda r, at: at - at % r.sequences),
    ("direction", "x is read from its end", _turned),
    ("x-layout", "[T, N, C] is read as [N, T, C]",
     lambda r, at: at % r.sequences * r.steps + at // r.sequences),
)  # fmt: skip


# --- states -------------------------------------------------------------------------------------

States = Callable[[Run, Index], Codes]  # states before the steps of these rows


def states(run: Run) -> Iterator[Candidate]:
    """Mistakes in the state that a step starts from, which should be the state after the step before."""
    f, zero = run.formats["h"], np.full_like(run.first, run.formats["h"].zero)
    code_0 = np.zeros_like(zero)
    before: list[tuple[str, str, States]] = [
        ("state-not-carried", "all begin at zero", _always(zero)),
        ("state-not-carried", "all begin at h0", _always(run.first)),
        ("state-not-carried", "all begin at code 0", _always(code_0)),
        ("state-stale", "two steps old", _earlier(2)),
        ("direction", "the step behind came first", _earlier(-1)),
        ("state-sequence", "of the sequence before", _earlier(1, -1)),
        ("state-sequence", "of the sequence behind", _earlier(1, 1)),
    ]
    for fault, words, way in before:
        yield Mistake(fault, words, {("before",): way})
        if fault != "direction":
            yield Mistake(fault, f"{words}, in R·h alone", {("before", "R"): way})
    settings = {("before",): _earlier(-1), ("x rows",): _turned}
    yield Mistake("direction", "y is in the order of the steps, not turned back", settings)
    yield Mistake("state-in-place", "", {("stage", "Rh"): _in_place(run)})
    raw = np.clip(run.first - f.zero, f.low, f.high)
    starts = {"zeros in place of h0": zero, "code 0 in place of zeros": code_0,
              "it is quantized without its zero point": raw}  # fmt: skip
    for words, codes in starts.items():
        if codes is raw or not np.array_equal(codes, run.first):
            yield Mistake("h0", words, {("before",): _start(codes)})


def _always(codes: Codes) -> States:
    return lambda r, at: codes[at % r.sequences]


def _earlier(by: int, sequences: int = 0) -> States:
    """States of another step and sequence; those before the first step where there is no such step."""

    def before(r: Run, at: Index) -> Codes:
        t, n = at // r.sequences - by, (at % r.sequences + sequences) % r.sequences
        inside = np.clip(t, 0, r.steps - 1) * r.sequences + n
        return np.where(((t < 0) | (t >= r.steps))[:, None], r.first[n], r.y[inside])

    return before


def _start(codes: Codes) -> States:
    return lambda r, at: np.where((at < r.sequences)[:, None], codes[at % r.sequences], r.before[at])


def _in_place(run: Run) -> Stage:
    """The stage Rh if units are updated in place, so that later ones read the new states of earlier ones."""

    def stage(s: Mistaken, q: Tensors) -> Codes:
        fresh, w = run.y[s.rows], s.codes["R"].astype(np.int64)
        total = np.concatenate([
            exact(fresh, np.tril(part, -1)) + exact(q["before"], np.triu(part)) for part in np.split(w, 3)
        ], 1)  # fmt: skip
        exponent = s.formats["R"].exponent + s.formats["h"].exponent
        return s.clamped(s.rescaled(total - compensation(s, w, "h"), exponent, "Rh"), "Rh")

    return stage
