"""``Trace``: runs a model in llama.cpp and yields a record of each product, judged.

The model runs in a process of its own (``child.py``), which stands still at each product until that is
judged here. If it dies, the flight recorder names the nodes that were being computed; if these are several,
the run is repeated with a stop at every node, so that one is named. Afterwards two questions are answered:
does the run give the same logits without a trace, and are products that are wrong in a repacked layout right
in the plain one?
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import gguf
from ..base.progress import Progress
from ..errors import LibraryFailedError
from ..llama.process import Child
from .child import CODE
from .death import end_of, sentence
from .memory import SharedFile
from .operands import Node
from .product import Product
from .settings import Settings
from .structs import HIDDEN
from .verdicts import Judge

RETRIED = 64  # nodes that are tried again in the plain layout


class Run:
    """A process with a loaded library; one model, any number of runs."""

    def __init__(self, settings: Settings, *, without: tuple[str, ...] | None = None) -> None:
        self.settings = settings
        self.shared, path = SharedFile.created()
        self.child: Child | None = None
        self.started = time.monotonic()
        # Seconds beyond the time limit: a run that stops at no node takes as long as all nodes together.
        self.patience = 0.0
        try:
            self.child = Child.started(CODE.format(path=sys.path))
            hidden = settings.without if without is None else without
            self.facts = self._call({
                "do": "load", "lib": None if settings.lib is None else str(settings.lib), "shared": path,
                "without": list(hidden),
            })  # fmt: skip
        except BaseException:
            with suppress(OSError):
                Path(path).unlink()
            self.close()
            raise

    def _call(self, message: dict[str, Any]) -> dict[str, Any]:
        assert self.child is not None
        answer, _ = self.child.call(
            f"tracing {self.settings.model}", message, [], self.settings.timeout + self.patience
        )
        return dict(answer)

    def nodes(self, *, tokens: list[int] | None = None, then: list[int] | None = None, traced: bool = True,
              every: bool = False, quiet: bool = False, select: tuple[str, ...] | None = None,
              through: bool = False,
              ) -> Iterator[Node | dict[str, Any]]:  # fmt: skip
        """Run the model and yield its captured nodes; the last item is the message of the end, a dict.

        The arrays of a node are valid until the next one.
        """
        settings = self.settings
        numbers = (
            None if settings.tokens is None or isinstance(settings.tokens, int) else list(settings.tokens)
        )
        self.shared.note({})
        answer = self._call({
            "do": "tool" if settings.tool else "run", "tool": list(settings.tool),
            "model": str(settings.model), "tokens": tokens or numbers, "prompt": settings.prompt,
            "random": settings.tokens if isinstance(settings.tokens, int) else 0, "seed": settings.seed,
            "generate": settings.generate, "then": then or [], "threads": settings.thread_count,
            "cache": settings.cache, "flash": settings.flash, "traced": traced, "every": every,
            "quiet": quiet,
            "select": list(settings.select if select is None else select), "through": through,
        })  # fmt: skip
        while answer["kind"] == "product":
            places = dict(answer["places"])
            arrays = dict(zip(places, self.shared.look(list(places.values())), strict=True))
            yield Node(answer["op"], answer["step"], answer["parts"], arrays, tuple(answer.get("scales", ())))
            answer = self._call({"do": "next"})
        logits = self.shared.look(answer.pop("places"))
        yield answer | {"logits": [one.view(np.float32).copy() for one in logits]}

    def tokens_of(self, text: str) -> tuple[list[int], list[int]]:
        """The tokens of a text, and those of them that begin every text."""
        message = {"do": "tokens", "model": str(self.settings.model), "text": text}
        answer = self._call(message)
        return list(answer["tokens"]), list(answer["begin"])

    @property
    def elapsed(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.started

    def died_at(self) -> dict[str, Any]:
        """The last records: the step, and the nodes that were being computed."""
        return self.shared.noted()

    def close(self) -> None:
        """End the process of the library."""
        if self.child is not None:
            self.child.close()
        self.shared.close()


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
        self.died: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return f"<Trace of {self.settings.model.name}>"

    def __iter__(self) -> Iterator[Product]:
        self._reset()
        wrong: list[Product] = []
        run = Run(self.settings)
        bar = Progress(0, "judging", " nodes", self._bar)
        try:
            self.version, self.library = run.facts["version"], run.facts["path"]
            self.loaded = [Path(path) for path in run.facts["libraries"]]
            with gguf.open(self.settings.model) as model:
                judge = Judge(model, self.settings.judge)
                try:
                    for node in run.nodes():
                        if isinstance(node, dict):
                            end = node
                            break
                        record = judge.record(node)
                        bar.advance(1)
                        if record.verdict == "wrong":
                            wrong.append(record.without_arrays())
                        yield record
                except LibraryFailedError as error:
                    raise self._died(run, error) from error
            self.tokens, self.nodes, self.others = end["tokens"], end["nodes"], end["others"]
            self._unknown_layouts(end["offered"])
            if self.settings.verify and not self.settings.tool:
                self._without_a_trace(run, end)
        finally:
            bar.close()
            run.close()
        self._in_the_plain_layout(wrong, end)

    # --- afterwards -----------------------------------------------------------------------

    def _unknown_layouts(self, offered: list[str]) -> None:
        """Note the layouts of --without that this library lacks: misspelt, or for another processor."""
        names = {name.lower() for name in offered}
        if unknown := [name for name in self.settings.without if name.lower() not in names]:
            self.notes.append(
                f"--without {','.join(unknown)} left nothing out: on this machine the library has "
                f"{', '.join(offered) or 'no layouts of its own'}."
            )

    def _without_a_trace(self, run: Run, end: dict[str, Any]) -> None:
        """Note whether the run gives the same logits without a trace, which keeps kernels from fusing."""
        run.patience = run.elapsed
        try:
            plain = _untraced(run, end)
            if _same(end["logits"], plain):
                self.notes.append("Without the trace the run gives the same logits, to the bit.")
                return
            off = max(float(np.abs(a - b).max()) for a, b in zip(end["logits"], plain, strict=True))
            size = max(float(np.abs(b).max()) for b in plain)
            if _same(plain, _untraced(run, end)):
                why = "fused kernels, which a trace keeps apart, may round otherwise, or be wrong"
            else:
                why = "so they do between two runs without a trace: the library's own results vary"
            self.notes.append(
                f"Without the trace the logits differ by up to {off:.2g} (they reach {size:.2g}): {why}."
            )
        except LibraryFailedError as error:
            raise LibraryFailedError(
                f"all products were judged, but without the trace: {error}", error.how, error.tail
            ) from error

    def _in_the_plain_layout(self, wrong: list[Product], end: dict[str, Any]) -> None:
        """Compute the wrong nodes again without the layouts in which they were wrong."""
        suspects = [p for p in wrong if any(word in p.buffer.upper() for word in HIDDEN)]
        if not suspects:
            return
        buffers = tuple(dict.fromkeys(p.buffer for p in suspects))
        names = tuple(dict.fromkeys(p.node for p in suspects))[:RETRIED]
        finding = f"{len(names)} nodes are wrong in {', '.join(buffers)}"
        run = None
        try:
            settings = replace(self.settings, verify=False)
            run = Run(settings, without=(*self.settings.without, *buffers))
            with gguf.open(self.settings.model) as model:
                judge = Judge(model, "all")
                again = [
                    judge.record(node).without_arrays()
                    for node in run.nodes(tokens=end["tokens"], then=end["then"], select=names)
                    if isinstance(node, Node)
                ]
            bad = [p.node for p in again if p.verdict == "wrong"]
            verdict = f"{len(set(bad))} of them are wrong there too" if bad else "all are right there"
            self.notes.append(f"{finding}; in the plain layout (--without {','.join(buffers)}) {verdict}.")
        except Exception as error:  # in the second run; the first one still counts
            self.notes.append(f"{finding}; the plain layout could not be tried: {error}")
        finally:
            if run is not None:
                run.close()

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


def _untraced(run: Run, end: dict[str, Any]) -> list[NDArray[np.float32]]:
    """Logits of the same tokens without a callback."""
    logits: list[NDArray[np.float32]] = []
    for one in run.nodes(tokens=end["tokens"], then=end["then"], traced=False):
        assert isinstance(one, dict)
        logits = one["logits"]
    return logits


def _same(a: list[NDArray[Any]], b: list[NDArray[Any]]) -> bool:
    return all(np.array_equal(x.view(np.uint32), y.view(np.uint32)) for x, y in zip(a, b, strict=True))
