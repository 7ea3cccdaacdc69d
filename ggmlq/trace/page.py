"""The HTML page of a trace: layers × nodes coloured by error, error by depth, worst elements, diagnoses.

Errors of different arithmetics do not compare. So the page shows each as a share of its limit: the error of a
product's worst element divided by the error that its arithmetic allows. Beyond 1 the product is wrong.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from math import isfinite, prod
from pathlib import Path

from ..pages import (
    Code,
    Column,
    Figure,
    Figures,
    Item,
    Page,
    Section,
    Table,
    Text,
    Value,
    depth_lines,
    layer_grids,
)
from ..pages.blocks import Block, Cell, place_of
from .product import Product
from .report import kind_of, reasons, unjudged
from .report import share_of as share

MOST = 2000  # rows of a table: a browser stays quick
KINDS = 64  # kinds of wrong products, the first of each with its diagnosis
NAMED = 24  # others of the kind
WORST = 50  # elements
NUMBER = re.compile(r"-\d+(?= |$)")
UNNAMED = re.compile(r"node_\d+")
SPAN = (0.01, 1.0)  # of the limit: where colours begin, and where they mean wrong
METHOD = (
    "Of limit: how much of what its arithmetic allows the worst element of a node uses up; beyond 1 it is "
    "wrong. NMSE: distance from that arithmetic in the worst row of weights. Every node was judged on its "
    "own inputs, so an error counts where it is made, not where it is passed on."
)


def page(
    products: Sequence[Product], model: str, library: str, notes: Sequence[str], died: str = "",
    others: Mapping[str, int] | None = None, nodes: int = 0,
) -> Page:  # fmt: skip
    """The whole page. ``died``: the error where the library died; ``others``: nodes that nobody judges."""
    wrong = [p for p in products if p.verdict == "wrong"]
    sections = [
        Section("Layers and nodes", _layers(products)),
        Section("Worst elements", _elements(products)),
    ]
    if wrong or died:
        sections.insert(0, Section("What is wrong", _wrong(wrong, died)))
    sections += [
        Section("By kind", [_kinds(products)]),
        Section("Every node", [_all(products)], wide=True),
    ]
    lines = [*reasons(products), *notes]
    if lines:
        sections.append(Section("Notes", [Text(text) for text in lines[:MOST]]))
    return Page(f"A run of {Path(model).name}", f"{model} · {library}", sections, METHOD,
                _summary(products, wrong, died, unjudged(others or {}, nodes)))  # fmt: skip


def _summary(products: Sequence[Product], wrong: Sequence[Product], died: str, others: str) -> list[Block]:
    idle = sum(p.verdict == "not judged" for p in products)
    items = [
        ("Nodes", str(len(products)), f"{len({p.step for p in products})} steps"),
        ("Wrong", str(len(wrong)), ""),
        ("Nodes not judged", str(idle), ""),
        ("Layers", str(len({p.layer for p in products} - {None})), ""),
    ]
    if died:
        verdict = Text("The library died before the end.", "bad")
    elif wrong:
        first = wrong[0]
        verdict = Text(f"{len(wrong)} of {len(products)} nodes are wrong; the first is {first.node}.", "bad")
    elif len(products) > idle:
        verdict = Text("Every node that was judged is right.", "good")
    else:
        verdict = Text("No node was judged.", "note")
    return [Figures(items), verdict, *([Text(others, "note")] if others else [])]


def _wrong(wrong: Sequence[Product], died: str) -> list[Block]:
    blocks: list[Block] = [Text(line, "bad") for line in died.splitlines() if line]
    alike: dict[tuple[str, ...], list[Product]] = {}
    for p in wrong:
        alike.setdefault(kind_of(p), []).append(p)
    for first, *others in list(alike.values())[:KINDS]:
        blocks.append(Text(f"{_name(first)}: {first.fault or 'wrong'}", "bad"))
        blocks += [Text(line) for line in first.text.splitlines() if line]
        if first.saved:
            path = shlex.quote(first.saved)
            blocks.append(Code(f"ggmlq diagnose {path}\nggmlq check --replay {path}"))
        if others:
            named = ", ".join(f"{p.node} (step {p.step})" for p in others[:NAMED])
            more = f" and {len(others) - NAMED} more" if len(others) > NAMED else ""
            blocks.append(Text(f"So are, of the same type and in the same buffer: {named}{more}."))
    if len(alike) > KINDS:
        blocks.append(Text(f"{len(alike) - KINDS} more kinds are in the table of every node."))
    return blocks


def _name(p: Product) -> str:
    shape = f"M={p.m} N={p.n} K={p.k}"
    return f"{p.node}, step {p.step}, {p.weights or p.op} ({p.type} in {p.buffer or 'no buffer'}), {shape}"


def _role(p: Product) -> str:
    """The name of a node without its layer: that of the weights, or its own where these are no model's."""
    place = place_of(p.weights)
    if place.layer is not None:
        return place.role
    return p.op if UNNAMED.fullmatch(p.node) else NUMBER.sub("", p.node) or p.op


