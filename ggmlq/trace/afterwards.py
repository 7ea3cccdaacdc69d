"""The questions that a trace asks at its end, each with a further run: the answers are notes.

Does the run give the same logits without a trace? Are nodes that are wrong in a repacked layout right in the
plain one? Are nodes that are wrong as a group right one by one?
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import gguf
from ..errors import LibraryFailedError
from ..llama.captured import Node
from ..llama.structs import HIDDEN
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
    run = Run(settings, without=without)
    try:
        with gguf.open(settings.model) as model:
            judge = Judge(model, "all")
            return [
                judge.record(node).without_arrays()
                for node in run.nodes(tokens=end["tokens"], then=end["then"], select=names)
                if isinstance(node, Node)
            ]
    finally:
        run.close()
