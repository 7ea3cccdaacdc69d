"""Mistakes in a GRU's fixed point that the doctor imitates: rounding, shifts, zero points, saturation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...fixed.qformat import QFormat
from ...fixed.shift import shifted_array
from ...reference.gru import Codes
from ..findings import Mistake
from .machine import Candidate, Run, in_all

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
TERMS = (
    ("Wx", "z_pre"), ("Rh", "z_pre"), ("Wx", "r_pre"), ("Rh", "r_pre"), ("Rh", "Rh_add_br"), ("Wx", "g_pre"),
    ("rRh", "g_pre"), ("old", "h"), ("new", "h"), ("bx", "z_pre"), ("br", "z_pre"), ("bx", "r_pre"),
    ("br", "r_pre"), ("br", "Rh_add_br"), ("bx", "g_pre"),
)  # fmt: skip


def _by(cut: Callable[[Codes, Codes], Codes]) -> Callable[[Any, Any], Codes]:
    """A shift whose steps down are ``cut(v, n)`` for n of at least 1."""

    def shift(v: Any, n: Any) -> Codes:
        v, n = np.broadcast_arrays(np.asarray(v, np.int64), np.asarray(n, np.int64))
        return np.where(n > 0, cut(v, np.clip(n, 1, 62)), np.left_shift(v, np.clip(-n, 0, 62)))

    return shift


def _half_even(v: Codes, n: Codes) -> Codes:
    down = v >> n
    rest = v - (down << n)
    half = np.left_shift(np.int64(1), n - 1)
    rounded: Codes = down + ((rest > half) | ((rest == half) & (down & 1 == 1)))
    return rounded


def _toward_zero(v: Codes, n: Codes) -> Codes:
    cut: Codes = np.sign(v) * (np.abs(v) >> n)
    return cut


ROUNDINGS = {
    "shift-floor": ("v >> n", _by(lambda v, n: v >> n)),
    "shift-toward-zero": ("sign(v)·(|v| >> n)", _by(_toward_zero)),
    "shift-half-up": ("(v + 2^(n-1)) >> n", _by(lambda v, n: (v >> n) + ((v >> (n - 1)) & 1))),
    "shift-half-even": ("ties to even", _by(_half_even)),
}


def roundings() -> Iterator[Candidate]:
    """Mistakes in rounding: shifts that do not round half away from zero."""
    for fault, (formula, shift) in ROUNDINGS.items():
        for words, names in GROUPS.items():
            yield Mistake(fault, f"{formula} {words}", in_all("round", names, shift))


def _wrap(v: Codes, f: QFormat) -> Codes:
    return (v - f.low) % (1 << f.bits) + f.low


def _even_ends(v: Codes, f: QFormat) -> Codes:
    return np.clip(v, -f.high if f.signed else f.low, f.high)


def saturations() -> Iterator[Candidate]:
    """Mistakes in saturation: sums that do not stop at the ends of their format."""
    for words, names in GROUPS.items():
        yield Mistake("saturation-wraps", words, in_all("ends", names, _wrap))
        inner = tuple(name for name in names if not name.endswith("_pre"))
        if inner == names or words == "everywhere":
            yield Mistake("saturation-missing", words, in_all("ends", inner, lambda v, f: v))
        int8 = in_all("ends", names, lambda v, f: np.clip(v, -128, 127))
        yield Mistake("saturation-ends", f"at -127 … 127 {words}", in_all("ends", names, _even_ends))
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


def exponents() -> Iterator[Candidate]:
    """Mistakes in exponents: shifts by a wrong amount, or the exponent of another row."""
    shifts: dict[str, tuple[str, ...]] = {f"all shifts into {name} are": ("shift", name) for name in SUMS}
    shifts |= {
        f"the shift of {source} into {target} is": ("shift", source, target) for source, target in TERMS
    }
    for words, key in shifts.items():
        for by in (-2, -1, 1, 2):
            yield Mistake("exponent", f"{words} {by:+d}", {key: by})
    for name in SUMS:
        back = {("round", name): lambda v, n: shifted_array(v, -np.clip(n, -40, 40))}
        yield Mistake("exponent", f"shifts into {name} go the other way", back)
    for words, names in (("bx is", ("bx",)), ("br is", ("br",)), ("biases are", ("bx", "br"))):
        yield Mistake("exponent", f"{words} added without a shift", in_all("raw", names, True))
    for words, pick in (
        ("that of the first row for all", lambda e: np.full_like(e, e[0])),
        ("the largest for all", lambda e: np.full_like(e, e.max())),
        ("the least for all", lambda e: np.full_like(e, e.min())),
        ("that of the row before", lambda e: np.roll(e, 1)),
        ("that of the row behind", lambda e: np.roll(e, -1)),
        ("those of z for every gate", lambda e: np.tile(e[: len(e) // 3], 3)),
    ):
        for names in (("W", "R"), ("W",), ("R",)):
            settings = in_all("exponent", names, pick)
            yield Mistake("exponent-of-row", f"{words}, of {' and '.join(names)}", settings)
