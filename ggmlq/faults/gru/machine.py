"""The doctor's imitation of a GRU step with mistakes: the oracle's stages with some of their parts replaced.

A mistake is a mapping, its settings. Each key names the part that is replaced:

    ("round", tensor)            the shift into its scale           ("shift", tensor)   one too many, too few
    ("shift", term, tensor)      the same for one term of its sum   ("ends", tensor)    what clamping does
    ("less", tensor)             how often its zero point is taken off, 1 if right; ("plus", …): put on
    ("term", term, tensor)       how often a term is counted        ("bias", name, …)   the same for biases
    ("order", "Wx" | "Rh" | "b")  which gate's rows each gate takes
    ("weights" | "sum" | "correction" | "exponent" | "apart", "W" | "R")  parts of the products
    ("x",) ("x rows",) ("before",) ("before", "R")  codes of x, which rows of them, and the states
    ("stage", tensor)            the whole stage

Settings of two mistakes are one mapping, so that mistakes can be combined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...base.devices import to_host
from ...errors import DTypeError, ShapeError
from ...fixed.qformat import QFormat
from ...fixed.shift import shifted_array
from ...gru import FixedGRU, weights
from ...gru.run import INTERMEDIATE, format_in_call
from ...reference.gru import STAGES, Codes, Scene, Tensors, compensation, exact
from ..findings import Mistake

CALL = "diagnose_gru(codes, f, x)"
FAR = 1 << 40  # no code is; what lies beyond counts as this


@dataclass(frozen=True, eq=False)
class Run:
    """Codes and inputs of one direction of a GRU. Row t·N + n is sequence n in the t-th step that is run."""

    formats: Mapping[str, QFormat]
    codes: Mapping[str, Any]
    tables: str
    known_x: QFormat  # the format of x that calibration found
    values: NDArray[Any]  # x [T·N, C] as floats
    x: Codes  # [T·N, C]
    first: Codes  # [N, H], the states before the first step
    y: Codes  # [T·N, H], the states that were observed
    last: Codes | None  # [N, H], the last states as they were given
    v: Mapping[str, Codes]  # intermediates that were observed, [T·N, H] each
    steps: int
    sequences: int
    direction: int
    directions: int

    @property
    def units(self) -> int:
        """The number of units, H."""
        return int(self.y.shape[1])

    @property
    def before(self) -> Codes:
        """The states before each step, as observed."""
        return np.concatenate([self.first, self.y])[: len(self.y)]


def checked(codes: Any, f: FixedGRU, x: Any, h0: Any, batch_first: bool) -> list[Run]:
    """The runs, one a direction; errors say what does not fit."""
    if not isinstance(f, FixedGRU):
        raise DTypeError(
            f"{CALL}: f is {type(f).__name__}; its formats and codes say what is right; pass a FixedGRU"
        )
    x = weights.inputs(CALL, to_host(x), f.inputs, batch_first)
    t, n = x.shape[:2]
    starts = weights.states(CALL, None if h0 is None else to_host(h0), len(f.cells), n, f.units)
    y, last, v = _parts(codes, len(f.cells), t, n, f.units, batch_first)
    runs = []
    for d, cell in enumerate(f.cells):
        order = slice(None, None, -1) if d else slice(None)
        part = slice(d * f.units, (d + 1) * f.units)
        values = np.ascontiguousarray(x[order], np.float64 if x.dtype == np.float64 else np.float32)
        fmt = format_in_call(f, cell, values)
        start = np.zeros((n, f.units)) if starts is None else starts[d]
        inner = {} if v is None else _intermediates(v[order], part, f.units)
        runs.append(Run(
            {**cell.formats, "x": fmt}, cell.codes, f.tables, cell.formats["x"],
            values.reshape(t * n, f.inputs),
            fmt.encode(values, f.rounding).astype(np.int64).reshape(t * n, f.inputs),
            cell.formats["h"].encode(start, f.rounding).astype(np.int64),
            y[order][..., part].reshape(t * n, f.units), None if last is None else last[d], inner, t, n, d,
            len(f.cells),
        ))  # fmt: skip
    return runs


def _intermediates(v: Codes, part: slice, units: int) -> dict[str, Codes]:
    v = v[..., 4 * part.start : 4 * part.stop]
    return {
        name: v[..., i * units : (i + 1) * units].reshape(-1, units) for i, name in enumerate(INTERMEDIATE)
    }


def _parts(codes: Any, directions: int, t: int, n: int, units: int, batch_first: bool) -> Any:
    """y, h (or None) and v (or None) as int64, steps first."""
    parts = list(codes) if isinstance(codes, tuple | list) else [codes]
    if not 1 <= len(parts) <= 3:
        raise ShapeError(
            f"{CALL}: codes has {len(parts)} parts; it is y, (y, h) or (y, h, v); pass what "
            "f(x, return_codes=True) returns"
        )
    wide = directions * units
    y = _whole("y", parts[0], (t, n, wide), batch_first)
    v = _whole("v", parts[2], (t, n, 4 * wide), batch_first) if len(parts) == 3 else None
    if len(parts) == 1:
        return y, None, v
    shape = (directions, n, units)
    h = np.asarray(to_host(parts[1]))
    h = _whole("h", h[None] if directions == 1 and h.shape == shape[1:] else h, shape, False)
    return y, h, v


def _whole(name: str, codes: Any, shape: tuple[int, ...], batch_first: bool) -> Codes:
    whole = np.asarray(to_host(codes))
    if whole.dtype.kind == "f" and whole.size and (whole == np.rint(whole)).all():
        whole = np.clip(whole, -FAR, FAR).astype(np.int64)
    if whole.dtype.kind not in "iu":
        raise DTypeError(
            f"{CALL}: {name} is {whole.dtype}; codes are integers; pass those of a call with "
            "return_codes=True, or encode floats with f.parameters['h'].encode(y)"
        )
    want = (shape[1], shape[0], *shape[2:]) if batch_first else shape
    if whole.shape != want:
        raise ShapeError(
            f"{CALL}: {name} has shape {whole.shape}; with this x and f it has {want}; pass all steps of "
            "all sequences, and batch_first=True if sequences come first"
        )
    unsigned = whole.dtype.kind == "u"
    whole = (whole.clip(0, FAR) if unsigned else whole.astype(np.int64).clip(-FAR, FAR)).astype(np.int64)
    return whole.swapaxes(0, 1) if batch_first else whole


Settings = Mapping[Any, Any]  # keys are tuples of str, of several lengths
Candidate = Mistake[Settings]
Stage = Callable[["Mistaken", Tensors], Codes]


def in_all(key: str, names: Iterable[str], part: Any) -> Settings:
    """Settings that replace one part in the same way in several tensors."""
    return {(key, name): part for name in names}


Index = NDArray[np.intp]
ORDER = ("Wx", *STAGES)
# What each stage reads of the same step: a stage whose sources are right, and that is not replaced, is right.
SOURCES = {
    "Wx": (), "Rh": ("before",), "z_pre": ("Wx", "Rh"), "z_out": ("z_pre",), "r_pre": ("Wx", "Rh"),
    "r_out": ("r_pre",), "Rh_add_br": ("Rh",), "rRh": ("r_out", "Rh_add_br"), "g_pre": ("Wx", "rRh"),
    "g_out": ("g_pre",), "old": ("z_out", "before"), "new": ("z_out", "g_out"), "h": ("old", "new"),
}  # fmt: skip
WITH_BIAS = frozenset(("z_pre", "r_pre", "Rh_add_br", "g_pre"))
MADE_OF = {"W": "Wx", "R": "Rh", "x": "Wx", "x rows": "Wx"}


class Mistaken(Scene):
    """The oracle's scene (formats and codes) with settings, which replace parts of its stages."""

    settings: Settings = {}
    rows: Any = None  # of the run

    def deviation(self, q: Tensors, name: str) -> Codes:
        times: int = self.settings.get(("less", name), 1)
        return q[name] - times * self.formats[name].zero

    def clamped(self, v: Codes, name: str) -> Codes:
        f = self.formats[name]
        v = v + self.settings.get(("plus", name), 1) * f.zero
        ends: Callable[..., Codes] | None = self.settings.get(("ends", name))
        return np.clip(v, f.low, f.high) if ends is None else ends(v, f)

    def rescaled(self, v: Codes, source: Any, target: str) -> Codes:
        how: Callable[..., Codes] = self.settings.get(("round", target), shifted_array)
        return how(v, source - self.formats[target].exponent + self.settings.get(("shift", target), 0))

    def term(self, q: Tensors, name: str, target: str, rows: slice = slice(None)) -> Codes:
        if ("order", name) in self.settings and rows.start is not None:
            rows = self._ordered(name, rows)
        source = self.formats[name].exponent + self.settings.get(("shift", name, target), 0)
        v = self.rescaled(self.deviation(q, name)[:, rows], source, target)
        times: int = self.settings.get(("term", name, target), 1)
        return v * times

    def into(self, target: str, v: Codes, *sources: str) -> Codes:
        """A product of codes of these tensors, in the scale of another one, clamped to its codes."""
        exponent = sum(self.formats[source].exponent for source in sources)
        return self.clamped(self.rescaled(v, exponent, target), target)

    def bias(self, name: str, rows: slice, target: str) -> Codes:
        rows = self._ordered("b", rows) if ("order", "b") in self.settings else rows
        times: int = self.settings.get(("bias", name, target), self.settings.get(("bias", name), 1))
        exponent = self.formats[name].exponent[rows] + self.settings.get(("shift", name, target), 0)
        if ("raw", name) in self.settings:
            exponent = self.formats[target].exponent
        return self.rescaled(self.codes[name].astype(np.int64)[rows], exponent, target) * times

    def _ordered(self, name: str, rows: slice) -> slice:
        return self.gate(self.settings["order", name][rows.start // self.codes["R"].shape[1]])


class Machine:
    """A machine that computes steps of one run with mistakes, on some rows (t·N + n) or on all."""

    def __init__(self, run: Run, rows: Index) -> None:
        self.run, self.rows = run, rows
        self._sums: dict[str, Codes] = {}
        self._before = run.before[rows]
        self._plain: Tensors = {}
        self._plain = {**self.step({})[0], "before": self._before}

    def step(self, settings: Settings) -> tuple[Tensors, NDArray[np.bool_]]:
        """Codes of all tensors, and a mask of rows that are unknown: the mistake reads beyond the run."""
        run, rows = self.run, self.rows
        scene = Mistaken({**run.formats, **settings.get(("formats",), {})}, run.codes)
        scene.settings, scene.rows = settings, rows
        unknown, touched = np.zeros(len(rows), np.bool_), _touched(settings)
        x, at, before = settings.get(("x",), run.x), rows, self._before
        if ("x rows",) in settings:
            at = settings["x rows",](run, rows)
            unknown, at = at < 0, np.maximum(at, 0)
        if ("before",) in settings:
            before = settings["before",](run, rows)
        usual = ("x",) not in settings and ("x rows",) not in settings
        q: Tensors = {"x": x[at], "before": before}
        for name in ORDER:
            known = self._plain.get(name)
            as_before = name not in touched and all(q[s] is self._plain.get(s) for s in SOURCES[name])
            if known is not None and as_before:
                q[name] = known
                continue
            replaced = settings.get(("stage", name))
            if name == "Wx":
                codes = self._product(scene, q["x"], "W", usual)
            elif name == "Rh" and replaced is None:
                codes = self._hidden(scene, before)
            else:
                codes = (replaced or STAGES[name])(scene, q)
            q[name] = known if known is not None and np.array_equal(codes, known) else codes
        return q, unknown

    def _hidden(self, scene: Mistaken, before: Codes) -> Codes:
        if ("before", "R") in scene.settings:
            before = scene.settings["before", "R"](self.run, self.rows)
            return self._product(scene, before, "R", False)
        return self._product(scene, before, "R", ("before",) not in scene.settings)

    def _product(self, scene: Mistaken, q: Codes, name: str, usual: bool) -> Codes:
        """Rows 1 and 2 with the settings of a product; its sums stay where nothing changes them."""
        source, result = ("x", "Wx") if name == "W" else ("h", "Rh")
        settings, w = scene.settings, scene.codes[name].astype(np.int64)
        if usual and ("weights", name) not in settings:
            if name not in self._sums:
                self._sums[name] = exact(q, w)
            total = self._sums[name]
        else:
            total = exact(q, settings.get(("weights", name), _same)(w))
        total = settings.get(("sum", name), _same)(total)
        correction = settings.get(("correction", name), compensation)(scene, w, source)
        exponent = settings.get(("exponent", name), _same)(scene.formats[name].exponent)
        exponent = exponent + scene.formats[source].exponent
        if ("apart", name) in settings:
            v = scene.rescaled(total, exponent, result) - scene.rescaled(correction, exponent, result)
        else:
            v = scene.rescaled(total - correction, exponent, result)
        return scene.clamped(v, result)


def _touched(settings: Settings) -> set[str]:
    """The stages that settings change by themselves."""
    stages: set[str] = set()
    for key in settings:
        if key == ("formats",):
            return set(ORDER)
        names = {MADE_OF.get(name, name) for name in key}
        if key[0] in ("less", "order"):
            names |= {stage for stage, sources in SOURCES.items() if key[1] in sources}
        if key[0] in ("bias", "raw") or key == ("order", "b"):
            names |= WITH_BIAS
        stages |= names & set(ORDER)
    return stages


def _same(v: Any) -> Any:
    return v
