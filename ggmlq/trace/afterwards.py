"""The questions that a trace asks at its end, each with a further run: the answers are notes.

Does the run give the same logits without a trace? Are nodes that are wrong in a repacked layout right in the
plain one? Are nodes that are wrong as a group right one by one?
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import gguf
from ..arrays.array import QuantArray
from ..base.progress import Progress
from ..base.text import size as size_of
from ..errors import LibraryFailedError
from ..llama.program import DTYPES, Node
from ..llama.structs import HIDDEN
from .fusion import MOST, VIEWS, Group
from .lifetimes import LARGEST_LEAF
from .product import Product
from .runs import Run
from .settings import Settings
from .verdicts import Judge

RETRIED = 64  # nodes that are tried again in another way

Logits = list[NDArray[np.float32]]


def unknown_layouts(settings: Settings, offered: Sequence[str]) -> list[str]:
    """A note on the layouts of --without that this library lacks: misspelt, or for another processor."""
    names = {name.lower() for name in offered}
    unknown = [name for name in settings.without if name.lower() not in names]
    if not unknown:
        return []
    return [
        f"--without {','.join(unknown)} left nothing out: on this machine the library has "
        f"{', '.join(offered) or 'no layouts of its own'}."
    ]


def unwatched(names: Sequence[str]) -> list[str]:
    """A note on caches and inputs whose memory was not compared between nodes."""
    if not names:
        return []
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return [f"Not watched between nodes, for it is over {size_of(LARGEST_LEAF)}: {names[0]}{more}."]


# --- without a trace --------------------------------------------------------------------------


def untraced(run: Run, end: dict[str, Any], **asks: Any) -> Logits:
    """Logits of the same tokens without a callback, or with one that stops as ``asks`` say."""
    (last,) = run.nodes(tokens=end["tokens"], then=end["then"], traced=bool(asks), **asks)
    assert isinstance(last, dict)
    logits: Logits = last["logits"]
    return logits


def without_a_trace(run: Run, end: dict[str, Any], repeats: int) -> tuple[str, bool]:
    """A note whether the run gives the same logits without a trace; True where a kernel may be to blame."""
    run.patience = run.elapsed
    try:
        plain = [untraced(run, end) for _ in range(repeats)]
        if all(same(end["logits"], one) for one in plain):
            times = "" if repeats == 1 else f", {repeats} times"
            return f"Without the trace the run gives the same logits, to the bit{times}.", False
        off, size = max(apart(one, end["logits"]) for one in plain), largest(plain[0])
        steady = all(same(plain[0], one) for one in plain[1:]) and same(plain[0], untraced(run, end))
    except LibraryFailedError as error:
        raise LibraryFailedError(
            f"all nodes were judged, but without the trace: {error}", error.how, error.tail
        ) from error
    if steady:
        why = (
            "fused kernels, which a trace keeps apart, may round otherwise, or be wrong; --fused judges "
            "them, --bisect names the first group that differs"
        )
    else:
        why = (
            "so they do between two runs without a trace: the library's own results vary, and a kernel that "
            "does not wait for another may be the cause; --repeats N compares runs node by node"
        )
    return f"Without the trace the logits differ by up to {off:.2g} (they reach {size:.2g}): {why}.", steady


def same(a: Logits, b: Logits) -> bool:
    """True where all logits are equal, to the bit."""
    return all(np.array_equal(x.view(np.uint32), y.view(np.uint32)) for x, y in zip(a, b, strict=True))


def apart(a: Logits, b: Logits) -> float:
    """The largest difference of two runs' logits; infinite where only one of them is a number."""
    if same(a, b):
        return 0.0
    with np.errstate(invalid="ignore"):
        off = [np.abs(x.astype(np.float64) - y) for x, y in zip(a, b, strict=True)]
    return max(float(np.where(np.isnan(one), np.inf, one).max()) for one in off)


def largest(a: Logits) -> float:
    """The magnitude of the largest logit."""
    return max(float(np.abs(one).max()) for one in a)


# --- wrong nodes, computed in another way -------------------------------------------------------


def in_the_plain_layout(settings: Settings, wrong: Sequence[Product], end: dict[str, Any]) -> list[str]:
    """A note on the wrong nodes without the layouts in which they were wrong."""
    suspects = [p for p in wrong if any(word in p.buffer.upper() for word in HIDDEN)]
    if not suspects:
        return []
    buffers = tuple(dict.fromkeys(p.buffer for p in suspects))
    names = tuple(dict.fromkeys(p.node for p in suspects))[:RETRIED]
    finding = f"{len(names)} nodes are wrong in {', '.join(buffers)}"
    try:
        again = _judged_again(settings, end, names, without=(*settings.without, *buffers))
    except Exception as error:  # in the second run; the first one still counts
        return [f"{finding}; the plain layout could not be tried: {error}"]
    bad = [p.node for p in again if p.verdict == "wrong"]
    verdict = f"{len(set(bad))} of them are wrong there too" if bad else "all are right there"
    return [f"{finding}; in the plain layout (--without {','.join(buffers)}) {verdict}."]


