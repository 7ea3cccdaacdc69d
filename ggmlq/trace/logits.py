"""``compare_logits``: run two builds of llama.cpp on the same tokens and find where one first goes wrong.

Both run side by side and stand still at each node. Each build's node is judged on that build's own inputs,
element by element within what rounding explains, so differences from earlier nodes do not count against it.
If all nodes are right and the inputs of one differ much more than before, an operation that nobody judges
made the difference.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import gguf
from ..check.judge import for_json
from ..errors import LibraryFailedError
from ..llama.program import Node
from .product import Product
from .runs import Run
from .settings import Settings, settings
from .tracer import PRODUCTS
from .verdicts import Judge

JUMP = 1e3  # times as far apart as anything before: more than norms and softmax make of a rounding
WAITING = 64  # nodes that one build has and the other not yet
UNNAMED = re.compile(r"node_\d+")
NOISE = 1e-6  # squared distance of inputs that roundings of earlier products explain


@dataclass(frozen=True)
class Pair:
    """A node in both builds, with the distances of its inputs and outputs.

    ``equal``: all that it reads is the same in both, to the bit; ``elements`` of its outputs differ, by
    ``largest`` at most.
    """

    a: Product
    b: Product
    inputs: float  # squared distance of the inputs, by their size
    outputs: float
    equal: bool = False
    elements: int = 0
    largest: float = 0.0
    jumped: bool = False  # inputs further apart than anything before

    @property
    def ok(self) -> bool:
        """True if both builds are right at this node and their inputs did not jump apart just before it."""
        return self.a.ok and self.b.ok and not self.jumped and not self.parted

    @property
    def parted(self) -> bool:
        """True where both read the same, and give what roundings do not explain, and nobody judges it."""
        unjudged = "not judged" in (self.a.verdict, self.b.verdict)
        return unjudged and self.equal and not self.outputs <= NOISE

    def facts(self) -> dict[str, Any]:
        """The facts as JSON has them."""
        return {
            "node": self.a.node, "op": self.a.op, "step": self.a.step, "layer": self.a.layer,
            "weights": self.a.weights, "type": self.a.type, "inputs": for_json(self.inputs),
            "outputs": for_json(self.outputs), "inputs_equal": self.equal, "elements": self.elements,
            "largest": for_json(self.largest), "jumped": self.jumped,
            "a": self.a.facts(), "b": self.b.facts(),
        }  # fmt: skip


@dataclass
class Comparison:
    """A comparison of two builds: iteration runs them and yields a pair for each node.

    Afterwards ``first`` is the first pair that is not ok, and ``logits`` tells how far the logits differ.
    """

    settings: Settings
    against: Settings
    first: Pair | None = None
    versions: tuple[str, str] = ("", "")
    loaded: tuple[list[Path], list[Path]] = ([], [])  # the libraries of either build, on Linux
    nodes: int = 0  # of the first build's run
    others: dict[str, int] = field(default_factory=dict)  # of these, which nobody judges, by operation
    logits: dict[str, Any] = field(default_factory=dict)
    unpaired: list[str] = field(default_factory=list)  # nodes that only one of both has

    def __iter__(self) -> Iterator[Pair]:
        self.first, self.logits, self.unpaired = None, {}, []
        with Run(self.settings) as a, Run(self.against) as b, gguf.open(self.settings.model) as model:
            self.versions = a.facts["version"], b.facts["version"]
            paths_a, paths_b = ([Path(path) for path in run.facts["libraries"]] for run in (a, b))
            self.loaded = paths_a, paths_b
            yield from self._pairs([a, b], [Judge(model, self.settings.judge) for _ in "ab"])

    def _pairs(self, runs: list[Run], judges: list[Judge]) -> Iterator[Pair]:
        tokens: list[int] | None = None
        then: list[int] | None = None
        if self.settings.generate:  # the same tokens for both, those of the first
            for end in runs[0].nodes(traced=False):
                assert isinstance(end, dict)
                tokens, then = end["tokens"], end["then"]
        streams = [run.nodes(tokens=tokens, then=then) for run in runs]
        ends: list[dict[str, Any]] = []
        furthest = NOISE
        for a, b in _matched(streams, judges, ends, self.unpaired):
            pair = _pair(a, b, furthest)
            furthest = max(furthest, pair.outputs if math.isfinite(pair.outputs) else furthest)
            if not pair.ok and self.first is None:
                self.first = pair
            yield pair
        self.nodes, self.others = ends[0]["nodes"], ends[0]["others"]
        self.logits = _compared(ends[0]["logits"], ends[1]["logits"])


@dataclass(frozen=True)
class _Half:
    """A node of one build that waits for the other build's: its record and arrays."""

    record: Product
    inputs: list[NDArray[Any]]
    y: NDArray[Any]


def _values(node: Node, part: str) -> NDArray[Any]:
    """A copy of the values of an operand: whole numbers as they are, others as float32."""
    whole = node.tensors[part]["type"] in ("i8", "i16", "i32", "i64")
    return np.array(node.strided(part) if whole else node.floats(part))


