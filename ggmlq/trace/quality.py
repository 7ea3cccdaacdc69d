"""``ggmlq report --quality``: models beside their original on a text, by token and by layer, as a page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.progress import Progress
from ..base.text import size
from ..errors import GGMLQError
from ..model import Model, load
from ..model.quality import Quality, check_alike, distances, layered, shares, stretches
from ..pages import Bars, Cell, Column, Figure, Figures, Lines, Page, Section, Series, Table, Text, Value
from ..pages import write as write_page
from ..pages.blocks import Block
from .activations import logits_of
from .libllama import locate_llama

WORST, BEFORE = 16, 24  # tokens of a model that are named, and tokens of text before one
BINS, DECADES = 48, (-8, 2)  # of the histogram of KL
PLACES = 16  # parts of a stretch, over which KL is averaged
METHOD = (
    "KL: the distance of the shares that both models give to the next token, in nats, in the mean over the "
    "tokens of the second half of each stretch. Same best token: how often both would go on alike. By layer: "
    "the squared distance of what the layers have added up, by its size in the original."
)


@dataclass
class Judged:
    """A model on the text, beside the original; the original itself without distances."""

    path: str
    nbytes: int
    bits: float
    quality: Quality = field(default_factory=Quality)
    layers: list[list[float]] = field(default_factory=list)  # of each stretch
    library: Quality = field(default_factory=Quality)  # by a libllama

    @property
    def name(self) -> str:
        """The name of its file."""
        return os.path.basename(self.path)

    @property
    def by_layer(self) -> list[float]:
        """The distance behind the embedding and behind each layer."""
        return [float(x) for x in np.mean(self.layers, axis=0)] if self.layers else []

    @property
    def by_place(self) -> list[tuple[float, float]]:
        """Mean KL by the place in a stretch: the middle of some places, and the mean."""
        kl = np.mean([row for row in self.quality.kl if len(row) == len(self.quality.kl[0])], axis=0)
        places = np.arange(self.quality.stretch - len(kl), self.quality.stretch)
        parts = zip(*(np.array_split(x, min(PLACES, len(kl))) for x in (places, kl)), strict=True)
        return [(float(at.mean()), float(part.mean())) for at, part in parts]


@dataclass
class QualityReport:
    """Models beside their original: ``facts`` is plain data, ``write`` makes a page."""

    original: Judged
    models: list[Judged]
    pieces: list[list[int]]
    text: str  # its name
    library: str  # the libllama, or why there are no numbers by one
    by_library: bool
    source: Model

    def facts(self) -> dict[str, Any]:
        """The facts as JSON has them."""
        return {
            "text": self.text, "libllama": self.library if self.by_library else None,
            "original": self._facts(self.original), "models": [self._facts(one) for one in self.models],
        }  # fmt: skip

    def _facts(self, one: Judged) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "file": one.path,
            "tensor_bytes": one.nbytes,
            "bits_per_weight": one.bits,
            **one.quality.facts(),
        }
        if one.quality.kl:
            facts |= {"by_layer": one.by_layer, "by_place": one.by_place, "worst": self.worst(one)}
        if one.library.loss:
            facts["by_libllama"] = one.library.facts()
        return facts

    def worst(self, one: Judged) -> list[dict[str, Any]]:
        """The tokens of the largest KL, with the text before them and what both models expect there."""
        kl, tokenizer = np.concatenate(one.quality.kl), self.source.tokenizer
        counts = [len(row) for row in one.quality.kl]
        starts = np.cumsum([0, *counts])
        named = []
        for at in np.argsort(-kl, kind="stable")[:WORST].tolist():
            stretch = int(np.searchsorted(starts, at, "right")) - 1
            piece, row = self.pieces[stretch], at - int(starts[stretch])
            place = len(piece) - counts[stretch] + row
            best = (q.best[stretch][row] for q in (self.original.quality, one.quality))
            words = (tokenizer.decode([int(token)]) for token in (piece[place], *best))
            before = tokenizer.decode(piece[max(0, place - BEFORE) : place])
            named.append({
                "stretch": stretch, "place": place, "kl": float(kl[at]), "before": before,
                **dict(zip(("token", "expected", "expects"), words, strict=True)),
            })  # fmt: skip
        return named

    def write(self, path: str | os.PathLike[str]) -> str:
        """Write one HTML file, which loads nothing; needs the extra ``report``."""
        return write_page(page(self), path)


def quality(
    original: str | os.PathLike[str], models: Sequence[str | os.PathLike[str]], text: str, *,
    name: str = "", stretch: int | None = None, most: int | None = None, device: str = "cpu",
    lib: str | os.PathLike[str] | None = None, bar: bool | None = None,
) -> QualityReport:  # fmt: skip
    """Measure models beside their original on a text, by ``gq.model`` and by a libllama where one is there.

    Parameters
    ----------
    original : str or os.PathLike
        The model that others were made of, as f16; its shares are those that the others should have.
    models : sequence of str or os.PathLike
        One or more.
    text : str
        Read in stretches; ``name`` is what it is called.
    stretch, most : int, optional
        Tokens of a stretch (512), and the most stretches.
    lib : str or os.PathLike, optional
        A libllama or a build folder; by default as for :func:`ggmlq.llama.imatrix`.
    """
    source, *others = (load(path, device) for path in (original, *models))
    for model in others:
        check_alike(model, source)
    pieces = stretches(source, text, stretch)[:most]
    first, *rest = (_judged(model) for model in (source, *others))
    library, there = _library(lib)
    runs = 1 + len(rest)
    with Progress(len(pieces) * runs * (1 + there), "measuring", " stretches", bar) as progress:
        for piece in pieces:
            rows, right = layered(source, piece)
            first.quality.add(piece, right, None)
            progress.advance(1)
            for one, model in zip(rest, others, strict=True):
                own, here = layered(model, piece)
                one.quality.add(piece, here, right)
                if [x.shape for x in own] == [x.shape for x in rows]:
                    one.layers.append(list(distances(own, rows)))
                progress.advance(1)
        if there:
            library, there = _by_library([first, *rest], pieces, lib, progress) or (library, there)
    return QualityReport(first, rest, pieces, name, library, there, source)


def _judged(model: Model) -> Judged:
    elements = sum(int(np.prod(model.file.info(name).shape)) for name in model.file)
    return Judged(model.file.path, model.nbytes, 8 * model.nbytes / max(elements, 1))


def _library(lib: Any) -> tuple[str, bool]:
    """The libllama that there is; why there is none, unless one was named: then that is an error."""
    try:
        return str(locate_llama(lib)[1]), True
    except GGMLQError as error:
        if lib is not None:
            raise
        return str(error), False


def _by_library(
    judged: Sequence[Judged], pieces: list[list[int]], lib: Any, progress: Progress
) -> tuple[str, bool] | None:
    """The same by a libllama, all models side by side; why not, where one that nobody named refuses."""
    runs: list[Any] = [logits_of(one.path, pieces, lib=lib) for one in judged]
    try:
        for piece in pieces:
            right = None
            for one, run in zip(judged, runs, strict=True):
                here = shares(next(run))
                one.library.add(piece, here, right)
                right = here if right is None else right
                progress.advance(1)
    except GGMLQError as error:
        if lib is not None:
            raise
        for one in judged:
            one.library = Quality()
        return str(error), False
    finally:
        for run in runs:
            run.close()
    return None


# --- the page ------------------------------------------------------------------------------------


def page(report: QualityReport) -> Page:
    """The whole page."""
    sections = [
        Section("Beside the original", _table(report)),
        Section("By token", _tokens(report)),
        Section("By layer", _layers(report)),
        Section("The worst tokens", [_worst(report, one) for one in report.models], wide=True),
    ]
    first = min(report.models, key=lambda one: one.quality.facts()["kl"])
    facts = first.quality.facts()
    figures = Figures([
        ("KL", f"{facts['kl']:.5f}", f"± {facts['kl_error']:.5f}, {first.name}"),
        ("Same best token", f"{100 * facts['same_top']:.2f} %", f"of {facts['measured']:,}"),
        ("Perplexity", f"{facts['perplexity']:.3f}",
         f"of the original {report.original.quality.facts()['perplexity']:.3f}"),
        ("Bits a weight", f"{first.bits:.3f}", size(first.nbytes)),
    ])  # fmt: skip
    lead = f"{report.original.name} · {report.text} · {facts['stretches']} stretches of {facts['stretch']}"
    title = f"Quality of {', '.join(one.name for one in report.models)}"
    return Page(title, lead, sections, METHOD, [figures])


def _table(report: QualityReport) -> list[Block]:
    heads = ("size", "bits a weight", "perplexity", "±", "KL", "±", "median", "99 %", "largest", "same best")
    columns = [Column("model", code=True), *(Column(head, number=True) for head in heads)]
    keys = ("perplexity", "error", "kl", "kl_error", "kl_median", "kl_99", "kl_largest")
    blocks: list[Block] = []
    kinds = [("by gq.model", "quality")] + [("by libllama", "library")] * report.by_library
    for caption, kind in kinds:
        rows: list[list[Cell]] = []
        for one in (report.original, *report.models):
            facts = getattr(one, kind).facts()
            same = facts.get("same_top")
            rows.append([
                one.name, Value(size(one.nbytes), one.nbytes), Value(f"{one.bits:.3f}", one.bits),
                *(Value(f"{facts[key]:.5g}", facts[key]) if key in facts else None for key in keys),
                None if same is None else Value(f"{100 * same:.2f} %", same),
            ])  # fmt: skip
        blocks.append(Table(f"The models, {caption}", columns, rows))
    which = f"By {report.library}." if report.by_library else f"No numbers by a libllama: {report.library}"
    blocks.append(Text(which, "" if report.by_library else "note"))
    if len(report.models) > 1:
        points = sorted((one.bits, one.quality.facts()["kl"]) for one in report.models)
        blocks.append(Figure(Lines("KL by size", "bits a weight", "KL", [Series("KL", points)], log=True)))
    return blocks


def _tokens(report: QualityReport) -> list[Block]:
    blocks: list[Block] = [
        Figure(
            Lines(
                "KL by the place in a stretch", "place", "KL",
                [Series(one.name, one.by_place) for one in report.models],
            )
        )
    ]  # fmt: skip
    low, high = DECADES
    edges = np.linspace(low, high, BINS + 1)
    ticks = [(float(e), f"1e{e}") for e in range(low, high + 1, 2)]
    for one in report.models:
        kl: NDArray[np.float64] = np.log10(np.maximum(np.concatenate(one.quality.kl), 10.0**low))
        counts = np.histogram(np.clip(kl, low, high), edges)[0].tolist()
        blocks.append(Figure(Bars(f"Tokens by their KL: {one.name}", "KL", edges.tolist(), counts, ticks)))
    return blocks


def _layers(report: QualityReport) -> list[Block]:
    series = [
        Series(one.name, [(float(i), x) for i, x in enumerate(one.by_layer)])
        for one in report.models
        if one.layers
    ]
    blocks: list[Block] = []
    if series:
        lines = Lines(
            "Distance behind each layer; 0 is the embedding", "layer", "share of its size", series, log=True
        )
        blocks.append(Figure(lines))
    for one in report.models:
        if not one.layers:
            blocks.append(Text(f"{one.name} has other layers than the original: none is compared.", "note"))
    return blocks


def _worst(report: QualityReport, one: Judged) -> Table:
    columns = [
        Column("KL", number=True), Column("behind", code=True), Column("token", code=True),
        Column("the original expects", code=True), Column("it expects", code=True),
        Column("stretch", number=True), Column("place", number=True),
    ]  # fmt: skip
    rows: list[list[Cell]] = [
        [Value(f"{fact['kl']:.4f}", fact["kl"]), *(_shown(fact[key]) for key in
         ("before", "token", "expected", "expects")), fact["stretch"], fact["place"]]
        for fact in report.worst(one)
    ]  # fmt: skip
    return Table(f"Where {one.name} is furthest from the original", columns, rows)


def _shown(text: str) -> str:
    return repr(text)[1:-1]
