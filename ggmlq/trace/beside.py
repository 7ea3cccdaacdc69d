"""``compare_with_model``: a run in llama.cpp laid beside a model of ``gq.model``, node by node.

The run stands still at each node and hands over its result. The model computes the same tokens twice, in
float64 and in llama.cpp's arithmetic (two_models.py); how far the two are apart says how far the run may be
(explained.py). No operation is judged alone: what a node reads differs already.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..base.progress import Progress
from ..llama.captured import Node
from .explained import MARGIN
from .runs import Run
from .settings import Settings, settings
from .tracer import ATTENTION
from .two_models import Array, Beside, Group, Model, TwoModels, layer_of

LEFT = MARGIN**2  # times what sums of float32 may add: from here on a run is another than "ggml-cpu"


@dataclass
class ModelComparison:
    """A comparison of a run with a model: iteration runs both and yields a record for each node.

    Attributes
    ----------
    first : Beside or None
        The first node that no rounding explains.
    left : Beside or None
        The first node at which the run is no longer the ``"ggml-cpu"`` model but for sums of float32.
    unpaired : list of str
        Nodes of the run with a name that the model does not have, or with another shape.
    unnamed : dict
        Nodes without a name that compute something, by operation.
    tokens, then : list of int
        The prompt's, and those generated after it.
    logits : dict
        Facts about the logits of the run without stops, of all steps: how far from the model's.
    """

    settings: Settings
    model: Model
    bar: bool | None = False
    first: Beside | None = None
    left: Beside | None = None
    version: str = ""
    loaded: list[Path] = field(default_factory=list)
    unpaired: list[str] = field(default_factory=list)
    unnamed: Counter[str] = field(default_factory=Counter)
    tokens: list[int] = field(default_factory=list)
    then: list[int] = field(default_factory=list)
    logits: dict[str, Any] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Beside]:
        self.first, self.left, self.unpaired, self.unnamed = None, None, [], Counter()
        run = Run(self.settings)
        try:
            self.version = run.facts["version"]
            self.loaded = [Path(path) for path in run.facts["libraries"]]
            listed = run.listing()
            self.tokens, self.then = listed["tokens"], listed["then"]
            run.patience = run.elapsed
            yield from self._nodes(run, listed)
        finally:
            run.close()

    def _nodes(self, run: Run, listed: dict[str, Any]) -> Iterator[Beside]:
        flash = any(node["op"] == ATTENTION for node in listed["listing"])
        steps = [self.tokens, *([token] for token in self.then)]
        pair = TwoModels(self.model, len(self.tokens) + len(self.then), flash)
        stream = run.nodes(results=True, through=True, tokens=self.tokens, then=self.then)
        bar = Progress(0, "comparing", " nodes", self.bar)
        try:
            for group in _layers(stream, pair):
                if group.step != pair.step:
                    pair.begin(group.step, steps[group.step])
                for one in pair.beside(group, self.unpaired):
                    self.first = self.first or (None if one.ok else one)
                    if self.left is None and one.rounded > LEFT * pair.sums:
                        self.left = one
                    bar.advance(1)
                    yield one
        finally:
            bar.close()
        self.unnamed = pair.unnamed
        self.logits = pair.judged_logits(listed["logits"])

    @property
    def ok(self) -> bool:
        """True where roundings explain all nodes, and the logits without stops."""
        return self.first is None and bool(self.logits.get("verdict") == "ok")


def _layers(stream: Iterator[Node | dict[str, Any]], pair: TwoModels) -> Iterator[Group]:
    """The nodes of a run that have a name, layer by layer."""
    group = Group(0, 0)
    for node in stream:
        if isinstance(node, dict):
            break
        if node.step != group.step:
            yield replace(group, last=True)
            group = Group(node.step, 0)
        if not pair.takes(node):
            continue
        layer = layer_of(node.name)[1]
        if layer is not None and layer > group.layer:
            yield group
            group = Group(node.step, layer)
        group.nodes.append((node.name, node.op, _result(node)))
    yield replace(group, last=True)


def _result(node: Node) -> Array:
    """A copy of a node's result."""
    whole = node.tensors["y"]["type"] in ("i32", "i64")
    return np.array(node.strided("y") if whole else node.floats("y"))


def compare_with_model(
    model: Model, *, lib: str | Path | None = None, bar: bool | None = False, **more: Any
) -> ModelComparison:
    """Run a model's file in a libllama, and say at which node the run parts from the model.

    ``model`` is one of :func:`gq.model.load`; its types of keys and values are those of the run. ``lib`` as
    in :func:`ggmlq.trace.trace`, and ``more`` are its options for a run: prompt, tokens, generate, flash,
    without, threads, timeout, seed.
    """
    run = settings(model.file.path, lib=lib, cache=model.types, verify=False, **more)
    return ModelComparison(run, model, bar)