def _key(node: Node) -> tuple[Any, ...]:
    """The name by which nodes of both builds are the same: that of the weights, or of the node and its shape.

    Numbers that a graph gives to nodes without a name are no names.
    """
    if node.op in PRODUCTS:
        return (node.weights,)
    name = "" if UNNAMED.fullmatch(node.name) else node.name
    return name, tuple(node.tensors["y"]["ne"])


def _matched(
    streams: list[Any], judges: list[Judge], ends: list[dict[str, Any]], unpaired: list[str]
) -> Iterator[tuple[_Half, _Half]]:
    """Pairs of nodes of both builds, by step, operation and name: other versions have another order."""
    waiting: list[dict[tuple[Any, ...], _Half]] = [{}, {}]
    counts: list[Counter[tuple[Any, ...]]] = [Counter(), Counter()]
    last_messages: list[dict[str, Any] | None] = [None, None]
    while None in last_messages:
        for side in (0, 1):
            node = next(streams[side]) if last_messages[side] is None else None
            if isinstance(node, dict):
                last_messages[side] = node
            if not isinstance(node, Node):
                continue
            what = (node.step, node.op, *_key(node))
            key = (*what, counts[side][what])
            counts[side][what] += 1
            inputs = [_values(node, part) for part in sorted(node.arrays) if part != "y"]
            record = judges[side].record(node).without_arrays()
            waiting[side][key] = _Half(record, inputs, _values(node, "y"))
            if key in waiting[1 - side]:
                yield waiting[0].pop(key), waiting[1].pop(key)
            while len(waiting[side]) > WAITING:
                unpaired.append(waiting[side].pop(next(iter(waiting[side]))).record.node)
    ends += [end for end in last_messages if end is not None]
    unpaired += [half.record.node for side in waiting for half in side.values()]


def _pair(a: _Half, b: _Half, furthest: float) -> Pair:
    pairs = list(zip(a.inputs, b.inputs, strict=False))
    inputs = max((_apart(x, y) for x, y in pairs), default=0.0)
    equal = len(a.inputs) == len(b.inputs) and all(
        x.shape == y.shape and np.array_equal(x.view(np.uint8), y.view(np.uint8)) for x, y in pairs
    )
    elements, largest = _difference(a.y, b.y)
    return Pair(
        a.record, b.record, inputs, _apart(a.y, b.y), equal, elements, largest, inputs > JUMP * furthest
    )


def _difference(a: NDArray[Any], b: NDArray[Any]) -> tuple[int, float]:
    """The number of elements that differ, and the largest difference; two that are no numbers are alike."""
    if a.shape != b.shape:
        return max(a.size, b.size), math.nan
    other = (a != b) & ~(np.isnan(a) & np.isnan(b))
    with np.errstate(all="ignore"):
        off = np.abs(a.astype(np.float64) - b)
    return int(np.count_nonzero(other)), float(np.where(other, off, 0.0).max(initial=0.0))


def _apart(a: NDArray[Any], b: NDArray[Any]) -> float:
    """The squared distance of two arrays, by the size of the first."""
    if a.shape != b.shape:
        return math.nan
    x, y = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(all="ignore"):
        return float(((x - y) ** 2).sum() / max(float((x**2).sum()), 1e-300))


def _compared(a: list[NDArray[np.float32]], b: list[NDArray[np.float32]]) -> dict[str, Any]:
    """The largest difference over all steps, and whether the likeliest token is the same."""
    if len(a) != len(b) or any(x.shape != y.shape for x, y in zip(a, b, strict=False)):
        raise LibraryFailedError("the two builds give logits of different shapes; is it the same model?")
    wide = [(x.astype(np.float64), y.astype(np.float64)) for x, y in zip(a, b, strict=True)]
    return {
        "largest": max(float(np.abs(x - y).max()) for x, y in wide),
        "nmse": max(float(((x - y) ** 2).sum() / max((x**2).sum(), 1e-300)) for x, y in wide),
        "same_token": all(int(x.argmax()) == int(y.argmax()) for x, y in wide),
        "divergence": max(divergence(x, y) for x, y in wide),
    }


def divergence(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """The Kullback-Leibler divergence of the first build's probabilities from the second's, in nats."""
    p, q = (one - one.max() - np.log(np.exp(one - one.max()).sum()) for one in (x, y))
    return float((np.exp(p) * (p - q)).sum())


def compare_logits(
    model: str | Path, *, lib: str | Path | None, against: str | Path, **more: Any
) -> Comparison:
    """Run a model in two builds and find the first node that differs by more than its arithmetic allows.

    ``lib`` and ``against`` as in :func:`ggmlq.trace.trace`, and ``more`` are its other options.
    """
    first = settings(model, lib=lib, **more)
    with gguf.open(first.model):
        pass
    return Comparison(first, replace(first, lib=Path(against).expanduser().absolute()))
