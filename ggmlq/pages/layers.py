"""Grids of layers × roles, and lines over the depth, for pages about a whole model.

Reports, diffs and traces pass one number (an ``Item``) for each tensor or operation of each layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Literal, NamedTuple

from .blocks import Grid, Shade, shades
from .charts import Lines, Series

MOST_LAYERS, MOST_ROLES, MOST_STACKS = 256, 48, 8  # of a grid; no model has as many, some files pretend to
MOST_LINES = 8


class Item(NamedTuple):
    """One cell of a grid: its layer and role, its number, and its text."""

    stack: str  # "blk"
    layer: int
    role: str  # "ffn_up"
    value: float | None
    text: str
    about: str = ""
    weight: float = 1.0  # which lines are drawn, where there are too many: the heaviest


def layer_grids(
    items: Sequence[Item], caption: str, log: bool = False, hue: Literal["blue", "amber"] = "blue",
    span: tuple[float, float] | None = None,
) -> list[Grid]:  # fmt: skip
    """A grid for each stack of layers, all on one scale of colours; ``span``: fixed ends of the scale."""
    levels, legend = shades([item.value for item in items], log, span)
    cells = {
        (item.stack, item.layer, item.role): Shade(item.text, level, item.about)
        for item, level in zip(items, levels, strict=True)
    }
    stacks = list(dict.fromkeys(item.stack for item in items))
    grids = []
    for stack in stacks[:MOST_STACKS]:
        items_of_stack = [item for item in items if item.stack == stack]
        roles = list(dict.fromkeys(item.role for item in items_of_stack))
        layers = sorted({item.layer for item in items_of_stack})
        rows = [
            (f"{stack}.{layer}", [cells.get((stack, layer, role)) for role in roles[:MOST_ROLES]])
            for layer in layers[:MOST_LAYERS]
        ]
        name = f"{caption} ({stack})" if len(stacks) > 1 else caption
        left_out = _left_out(len(layers), len(roles), len(stacks))
        grids.append(Grid(name, "layer", roles[:MOST_ROLES], rows, legend, hue, left_out))
    return grids


def _left_out(layers: int, roles: int, stacks: int) -> str:
    counts = ((layers, MOST_LAYERS, "layers"), (roles, MOST_ROLES, "roles"), (stacks, MOST_STACKS, "stacks"))
    more = [f"{n - most} more {what}" for n, most, what in counts if n > most]
    return f"Not shown: {' and '.join(more)}; --json has all." if more else ""


def depth_lines(items: Sequence[Item], title: str, y: str, limit: float | None = None) -> Lines | None:
    """A line for each of the heaviest roles of the largest stack; None if no line has two points."""
    good = [item for item in items if item.value is not None and isfinite(item.value)]
    if not good:
        return None
    stacks = [item.stack for item in good]
    stack = max(dict.fromkeys(stacks), key=stacks.count)
    by_role: dict[str, list[Item]] = {}
    for item in good:
        if item.stack == stack:
            by_role.setdefault(item.role, []).append(item)
    if max(map(len, by_role.values())) < 2:
        return None
    weights = {role: sum(item.weight for item in group) for role, group in by_role.items()}
    drawn = sorted(by_role, key=lambda role: -weights[role])[:MOST_LINES]
    series = [
        Series(role, sorted((float(item.layer), item.value or 0.0) for item in group))
        for role, group in by_role.items()
        if role in drawn
    ]
    worst = max(good, key=lambda item: item.value or 0.0)
    note = f"The largest of all is {worst.value:.1e}: {worst.role} of {worst.stack}.{worst.layer}."
    if len(by_role) > len(drawn):
        note += f" Of {len(by_role)} roles the {len(drawn)} largest are drawn."
    return Lines(title, f"layer of {stack}", y, series, True, limit, note)
