"""The report of a trace as text, a line for each node and a summary by kind; and files for replay."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..base.text import count, printable, table
from ..errors import GGMLQError
from .product import Product

HEADER = (
    f"{'step':>4} {'node':18} {'op':14} {'weights':26} {'type':7} {'in':11} {'M×N×K':>15} {'arithmetic':10} "
    f"{'nmse':>8} {'of limit':>8}  verdict"
)
UNSAFE = str.maketrans(dict.fromkeys('/\\:*?"<>| ', "_"))


def line(p: Product) -> str:
    """A product as one line of text; one that is not ok has its explanation in lines below."""
    many = f" ({p.parts}×)" if p.parts > 1 else ""
    verdict = f"WRONG: {p.fault}" if p.verdict == "wrong" else p.verdict
    off = p.judgement.distance if p.judgement else None
    text = (
        f"{p.step:>4} {p.node[:18]:18} {_short(p.op):14} {p.weights[:26]:26} {p.type:7} {p.buffer[:11]:11} "
        f"{f'{p.m}×{p.n}×{p.k}':>15} {p.arithmetic or '-':10} {_figure(off):>8} "
        f"{_figure(share_of(p)):>8}  {verdict}{many}"
    )
    below = [_wrapped(f"one kernel may compute {', '.join(p.group)}")] if p.group else []
    below += [] if p.verdict == "ok" else [_wrapped(paragraph) for paragraph in p.text.splitlines()]
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


def _figure(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.1e}"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 100, initial_indent="    ", subsequent_indent="    ")


def summary(products: Sequence[Product]) -> str:
    """A row for each type, buffer and class of M, which is how libraries choose kernels."""
    kinds: dict[tuple[str, ...], list[Product]] = {}
    for p in products:
        kinds.setdefault((p.op, p.type, p.buffer, _rows(p.m)), []).append(p)
    rows = []
    for kind, members in sorted(kinds.items()):
        judged = [p for p in members if p.judgement]
        worst = max((p.judgement.distance for p in judged if p.judgement), default=math.nan)
        share = max((s for p in judged if (s := share_of(p)) is not None), default=math.nan)
        used = ", ".join(dict.fromkeys(p.arithmetic for p in judged)) or "-"
        wrong = [p for p in members if p.verdict == "wrong"]
        faults = ", ".join(dict.fromkeys(p.fault for p in wrong))
        idle = sum(p.verdict == "not judged" for p in members)
        rows.append([*kind, len(members), len(wrong), idle, used, _figure(worst), _figure(share), faults])
    header = [
        "op",
        "type",
        "in",
        "M",
        "nodes",
        "wrong",
        "not judged",
        "arithmetic",
        "worst nmse",
        "of limit",
        "faults",
    ]
    return table(header, rows)


def _rows(m: int) -> str:
    return "1" if m == 1 else "2-8" if m <= 8 else "9-64" if m <= 64 else "65-"


def reasons(products: Iterable[Product]) -> list[str]:
    """The reasons why nodes were not judged, each once."""
    nodes: dict[str, list[str]] = {}
    for p in products:
        if p.verdict == "not judged":
            nodes.setdefault(p.text, []).append(p.node)
    return [f"not judged: {_first(names)}: {text}" for text, names in nodes.items()]


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


def _first(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def save(folder: Path, p: Product) -> Product:
    """Write a product as an npz, which `ggmlq check --replay` and `ggmlq diagnose` read."""
    if p.operands is None:
        return p
    operands = p.operands
    path = folder / f"{p.step}-{p.node.translate(UNSAFE)}-{p.type}.npz"
    facts: dict[str, Any] = {
        "format": np.array(p.type), "shape": np.array(operands.q.shape), "data": np.array("normal"),
        "seed": np.array(0), "arithmetic": np.array(p.arithmetic), "claim": np.array(""),
        "node": np.array(p.node), "weights": np.array(p.weights), "buffer": np.array(p.buffer),
    }  # fmt: skip
    if operands.rows is not None and operands.columns is not None:
        facts |= {"rows": operands.rows, "columns": operands.columns}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(
            path, x=operands.x, y=operands.y, raw=np.ascontiguousarray(operands.q.raw), **facts
        )
    except OSError as error:
        raise GGMLQError(
            f"--save {folder}: cannot write {path.name}: {error}; name another folder"
        ) from error
    return replace(p, saved=str(path))
