"""The report of a trace as text: a line for each node, and a summary by kind."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ..base.text import count, printable, table
from ..check.report import figure, wrapped
from .product import Product

HEADER = (
    f"{'step':>4} {'node':18} {'op':14} {'weights':26} {'type':7} {'in':11} {'M×N×K':>15} {'arithmetic':10} "
    f"{'nmse':>8} {'of limit':>8}  verdict"
)


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


def summary(products: Sequence[Product]) -> str:
    """A row for each type, buffer and class of M, which is how libraries choose kernels."""
    kinds: dict[tuple[str, ...], list[Product]] = {}
    for p in products:
        rows_of = "1" if p.m == 1 else "2-8" if p.m <= 8 else "9-64" if p.m <= 64 else "65-"
        kinds.setdefault((p.op, p.type, p.buffer, rows_of), []).append(p)
    rows = []
    for kind, members in sorted(kinds.items()):
        judged = [p for p in members if p.judgement]
        worst = max((p.judgement.distance for p in judged if p.judgement), default=math.nan)
        share = max((s for p in judged if (s := share_of(p)) is not None), default=math.nan)
        used = ", ".join(dict.fromkeys(p.arithmetic for p in judged)) or "-"
        wrong = [p for p in members if p.verdict == "wrong"]
        faults = ", ".join(dict.fromkeys(p.fault for p in wrong))
        idle = sum(p.verdict == "not judged" for p in members)
        rows.append([*kind, len(members), len(wrong), idle, used, figure(worst), figure(share), faults])
    header = ["op", "type", "in", "M", "nodes", "wrong", "not judged", "arithmetic", "worst nmse", "of limit"]
    return table([*header, "faults"], rows)


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
