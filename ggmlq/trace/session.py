"""``Trace``: runs a model in llama.cpp and yields a record of each node, judged.

The model runs in a process of its own (``runs.py``), which stands still at each node until that is judged
here. If it dies, the flight recorder names the nodes that were being computed; if these are several, the run
is repeated with a stop at every node, so that one is named. Afterwards come the questions of
``afterwards.py``, and where they are wanted repeated runs and a bisection.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .. import gguf
from ..base.progress import Progress
from ..errors import LibraryFailedError
from ..llama.process import cause_of
from ..llama.program import Node
from ..llama.structs import HIDDEN
from .afterwards import (
    Repeats,
    bisect,
    in_the_plain_layout,
    one_by_one,
    unknown_layouts,
    unwatched,
    without_a_trace,
)
from .fusion import groups_of
from .product import Product
from .runs import Run
from .settings import Settings
from .verdicts import OVERWRITTEN, Judge


class Trace:
    """A trace of a model: iteration runs the model, anew each time, and yields its judged products.

    Attributes
    ----------
    version, library : str
        What ran, known once the first product is there; ``loaded``: paths of all its libraries, on Linux.
    nodes, others : int, dict
        Nodes of the run; and by operation, the number of those that compute something and that nobody judges.
    notes : list of str
        Findings about the run as a whole, known at the end.
    tokens : list of int
        Of the prompt.
    died : dict or None
        Where the library died: the node, its operands and their buffers.
    """

    def __init__(self, settings: Settings, *, bar: bool | None = False) -> None:
        self.settings = settings
        self._bar = bar
        with gguf.open(settings.model) as file:  # raises an error for a damaged file
            if file.missing:
                file[file.missing[0]]  # and for an incomplete one
        self._reset()

    def _reset(self) -> None:
        self.version, self.library = "", ""
        self.loaded: list[Path] = []
        self.others: dict[str, int] = {}
        self.notes: list[str] = []
        self.tokens: list[int] = []
        self.nodes = 0
        self._end: dict[str, Any] = {}
        self.died: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return f"<Trace of {self.settings.model.name}>"

    def __iter__(self) -> Iterator[Product]:
        self._reset()
        wrong: list[Product] = []
        with Run(self.settings) as run, Progress(0, "judging", " nodes", self._bar) as bar:
            self.version, self.library = run.facts["version"], run.facts["path"]
            self.loaded = [Path(path) for path in run.facts["libraries"]]
            with gguf.open(self.settings.model) as model:
                try:
                    for record in self._records(
                        run, Judge(model, self.settings.judge, self.settings.captures), bar
                    ):
                        if record.verdict == "wrong" and record.fault != OVERWRITTEN:
                            wrong.append(record.without_arrays())
                        yield record
                except LibraryFailedError as error:
                    raise self._died(run, error) from error
            end = self._end
            self.notes += unknown_layouts(self.settings, end["offered"]) + unwatched(end["unwatched"])
            if self.settings.verify and not self.settings.tool:
                yield from self._verified(run, end)
        self.notes += in_the_plain_layout(self.settings, wrong, end)
        self.notes += one_by_one(self.settings, wrong, end)

    def _records(self, run: Run, judge: Judge, bar: Progress) -> Iterator[Product]:
        """The record of each node of the run; then of the nodes that differ in further runs."""
        repeats = Repeats()
        for node in self._stops(run):
            if isinstance(node, dict):
                self._end = node
                break
            if self.settings.repeats > 1:
                repeats.remember(node)
            bar.advance(1)
            yield judge.record(node)
        end = self._end
        self.tokens, self.nodes, self.others = end["tokens"], end["nodes"], end["others"]
        for _ in range(self.settings.repeats - 1):
            repeats.begin()
            for node in self._stops(run, end):
                if isinstance(node, Node):
                    yield from repeats.compare(node, judge)
        if self.settings.repeats > 1:
            self.notes.append(repeats.note())

    def _stops(self, run: Run, end: dict[str, Any] | None = None) -> Iterator[Node | dict[str, Any]]:
        """The nodes of the run, or of its repetition; with ``fused`` those that a kernel may fuse are one."""
        again = {} if end is None else {"tokens": end["tokens"], "then": end["then"]}
        if not self.settings.fused:
            return run.nodes(**again)
        listed = run.listing(**again)
        run.patience = run.elapsed
        again = {"tokens": listed["tokens"], "then": listed["then"]}
        return run.nodes(**again, groups=groups_of(listed["listing"]))

    def _verified(self, run: Run, end: dict[str, Any]) -> Iterator[Product]:
        """Compare with the run without a trace; where it differs, the group that a bisection names."""
        note, fused = without_a_trace(run, end, max(self.settings.repeats, 1))
        self.notes.append(note)
        if self.settings.bisect and fused:
            finding = bisect(run, end, self._bar)
            self.notes.append(finding.note)
            if finding.record is not None:
                yield finding.record

    # --- a death --------------------------------------------------------------------------

    def _died(self, run: Run, error: LibraryFailedError) -> LibraryFailedError:
        """The error in words: which node, with which weights, in which buffer, and what to try."""
        if not error.how:  # the library reported an error, which is clear by itself
            return error
        noted = run.died_at()
        pending, step = list(noted.get("pending", [])), noted.get("step", 0)
        if len(pending) > 1:
            pending = self._node_by_node(run) or pending
        self.died = {"step": step, "how": error.how, "nodes": pending, "said": end_of(error.tail)}
        last_words = self.died["said"]
        text = sentence(f"tracing {self.settings.model}", error.how, pending, step, last_words, self.loaded)
        return LibraryFailedError(text, error.how, error.tail)

    def _node_by_node(self, first: Run) -> list[dict[str, Any]]:
        """The node at which a run dies that asks at every node; empty where that one does not die."""
        first.close()
        run = None
        try:
            run = Run(self.settings)
            run.patience = first.elapsed
            for _ in run.nodes(every=True, quiet=True):
                pass
            self.notes.append(
                "Asked at every node the library did not die: it does so where nodes fuse, or by chance."
            )
        except LibraryFailedError:
            return list(run.died_at().get("pending", [])) if run is not None else []
        finally:
            if run is not None:
                run.close()
        return []


# --- where the library died: the node, its operands, and what to try next -------------------------

LAST_LINES = 3  # last lines of what a library printed

Tensor = dict[str, Any]  # as the flight recorder describes it


def sentence(
    doing: str, how: str, pending: Sequence[Tensor], step: int, last_words: str,
    libraries: Sequence[Path] = (),
) -> str:  # fmt: skip
    """The error in words. ``pending``: the nodes that were being computed; none where no graph ran yet."""
    if not pending:
        where = "while it loaded the model or made its context"
    elif len(pending) == 1:
        where = f"while it computed {described(pending[0])} (step {step})"
    else:
        first, last = described(pending[0]), described(pending[-1])
        where = f"within {len(pending)} nodes, from {first} to {last} (step {step})"
    quoted = f"; it said: {last_words}" if last_words else ""
    cause = cause_of(how, _special(pending), libraries)
    way = _way_on(pending, how)
    return f"{doing}: the library {how} {where}{quoted}; {f'{cause}; ' if cause else ''}{way}"


def described(node: Tensor) -> str:
    """``Qcur-0 = MUL_MAT, f32 [256, 17] of blk.0.attn_q.weight q4_K [256, 256] in AMX``."""
    of = ", ".join(
        f"{s['name']} {s['type']} {_lengths(s)} in {s['buffer'] or 'no buffer'}" for s in node["of"]
    )
    return f"{node['name']} = {node['op']}, {node['type']} {_lengths(node)}" + (f" of {of}" if of else "")


def _lengths(tensor: Tensor) -> list[int]:
    """The lengths of a tensor, without axes of 1 at the end."""
    ne = list(tensor["ne"])
    while len(ne) > 1 and ne[-1] == 1:
        del ne[-1]
    return ne


def _special(pending: Sequence[Tensor]) -> list[str]:
    """The repacked layouts that hold operands of these nodes."""
    buffers = dict.fromkeys(s["buffer"] for node in pending for s in node["of"])
    return [b for b in buffers if any(word in b.upper() for word in HIDDEN)]


def _way_on(pending: Sequence[Tensor], how: str) -> str:
    if special := _special(pending):
        return f"run it again with --without {','.join(special)}, which keeps weights in the plain layout"
    if "no answer" in how:
        return "a node that takes long needs a larger --timeout; one that hangs, another build"
    if pending:
        return "try `ggmlq check` on this library for that type and shape, or another build"
    return "try `ggmlq validate` on the model, or another build"


def end_of(tail: str) -> str:
    """The last lines of the output, joined to one."""
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    return " / ".join(lines[-LAST_LINES:])
