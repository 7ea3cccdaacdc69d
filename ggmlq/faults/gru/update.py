"""Mistakes that the doctor imitates in a GRU's new state, z · h + (1 - z) · g, and in roundings of sums."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...fixed.shift import shifted_array
from ...reference.gru import Codes, Tensors, compensation, exact
from ..findings import Mistake
from .machine import Candidate, Mistaken, Run, Stage

Weight = Callable[[Codes], Any]
NEW, OLD = ("stage", "new"), ("stage", "old")


def complements(run: Run) -> Iterator[Candidate]:
    """Mistakes in the new state: other numbers instead of 1 - z or z."""
    f = run.formats["z_out"]
    one, span = 1 << f.exponent, 1 << f.bits
    zero_point, wrong = "one-minus-z-zero-point", "one-wrong"
    weights: tuple[tuple[str, str, Weight], ...] = (
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
        ("update-exchanged", "z weighs the new part", lambda q: q - f.zero),
    )  # fmt: skip
    for fault, words, weight in weights:
        yield Mistake(fault, words, {NEW: _new(weight)})
    exchanged = _old(lambda q: one + f.zero - q)
    yield Mistake("update-exchanged", "(1 - z)·h + z·g", {NEW: _new(lambda q: q - f.zero), OLD: exchanged})
    yield Mistake("update-exchanged", "1 - z weighs the old part", {OLD: exchanged})
    for times, words in ((0, "never taken off"), (2, "taken off twice")):
        old = _old(lambda q: q - f.zero, times)
        yield Mistake("zero-point", f"that of h is {words} in z·h", {OLD: old})


def _signed(v: Any, bits: int) -> Any:
    return (v + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))


def _new(weight: Weight) -> Stage:
    return lambda s, q: s.into("new", weight(q["z_out"]) * s.deviation(q, "g_out"), "z_out", "g_out")


def _old(weight: Weight, times: int = 1) -> Stage:
    """The old part, the zero point of h taken off so many times."""

    def stage(s: Mistaken, q: Tensors) -> Codes:
        return s.into("old", weight(q["z_out"]) * (q["before"] - times * s.formats["h"].zero), "z_out", "h")

    return stage


# --- rounded together ---------------------------------------------------------------------------


def fused() -> Iterator[Candidate]:
    """Mistakes where terms are rounded once, as a sum, instead of one by one."""
    stages: dict[str, Stage] = {
        "z_pre": _gate("z_pre", 0),
        "r_pre": _gate("r_pre", 1),
        "Rh_add_br": lambda s, q: _together(s, "Rh_add_br", _term(s, q, "Rh", 2), _bias(s, "br", 2)),
        "g_pre": lambda s, q: _together(
            s, "g_pre", _term(s, q, "Wx", 2), _term(s, q, "rRh"), _bias(s, "bx", 2)
        ),
        "h": lambda s, q: _together(s, "h", _term(s, q, "old"), _term(s, q, "new")),
    }
    gates = ("z_pre", "r_pre", "g_pre")
    groups = {"everywhere": tuple(stages), "before the gates": gates, "before both sigmoids": gates[:2],
              "before r·(…)": (*gates[:2], "Rh_add_br"),
              "in all but the state": (*gates[:2], "Rh_add_br", "g_pre")}  # fmt: skip
    groups |= {f"in {name}": (name,) for name in stages}
    for words, names in groups.items():
        yield Mistake("terms-rounded-once", words, {("stage", name): stages[name] for name in names})
    skipped: tuple[tuple[str, str, Stage], ...] = (
        ("old and new are never rounded to their formats", "h", _wide_state(False)),
        ("z·h + (1 - z)·g is rounded once, at the end", "h", _wide_state(True)),
        ("r·(R_g h + b_rg) goes into the sum unrounded", "g_pre", _wide_reset),
    )
    for words, name, stage in skipped:
        yield Mistake("stage-skipped", words, {("stage", name): stage})
    for bits in (16, 32):
        words = f"r·(R_g h + b_rg) in {bits} bits"
        yield Mistake("product-in-bits", words, {("stage", "rRh"): _narrow(bits)})


Term = tuple[Codes, Any]  # a deviation and its exponent


def _together(s: Mistaken, target: str, *terms: Term) -> Codes:
    """Terms added up in the finest of their scales, and rounded once."""
    shifts = [np.asarray(e - s.formats[target].exponent, np.int64) for _, e in terms]
    finest = np.maximum(np.max([n.max() for n in shifts]), 0)
    total = sum(v << (finest - n) for (v, _), n in zip(terms, shifts, strict=True))
    return s.clamped(shifted_array(total, finest), target)


def _term(s: Mistaken, q: Tensors, name: str, gate: int | None = None) -> Term:
    rows = slice(None) if gate is None else s.gate(gate)
    return s.deviation(q, name)[:, rows], s.formats[name].exponent


def _bias(s: Mistaken, name: str, gate: int) -> Term:
    return s.codes[name].astype(np.int64)[s.gate(gate)], s.formats[name].exponent[s.gate(gate)]


def _gate(name: str, gate: int) -> Stage:
    def stage(s: Mistaken, q: Tensors) -> Codes:
        products = (_term(s, q, source, gate) for source in ("Wx", "Rh"))
        return _together(s, name, *products, _bias(s, "bx", gate), _bias(s, "br", gate))

    return stage


def _wide_state(once: bool) -> Stage:
    """z·h and (1 - z)·g as they are, rounded each or once."""

    def stage(s: Mistaken, q: Tensors) -> Codes:
        f, e = s.formats, s.formats["z_out"].exponent
        one = (1 << e) + f["z_out"].zero
        terms = ((s.deviation(q, "z_out") * (q["before"] - f["h"].zero), e + f["h"].exponent),
                 ((one - q["z_out"]) * s.deviation(q, "g_out"), e + f["g_out"].exponent))  # fmt: skip
        if once:
            return _together(s, "h", *terms)
        return s.clamped(s.rescaled(*terms[0], "h") + s.rescaled(*terms[1], "h"), "h")

    return stage


def _wide_reset(s: Mistaken, q: Tensors) -> Codes:
    f, rows = s.formats, s.gate(2)
    both = s.deviation(q, "r_out") * s.deviation(q, "Rh_add_br")
    reset = s.rescaled(both, f["r_out"].exponent + f["Rh_add_br"].exponent, "g_pre")
    return s.clamped(s.term(q, "Wx", "g_pre", rows) + s.bias("bx", rows, "g_pre") + reset, "g_pre")


def _narrow(bits: int) -> Stage:
    def stage(s: Mistaken, q: Tensors) -> Codes:
        both = _signed(s.deviation(q, "r_out") * s.deviation(q, "Rh_add_br"), bits)
        return s.into("rRh", both, "r_out", "Rh_add_br")

    return stage


# --- products that are not rounded --------------------------------------------------------------


def unrounded(run: Run) -> Iterator[Candidate]:
    """Mistakes where W·x or R·h goes into the gates' sums without being rounded to its format."""
    for wide in (("Wx",), ("Rh",), ("Wx", "Rh")):
        words = f"{' and '.join(wide)} {'are' if len(wide) > 1 else 'is'} never rounded to a format"
        settings = {
            ("stage", name): _unrounded_gate(name, i, wide) for i, name in enumerate(("z_pre", "r_pre"))
        }
        settings |= {("stage", "g_pre"): _unrounded_g} if "Wx" in wide else {}
        settings |= {("stage", "Rh_add_br"): _unrounded_added} if "Rh" in wide else {}
        yield Mistake("stage-skipped", words, settings)


