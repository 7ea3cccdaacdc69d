"""The charts and grids on the page of `ggmlq report`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..formats import FORMATS, BlockFormat
from ..gguf.statistics import code_range
from ..pages import Bars, Grid, Item, amount, layer_grids, power
from .blocks import CODES
from .facts import Tensor
from .values import BINS, EDGES, REACH

CHARTS = 12
MIDDLE = 63  # bins that a histogram shows: about four root mean squares to both sides
SPARK = 21  # bars of a small one


def matrices(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors that are multiplied: those of two or more axes that belong to a layer."""
    return [t for t in tensors if t.place.layer is not None and len(t.shape) > 1 and t.elements]


def erring(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors with an error, measured or estimated; floats only if theirs is not 0."""
    return [t for t in tensors if t.nmse is not None and (t.nmse != 0 or isinstance(t.format, BlockFormat))]


def bits_grids(tensors: Sequence[Tensor]) -> list[Grid]:
    """Types by layer and role, coloured by their bits."""
    items = [_item(t, t.bits, t.format.name, f"{t.bits:g} bits a weight") for t in matrices(tensors)]
    return layer_grids(items, "Types by layer; stronger colour: more bits a weight")


def error_items(tensors: Sequence[Tensor]) -> list[Item]:
    """The errors of matrices as items of a grid, by layer and role."""
    shown = matrices(erring(tensors))
    return [_item(t, t.nmse, f"{t.nmse:.1e}", f"NMSE {t.nmse:.4g}") for t in shown]


def _item(tensor: Tensor, value: float | None, text: str, about: str) -> Item:
    place = tensor.place
    title = f"{tensor.name}: {tensor.format.name}, {about}"
    return Item(place.stack, place.layer or 0, place.role, value, text, title, tensor.elements)


# --- histograms -----------------------------------------------------------------------------


def value_bars(tensors: Sequence[Tensor]) -> list[Bars]:
    """Histograms of values, one for each role, in units of each tensor's root mean square."""
    by_role: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        if tensor.values.histogram.sum() and len(tensor.shape) > 1:
            by_role.setdefault(tensor.place.role, []).append(tensor)
    largest = sorted(by_role, key=lambda role: -sum(t.elements for t in by_role[role]))[:CHARTS]
    return [values_of(role, sum_of([t.values.histogram for t in by_role[role]])) for role in largest]


def sum_of(counts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """The sum of several histograms."""
    total: NDArray[np.int64] = np.sum(counts, axis=0, dtype=np.int64)
    return total


def values_of(title: str, histogram: NDArray[np.int64], unit: float | None = None) -> Bars:
    """A chart of the middle of a histogram of values, with a note on the rest.

    ``unit``: the root mean square, if the axis shall show values themselves.
    """
    edges, counts = middle(histogram)
    total, outer = int(histogram.sum()), int(histogram[0] + histogram[-1])
    beyond = _share(total - int(counts.sum()), total)
    words = " root mean squares" if unit else ""
    note = f"Beyond ±{edges[-1]:.2g}{words}: {beyond}; beyond ±{REACH}: {_share(outer, total)}."
    name = "values" if unit else "values, in root mean squares"
    return Bars(title, name, (edges * (unit or 1.0)).tolist(), counts.tolist(), note=note)


def middle(histogram: NDArray[np.int64], bars: int = MIDDLE) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The edges and counts of the middle of a histogram, put together to so many bars."""
    skip, step = (BINS - MIDDLE) // 2, MIDDLE // bars
    inner = histogram[1:-1][skip : BINS - skip]
    return EDGES[skip : BINS - skip + 1][::step], inner.reshape(-1, step).sum(axis=1)


def _share(n: int, total: int) -> str:
    if not n:
        return "none"
    share = 100 * n / max(total, 1)
    return f"{share:.2g} %" if share >= 1e-3 else f"{n} of {amount(total)}"


def by_type(tensors: Sequence[Tensor]) -> dict[str, list[Tensor]]:
    """Tensors of blocks, by their type, the most bytes first."""
    by_type: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        if tensor.blocks.codes is not None and tensor.blocks.seen:
            by_type.setdefault(tensor.format.name, []).append(tensor)
    return dict(sorted(by_type.items(), key=lambda item: -sum(t.nbytes for t in item[1])))


def scale_bars(tensors: Sequence[Tensor]) -> list[Bars]:
    """Histograms of scales, one for each type."""
    charts = []
    for name, group in list(by_type(tensors).items())[:CHARTS]:
        scales: dict[int, int] = {}
        for tensor in group:
            for exponent, count in tensor.blocks.scales.items():
                scales[exponent] = scales.get(exponent, 0) + count
        zero = sum(t.blocks.zero_scales for t in group)
        negative = sum(t.blocks.negative_scales for t in group)
        charts += scales_of(name, scales, zero, negative)
    return charts


def scales_of(title: str, scales: dict[int, int], zero: int, negative: int) -> list[Bars]:
    """A chart of the magnitudes of scales by powers of two, in a list; empty if there are no scales."""
    if not scales:
        return []
    low, high = min(scales), max(scales)
    total = sum(scales.values()) + zero
    step = -(-(high - low + 1) // 6)
    return [
        Bars(
            title, "scales, in powers of two", [float(e) for e in range(low, high + 2)],
            [scales.get(e, 0) for e in range(low, high + 1)],
            [(float(e), power(2, e)) for e in range(low, high + 2, step)],
            f"Zero: {_share(zero, total)}; negative: {_share(negative, total)}.", exponents=True,
        )
    ]  # fmt: skip


def code_bars(tensors: Sequence[Tensor]) -> list[Bars]:
    """Histograms of codes, one for each type."""
    return [
        codes_of(name, name, sum_of([t.blocks.codes for t in group if t.blocks.codes is not None]))
        for name, group in list(by_type(tensors).items())[:CHARTS]
    ]


def codes_of(title: str, type: str, codes: NDArray[np.int64]) -> Bars:
    """A chart of the counts of codes over the range of a type."""
    fmt = FORMATS[type]
    assert isinstance(fmt, BlockFormat)
    low, high = code_range(fmt)
    counts = codes[low + CODES // 2 : high + CODES // 2 + 1]
    ends = int(counts[0] + counts[-1])
    return Bars(
        title, "codes", [n - 0.5 for n in range(low, high + 2)], counts.tolist(),
        note=f"At an end of the range: {_share(ends, int(counts.sum()))}.", whole=True,
    )  # fmt: skip
