"""The outcomes of `ggmlq check` as a page: each type against each number of rows, then every case."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..pages import Code, Column, Figures, Grid, Page, Section, Shade, Table, Text, Value, shades
from ..pages.blocks import Block, Cell
from .judge import FIT
from .outcome import IDLE, Outcome, verdicts_of
from .report import by_type, reasons

MOST = 2000  # rows of a table: a browser stays quick
SPAN = (0.01, 1.0)  # parts of the distance that fits: colours begin at the first and end at the second
METHOD = (
    "NMSE: the worst row of weights, squared distance from the arithmetic that the kernel uses over "
    "‖x‖²·‖w‖²/K. To exact: the same from float64 on the decoded weights. Out: elements beyond what sums in "
    "float32 may do."
)


def page(outcomes: Sequence[Outcome], library: str, device: str) -> Page:
    """The whole page of a check."""
    bad = [outcome for outcome in outcomes if outcome.bad]
    sections = [Section("By type", _types(outcomes)), Section("Every case", [_cases(outcomes)], wide=True)]
    if bad:
        sections.insert(0, Section("What is wrong", [block for o in bad[:MOST] for block in _wrong(o)]))
    for verdict in IDLE:
        if idle := reasons(outcomes, verdict):
            sections.append(Section(verdict.capitalize(), [Text(reason) for reason in idle]))
    return Page("Kernels of a libggml", f"{library} · {device}", sections, METHOD, _summary(outcomes))


def _summary(outcomes: Sequence[Outcome]) -> list[Block]:
    count = {verdict: sum(o.verdict == verdict for o in outcomes) for verdict in verdicts_of(outcomes)}
    items = [("Cases", str(len(outcomes)), ""), *((verdict, str(n), "") for verdict, n in count.items())]
    bad = sum(o.bad for o in outcomes)
    conclusion = Text(f"{bad} of {len(outcomes)} cases went wrong.", "bad")
    if not bad:
        ran = count["ok"]
        conclusion = Text("Every case that ran is right.", "good") if ran else Text("No case ran.", "note")
    return [Figures(items), conclusion]


def _wrong(outcome: Outcome) -> list[Block]:
    case = outcome.case
    head = f"{case.format.name} {case.shape} {case.data}: {_verdict(outcome)}"
    commands = [f"ggmlq check {outcome.repeat_options}"] + (
        [f"saved: {outcome.saved}"] if outcome.saved else []
    )
    paragraphs = [Text(line) for line in outcome.text.splitlines() if line]
    return [Text(head, "bad"), *paragraphs, Code("\n".join(commands))]


def _types(outcomes: Sequence[Outcome]) -> list[Block]:
    """Grids of types × numbers of rows: distance from the arithmetic, as a part of the largest that fits."""
    judged = [o for o in outcomes if o.arithmetic or o.bad]
    if not judged:
        return [Text("No case ran.")]
    names = list(dict.fromkeys(o.case.format.name for o in judged))
    rows_of = sorted({o.case.m for o in judged})
    worst = {(name, m): _worst([o for o in judged if (o.case.format.name, o.case.m) == (name, m)])
             for name in names for m in rows_of}  # fmt: skip
    values = [None if o is None else _share(o) for o in worst.values()]
    levels, legend = shades(values, log=True, span=SPAN)
    cells = {key: None if o is None else _shade(o, level)
             for (key, o), level in zip(worst.items(), levels, strict=True)}  # fmt: skip
    grid = Grid(
        "Distance from the arithmetic (NMSE, the worst case) by type and rows of activations; "
        "colours: as a part of what still fits, the strongest beyond it or wrong", "type",
        [f"M={m}" for m in rows_of], [(name, [cells[name, m] for m in rows_of]) for name in names],
        legend, "amber",
    )  # fmt: skip
    return [grid, _table(names, outcomes)]


def _worst(outcomes: Sequence[Outcome]) -> Outcome | None:
    return max(outcomes, key=lambda o: (o.bad, -1.0 if math.isnan(o.distance) else o.distance), default=None)


def _share(outcome: Outcome) -> float | None:
    """The distance as a part of the largest that still fits its arithmetic."""
    if outcome.bad:
        return math.inf
    if math.isnan(outcome.distance):
        return None
    return outcome.distance / FIT.get(outcome.arithmetic, 1.0)


def _shade(outcome: Outcome, level: int | None) -> Shade:
    """A cell of the grid: the verdict in words, the distance by colour."""
    figure = "–" if math.isnan(outcome.distance) else f"{outcome.distance:.0e}"
    text = f"{outcome.verdict.upper()} {figure}" if outcome.bad else figure
    limit = FIT.get(outcome.arithmetic)
    about = f"{outcome.case.shape} {outcome.case.data}, {outcome.arithmetic or 'no result'}"
    return Shade(text, level, about if limit is None else f"{about}, fits to {limit:.0e}")


def _table(names: Sequence[str], outcomes: Sequence[Outcome]) -> Table:
    verdicts = verdicts_of(outcomes)
    rows: list[list[Cell]] = [
        [name, *counts, used or "–", _figure(worst), _figure(exact), faults]
        for name, counts, used, worst, exact, faults in by_type(outcomes, names)
    ]
    columns = [Column("type"), *(Column(verdict, number=True) for verdict in verdicts), Column("arithmetic"),
               Column("worst NMSE", number=True), Column("to exact", number=True),
               Column("faults")]  # fmt: skip
    return Table("Types", columns, rows)


def _cases(outcomes: Sequence[Outcome]) -> Table:
    columns = [
        Column("type"), Column("M×N×K"), Column("data"), Column("seed", number=True), Column("arithmetic"),
        Column("NMSE", number=True), Column("to exact", number=True), Column("out", number=True),
        Column("buffer"), Column("µs", number=True), Column("verdict"),
    ]  # fmt: skip
    rows: list[list[Cell]] = [
        [
            o.case.format.name, Value(o.case.shape, o.case.m * o.case.n * o.case.k), o.case.data, o.case.seed,
            o.arithmetic or "–", _figure(o.distance), _figure(o.from_exact), o.out if o.arithmetic else None,
            o.buffer or "–", None if math.isnan(o.seconds) else Value(f"{o.seconds * 1e6:.1f}", o.seconds),
            Value(_verdict(o), o.verdict, "bad" if o.bad else "good" if o.verdict == "ok" else ""),
        ]
        for o in outcomes[:MOST]
    ]  # fmt: skip
    more = len(outcomes) - MOST
    left_out = f"{more} more; --json has all." if more > 0 else ""
    return Table("Cases", columns, rows, search=True, left_out=left_out)


def _verdict(outcome: Outcome) -> str:
    return f"wrong: {outcome.fault}" if outcome.verdict == "wrong" and outcome.fault else outcome.verdict


def _figure(value: float) -> Cell:
    return None if math.isnan(value) else Value(f"{value:.1e}", value)
