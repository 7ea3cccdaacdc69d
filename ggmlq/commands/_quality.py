"""The quality of a model on a text: its perplexity, and the distance of its shares from another model's."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf, log, prod
from pathlib import Path
from typing import Any

from .. import gguf
from ..base.progress import Progress
from ..base.text import short
from ..base.writing import write_whole
from ..convert import Plan, Pruned, Report, Sensitivity, plan_quantize, recipe
from ..convert import run as write
from ..errors import ConvertError
from ..formats import FORMATS
from ..model import Model, load
from ..model.moments import Gathered
from ..model.quality import measured, stretches
from ..model.sensitivity import Change, chosen, sensitivities
from . import _files, _plain


def said(facts: dict[str, Any]) -> Iterator[str]:
    """The facts in lines."""
    yield (
        f"perplexity {facts['perplexity']:.4f} ± {facts['error']:.4f}, {facts['measured']:,} tokens in "
        f"{facts['stretches']} stretches of {facts['stretch']}"
    )
    if "kl" in facts:
        yield (
            f"KL {facts['kl']:.6f} ± {facts['kl_error']:.6f}, median {facts['kl_median']:.6f}, "
            f"99 % {facts['kl_99']:.6f}, largest {facts['kl_largest']:.4f}; the same best token "
            f"{100 * facts['same_top']:.2f} %"
        )


# --- quantize --kl: the smallest recipe that stays near the original ----------------------------
# Bits per weight are narrowed down between the least and the most that types allow; each try is written
# beside OUT and run. The text is cut into stretches: every other one searches, the rest judges the chosen
# file.

MOST = 8.6  # bits per weight: nearly all in q8_0
NEAR = 0.9  # of what is aimed at, from which on a try is good enough
EXACT = 0.02  # bits per weight between two tries, from which on there is nothing between them
TRIES = 12
MARGIN = 0.95  # of the limit, for the search: what judges is another text
MORE = 0.005  # of the bits, where the other text is beyond the limit; twice as much each time


@dataclass(frozen=True)
class Trial:
    """A recipe that was tried."""

    plan: Plan
    bits: float
    facts: dict[str, Any]

    @property
    def kl(self) -> float:
        """The mean distance on the text of the search."""
        return float(self.facts["kl"])


def searched(file: gguf.GGUFFile | Pruned, args: argparse.Namespace, settings: dict[str, Any]) -> Plan:
    """The plan of the smallest file that stays within ``args.kl``, with notes of what was measured."""
    if args.text is None:
        raise ConvertError(f"--kl {args.kl}: there is no text to measure on; pass --text FILE")
    if not isinstance(file, gguf.GGUFFile):
        raise ConvertError("--kl with --prune-layers: the original has other layers; prune it first")
    model = load(file)
    pieces = stretches(model, _plain.text_of("--text", args.text), args.stretch)
    if len(pieces) < 2:
        raise ConvertError(
            f"--text {args.text}: it is one stretch of {len(pieces[0])} tokens; one part searches, another "
            "judges; pass a longer text, or a smaller --stretch"
        )
    bar = Progress(0, "trying", " recipes", False if args.json else None)
    with _place(args) as path, bar:
        search = _Search(file, model, settings, path)
        trial, held_back = _smallest(search, args.kl, pieces[::2], pieces[1::2], bar.advance)
    note = (
        f"KL {held_back['kl']:.5f} ± {held_back['kl_error']:.5f} on text held back "
        f"({held_back['measured']:,} tokens), {trial.kl:.5f} on that of the search, limit {args.kl}; the "
        f"same best token {100 * held_back['same_top']:.2f} %; {search.count} recipes tried"
    )
    return replace(trial.plan, notes=[*trial.plan.notes, note])


# --- quantize --measure: types by what each tensor's error costs in KL, which is measured ----------

HELD_BACK, LAYERS = 4, 8  # stretches that measure tensors, and as many that judge; layers that are measured
COARSE = "q3_K"  # the type in which a tensor is measured, or what llama.cpp takes where rows do not fit


def priced(file: gguf.GGUFFile | Pruned, args: argparse.Namespace, settings: dict[str, Any]) -> Plan:
    """The plan of least KL within a size, by sensitivities measured on ``args.measure``, or read from it."""
    if not isinstance(file, gguf.GGUFFile):
        raise ConvertError("--measure with --prune-layers: the original has other layers; prune it first")
    if args.measure.suffix == ".json":
        known = _read(args.measure, file)
        return recipe(file, args.target, size=args.size, sensitivities=known, **settings).plan
    if args.write_measure is not None:
        _files.check_free([args.write_measure], args.force, read=[file.path, args.measure, args.imatrix])
    model = load(file)
    pieces = stretches(model, _plain.text_of("--measure", args.measure), args.stretch)[: 2 * HELD_BACK]
    bar = False if args.json else None
    options = {key: settings[key] for key in ("imatrix", "keep", "any_name", "allow_requantize")}
    changes = {
        step.name: Change(step.after, step.weights)
        for step in plan_quantize(file, COARSE, **options).steps
        if step.changes
    }
    some = {name: changes[name] for name in chosen(changes, LAYERS)}
    facts = dict(sensitivities(model, pieces[::2], some, bar))
    if args.write_measure is not None:
        tensors = {
            name: {"type": changes[name].format.name, "kl": fact["kl"], "kl_error": fact["kl_error"]}
            for name, fact in facts.items()
        }
        write_whole(args.write_measure, json.dumps({"text": str(args.measure), "tensors": tensors}, indent=1))
    known = {name: Sensitivity(changes[name].format, fact["kl"]) for name, fact in facts.items()}
    plan = recipe(file, args.target, size=args.size, sensitivities=known, **settings).plan
    if len(pieces) < 2:
        return plan
    with _place(args) as path:
        write(plan, path)
        with gguf.open(path) as made:
            fact = measured(load(made), model, pieces[1::2], bar)
    note = f"KL {fact['kl']:.5f} ± {fact['kl_error']:.5f} on text held back, {fact['measured']:,} tokens"
    return replace(plan, notes=[*plan.notes, note])


def judged(plan: Plan, report: Report, args: argparse.Namespace) -> Report:
    """The report of a file with error feedback; if KL is not lower than without, of one written without."""
    moments, facts = plan.moments, []
    assert isinstance(moments, Gathered)
    alone, bar = replace(plan, fed_back=False), False if args.json else None
    with _place(args) as path:
        write(alone, path)
        for one in (report.paths[0], path):
            with gguf.open(one) as made:
                facts.append(measured(load(made), moments.model, moments.unseen, bar))
    with_it, without = (f"{fact['kl']:.5f} ± {fact['kl_error']:.5f}" for fact in facts)
    note = f"KL {with_it} with error feedback, {without} without, {facts[0]['measured']:,} tokens held back"
    if facts[0]["kl"] >= facts[1]["kl"]:
        report, note = write(alone, args.output, keep_split=args.keep_split), f"{note}: it is left out"
    return replace(report, notes=[*report.notes, note])


def _read(path: Path, file: gguf.GGUFFile) -> dict[str, Sensitivity]:
    """Sensitivities that --write-measure wrote."""
    try:
        tensors = json.loads(_plain.text_of("--measure", path))["tensors"]
        known = {
            name: Sensitivity(FORMATS[fact["type"]], float(fact["kl"])) for name, fact in tensors.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConvertError(
            f"--measure {path}: it is no file of sensitivities ({type(error).__name__}: {error}); pass what "
            "--write-measure wrote, or a text"
        ) from None
    if strange := [name for name in known if name not in file]:
        raise ConvertError(
            f"--measure {path}: it has {len(strange)} tensors that {file.path} lacks, as "
            f"{short(strange[0])}; it was measured on another model; pass that of this one"
        )
    if not any(0 < one.kl < inf for one in known.values()):
        raise ConvertError(f"--measure {path}: no tensor in it has a KL above 0; measure on a text again")
    return known


@contextmanager
def _place(args: argparse.Namespace) -> Iterator[str]:
    """The path of a file beside OUT, which is removed in the end."""
    folder = os.path.dirname(os.path.abspath(args.output or args.input))
    with tempfile.TemporaryDirectory(prefix=".kl-", dir=folder) as place:
        yield os.path.join(place, "try.gguf")


class _Search:
    """Recipes of an open file, written and measured."""

    def __init__(self, file: gguf.GGUFFile, model: Model, settings: dict[str, Any], path: str) -> None:
        self._file, self._model, self._settings, self._path = file, model, settings, path
        self.count = 0

    def bounds(self) -> tuple[float, float]:
        """The least and the most bits per weight that the types allow."""
        infos = [self._file.info(name) for name in self._file]
        now = 8 * sum(one.nbytes for one in infos) / max(sum(prod(one.shape) for one in infos), 1)
        most = min(MOST, now)
        return recipe(self._file, most, **self._settings).lowest, most

    def attempt(self, bits: float, pieces: list[list[int]]) -> Trial:
        """The recipe of so many bits, measured on a text."""
        choice = recipe(self._file, bits, **self._settings)
        write(choice.plan, self._path)
        self.count += 1
        return Trial(choice.plan, bits, self.measure(pieces))

    def measure(self, pieces: list[list[int]]) -> dict[str, Any]:
        """The distance of the file that was written last."""
        with gguf.open(self._path) as file:
            return measured(load(file), self._model, pieces, False)


def _smallest(
    search: _Search, limit: float, pieces: list[list[int]], others: list[list[int]],
    advance: Callable[[int], None],
) -> tuple[Trial, dict[str, Any]]:  # fmt: skip
    """The smallest recipe within the limit on both texts, and what was measured on the other one."""
    low, most = search.bounds()
    high, aim, worse = most, limit * MARGIN, None
    best = search.attempt(high, pieces)
    advance(1)
    if best.kl > limit:
        raise ConvertError(
            f"--kl {limit}: with the most bits that the types allow, {high:.2f} per weight, it is "
            f"{best.kl:.5f}; give a larger limit, or more types with --types"
        )
    while high - low > EXACT and best.kl < NEAR * aim and search.count < TRIES:
        trial = search.attempt(low + (high - low) * _share(worse, best, aim), pieces)
        advance(1)
        if trial.kl <= aim:
            best, high = trial, trial.bits
        else:
            worse, low = trial, trial.bits
    bits, more = best.bits, MORE
    while True:
        best = search.attempt(bits, pieces)
        advance(1)
        held_back = search.measure(others)
        if held_back["kl"] <= limit:
            return best, held_back
        if bits >= most:
            raise ConvertError(
                f"--kl {limit}: on text held back the largest recipe, {bits:.2f} bits per weight, has "
                f"{held_back['kl']:.5f}; give a larger limit, or more types with --types"
            )
        bits, more = min(most, bits * (1 + more)), 2 * more


def _share(worse: Trial | None, best: Trial, aim: float) -> float:
    """The place of the next try between two: the distance falls by about the same factor with each bit."""
    if worse is None or best.kl <= 0:
        return 0.5
    return min(max(log(worse.kl / aim) / log(worse.kl / best.kl), 0.1), 0.9)
