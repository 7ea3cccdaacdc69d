"""A page about the differences between two models."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

from ..gguf import Array
from ..pages import (
    Code,
    Column,
    Figure,
    Figures,
    Fold,
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
from .compare import Difference
from .tensors import TensorDifference, WorstBlock

MOST = 2000  # rows of a table: a browser stays quick
WIDTH = 120  # characters of a value


def page(difference: Difference, a: str, b: str) -> Page:
    """The whole page. ``a`` and ``b``: the names of the two files."""
    first, second = os.path.basename(a), os.path.basename(b)
    sections = [
        Section("Tensors", _tensors(difference), wide=True),
        Section("Metadata", _metadata(difference)),
    ]
    return Page(
        f"{first} and {second}", f"A: {a} · B: {b}", sections,
        "NMSE: the squared difference of a tensor over the square of its values in A.", _summary(difference),
    )  # fmt: skip


def _summary(difference: Difference) -> list[Block]:
    count = len(difference.differing)
    near = len(difference.tensors) - difference.identical - count
    items = [
        ("Tensors", str(len(difference.tensors)), ""),
        ("Equal", str(difference.identical), "the same blocks"),
        ("Different", str(count), f"tolerance {difference.tolerance:g}"),
        ("Keys that differ", str(len(difference.metadata)), "metadata"),
    ]
    if difference.tolerance:
        items.insert(2, ("Near", str(near), "within the tolerance"))
    line = Text("Nothing differs.", "good") if difference.equal else Text("The files differ.", "bad")
    return [Figures(items), line]


def _tensors(difference: Difference) -> list[Block]:
    items = [item for tensor in difference.tensors if (item := _item(tensor)) is not None]
    lines = depth_lines([i for i in items if i.value], "Difference against depth", "NMSE")
    blocks: list[Block] = [Figure(lines)] if lines is not None else []
    if any(item.value for item in items):
        blocks += layer_grids(
            items, "Difference by layer (NMSE); stronger colour: larger", log=True, hue="amber"
        )
    columns = [
        Column("tensor", code=True), Column("status"), Column("type"), Column("shape"),
        Column("NMSE", number=True),
        Column("largest difference", number=True), Column("at"), Column("in A", number=True),
        Column("in B", number=True),
    ]  # fmt: skip
    chosen = sorted(difference.differing, key=_badness)
    if chosen:
        more = len(chosen) - MOST
        left_out = f"{more} more; --json has all." if more > 0 else ""
        rows = [_row(tensor) for tensor in chosen[:MOST]]
        blocks.append(Table("Tensors that differ", columns, rows, search=True, left_out=left_out))
    worst = next((tensor for tensor in chosen if tensor.worst), None)
    if worst is not None and worst.worst is not None:
        blocks.append(Fold(f"The worst block of {worst.name}", _worst(worst.worst)))
    equal = [tensor for tensor in difference.tensors if tensor.within(difference.tolerance)]
    if equal:
        table = Table("Equal", columns, [_row(tensor) for tensor in equal[:MOST]])
        blocks.append(Fold(f"Tensors that count as equal ({len(equal)})", [table]))
    return blocks or [Text("Neither file has a tensor.")]


def _item(tensor: TensorDifference) -> Item | None:
    place, shape = place_of(tensor.name), tensor.shapes[0] or tensor.shapes[1] or ()
    if place.layer is None or tensor.nmse is None or len(shape) < 2:
        return None
    text = "equal" if tensor.nmse == 0 else f"{tensor.nmse:.1e}"
    about = f"{tensor.name}: {tensor.status}, NMSE {tensor.nmse:.4g}"
    return Item(place.stack, place.layer, place.role, tensor.nmse, text, about, math.prod(shape))


def _badness(tensor: TensorDifference) -> tuple[bool, bool, float]:
    """A key that sorts tensors that cannot be compared first, then NaN, then large differences."""
    nmse = tensor.nmse
    return nmse is not None, nmse is not None and not math.isnan(nmse), -(nmse or 0.0)


def _row(tensor: TensorDifference) -> list[Cell]:
    largest = tensor.largest
    shapes = [None if shape is None else " × ".join(map(str, shape)) or "scalar" for shape in tensor.shapes]
    nmse = None if tensor.nmse is None else Value(f"{tensor.nmse:.3e}", tensor.nmse)
    row: list[Cell] = [tensor.name, tensor.status, _pair(tensor.types), _pair(shapes), nmse]
    if largest is None:
        return [*row, None, None, None, None]
    error = Value(f"{largest.error:.3e}", largest.error)
    return [*row, error, str(list(largest.index)), largest.a, largest.b]


def _pair(values: Sequence[str | None]) -> str:
    a, b = values
    return str(a) if a == b else f"{a or '–'} → {b or '–'}"


def _worst(block: WorstBlock) -> list[Block]:
    first, end = block.columns
    where = f"row {list(block.row)}, " if block.row else ""
    fields = [f"{side}.{name} {value}" for side, fields_of_side in (("A", block.a), ("B", block.b))
              for name, value in (fields_of_side or {}).items()]  # fmt: skip
    line = Text(f"{where}columns {first} to {end - 1}: NMSE {block.nmse:.3e}")
    return [line, Code("\n".join(fields))] if fields else [line]


def _metadata(difference: Difference) -> list[Block]:
    if not difference.metadata:
        return [Text("No key differs, or none was compared.")]
    columns = [Column("key", code=True), Column("status"), Column("type"), Column("in A", code=True),
               Column("in B", code=True), Column("elements that differ", number=True)]  # fmt: skip
    rows: list[list[Cell]] = [
        [key.key, key.status, _pair(key.types), *(_short(kind, value) for kind, value in zip(
            key.types, key.values, strict=True)), key.elements]
        for key in difference.metadata[:MOST]
    ]  # fmt: skip
    more = len(difference.metadata) - MOST
    return [Table("Keys that differ", columns, rows, left_out=f"{more} more keys." if more > 0 else "")]


def _short(kind: str | None, value: object) -> Cell:
    """A value in one line; what a file does not have is not ``None``."""
    if kind is None:
        return None
    if isinstance(value, Array):
        return f"{len(value)} elements: {list(value[:8])!s:.{WIDTH}}"
    text = value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
    return Value(text if len(text) <= WIDTH else text[:WIDTH] + "…", text[:WIDTH])