def _raw(s: Mistaken, q: Tensors, name: str, rows: slice, target: str) -> Codes:
    """A term from the sums of the product itself."""
    weights, a, codes = ("W", "x", q["x"]) if name == "Wx" else ("R", "h", q["before"])
    w = s.codes[weights].astype(np.int64)[rows]
    exponent = s.formats[weights].exponent[rows] + s.formats[a].exponent
    return s.rescaled(exact(codes, w) - compensation(s, w, a), exponent, target)


def _unrounded_gate(name: str, i: int, wide: tuple[str, ...]) -> Stage:
    def stage(s: Mistaken, q: Tensors) -> Codes:
        rows = s.gate(i)
        wx, rh = ((_raw if part in wide else _rounded)(s, q, part, rows, name) for part in ("Wx", "Rh"))
        return s.clamped(wx + rh + s.bias("bx", rows, name) + s.bias("br", rows, name), name)

    return stage


def _rounded(s: Mistaken, q: Tensors, name: str, rows: slice, target: str) -> Codes:
    return s.term(q, name, target, rows)


def _unrounded_g(s: Mistaken, q: Tensors) -> Codes:
    rows = s.gate(2)
    total = _raw(s, q, "Wx", rows, "g_pre") + s.term(q, "rRh", "g_pre")
    return s.clamped(total + s.bias("bx", rows, "g_pre"), "g_pre")


def _unrounded_added(s: Mistaken, q: Tensors) -> Codes:
    rows = s.gate(2)
    return s.clamped(_raw(s, q, "Rh", rows, "Rh_add_br") + s.bias("br", rows, "Rh_add_br"), "Rh_add_br")
