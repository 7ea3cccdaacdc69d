"""The charts and grids of a report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..formats import FORMATS, BlockFormat
from ..gguf.statistics import code_range
from ..pages import Bars, Grid, Lines, Series, Shade, amount, power, shades
from .blocks import CODES
from .values import BINS, EDGES, REACH

if TYPE_CHECKING:
    from .examine import Tensor

MOST_LAYERS, MOST_ROLES = 256, 48  # of a grid; no model has as many, some files pretend to
LINES = 8
CHARTS = 12
SHOWN = 4.0  # root mean squares to both sides of a histogram
SPARK = 32


def matrices(tensors: Sequence[Tensor]) -> list[Tensor]:
    """What is multiplied: tensors of two or more axes that belong to a layer."""
    return [t for t in tensors if t.place.layer is not None and len(t.shape) > 1 and t.elements]


def erring(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors that have an error to look at."""
    return [t for t in tensors if t.nmse is not None and (t.nmse != 0 or isinstance(t.format, BlockFormat))]


def bits_grids(tensors: Sequence[Tensor]) -> list[Grid]:
    """Types by layer and role, coloured by their bits."""
    return _grids(
        matrices(tensors), "Types by layer; the darker, the more bits a weight", lambda t: t.bits,
        lambda t: t.format.name, log=False, hue_is_error=False,
    )  # fmt: skip


def error_grids(tensors: Sequence[Tensor], measured: bool) -> list[Grid]:
    """Errors by layer and role."""
    how = "Error" if measured else "Estimated error"
    return _grids(
        matrices(erring(tensors)), f"{how} by layer (NMSE); the darker, the larger", lambda t: t.nmse,
        lambda t: f"{t.nmse:.1e}", log=True, hue_is_error=True,
    )  # fmt: skip


def _grids(
    tensors: Sequence[Tensor], caption: str, value: Callable[[Tensor], float | None],
    words: Callable[[Tensor], str], log: bool, hue_is_error: bool,
) -> list[Grid]:  # fmt: skip
    """A grid for each stack of layers; one scale for all of them."""
    levels, legend = shades(map(value, tensors), log)
    level = {id(t): n for t, n in zip(tensors, levels, strict=True)}
    found = []
    stacks = dict.fromkeys(t.place.stack for t in tensors)
    for stack in list(stacks)[:LINES]:
        mine = [t for t in tensors if t.place.stack == stack]
        roles = list(dict.fromkeys(t.place.role for t in mine))
        layers = sorted({t.place.layer for t in mine if t.place.layer is not None})
        at = {(t.place.layer, t.place.role): t for t in mine}
        rows = []
        for layer in layers[:MOST_LAYERS]:
            here = [at.get((layer, role)) for role in roles[:MOST_ROLES]]
            about = [
                None
                if t is None
                else Shade(words(t), level[id(t)], f"{t.name}: {t.format.name}, {value(t):.4g}")
                for t in here
            ]
            rows.append((f"{stack}.{layer}", about))
        found.append(
            Grid(
                caption + (f" ({stack})" if len(stacks) > 1 else ""), "layer", roles[:MOST_ROLES], rows,
                legend, "amber" if hue_is_error else "blue", _left_out(len(layers), len(roles)),
            )  # fmt: skip
        )
    return found


def _left_out(layers: int, roles: int) -> str:
    more = [
        f"{n - most} more {what}"
        for n, most, what in ((layers, MOST_LAYERS, "layers"), (roles, MOST_ROLES, "roles"))
        if n > most
    ]
    return f"Not shown: {' and '.join(more)}; --json has all." if more else ""


def error_lines(tensors: Sequence[Tensor], measured: bool) -> Lines | None:
    """Error against depth: a line for each of the larger roles."""
    found = matrices(erring(tensors))
    if not found:
        return None
    stack = max({t.place.stack for t in found}, key=lambda s: sum(t.place.stack == s for t in found))
    by_role: dict[str, list[Tensor]] = {}
    for tensor in found:
        if tensor.place.stack == stack:
            by_role.setdefault(tensor.place.role, []).append(tensor)
    if max(map(len, by_role.values())) < 2:
        return None
    largest = sorted(by_role, key=lambda role: -sum(t.elements for t in by_role[role]))[:LINES]
    series = [
        Series(role, [(float(t.place.layer or 0), t.nmse or 0.0) for t in _by_layer(by_role[role])])
        for role in by_role
        if role in largest
    ]
    worst = max(found, key=lambda t: t.nmse or 0.0)
    return Lines(
        f"{'Error' if measured else 'Estimated error'} against depth",
        f"layer of {stack}", "NMSE", series, log=True,
        note=f"The largest of all is {worst.nmse:.1e}, {worst.name}.",
    )  # fmt: skip


