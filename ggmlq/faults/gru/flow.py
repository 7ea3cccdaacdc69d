"""Mistakes in what enters a GRU step, which the doctor imitates: products, codes of x, states."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...reference.gru import Codes, Tensors, compensation, exact
from ..findings import Mistake
from .machine import Candidate, Index, Mistaken, Run, Stage, in_all

OTHER = {"x": "h", "h": "x"}
WEIGHTS = {"W and R": ("W", "R"), "W": ("W",), "R": ("R",)}
PRODUCTS = {"W and R": "W·x and R·h", "W": "W·x", "R": "R·h"}


def compensations() -> Iterator[Candidate]:
    """Mistakes in the compensation: the term of a product that takes the zero point of x or h out."""
    wrong_sum = "compensation-sum"
    corrections: tuple[tuple[str, str, Callable[[Mistaken, Codes, str], Any]], ...] = (
        ("compensation-missing", "", lambda s, w, a: 0 * w.sum(1)),
        ("compensation-twice", "", lambda s, w, a: 2 * compensation(s, w, a)),
        ("compensation-sign", "", lambda s, w, a: -compensation(s, w, a)),
        (wrong_sum, "sums of the rows of z for every gate, ",
         lambda s, w, a: np.tile(compensation(s, w, a)[: len(w) // 3], 3)),
        (wrong_sum, "K in place of the sum of the row, ",
         lambda s, w, a: np.full(len(w), s.formats[a].zero * w.shape[1], np.int64)),
        (wrong_sum, "the sum of all rows, ",
         lambda s, w, a: np.full(len(w), s.formats[a].zero * int(w.sum()), np.int64)),
        (wrong_sum, "the zero point of the other operand, ", lambda s, w, a: compensation(s, w, OTHER[a])),
    )  # fmt: skip
    for both, names in WEIGHTS.items():
        for fault, words, correction in corrections:
            yield Mistake(fault, f"{words}in {PRODUCTS[both]}", in_all("correction", names, correction))
        words = f"the sum and the correction are rounded apart, in {both}"
        yield Mistake("compensation-after-shift", words, in_all("apart", names, True))


# --- products -----------------------------------------------------------------------------------

Change = Callable[[Codes], Codes]


def products(run: Run) -> Iterator[Candidate]:
    """Mistakes in products: wrong weights, or sums in too few bits."""
    for both, names in WEIGHTS.items():
        for bits in (32, 24, 16):
            yield Mistake("overflow", f"sums of {both} are kept in {bits} bits",
                          in_all("sum", names, _wrapped(bits)))  # fmt: skip
        yield Mistake("weights-sign", f"codes of {both} are read without their sign",
                      in_all("weights", names, _unsigned))  # fmt: skip
        for by, words in ((1, "before"), (-1, "behind")):
            yield Mistake("weights-rows", f"rows of {both} are those of the unit {words}",
                          in_all("weights", names, _rolled(by)))  # fmt: skip
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
    span = 1 << bits
    return lambda v: (np.asarray(v, np.int64) + span // 2) % span - span // 2


def _by_gate(change: Change) -> Change:
    return lambda w: np.concatenate([change(part) for part in np.split(w, 3)])


def _rolled(by: int) -> Change:
    return _by_gate(lambda w: np.roll(w, by, 0))


def _without(count: int) -> Change:
    return lambda w: np.where(np.arange(w.shape[1]) < w.shape[1] - count, w, 0)


def _unsigned(w: Codes) -> Codes:
    return w & (0xFF if np.abs(w).max(initial=0) <= 128 else 0xFFFF)


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
    yield from _rows_of_x()


def _half_away(v: Any) -> Any:
    return np.trunc(v + np.copysign(0.5, v))


Rows = Callable[[Run, Index], Any]  # rows of x in the place of these; -1 beyond the run


def _rows_of_x() -> Iterator[Candidate]:
    rows: tuple[tuple[str, str, Rows], ...] = (
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
    for fault, words, taken in rows:
        yield Mistake(fault, words, {("x rows",): taken})


def _moved(steps: int, sequences: int) -> Rows:
    def rows(r: Run, at: Index) -> Any:
        t, n = at // r.sequences + steps, (at % r.sequences + sequences) % r.sequences
        return np.where((t < 0) | (t >= r.steps), -1, t * r.sequences + n)

    return rows


def _turned(r: Run, at: Index) -> Any:
    return (r.steps - 1 - at // r.sequences) * r.sequences + at % r.sequences


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
