"""The report of a trace as text: a line for each node, and a summary by kind."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from ..base.text import count, printable, table
from ..check.report import figure, wrapped
from .product import Product

HEADER = (
    f"{'step':>4} {'node':18} {'op':14} {'weights':26} {'type':7} {'in':11} {'M×N×K':>15} {'arithmetic':10} "
    f"{'nmse':>8} {'of limit':>8}  verdict"
)

NAMES = 12  # of further wrong nodes that a line lists


def line(p: Product) -> str:
    """A product as one line of text; one that is not ok has its explanation in lines below."""
    many = f" ({p.parts}×)" if p.parts > 1 else ""
    verdict = f"WRONG: {p.fault}" if p.verdict == "wrong" else p.verdict
    off = p.judgement.distance if p.judgement else None
    text = (
        f"{p.step:>4} {p.node[:18]:18} {_short(p.op):14} {p.weights[:26]:26} {p.type:7} {p.buffer[:11]:11} "
        f"{f'{p.m}×{p.n}×{p.k}':>15} {p.arithmetic or '-':10} {figure(off):>8} "
        f"{figure(share_of(p)):>8}  {verdict}{many}"
    )
    below = [wrapped(f"one kernel may compute {', '.join(p.group)}")] if p.group else []
    below += [] if p.verdict == "ok" else [wrapped(paragraph) for paragraph in p.text.splitlines()]
    below += [f"    saved: {p.saved}"] if p.saved else []
    return printable("\n".join([text, *below]))


class Lines:
    """A printer of records as they come: a wrong node of each kind at length, at the end the others' names.

    ``every``: each node has its own line.
    """

    def __init__(self, say: Callable[[str], None], *, every: bool) -> None:
        self._say, self._every = say, every
        self._kinds: dict[tuple[str, ...], list[Product]] = {}

    def add(self, p: Product) -> None:
        """Print the line of a record, if it is the first of its kind."""
        if self._every:
            self._say(line(p))
        elif p.verdict == "wrong":
            explained = any(fault == p.fault for fault, *_ in self._kinds)
            alike = self._kinds.setdefault(kind_of(p), [])
            alike.append(p)
            if len(alike) == 1:
                self._say(line(replace(p, text=p.text.partition("\n")[0]) if explained else p))

    def close(self) -> None:
        """Print the names of the wrong nodes that are like others."""
        for first, *others in self._kinds.values():
            names = list(dict.fromkeys(f"{p.node} (step {p.step})" if p.step else p.node for p in others))
            more = f" and {len(names) - NAMES} more (--verbose lists them)" if len(names) > NAMES else ""
            if names:
                like = f"{count(len(others), 'more node')} like {first.node} ({first.op}, {first.type})"
                text = f"{first.fault}: {like}: {', '.join(names[:NAMES])}{more}"
                self._say(printable(wrapped(text).strip()))


def kind_of(p: Product) -> tuple[str, ...]:
    """The kind of a wrong node: its fault, the type and buffer of its weights, its operation."""
    return p.fault, p.type, p.buffer, p.op


def _short(op: str) -> str:
    """The operations of a group in 14 columns: the first and the last."""
    first, _, rest = op.partition("+")
    return op if len(op) <= 14 else f"{first[:8]}+…" if rest else op[:14]


def share_of(p: Product) -> float | None:
    """The error of the worst element divided by its limit; None where there is no limit."""
    if not p.worst:
        return None
    if "share" in p.worst:  # of a node that is no product
        return float(p.worst["share"])
    if not p.worst["limit"] > 0:
        return None
    return float(p.worst["error"] / p.worst["limit"])


def summary(products: Sequence[Product], every: bool = False) -> str:
    """A row for each type, buffer and class of M, which is how libraries choose kernels.

    Beside wrong ones kinds that are right are counted in a line; with ``every`` they have their rows.
    """
    kinds: dict[tuple[str, ...], list[Product]] = {}
    for p in products:
        rows_of = "1" if p.m == 1 else "2-8" if p.m <= 8 else "9-64" if p.m <= 64 else "65-"
        kinds.setdefault((p.op, p.type, p.buffer, rows_of), []).append(p)
    rows, right = [], {kind for kind, members in kinds.items() if all(p.verdict == "ok" for p in members)}
    if every or not any(p.verdict == "wrong" for p in products):
        right = set()
    for kind, members in sorted((kind, members) for kind, members in kinds.items() if kind not in right):
        judged = [p for p in members if p.judgement]
        worst = max((p.judgement.distance for p in judged if p.judgement), default=math.nan)
        share = max((s for p in judged if (s := share_of(p)) is not None), default=math.nan)
        used = ", ".join(dict.fromkeys(p.arithmetic for p in judged)) or "-"
        wrong = [p for p in members if p.verdict == "wrong"]
        faults = ", ".join(dict.fromkeys(p.fault for p in wrong))
        idle = sum(p.verdict == "not judged" for p in members)
        rows.append([*kind, len(members), len(wrong), idle, used, figure(worst), figure(share), faults])
    header = ["op", "type", "in", "M", "nodes", "wrong", "not judged", "arithmetic", "worst nmse", "of limit"]
    beside = [f"{count(len(right), 'more kind')} of nodes, all right (--verbose lists them)"] if right else []
    return "\n".join([table([*header, "faults"], rows), *beside])


def reasons(products: Iterable[Product]) -> list[str]:
    """The reasons why nodes were not judged, each once."""
    nodes: dict[str, list[str]] = {}
    for p in products:
        if p.verdict == "not judged":
            nodes.setdefault(p.text, []).append(p.node)
    more = {text: f" and {len(names) - 1} more" if len(names) > 1 else "" for text, names in nodes.items()}
    return [f"not judged: {names[0]}{more[text]}: {text}" for text, names in nodes.items()]


def unjudged(others: Mapping[str, int], nodes: int, records: Iterable[Product] = ()) -> str:
    """The count of nodes that compute something and that nobody judges, by operation; empty without any."""
    counts = Counter(others)
    counts.update(p.op for p in records if p.verdict == "not judged")
    listed = ", ".join(f"{op} {count}" for op, count in counts.most_common())
    return f"not judged: {counts.total()} of {nodes} nodes: {listed}" if counts else ""


def judged_nodes(records: Iterable[Product]) -> int:
    """The number of nodes of one run that were judged, alone or in a group."""
    return sum(max(len(p.group), 1) for p in records if p.verdict != "not judged" and not p.again)


def last_line(records: Sequence[Product], others: Mapping[str, int], nodes: int) -> str:
    """The count of judged nodes, of those that compute; of views and wrong nodes; what nobody judges."""
    judged = judged_nodes(records)
    left = sum(max(len(p.group), 1) for p in records if p.verdict == "not judged" and not p.again)
    computed = min(judged + left + sum(others.values()), nodes)
    views = f", {count(nodes - computed, 'view')}" if nodes > computed else ""
    wrong = [p for p in records if p.verdict == "wrong"]
    first = f", the first is {wrong[0].node} ({wrong[0].op}, step {wrong[0].step})" if wrong else ""
    rest = unjudged(others, computed, records)
    return f"{judged} of {computed} nodes judged{views}, {len(wrong)} wrong{first}" + (
        f"; {rest}" if rest else ""
    )