def _layers(products: Sequence[Product]) -> list[Block]:
    blocks: list[Block] = []
    for steps, title in ((True, "the prompt"), (False, "generated tokens, the worst of them")):
        places = items([p for p in products if (p.step == 0) is steps])
        if not places:
            continue
        drawn = [item for item in places if item.value]
        lines = depth_lines(drawn, f"Error against depth: {title}", "share of the limit", limit=1.0)
        blocks += [Figure(lines)] if lines is not None else []
        caption = f"Share of the limit by layer: {title}; the strongest colour is beyond it"
        blocks += layer_grids(places, caption, log=True, hue="amber", span=SPAN)
    return blocks or [Text("No node belongs to a layer.")]


def items(products: Sequence[Product]) -> list[Item]:
    """The worst product of each layer and role as an item of a grid, coloured by its share of the limit."""
    worst: dict[tuple[int, str], Product] = {}
    for p in products:
        if p.layer is not None:
            at = (p.layer, _role(p))
            worst[at] = max(worst.get(at, p), p, key=_badness)
    places = []
    for (layer, role), p in worst.items():
        used = share(p)
        text = {"wrong": "WRONG", "died": "DIED", "not judged": "–"}.get(p.verdict, "")
        figure = "" if used is None else f"{used:.1e}"
        about = f"{_name(p)}; {p.arithmetic or p.verdict}"
        value = None if p.verdict == "not judged" else float("inf") if used is None and not p.ok else used
        places.append(
            Item("blk", layer, role, value, f"{text} {figure}".strip() or "ok", about, prod((p.n, p.k)))
        )
    return places


def _badness(p: Product) -> tuple[bool, float]:
    used = share(p)
    return not p.ok, -1.0 if used is None else used if isfinite(used) else float("inf")


def _elements(products: Sequence[Product]) -> list[Block]:
    worst = sorted((p for p in products if p.worst), key=_badness, reverse=True)[:WORST]
    columns = [
        Column("node", code=True), Column("step", number=True), Column("part"), Column("row", number=True),
        Column("column", number=True), Column("is", number=True), Column("should be", number=True),
        Column("error", number=True), Column("limit", number=True), Column("of limit", number=True),
    ]  # fmt: skip
    rows: list[list[Cell]] = [
        [p.node, p.step, str(p.worst.get("part") or "–"),
         *(p.worst.get(key) for key in ("row", "column", "got", "wanted", "error", "limit")), _used(p)]
        for p in worst
    ]  # fmt: skip
    if not rows:
        return [Text("No element was judged.")]
    return [Table("The elements nearest to their limits, or furthest beyond", columns, rows)]


def _used(p: Product) -> Cell:
    used = share(p)
    return None if used is None else Value(f"{used:.2g}", used, "bad" if used > 1 else "")


def _kinds(products: Sequence[Product]) -> Table:
    """A table by operation, type and buffer, which is how libraries choose kernels."""
    kinds: dict[tuple[str, str, str], list[Product]] = {}
    for p in products:
        kinds.setdefault((p.op, p.type, p.buffer), []).append(p)
    rows: list[list[Cell]] = []
    for (op, kind, buffer), members in kinds.items():
        arithmetics = ", ".join(dict.fromkeys(p.arithmetic for p in members if p.arithmetic)) or "–"
        faults = ", ".join(dict.fromkeys(p.fault for p in members if p.fault and not p.ok))
        bad = sum(not p.ok for p in members)
        rows.append([op, kind, buffer or "–", len(members), Value(str(bad), bad, "bad" if bad else ""),
                     arithmetics,
                     _used(max(members, key=_badness)), faults])  # fmt: skip
    columns = [Column("op", code=True), Column("type"), Column("in"), Column("nodes", number=True),
               Column("wrong", number=True), Column("arithmetic"), Column("worst of limit", number=True),
               Column("faults")]  # fmt: skip
    return Table("Kinds of nodes", columns, rows[:MOST])


def _all(products: Sequence[Product]) -> Table:
    columns = [
        Column("node", code=True), Column("step", number=True), Column("layer", number=True), Column("op"),
        Column("weights", code=True), Column("type"), Column("in"), Column("M×N×K"), Column("arithmetic"),
        Column("NMSE", number=True), Column("of limit", number=True), Column("verdict"),
    ]  # fmt: skip
    shown = sorted(products, key=lambda p: p.ok)[:MOST] if len(products) > MOST else products
    rows: list[list[Cell]] = [
        [
            p.node, p.step, p.layer, p.op, p.weights or "–", p.type, p.buffer or "–",
            Value(f"{p.m}×{p.n}×{p.k}", p.m * p.n * p.k), p.arithmetic or "–",
            p.judgement.distance if p.judgement else None, _used(p),
            Value(f"wrong: {p.fault}" if p.verdict == "wrong" else p.verdict, p.verdict,
                  "good" if p.verdict == "ok" else "note" if p.ok else "bad"),
        ]
        for p in shown
    ]  # fmt: skip
    more = len(products) - len(rows)
    left_out = f"{more} nodes that are right are left out; --json has all." if more else ""
    return Table("Nodes", columns, rows, search=True, left_out=left_out)
