"""``compare_with_model``: a run in llama.cpp laid beside a model of ``gq.model``, node by node.

The run stands still at each node and hands over its result. The model computes the same tokens twice, in
float64 and in llama.cpp's arithmetic (TwoModels); how far the two are apart says how far the run may be
(explained.py). No operation is judged alone: what a node reads differs already.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..base.progress import Progress
from ..check.judge import for_json
from ..formats import FORMATS
from ..llama.program import Node
from ..reference.metrics import nmse
from .explained import MARGIN, UNIT, Finding, Rounding, Rows, choice
from .libllama import positions_of
from .logits import divergence
from .runs import Run
from .settings import Settings, settings
from .tracer import ATTENTION, VIEWS

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
        with Run(self.settings) as run:
            self.version = run.facts["version"]
            self.loaded = [Path(path) for path in run.facts["libraries"]]
            listed = run.listing()
            self.tokens, self.then = listed["tokens"], listed["then"]
            run.patience = run.elapsed
            yield from self._nodes(run, listed)

    def _nodes(self, run: Run, listed: dict[str, Any]) -> Iterator[Beside]:
        flash = any(node["op"] == ATTENTION for node in listed["listing"])
        steps = [self.tokens, *([token] for token in self.then)]
        pair = TwoModels(self.model, len(self.tokens) + len(self.then), flash)
        stream = run.nodes(results=True, through=True, tokens=self.tokens, then=self.then)
        with Progress(0, "comparing", " nodes", self.bar) as bar:
            for group in _layers(stream, pair):
                if group.step != pair.step:
                    pair.begin(group.step, steps[group.step])
                for one in pair.beside(group, self.unpaired):
                    self.first = self.first or (None if one.ok else one)
                    if self.left is None and one.rounded > LEFT * pair.sums:
                        self.left = one
                    bar.advance(1)
                    yield one
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
        whole = node.tensors["y"]["type"] in ("i32", "i64")
        y = np.array(node.strided("y") if whole else node.floats("y"))  # a copy
        group.nodes.append((node.name, node.op, y))
    yield replace(group, last=True)


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


# --- the tokens in float64 and in llama.cpp's arithmetic, and nodes beside them -------------------
#
# Experts are chosen by comparisons, so a rounding may choose others, and all behind it would be other
# numbers. The choice is therefore judged by itself, and both models go on with the experts that the run
# chose.

LAYER = re.compile(r"(.+)-(\d+)")
LOGITS = "result_output"
# The last node of a layer, where it is not l_out.
ENDS = dict.fromkeys(("nemotron_h", "nemotron_h_moe"), "nemotron_h_block_out")
GROUPS = "ffn_moe_group_topk"
CHOICES = ("ffn_moe_argsort", "ffn_moe_topk", GROUPS)
SEEN = ("ffn_moe_topk", GROUPS, "kqv_out", "ffn_moe_weights_softmax")  # nodes that are views somewhere
UNNAMED = re.compile(r"node_\d+|.*\)")  # by ggml itself

Array = NDArray[Any]
Key = tuple[str, int]  # the name of a node, and how many the model's layer had before it


class Model(Protocol):
    """A model of ``gq.model``, as far as it is needed here."""

    file: Any
    config: Any
    types: tuple[str, str]

    def like(self, arithmetic: str | None, cache: tuple[str, str] | None, context: int | None) -> Any: ...


@dataclass(frozen=True)
class Beside:
    """A node of the run beside the model's.

    ``exact``, ``rounded``: squared distance of the whole node from float64, and from ``"ggml-cpu"``;
    ``rounding``: of these two from each other. ``finding``: the worst row by its limit.
    """

    node: str
    op: str
    step: int
    layer: int | None
    occurrence: int  # of this name in the model's layer, from 0
    shape: tuple[int, ...]
    exact: float
    rounded: float
    rounding: float
    finding: Finding
    is_choice: bool = False

    @property
    def ok(self) -> bool:
        """True where roundings explain how far the run is from the model."""
        return self.finding.share <= 1

    def facts(self) -> dict[str, Any]:
        """The facts as JSON has them; where a number is infinite or none, null."""
        f = self.finding
        return {
            "node": self.node, "op": self.op, "step": self.step, "layer": self.layer,
            "occurrence": self.occurrence, "shape": list(self.shape), "exact": for_json(self.exact),
            "ggml_cpu": for_json(self.rounded), "rounding": for_json(self.rounding),
            "share": for_json(f.share), "distance": for_json(f.distance), "limit": for_json(f.limit),
            "where": list(f.where), "value": for_json(f.value), "expected": for_json(f.exact),
            "choice": self.is_choice, "verdict": "ok" if self.ok else "parted",
        }  # fmt: skip


@dataclass
class Group:
    """Copies of the nodes of a layer of the run, and of nodes outside of layers beside it."""

    step: int
    layer: int
    nodes: list[tuple[str, str, Array]] = field(default_factory=list)  # name, operation, result
    last: bool = False  # of its step

    def count(self, name: str) -> int:
        """The number of nodes with this name."""
        return sum(one[0] == name for one in self.nodes)


def layer_of(name: str) -> tuple[str, int | None]:
    """The name of a node without its layer, and the layer."""
    match = LAYER.fullmatch(name)
    return (match[1], int(match[2])) if match else (name, None)


@dataclass
class Computed:
    """A node of the model in both arithmetics, and the one in front of it."""

    exact: Array
    rounded: Array
    scores: Computed | None = None


class TwoModels:
    """Two models on the same tokens, the one in float64 and the one in llama.cpp's arithmetic."""

    def __init__(self, model: Model, positions: int, flash: bool) -> None:
        context = positions_of(positions)
        self._models = [
            model.like("exact", ("f32", "f32"), context), model.like("ggml-cpu", None, context)
        ]  # fmt: skip
        self._caches = [m.cache(positions) for m in self._models]
        self._flash, self.step, self._count = flash, -1, 0
        self._end = ENDS.get(model.config.architecture, "l_out")
        self._longest = int(max(model.file[name].shape[-1] for name in model.file))
        self._views = {*SEEN} - ({"kqv_out"} if FORMATS[model.types[1]].block_size > 1 else set())
        self._past: dict[Key, Rounding] = {}
        self._logits: list[tuple[Rows, float]] = []  # of the last token of each step, with their limit
        self.unnamed: Counter[str] = Counter()

    @property
    def sums(self) -> float:
        """The squared distance that sums of float32 may have added so far."""
        return UNIT**2 * self._longest * self._count

    def takes(self, node: Node) -> bool:
        """True for a node that has a name; others that compute are counted."""
        if node.op in VIEWS:
            return layer_of(node.name)[0] in self._views
        if not UNNAMED.fullmatch(node.name):
            return True
        self.unnamed[node.op] += 1
        return False

    def begin(self, step: int, tokens: list[int]) -> None:
        """Begin with the tokens of a step; nothing is computed yet."""
        self.step, self._count, self._before = step, 0, Rounding()
        self._choices: dict[str, Array] = {}
        walks = [
            m.nodes(tokens, cache=cache, flash=self._flash, choices=self._choices)
            for m, cache in zip(self._models, self._caches, strict=True)
        ]
        self._walk = zip(*walks, strict=True)
        self._front: Computed | None = None

    def _computed(self, until: str) -> dict[str, list[Computed]]:
        """The nodes of both by name, up to one of this name, all if there is none."""
        computed: dict[str, list[Computed]] = defaultdict(list)
        for (name, exact), (_, rounded) in self._walk:
            computed[name].append(Computed(exact, rounded, self._front))
            if layer_of(name)[0] not in CHOICES:
                self._front = Computed(exact, rounded)
            if name == until:
                break
        return computed

    def beside(self, group: Group, unpaired: list[str]) -> Iterator[Beside]:
        """The records of a group, in the order of the run; its choices are followed.

        Where the model has more nodes of a name, the last ones are those of the run: a library may give the
        product no name, and only its sum with a bias.
        """
        for name, _, y in group.nodes:
            if layer_of(name)[0] in CHOICES:
                self._follow(name, y)
        computed = self._computed("" if group.last else f"{self._end}-{group.layer}")
        counts = Counter[str]()
        for name, op, y in group.nodes:
            at, counts[name] = counts[name], counts[name] + 1
            at += max(0, len(computed[name]) - group.count(name))
            here = computed[name][at] if at < len(computed[name]) else None
            fitted = None if here is None else _fitted(y, here.exact)
            if here is None or fitted is None:
                unpaired.append(name)
            else:
                yield self._record((name, at), op, fitted, here)

    def _follow(self, name: str, y: Array) -> None:
        """Take the run's experts or groups of them for both models, if they are some."""
        c, (stem, layer) = self._models[0].config, layer_of(name)
        used, count = (c.used_groups, c.groups) if stem == GROUPS else (c.used_experts, c.experts)
        ids = y.reshape(-1, y.shape[-1])[:, :used]
        if ids.min() >= 0 and ids.max() < count:
            self._choices[f"{GROUPS if stem == GROUPS else 'ffn_moe_topk'}-{layer}"] = ids

    def _record(self, key: Key, op: str, y: Array, here: Computed) -> Beside:
        name, occurrence = key
        stem, layer = layer_of(name)
        self._count += 1
        if stem in CHOICES:
            finding, figures = self._chosen(y, here), (math.nan,) * 3
        else:
            finding, figures = self._judged(key, y, here), _apart(y, here)
        return Beside(name, op, self.step, layer, occurrence, y.shape, *figures, finding, stem in CHOICES)

    def _judged(self, key: Key, y: Array, here: Computed) -> Finding:
        rows = Rows(here.exact, here.rounded)
        past = self._past.get(key, Rounding())
        least = past if rows.few_rows else Rounding()
        if rows.few_numbers:
            least = least.or_more(self._before)
        self._before, self._past[key] = rows.rounding.or_more(least), rows.rounding.or_more(past)
        if key[0] == LOGITS:
            limit = float(rows.limits(least, self.sums)[0][-1])
            self._logits.append((Rows(here.exact[-1:], here.rounded[-1:]), limit))
        return rows.judged(y, least, self.sums)

    def _chosen(self, y: Array, here: Computed) -> Finding:
        """A choice, against the scores that stand in front of it."""
        assert here.scores is not None
        rows = Rows(here.scores.exact, here.scores.rounded)
        return choice(y, rows, rows.limits(self._before, self.sums)[0])

    def judged_logits(self, run: list[Array]) -> dict[str, Any]:
        """Facts about the logits of a run without stops: distances, the likeliest token, the verdict."""
        shares, gaps, apart = [], [], []
        for logits, (rows, limit) in zip(run, self._logits, strict=True):
            shares.append(float(rows.distances(logits[None])[0][0]) / limit)
            gaps.append(choice(np.array([[logits.argmax()]]), rows, np.array([limit])))
            apart.append((logits.astype(np.float64), rows.exact[0]))
        worst = max(math.inf if math.isnan(share) else share for share in shares)
        return {
            "largest": for_json(max(float(np.abs(a - b).max()) for a, b in apart)),
            "nmse": for_json(max(float(nmse(a, b)) for a, b in apart)),
            "divergence": for_json(max(divergence(b, a) for a, b in apart)),
            "same_token": all(not gap.distance for gap in gaps),
            "share": for_json(worst), "share_of_token": for_json(max(gap.share for gap in gaps)),
            "verdict": "ok" if worst <= 1 and all(gap.share <= 1 for gap in gaps) else "parted",
        }  # fmt: skip


def _fitted(y: Array, exact: Array) -> Array | None:
    """A result in the shape of the model's node; scores without the positions that no token has yet."""
    while y.ndim > exact.ndim and y.shape[0] == 1:
        y = y[0]
    if y.shape[:-1] == exact.shape[:-1] and y.shape[-1] > exact.shape[-1]:
        y = y[..., : exact.shape[-1]]
    return y.reshape(exact.shape) if y.size == exact.size else None


def _apart(y: Array, here: Computed) -> tuple[float, float, float]:
    with np.errstate(all="ignore"):
        return (
            float(nmse(y, here.exact)), float(nmse(y, here.rounded)), float(nmse(here.rounded, here.exact))
        )  # fmt: skip
