"""Mistakes of the new state, z · h + (1 - z) · g, and stages that are skipped or rounded together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...fixed.shift import shifted_array
from ...reference.gru import Codes, compensation, exact
from .inputs import Run
from .mistake import Mistake


def complements(run: Run) -> Iterator[Mistake]:
    """What stands in place of 1 - z, and of z."""
    f = run.formats["z_out"]
    one = 1 << f.exponent
    ways: tuple[tuple[str, str, Callable[[Codes], Any]], ...] = (
        ("one-minus-z-zero-point", "it is taken off twice, or never put on", lambda q: one - q),
        ("one-minus-z-zero-point", "it is put on twice", lambda q: one + 2 * f.zero - q),
        ("one-minus-z-zero-point", "it is taken off three times", lambda q: one - f.zero - q),
        (
            "one-minus-z-zero-point",
            "that of 1 - z is put on and never taken off",
            lambda q: one + f.zero - q + f.zero,
        ),
        ("one-wrong", "1 is the largest code", lambda q: f.high - q),
        ("one-wrong", "1 is the largest code less the zero point", lambda q: f.high - f.zero - q),
        ("one-wrong", "1 is cut at the largest code", lambda q: min(one + f.zero, f.high) - q),
        ("one-wrong", "1 is one code too small", lambda q: one + f.zero - 1 - q),
        ("one-wrong", "1 is the scale of 8 bits, 256", lambda q: 256 + f.zero - q),
        ("one-wrong", "1 is 2^bits", lambda q: (1 << f.bits) + f.zero - q),
        ("one-wrong", "1 is half of it", lambda q: one // 2 + f.zero - q),
        (
            "one-wrong",
            "1 - z is cut to the codes of z",
            lambda q: np.clip(one + 2 * f.zero - q, f.low, f.high) - f.zero,
        ),
        (
            "one-wrong",
            "1 - z wraps in the codes of z",
            lambda q: (one + f.zero - q - f.low) % (1 << f.bits) + f.low,
        ),
        (
            "one-wrong",
            "1 - z wraps in a signed number of as many bits",
            lambda q: _signed(one + f.zero - q, f.bits),
        ),
        ("update-exchanged", "z weighs the new part", lambda q: q - f.zero),
    )
    for fault, words, way in ways:
        yield Mistake(fault, words, {("stage", "new"): _new(way)})
    settings = {
        ("stage", "new"): _new(lambda q: q - f.zero),
        ("stage", "old"): _old(lambda q: one + f.zero - q),
    }
    yield Mistake("update-exchanged", "(1 - z)·h + z·g", settings)
    yield Mistake(
        "update-exchanged", "1 - z weighs the old part", {("stage", "old"): _old(lambda q: one + f.zero - q)}
    )
    for times in (0, 2):
        key = ("stage", "old")
        says = f"that of h is {'never taken off' if not times else 'taken off twice'} in z·h"
        yield Mistake("zero-point", says, {key: _old(lambda q: q - f.zero, times)})


def _signed(v: Any, bits: int) -> Any:
    return (v + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))


def _new(weight: Callable[[Codes], Any]) -> Any:
    def stage(scene: Any, q: Any) -> Codes:
        f = scene.formats
        both = weight(q["z_out"]) * scene.deviation(q, "g_out")
        found: Codes = scene.clamped(
            scene.rescaled(both, f["z_out"].exponent + f["g_out"].exponent, "new"), "new"
        )
        return found

    return stage


def _old(weight: Callable[[Codes], Any], times: int = 1) -> Any:
    def stage(scene: Any, q: Any) -> Codes:
        f = scene.formats
        both = weight(q["z_out"]) * (q["before"] - times * f["h"].zero)
        found: Codes = scene.clamped(
            scene.rescaled(both, f["z_out"].exponent + f["h"].exponent, "old"), "old"
        )
        return found

    return stage


# --- rounded together ---------------------------------------------------------------------------


def fused() -> Iterator[Mistake]:
    """Sums whose terms are rounded once instead of each."""
    stages = {
        "z_pre": _gate("z_pre", 0),
        "r_pre": _gate("r_pre", 1),
        "Rh_add_br": _added,
        "g_pre": _g,
        "h": _h,
    }
    groups = {"everywhere": tuple(stages), "before the gates": ("z_pre", "r_pre", "g_pre"),
              "before both sigmoids": ("z_pre", "r_pre"), "before r·(…)": ("z_pre", "r_pre", "Rh_add_br"),
              "in all but the state": ("z_pre", "r_pre", "Rh_add_br", "g_pre")}  # fmt: skip
    groups |= {f"in {name}": (name,) for name in stages}
    for words, names in groups.items():
        yield Mistake("terms-rounded-once", words, {("stage", name): stages[name] for name in names})
    yield Mistake(
        "stage-skipped", "old and new are never rounded to their formats", {("stage", "h"): _h_wide(False)}
    )
    yield Mistake(
        "stage-skipped", "z·h + (1 - z)·g is rounded once, at the end", {("stage", "h"): _h_wide(True)}
    )
    yield Mistake(
        "stage-skipped", "r·(R_g h + b_rg) goes into the sum unrounded", {("stage", "g_pre"): _g_wide}
    )
    yield Mistake(
        "product-in-bits",
        "r·(R_g h + b_rg) in 16 bits",
        {("stage", "rRh"): _narrow("r_out", "Rh_add_br", "rRh", 16)},
    )
    yield Mistake(
        "product-in-bits",
        "r·(R_g h + b_rg) in 32 bits",
        {("stage", "rRh"): _narrow("r_out", "Rh_add_br", "rRh", 32)},
    )


Term = tuple[Codes, Any]  # a deviation and its exponent


def _together(scene: Any, target: str, *terms: Term) -> Codes:
    shifts = [np.asarray(e - scene.formats[target].exponent, np.int64) for _, e in terms]
    finest = np.maximum(np.max([n.max() for n in shifts]), 0)
    total = sum(v << (finest - n) for (v, _), n in zip(terms, shifts, strict=True))
    found: Codes = scene.clamped(shifted_array(total, finest), target)
    return found


def _of(scene: Any, q: Any, name: str, rows: slice = slice(None)) -> Term:
    return scene.deviation(q, name)[:, rows], scene.formats[name].exponent


def _bias(scene: Any, name: str, rows: slice) -> Term:
    return scene.codes[name].astype(np.int64)[rows], scene.formats[name].exponent[rows]


def _gate(name: str, i: int) -> Any:
    def stage(scene: Any, q: Any) -> Codes:
        rows = scene.gate(i)
        biases = (_bias(scene, part, rows) for part in ("bx", "br"))
        return _together(scene, name, _of(scene, q, "Wx", rows), _of(scene, q, "Rh", rows), *biases)

    return stage


def _added(scene: Any, q: Any) -> Codes:
    rows = scene.gate(2)
    return _together(scene, "Rh_add_br", _of(scene, q, "Rh", rows), _bias(scene, "br", rows))


def _g(scene: Any, q: Any) -> Codes:
    rows = scene.gate(2)
    return _together(
        scene, "g_pre", _of(scene, q, "Wx", rows), _of(scene, q, "rRh"), _bias(scene, "bx", rows)
    )


def _h(scene: Any, q: Any) -> Codes:
    return _together(scene, "h", _of(scene, q, "old"), _of(scene, q, "new"))


def _h_wide(once: bool) -> Any:
    def stage(scene: Any, q: Any) -> Codes:
        f = scene.formats
        one = (1 << f["z_out"].exponent) + f["z_out"].zero
        e = f["z_out"].exponent
        terms = ((scene.deviation(q, "z_out") * (q["before"] - f["h"].zero), e + f["h"].exponent),
                 ((one - q["z_out"]) * scene.deviation(q, "g_out"), e + f["g_out"].exponent))  # fmt: skip
        if once:
            return _together(scene, "h", *terms)
        found: Codes = scene.clamped(sum(scene.rescaled(v, e, "h") for v, e in terms), "h")
        return found

    return stage


def _g_wide(scene: Any, q: Any) -> Codes:
    f, rows = scene.formats, scene.gate(2)
    both = scene.deviation(q, "r_out") * scene.deviation(q, "Rh_add_br")
    total = scene.term(q, "Wx", "g_pre", rows) + scene.bias("bx", rows, "g_pre")
    total = total + scene.rescaled(both, f["r_out"].exponent + f["Rh_add_br"].exponent, "g_pre")
    found: Codes = scene.clamped(total, "g_pre")
    return found


def _narrow(one: str, other: str, target: str, bits: int) -> Any:
    def stage(scene: Any, q: Any) -> Codes:
        f = scene.formats
        both = _signed(scene.deviation(q, one) * scene.deviation(q, other), bits)
        found: Codes = scene.clamped(
            scene.rescaled(both, f[one].exponent + f[other].exponent, target), target
        )
        return found

    return stage


# --- products that are not rounded --------------------------------------------------------------


def unrounded(run: Run) -> Iterator[Mistake]:
    """W·x or R·h that goes into the sums of the gates without a format of its own."""
    for names in (("Wx",), ("Rh",), ("Wx", "Rh")):
        says = f"{' and '.join(names)} {'are' if len(names) > 1 else 'is'} never rounded to a format"
        settings = {("stage", name): _wide_gate(name, i, names) for i, name in enumerate(("z_pre", "r_pre"))}
        settings |= {("stage", "g_pre"): _wide_g(names)} if "Wx" in names else {}
        settings |= {("stage", "Rh_add_br"): _wide_added} if "Rh" in names else {}
        yield Mistake("stage-skipped", says, settings)


def _raw(scene: Any, q: Any, name: str, rows: slice, target: str, wide: tuple[str, ...]) -> Codes:
    """A term from the sums of the product itself, or from its codes."""
    if name not in wide:
        found: Codes = scene.term(q, name, target, rows)
        return found
    weights, a = ("W", "x") if name == "Wx" else ("R", "h")
    w = scene.codes[weights].astype(np.int64)[rows]
    codes = q["before"] if name == "Rh" else q["x"]
    v = exact(codes, w) - compensation(scene, w, a)
    rescaled: Codes = scene.rescaled(
        v, scene.formats[weights].exponent[rows] + scene.formats[a].exponent, target
    )
    return rescaled


def _wide_gate(name: str, i: int, wide: tuple[str, ...]) -> Any:
    def stage(scene: Any, q: Any) -> Codes:
        rows = scene.gate(i)
        total = sum(_raw(scene, q, part, rows, name, wide) for part in ("Wx", "Rh"))
        total = total + scene.bias("bx", rows, name) + scene.bias("br", rows, name)
        found: Codes = scene.clamped(total, name)
        return found

    return stage


def _wide_g(wide: tuple[str, ...]) -> Any:
    def stage(scene: Any, q: Any) -> Codes:
        rows = scene.gate(2)
        total = _raw(scene, q, "Wx", rows, "g_pre", wide) + scene.term(q, "rRh", "g_pre")
        found: Codes = scene.clamped(total + scene.bias("bx", rows, "g_pre"), "g_pre")
        return found

    return stage


def _wide_added(scene: Any, q: Any) -> Codes:
    rows = scene.gate(2)
    total = _raw(scene, q, "Rh", rows, "Rh_add_br", ("Rh",)) + scene.bias("br", rows, "Rh_add_br")
    found: Codes = scene.clamped(total, "Rh_add_br")
    return found
