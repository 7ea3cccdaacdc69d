"""Mistakes of what goes into a step: products with weights, codes of x, and states."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...reference.gru import Codes, compensation, exact
from ..explanation import Mistake
from .inputs import Run
from .machine import Candidate, Index, Settings

BOTH = ("W", "R")
OTHER = {"x": "h", "h": "x"}


def compensations(run: Run) -> Iterator[Candidate]:
    """The part of products that zero points of x and of h bring in."""
    ways: tuple[tuple[str, str, Callable[..., Any]], ...] = (
        ("compensation-missing", "", lambda s, w, a: 0 * w.sum(1)),
        ("compensation-twice", "", lambda s, w, a: 2 * compensation(s, w, a)),
        ("compensation-sign", "", lambda s, w, a: -compensation(s, w, a)),
        ("compensation-sum", "sums of the rows of z for every gate, ", _first_gate),
        ("compensation-sum", "K in place of the sum of the row, ", _length),
        ("compensation-sum", "the sum of all rows, ", _whole),
        ("compensation-sum", "the zero point of the other operand, ", _others),
    )
    for names in (BOTH, ("W",), ("R",)):
        for fault, words, way in ways:
            of = {"W": "W·x", "R": "R·h"}
            says = f"{words}in {' and '.join(of[name] for name in names)}"
            yield Mistake(fault, says, {("correction", name): way for name in names})
        says = f"the sum and the correction are rounded apart, in {' and '.join(names)}"
        yield Mistake("compensation-after-shift", says, {("apart", name): True for name in names})


def _first_gate(scene: Any, w: Codes, a: str) -> Codes:
    return np.tile(compensation(scene, w, a)[: len(w) // 3], 3)


def _length(scene: Any, w: Codes, a: str) -> Codes:
    return np.full(len(w), scene.formats[a].zero * w.shape[1], np.int64)


def _whole(scene: Any, w: Codes, a: str) -> Codes:
    return np.full(len(w), scene.formats[a].zero * int(w.sum()), np.int64)


def _others(scene: Any, w: Codes, a: str) -> Codes:
    return compensation(scene, w, OTHER[a])


# --- products -----------------------------------------------------------------------------------


def _int(bits: int) -> Callable[[Any], Codes]:
    def held(v: Any) -> Codes:
        return (np.asarray(v, np.int64) + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))

    return held


def _by_gate(change: Callable[[Codes], Codes]) -> Callable[[Codes], Codes]:
    def changed(w: Codes) -> Codes:
        return np.concatenate([change(part) for part in np.split(w, 3)])

    return changed


def _rolled(by: int) -> Callable[[Codes], Codes]:
    return _by_gate(lambda w: np.roll(w, by, 0))


def _without(count: int) -> Callable[[Codes], Codes]:
    def cut(w: Codes) -> Codes:
        shorter = w.copy()
        shorter[:, len(w[0]) - count :] = 0
        return shorter

    return cut


def products(run: Run) -> Iterator[Candidate]:
    """Sums over wrong weights, or in too few bits."""
    for names in (BOTH, ("W",), ("R",)):
        of = " and ".join(names)
        for bits in (32, 24, 16):
            says = f"sums of {of} are kept in {bits} bits"
            yield Mistake("overflow", says, {("sum", name): _int(bits) for name in names})
        says = f"codes of {of} are read without their sign"
        yield Mistake("weights-sign", says, {("weights", name): _unsigned for name in names})
        for by in (1, -1):
            says = f"rows of {of} are those of the unit {'before' if by > 0 else 'behind'}"
            settings = {("weights", n): _rolled(by) for n in names}
            yield Mistake("weights-rows", says, settings)
    yield Mistake("weights-transposed", "R is R transposed", {("weights", "R"): _by_gate(lambda w: w.T)})
    for name in BOTH:
        columns = run.codes[name].shape[1]
        for tile in (4, 8, 16, 32, 64, 128):
            if columns % tile and columns > tile:
                says = f"of {name} the last {columns % tile} columns, beyond whole runs of {tile}"
                yield Mistake("tail-of-k", says, {("weights", name): _without(columns % tile)})
        for count in (1, 2, 4, 8, 16, 32, 64):
            if columns > count:
                says = f"of {name} the last {count} columns"
                yield Mistake("tail-of-k", says, {("weights", name): _without(count)})


def _unsigned(w: Codes) -> Codes:
    return w & (0xFF if np.abs(w).max(initial=0) <= 128 else 0xFFFF)


# --- x ------------------------------------------------------------------------------------------


def inputs(run: Run) -> Iterator[Candidate]:
    """Codes of x: rounded otherwise, of another format, of another step or sequence."""
    f = run.formats["x"]
    exactly = np.ldexp(run.values.astype(np.float64), f.exponent)
    small = np.clip(exactly, -(2.0**40), 2.0**40)
    rounded = np.trunc(small + np.copysign(0.5, small))
    for words, v in (
        ("floor", np.floor(small)),
        ("towards zero", np.trunc(small)),
        ("ties to even", np.rint(small)),
        ("ties away from zero", rounded),
        ("ties up", np.floor(small + 0.5)),
        (
            "half away after the zero point",
            np.trunc(small + f.zero + np.copysign(0.5, small + f.zero)) - f.zero,
        ),
    ):
        codes = np.clip(v + f.zero, f.low, f.high).astype(np.int64)
        if not np.array_equal(codes, run.x):
            yield Mistake("x-rounding", words, {("x",): codes})
    whole = rounded.astype(np.int64)
    for fault, words, codes in (
        ("x-zero-point", "it is never put on", np.clip(whole, f.low, f.high)),
        ("x-zero-point", "it is put on twice", np.clip(whole + 2 * f.zero, f.low, f.high)),
        ("x-saturation", "they wrap", (whole + f.zero - f.low) % (1 << f.bits) + f.low),
        ("x-saturation", "they do not stop", whole + f.zero),
    ):
        if not np.array_equal(codes, run.x):
            yield Mistake(fault, words, {("x",): codes})
    if run.known_x != f:
        calibrated = run.known_x.encode(run.values).astype(np.int64)
        settings: Settings = {("x",): calibrated, ("formats",): {"x": run.known_x}}
        yield Mistake("x-format", "that of the calibration", settings)
        settings = {("correction", "W"): lambda s, w, a: run.known_x.zero * w.sum(1)}
        yield Mistake("x-format", "the zero point of the calibration in the compensation", settings)
    yield from _rows_of_x()


def _rows_of_x() -> Iterator[Candidate]:
    def moved(dt: int, dn: int) -> Callable[[Run, Index], Any]:
        def rows(run: Run, at: Index) -> Any:
            t, n = at // run.sequences + dt, at % run.sequences + dn
            beyond = (t < 0) | (t >= run.steps)
            return np.clip(t, 0, run.steps - 1) * run.sequences + n % run.sequences, beyond

        return rows

    def known(at: Callable[[Run, Index], Index]) -> Callable[[Run, Index], Any]:
        return lambda run, rows: (at(run, rows), np.zeros(len(rows), np.bool_))

    for dt, words in ((-1, "of the step before"), (1, "of the step behind")):
        yield Mistake("x-step", words, {("x rows",): moved(dt, 0)})
    yield Mistake("x-step", "of the first step", {("x rows",): known(lambda r, at: at % r.sequences)})
    last = known(lambda r, at: (r.steps - 1) * r.sequences + at % r.sequences)
    yield Mistake("x-step", "of the last step", {("x rows",): last})
    for dn, words in ((-1, "of the sequence before"), (1, "of the sequence behind")):
        yield Mistake("x-sequence", words, {("x rows",): moved(0, dn)})
    yield Mistake("x-sequence", "of sequence 0", {("x rows",): known(lambda r, at: at - at % r.sequences)})
    yield Mistake("direction", "x is read from its end", {("x rows",): _turned})
    other = known(lambda r, at: at % r.sequences * r.steps + at // r.sequences)
    yield Mistake("x-layout", "[T, N, C] is read as [N, T, C]", {("x rows",): other})


def _turned(run: Run, rows: Index) -> Any:
    at = (run.steps - 1 - rows // run.sequences) * run.sequences + rows % run.sequences
    return at, np.zeros(len(rows), np.bool_)


# --- states -------------------------------------------------------------------------------------


def states(run: Run) -> Iterator[Candidate]:
    """States before a step: not those after the one before."""

    def always(codes: Codes) -> Callable[[Run, Index], Any]:
        return lambda r, at: (codes[at % r.sequences], np.zeros(len(at), np.bool_))

    def before(by: int, dn: int = 0) -> Callable[[Run, Index], Any]:
        def found(r: Run, at: Index) -> Any:
            t, n = at // r.sequences - by, (at % r.sequences + dn) % r.sequences
            inside = np.clip(t, 0, r.steps - 1) * r.sequences + n
            outside = (t < 0) | (t >= r.steps)
            return np.where(outside[:, None], r.first[n], r.y[inside]), np.zeros(len(at), np.bool_)

        return found

    zero = np.full_like(run.first, run.formats["h"].zero)
    for words, codes in (("all begin at zero", zero), ("all begin at h0", run.first),
                         ("all begin at code 0", np.zeros_like(zero))):  # fmt: skip
        yield Mistake("state-not-carried", words, {("before",): always(codes)})
        settings: Settings = {("before", "R"): lambda r, at, codes=codes: codes[at % r.sequences]}
        yield Mistake("state-not-carried", f"{words}, in R·h alone", settings)
    for fault, words, way in (
        ("state-stale", "two steps old", before(2)),
        ("direction", "the step behind came first", before(-1)),
        ("state-sequence", "of the sequence before", before(1, -1)),
        ("state-sequence", "of the sequence behind", before(1, 1)),
    ):
        yield Mistake(fault, words, {("before",): way})
        if fault != "direction":
            settings = {("before", "R"): lambda r, at, way=way: way(r, at)[0]}
            yield Mistake(fault, f"{words}, in R·h alone", settings)
    settings = {("before",): before(-1), ("x rows",): _turned}
    yield Mistake("direction", "y is in the order of the steps, not turned back", settings)
    yield Mistake("state-in-place", "", {("stage", "Rh"): _in_place(run)})
    for words, codes in (("zeros in place of h0", zero), ("code 0 in place of zeros", np.zeros_like(zero))):
        if not np.array_equal(codes, run.first):
            yield Mistake("h0", words, {("before",): _start(codes)})
    raw = np.clip(run.first - run.formats["h"].zero, run.formats["h"].low, run.formats["h"].high)
    yield Mistake("h0", "it is quantized without its zero point", {("before",): _start(raw)})


def _start(codes: Codes) -> Callable[[Run, Index], Any]:
    def found(r: Run, at: Index) -> Any:
        first = (at < r.sequences)[:, None]
        return np.where(first, codes[at % r.sequences], r.before[at]), np.zeros(len(at), np.bool_)

    return found


def _in_place(run: Run) -> Callable[..., Codes]:
    """Units in their order, each one's new state written over the old one while others still read it."""

    def stage(scene: Any, q: Any) -> Codes:
        fresh, w = run.y[scene.rows], scene.codes["R"].astype(np.int64)
        total = np.concatenate([
            exact(fresh, np.tril(part, -1)) + exact(q["before"], np.triu(part)) for part in np.split(w, 3)
        ], 1)  # fmt: skip
        f = scene.formats
        v = scene.rescaled(total - compensation(scene, w, "h"), f["R"].exponent + f["h"].exponent, "Rh")
        codes: Codes = scene.clamped(v, "Rh")
        return codes

    return stage
