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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...fixed.shift import shifted_array
from ...reference.gru import STAGES, Codes, Scene, Tensors, compensation, exact
from ..explanation import Mistake
from .inputs import Run

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