def _by_layer(tensors: Sequence[Tensor]) -> list[Tensor]:
    return sorted(tensors, key=lambda t: t.place.layer or 0)


# --- histograms -----------------------------------------------------------------------------


def value_bars(tensors: Sequence[Tensor]) -> list[Bars]:
    """How values are spread, a chart a role, in units of each tensor's own root mean square."""
    by_role: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        if tensor.values.histogram.sum() and len(tensor.shape) > 1:
            by_role.setdefault(tensor.place.role, []).append(tensor)
    largest = sorted(by_role, key=lambda role: -sum(t.elements for t in by_role[role]))[:CHARTS]
    return [values_of(role, sum_of([t.values.histogram for t in by_role[role]])) for role in largest]


def sum_of(counts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Histograms put together."""
    return np.sum(counts, axis=0, dtype=np.int64)


def values_of(title: str, histogram: NDArray[np.int64], unit: float = 1.0) -> Bars:
    """The middle of a histogram of values, with a word on what lies outside."""
    edges, counts = middle(histogram)
    total, outer = int(histogram.sum()), int(histogram[0] + histogram[-1])
    beyond = total - int(counts.sum())
    note = f"{_share(beyond, total)} lie beyond ±{SHOWN:g}, {_share(outer, total)} beyond ±{REACH}."
    name = "values, in root mean squares" if unit == 1.0 else "values"
    if unit != 1.0:
        note = f"{_share(beyond, total)} lie beyond ±{SHOWN:g} root mean squares, {_share(outer, total)} beyond ±{REACH}."
    return Bars(title, name, (edges * unit).tolist(), counts.tolist(), note=note)


def middle(histogram: NDArray[np.int64], bins: int = 64) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The part of a histogram within ``SHOWN``, in so many bins."""
    skip = round(BINS * (1 - SHOWN / REACH) / 2)
    inner = histogram[1:-1][skip : BINS - skip]
    step = len(inner) // min(bins, len(inner))
    return EDGES[skip : BINS - skip + 1][::step], inner.reshape(-1, step).sum(axis=1)


def _share(n: int, total: int) -> str:
    if not n:
        return "none"
    share = 100 * n / max(total, 1)
    return f"{share:.2g} %" if share >= 1e-3 else f"{n} of {amount(total)}"


def by_type(tensors: Sequence[Tensor]) -> dict[str, list[Tensor]]:
    """Tensors of blocks, by their type, the most bytes first."""
    found: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        if tensor.blocks.codes is not None and tensor.blocks.seen:
            found.setdefault(tensor.format.name, []).append(tensor)
    return dict(sorted(found.items(), key=lambda item: -sum(t.nbytes for t in item[1])))


def scale_bars(tensors: Sequence[Tensor]) -> list[Bars]:
    """How scales are spread, a chart a type."""
    found = []
    for name, group in list(by_type(tensors).items())[:CHARTS]:
        scales: dict[int, int] = {}
        for tensor in group:
            for exponent, count in tensor.blocks.scales.items():
                scales[exponent] = scales.get(exponent, 0) + count
        zero = sum(t.blocks.zero_scales for t in group)
        negative = sum(t.blocks.negative_scales for t in group)
        found += scales_of(name, scales, zero, negative)
    return found


def scales_of(title: str, scales: dict[int, int], zero: int, negative: int) -> list[Bars]:
    """Magnitudes of scales by powers of two; nothing where there are none."""
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
            f"Zero: {_share(zero, total)}; negative: {_share(negative, total)}.",
        )
    ]  # fmt: skip


def code_bars(tensors: Sequence[Tensor]) -> list[Bars]:
    """Which codes are used, a chart a type."""
    return [
        codes_of(name, name, sum_of([t.blocks.codes for t in group if t.blocks.codes is not None]))
        for name, group in list(by_type(tensors).items())[:CHARTS]
    ]


def codes_of(title: str, type: str, codes: NDArray[np.int64]) -> Bars:
    """Counts of codes over the range of a type."""
    fmt = FORMATS[type]
    assert isinstance(fmt, BlockFormat)
    low, high = code_range(fmt)
    counts = codes[low + CODES // 2 : high + CODES // 2 + 1]
    ends = int(counts[0] + counts[-1])
    return Bars(
        title, "codes", [n - 0.5 for n in range(low, high + 2)], counts.tolist(),
        note=f"At an end of the range: {_share(ends, int(counts.sum()))}.", whole=True,
    )  # fmt: skip
