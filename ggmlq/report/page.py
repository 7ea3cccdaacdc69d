"""The HTML page of `ggmlq report`: findings, metadata, types, errors, histograms, a table of all tensors."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.text import size
from ..formats import FORMATS, BlockFormat
from ..gguf import Array
from ..pages import (
    Bars,
    Cell,
    Column,
    Figure,
    Figures,
    Fold,
    Gallery,
    Grid,
    Item,
    Page,
    Section,
    Table,
    Text,
    Value,
    amount,
    depth_lines,
    layer_grids,
    power,
)
from ..pages.blocks import Block
from .blocks import CODES, code_range
from .facts import Model, Tensor
from .values import BINS, EDGES, REACH

# --- charts and grids ------------------------------------------------------------------------

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


# --- the page --------------------------------------------------------------------------------

MOST_ROWS = 2000  # of a table: a browser stays quick, and no model has as many tensors
WIDTH, SHOWN = 160, 8  # characters of a text, elements of an array
KEYS = (
    "general.architecture", "general.name", "general.size_label", "general.quantized_by", "general.license",
    "tokenizer.ggml.model", "quantize.imatrix.file",
)  # fmt: skip
ARCHITECTURE_KEYS = (
    "block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
    "attention.head_count_kv", "expert_count", "expert_used_count", "vocab_size",
)  # fmt: skip
METHOD = (
    "NMSE: the squared error of a tensor over the square of its original. An estimate is what rounding to "
    "codes of these scales costs: their mean square times the part of a step that the type is off by on "
    "normal values. Values are counted in units of their tensor's root mean square; an outlier lies beyond "
    "8 of them. Every value and block was looked at; of large tensors 4 million codes, evenly spread."
)


def page(report: Model) -> Page:
    """The whole page of a report."""
    measured = report.original is not None
    sections = [
        Section("What stands out", _findings(report)),
        Section("The model", _model(report)),
        Section("Types and bits", _types(report)),
        Section("Errors", _errors(report, measured)),
        Section("Values, scales and codes", _spread(report)),
        Section("Every tensor", [_tensors(report, measured)], wide=True),
    ]
    path = os.path.basename(report.paths[0])
    kind = report.text("general.architecture")
    lead = " · ".join(
        filter(None, [path, kind, f"compared with {_base(report.original)}" if measured else ""])
    )
    name = report.text("general.name") or path
    return Page(name, lead, sections, METHOD, [_key_figures(report)])


def _base(path: str | None) -> str:
    return os.path.basename(path or "")


def _key_figures(report: Model) -> Figures:
    layers = len(report.parts("layer"))
    errors = sum(finding.severity == "error" for finding in report.findings)
    notes = len(report.findings) - errors
    main = report.parts("type")[:1]
    share = f"{100 * main[0].bytes / report.nbytes:.0f} % in {main[0].name}" if main and report.nbytes else ""
    parts = f"{len(report.paths)} files" if len(report.paths) > 1 else ""
    return Figures(
        [
            ("Parameters", amount(report.elements), f"{report.elements:,}"),
            ("Size", size(report.file_bytes), parts or f"GGUF version {report.version}"),
            ("Bits a weight", f"{report.bits:.2f}", share),
            ("Tensors", str(len(report.tensors)), f"{layers} layers" if layers else ""),
            ("Errors", str(errors), f"{notes} notes" if notes != 1 else "1 note"),
        ]
    )


def _findings(report: Model) -> list[Block]:
    if report.ok:
        summary: list[Block] = [
            Text("Nothing is wrong: no damaged block, no broken rule of the format.", "good")
        ]
    else:
        count = sum(finding.severity == "error" for finding in report.findings)
        summary = [Text(f"{count} {'thing is' if count == 1 else 'things are'} wrong with this file.", "bad")]
    if not report.findings:
        return summary
    rows: list[list[Cell]] = [
        [Value(f.severity, f.severity, "bad" if f.severity == "error" else "note"), f.where, f.text]
        for f in report.findings[:MOST_ROWS]
    ]
    columns = [Column("kind"), Column("where", code=True), Column("what", code=True)]
    more = len(report.findings) - len(rows)
    left_out = f"{more} more; --json has all." if more else ""
    return [*summary, Table("Errors and notes", columns, rows, left_out=left_out)]


def _model(report: Model) -> list[Block]:
    kind = report.text("general.architecture") or ""
    keys = [*KEYS, *(f"{kind}.{key}" for key in ARCHITECTURE_KEYS)]
    rows: list[list[Cell]] = [[key, shown(report.metadata[key])] for key in keys if key in report.metadata]
    columns = [Column("key", code=True), Column("value", code=True)]
    blocks: list[Block] = [Table("Main facts", columns, rows, sortable=False)] if rows else []
    if report.metadata:
        everything: list[list[Cell]] = [
            [key, shown(v)] for key, v in list(report.metadata.items())[:MOST_ROWS]
        ]
        more = len(report.metadata) - len(everything)
        table = Table("Metadata", columns, everything, left_out=f"{more} more keys." if more else "")
        blocks.append(Fold(f"All metadata ({len(report.metadata)} keys)", [table]))
    return blocks or [Text("The file has no metadata.")]


def shown(value: Any) -> str:
    """A metadata value in one line."""
    if isinstance(value, Array):
        items = ", ".join(shown(item) for item in value[:SHOWN])
        return f"[{items}{', …' if len(value) > SHOWN else ''}] ({len(value)})"
    if isinstance(value, bytes):  # text that is not UTF-8
        value = value.decode(errors="backslashreplace")
    if isinstance(value, float):
        return f"{value:.7g}"
    text = str(value)
    return text if len(text) <= WIDTH else text[:WIDTH] + "…"


def _types(report: Model) -> list[Block]:
    number = [
        Column(name, number=True) for name in ("tensors", "parameters", "size", "bits a weight", "share")
    ]
    blocks: list[Block] = []
    for by, caption in (("type", "By type"), ("role", "By role")):
        rows: list[list[Cell]] = [
            [
                part.name, part.tensors, Value(amount(part.parameters), part.parameters),
                Value(size(part.bytes), part.bytes),
                Value(f"{part.bits_per_weight:.3f}", part.bits_per_weight),
                Value(f"{100 * part.bytes / max(report.nbytes, 1):.1f} %", part.bytes),
                *([", ".join(f"{n} {kind}" for kind, n in part.types.items())] if by == "role" else []),
            ]
            for part in report.parts(by)
        ]  # fmt: skip
        columns = [Column(by, code=True), *number, *([Column("types")] if by == "role" else [])]
        more = f"{len(rows) - MOST_ROWS} more." if len(rows) > MOST_ROWS else ""
        blocks.append(Table(caption, columns, rows[:MOST_ROWS], left_out=more))
    return [blocks[0], *bits_grids(report.tensors), Fold("The same by role", blocks[1:])]


def _errors(report: Model, measured: bool) -> list[Block]:
    tensors = erring(report.tensors)
    if not tensors and not any(t.others for t in report.tensors):
        return [Text("No tensor is quantized, or none can be judged: there is no error to tell.")]
    sentence = (
        f"Measured against {_base(report.original)}, value by value."
        if measured
        else "Estimated from the scales in the file; --against ORIGINAL measures them."
    )
    blocks: list[Block] = [Text(sentence)] if tensors else []
    items = error_items(report.tensors)
    name = "Error" if measured else "Estimated error"
    lines = depth_lines(items, f"{name} against depth", "NMSE")
    blocks += [Figure(lines)] if lines is not None else []
    blocks += layer_grids(items, f"{name} by layer (NMSE); stronger colour: larger", log=True, hue="amber")
    blocks += [table for table in (_better(tensors, measured), _others(report)) if table is not None]
    return blocks


def _better(tensors: list[Tensor], measured: bool) -> Table | None:
    """A table of tensors that more bits would help most."""
    chosen = [(t, t.better) for t in sorted(tensors, key=lambda t: -(t.nmse or 0.0))]
    rows: list[list[Cell]] = []
    for tensor, better in chosen:
        if better is None or len(rows) == 24:
            continue
        fmt, nmse = better
        more = round(tensor.elements * (fmt.bits_per_weight - tensor.bits) / 8)
        rows.append([tensor.name, tensor.format.name, _figure(tensor.nmse), fmt.name, _figure(nmse),
                     Value(f"+{size(more)}", more)])  # fmt: skip
    if not rows:
        return None
    how = "measured on rows of the original" if measured else "estimated"
    columns = [Column("tensor", code=True), Column("type"), Column("NMSE", number=True),
               Column("better type"),
               Column("its NMSE", number=True), Column("costs", number=True)]  # fmt: skip
    return Table(
        f"Where a better type would help: the largest errors, and the next type ({how})", columns, rows
    )


def _others(report: Model) -> Table | None:
    """A table of the error of each type against the original, role by role."""
    by_role: dict[str, list[Tensor]] = {}
    for tensor in report.tensors:
        if tensor.others:
            by_role.setdefault(tensor.place.role, []).append(tensor)
    kinds = list(dict.fromkeys(name for t in report.tensors for name in t.others))
    if not kinds:
        return None
    rows: list[list[Cell]] = []
    for role, group in by_role.items():
        cells: list[Cell] = []
        for kind in kinds:
            errors = [t.others[kind] for t in group if kind in t.others]
            cells.append(_figure(max(errors)) if errors else None)
        rows.append([role, len(group), *cells])
    columns = [Column("role", code=True), Column("tensors", number=True)]
    columns += [Column(kind, number=True) for kind in kinds]
    return Table(
        "What other types would make of the original: the largest NMSE of a role, on some of its rows",
        columns, rows[:MOST_ROWS],
    )  # fmt: skip


def _figure(nmse: float | None) -> Cell:
    return None if nmse is None else Value(f"{nmse:.2e}" if nmse else "0", nmse)


def _spread(report: Model) -> list[Block]:
    values, scales, codes = (make(report.tensors) for make in (value_bars, scale_bars, code_bars))
    blocks: list[Block] = []
    for charts, text in (
        (values, "Values by role, all layers together, each tensor in units of its own root mean square."),
        (scales, "Magnitudes of scales by type."),
        (codes, "How often each code is used, by type."),
    ):
        if charts:
            blocks += [Text(text), Gallery(charts)]
    return blocks or [Text("There are no matrices whose values could be counted.")]


def _tensors(report: Model, measured: bool) -> Table:
    name = "NMSE" if measured else "NMSE (est.)"
    columns = [
        Column("tensor", code=True), Column("type"), Column("shape"),
        *(Column(head, number=True, about=about) for head, about in (
            ("size", ""), ("bits", "bits a weight"), (name, ""), ("rms", "root mean square"),
            ("min", ""), ("max", ""),
        )),
        Column("spread", about="values within four root mean squares"),
        *(Column(head, number=True, about=about) for head, about in (
            ("outliers", "values beyond eight root mean squares"),
            ("outlier columns", "columns eight times the median"),
            ("dead rows", "rows of zeros"), ("at ends", "codes at an end of their range, in percent"),
            ("damaged", "blocks with a NaN, infinite or forbidden scale"),
        )),
    ]  # fmt: skip
    largest = sorted(range(len(report.tensors)), key=lambda i: -report.tensors[i].nbytes)[:MOST_ROWS]
    rows = [_row(report.tensors[i]) for i in sorted(largest)]
    more = len(report.tensors) - len(rows)
    return Table(
        "Tensors", columns, rows, search=True,
        left_out=f"The {more} smallest are left out; --json has all." if more else "",
    )  # fmt: skip


def _row(tensor: Tensor) -> list[Cell]:
    values, blocks = tensor.values, tensor.blocks
    spark = Value("", tensor.name, spark=middle(values.histogram, SPARK)[1].tolist())
    quantized = isinstance(tensor.format, BlockFormat)
    return [
        tensor.name, tensor.format.name,
        Value(" × ".join(map(str, tensor.shape)) or "scalar", tensor.elements),
        Value(size(tensor.nbytes), tensor.nbytes), Value(f"{tensor.bits:g}", tensor.bits),
        _figure(tensor.nmse),
        values.rms, values.min, values.max, spark if values.histogram.any() else None,
        _count(values.outliers), _count(values.outlier_columns), _count(values.dead_rows),
        Value(f"{100 * blocks.saturated_share:.2f}", blocks.saturated_share) if quantized else None,
        _count(blocks.damaged, "bad"),
    ]  # fmt: skip


def _count(n: int, mark: Any = "") -> Cell:
    return Value(str(n), n, mark) if n else Value("0", 0)