def one_by_one(settings: Settings, wrong: Sequence[Product], end: dict[str, Any]) -> list[str]:
    """A note on the nodes of wrong groups, each asked for alone."""
    groups = [p for p in wrong if p.group]
    if not groups:
        return []
    names = tuple(dict.fromkeys(name for p in groups for name in p.group))[:RETRIED]
    finding = f"{len(groups)} groups of nodes are wrong, the first is {groups[0].op} ({groups[0].node})"
    try:
        again = _judged_again(settings, end, names)
    except Exception as error:
        return [f"{finding}; its nodes could not be tried one by one: {error}"]
    bad = list(dict.fromkeys(f"{p.node} ({p.op})" for p in again if p.verdict == "wrong"))
    if bad:
        return [f"{finding}; asked for one by one, these are wrong too: {', '.join(bad)}."]
    return [f"{finding}; asked for one by one, all are right: the kernels that fuse them are wrong."]


def _judged_again(
    settings: Settings, end: dict[str, Any], names: tuple[str, ...], *, without: tuple[str, ...] | None = None
) -> list[Product]:
    with Run(settings, without=without) as run, gguf.open(settings.model) as model:
        judge = Judge(model, "all")
        return [
            judge.record(node).without_arrays()
            for node in run.nodes(tokens=end["tokens"], then=end["then"], select=names)
            if isinstance(node, Node)
        ]


# --- races: the run is traced again, and a node that differs on the same inputs is wrong ----------
#
# Results are compared by checksums of their elements. A node after it has other inputs: it is judged on
# these, and is not accused.

FAULT = "race"


class Repeats:
    """Checksums of a run's nodes, with which those of later runs are compared."""

    def __init__(self) -> None:
        self._first: list[tuple[str, int, int]] = []
        self._number, self._count = 0, 0
        self._accused: set[int] = set()

    def remember(self, node: Node) -> None:
        """Take down a node of the first run."""
        self._first.append(self._checksums(node))

    def begin(self) -> None:
        """Begin a further run."""
        self._number, self._count = 0, self._count + 1

    def compare(self, node: Node, judge: Judge) -> Iterator[Product]:
        """The records of a node of a further run that differs: one on the race, or one on its inputs."""
        at, self._number = self._number, self._number + 1
        name, inputs, result = self._checksums(node)
        if at >= len(self._first) or self._first[at][0] != name or self._first[at][2] == result:
            return
        record = judge.record(node)
        if self._first[at][1] != inputs:
            if record.verdict == "wrong":
                yield replace(record, again=True)
        elif at not in self._accused:
            self._accused.add(at)
            text = (
                f"The result differs between run 1 and run {self._count + 1}, and all that it reads is the "
                "same: a thread or a kernel does not wait for another, or memory is read that nobody wrote."
            )
            yield replace(
                record, verdict="wrong", fault=FAULT, text=f"{text}\n{record.text}".strip(), again=True
            )

    def note(self) -> str:
        """The outcome of all runs in a sentence."""
        runs = f"{self._count + 1} runs"
        if self._accused:
            return f"In {runs} {len(self._accused)} nodes gave different results on the same inputs: a race."
        return f"In {runs} every node gave the same result on the same inputs, to the bit."

    def _checksums(self, node: Node) -> tuple[str, int, int]:
        read = [name for name in sorted(node.arrays) if name[0] not in "yo"]
        written = [name for name in sorted(node.arrays) if name[0] in "yo"]
        return node.name, _checksum(node, read), _checksum(node, written)


def _checksum(node: Node, names: list[str]) -> int:
    """The checksum of the elements of some tensors; what lies between their rows is no part of them."""
    total = 0
    for name in names:
        if node.tensors[name]["type"] in DTYPES:
            total = zlib.crc32(np.ascontiguousarray(node.strided(name)).data, total)
        else:
            for matrix in node.matrices(name):
                total = zlib.crc32(np.ascontiguousarray(matrix.raw).data, total)
    return total


# --- --bisect: the first group of nodes whose result differs where the library fuses them ---------
#
# The run is right with a stop at every node, and not without one. So it is run with stops from node k on: the
# smallest k at which its logits leave those of the trace says that the node before k is computed otherwise
# where nothing stops between it and the next one. Halving finds k. Then stops everywhere but within this
# group must show the difference again, and the group is judged as one.

