"""Sensitivities: how far the shares of tokens move if one tensor alone is quantized, measured on a text.

What goes into each layer is computed once. A tensor of a layer is then judged by a pass from that layer on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..base.progress import Progress, quiet
from ..formats import Format
from ..ops import dequantize, quantize
from .model import Model
from .quality import Quality, layered, shares

LAYER = re.compile(r"blk\.(\d+)\.")


class Change(NamedTuple):
    """A tensor's other type, and the importance of its columns [experts, K] if there is any."""

    format: Format
    importance: NDArray[np.float32] | None


def sensitivities(
    model: Model, pieces: list[list[int]], changes: Mapping[str, Change], bar: bool | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each tensor with what was measured while it alone has another type."""
    with Progress(len(changes), "measuring tensors", " tensors", bar) as progress, quiet():
        before = [(piece, *layered(model, piece, whole=True)) for piece in pieces]
        for name, change in changes.items():
            other, place = model.replaced({name: changed(model.file[name], change)}), LAYER.match(name)
            quality = Quality()
            for piece, rows, right in before:
                start = int(place[1]) if place else len(rows) - 1 if name.startswith("output") else None
                start = start and model.config.beginning(start)
                behind = None if start is None else (start, rows[start])
                *_, logits = other.layers(piece, behind)
                quality.add(piece, shares(logits), right)
            yield name, quality.facts()
            progress.advance(1)


def chosen(names: Iterable[str], most: int) -> list[str]:
    """Of tensors of layers those of so many layers, from the first to the last; and all others."""
    places = {name: LAYER.match(name) for name in names}
    layers = sorted({int(place[1]) for place in places.values() if place})
    picked = {layers[round(i)] for i in np.linspace(0, len(layers) - 1, most)} if layers else set()
    return [name for name, place in places.items() if place is None or int(place[1]) in picked]


def changed(q: QuantArray, change: Change) -> QuantArray:
    """A tensor with the values that another type gives it; each expert with its own importance.

    They are floats, whose products do not round activations: that would drown what one tensor does.
    """
    values, rows = dequantize(q), change.importance
    if rows is None or len(rows) == 1:
        values = dequantize(quantize(values, change.format, None if rows is None else rows[0]))
    else:
        parts = zip(values, rows, strict=True)
        values = np.stack([dequantize(quantize(one, change.format, row)) for one, row in parts])
    return quantize(values, "f32")