PART = 16  # a difference counts from this part of the whole one: roundings of other groups are smaller


@dataclass(frozen=True)
class Finding:
    """The note of a bisection, and the record of the group that it names."""

    note: str
    record: Product | None = None


class Bisection:
    """Runs with stops at some nodes; each gives its distance from the run with a stop at every node."""

    def __init__(self, run: Run, end: dict[str, Any], bar: bool | None) -> None:
        self._run, self._end = run, end
        self._listing = run.listing(tokens=end["tokens"], then=end["then"])["listing"]
        self._count = len(self._listing)
        self._computed = [facts["number"] for facts in self._listing if facts["op"] not in VIEWS]
        steps = max(self._count, 1).bit_length() + 4
        self._bar = Progress(steps, "bisecting", " runs", bar)

    def _logits(self, *numbers: tuple[int, int]) -> Logits:
        self._bar.advance(1)
        return untraced(self._run, self._end, numbers=numbers)

    def find(self) -> Finding:
        """The first group that makes a difference, judged."""
        with self._bar:
            return self._first_group()

    def _first_group(self) -> Finding:
        stopped, free = self._logits((0, self._count)), self._logits()
        plain = untraced(self._run, self._end)
        whole = apart(free, stopped)
        if not same(free, plain) and apart(free, plain) >= apart(plain, stopped) / PART:
            return Finding(
                "Bisected: with a callback that stops at no node the logits are not those without one: the "
                "difference is none of fusion. A race, or pipelines over several devices, may be the cause."
            )
        if not whole:
            return Finding("Bisected: a stop at every node gives the logits of the run without a stop.")
        last = self._smallest(stopped, whole / PART)
        members = self._extent(last, stopped, whole / PART)
        if len(members) < 2:
            return Finding(
                "Bisected: the logits leave those of the trace where nothing stops up to "
                f"{self._name(self._computed[last])}, but no group of {MOST} nodes makes that difference "
                "alone."
            )
        return self._judged(members, whole, largest(stopped))

    def _smallest(self, stopped: Logits, limit: float) -> int:
        """The first node, by its place among those that compute, without whose stop the logits differ."""
        low, high = 0, len(self._computed)  # stops from `low` on are right, from `high` on wrong
        while high - low > 1:
            middle = (low + high) // 2
            off = apart(self._logits((self._computed[middle], self._count)), stopped)
            low, high = (low, middle) if off > limit else (middle, high)
        return low

    def _extent(self, last: int, stopped: Logits, limit: float) -> list[int]:
        """The nodes of the smallest group around a node that shows the difference alone; empty without."""
        for before in range(MOST - 1):
            first = last - before
            if first < 0 or last + 1 >= len(self._computed):
                break
            # Views between the last two compute nothing, but a stop there would part them.
            stops = (0, self._computed[first]), (self._computed[last + 1], self._count)
            if apart(self._logits(*stops), stopped) > limit:
                return self._computed[first : last + 2]
        return []

    def _name(self, number: int) -> str:
        facts = self._listing[number]
        return f"{facts['name']} ({facts['op']}, step {facts['step']})"

    def _judged(self, members: list[int], whole: float, size: float) -> Finding:
        named = " and ".join(self._name(number) for number in members)
        note = (
            f"Bisected: the first nodes that move the logits where nothing stops between them are {named}. "
            f"Without the trace the logits are {whole:.2g} apart (they reach {size:.2g})"
        )
        run, end = self._run, self._end
        name = (str(self._listing[members[-1]]["name"]),)
        with gguf.open(run.settings.model) as model:
            record = self._record(model, members, name, end)
        if record is None:
            return Finding(f"{note}.")
        if record.verdict == "wrong":
            return Finding(f"{note}, and the group is wrong.", record)
        verdict = "right within its bound: it rounds otherwise" if record.verdict == "ok" else "not judged"
        return Finding(f"{note}; the group is {verdict}.", record)

    def _record(
        self, model: Mapping[str, QuantArray], members: list[int], name: tuple[str, ...], end: dict[str, Any]
    ) -> Product | None:
        judge, record = Judge(model, "all", self._run.settings.captures), None
        nodes = self._run.nodes(
            tokens=end["tokens"], then=end["then"], groups=(tuple(members),), select=name, nodes="all"
        )
        for node in nodes:
            if isinstance(node, Group):
                record = judge.record(node)
        return None if record is None else replace(record, again=True)


def bisect(run: Run, end: dict[str, Any], bar: bool | None = False) -> Finding:
    """Name the first group of nodes that differs between a run with a stop at every node and one without."""
    run.patience = run.elapsed
    return Bisection(run, end, bar).find()
