"""The tables of bench/notes/engine.md and README.md, and docs/engine.svg: the default path on a GPU.

Figures are those of bench/results/engine_h200.json, which tools/keep.py writes from bench/bench_engine.py's;
those of drawn cells beside cuBLAS are in bench/results/linear_peers_h200.json.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench import drawn, engine
from ggmlq.formats import FORMATS

from . import PICTURE, RESULTS, Options, Texts, chart, llama, llama_card, load, shares, svg, table

OPTIONS = PICTURE | {
    "--goals": {
        "action": "store_true",
        "help": "print the figures that are slower than they should be",
    },
    "--results": {"type": Path, "default": RESULTS / "engine_h200.json", "help": "a file of another card"},
}
LONG, PICTURED = 14336, "q4_0"  # K of the short tables and of the picture

# What the default path is meant to reach: times as fast as llama.cpp, at least and aimed at, up to so many
# rows (few of them: the time that reading takes at 80 % of the rate, if that is longer); and the share of
# cuBLAS on halves.
GOALS = ((4, 1.5, None), (64, 2, 4), (256, 2, 4), (1024, 2.2, 3.3), (4096, 2.5, None))
SHARE_OF_READING, SHARES_OF_CUBLAS, FROM = 0.8, (0.7, 0.85), 2048


def texts(options: Options) -> Texts:
    """The tables, or the picture."""
    card, cells = engine.load(options.results), load(RESULTS / "linear_peers_h200.json")["figures"]
    if not figures(card):
        print(f"{options.results.name}: no figures of auto yet; bench/bench_engine.py measures them")
    elif options.goals:
        print(goals(card))
    elif options.picture:
        yield "docs/engine.svg", picture(card)
    else:
        yield "bench/notes/engine.md short", short(card)
        yield "bench/notes/engine.md drawn", shares(drawn.shares_of_products(cells))
        yield "README.md drawn", shares(drawn.shares_of_products(cells))


class Figure(NamedTuple):
    """The kernel that auto takes for one problem, and all that it is compared with, in microseconds."""

    name: str  # of the format
    m: int
    n: int
    k: int
    row: engine.Row
    run: dict[str, Any]  # that it was measured in, with its roofs
    us: float  # in a graph
    llama: float | None  # llama.cpp, if this is the card that it was measured on
    cublas: float | None  # cuBLAS on halves of the same shape in the same run
    reading: float  # reading the file's bytes of the weights
    roof: float  # the card cannot be faster: reading weights, or cuBLAS on halves at its best


def figures(card: engine.Results) -> list[Figure]:
    """The kernel that auto took for each problem and its time, as they were measured last."""
    names = list(FORMATS)
    timed = [row for row in card["rows"] if "us" in row]
    graphs = [row for row in timed if row["way"] == "graph" and row["asked"] == "auto"]
    last = {engine.key(row): row for row in sorted(graphs, key=lambda row: row["run"])}
    rows = sorted(last.values(), key=lambda r: (names.index(r["format"]), r["N"], r["K"], r["M"]))
    return [_figure(card, timed, row) for row in rows]


def _figure(card: engine.Results, timed: list[engine.Row], row: engine.Row) -> Figure:
    name, m, n, k = problem = row["format"], row["M"], row["N"], row["K"]
    run = card["runs"][row["run"]]
    halves = [r for r in timed if r["asked"] == engine.ROOF]
    cublas = (r["us"] for r in halves if (r["run"], r["M"], r["N"], r["K"]) == (row["run"], m, n, k))
    reading = 1e-3 * n * FORMATS[name].row_bytes(k) / run["read_GBps"]
    peak = run["cublas_f16_TFLOPS"]
    return Figure(
        *problem, row, run, row["us"],
        llama(*problem) if llama_card().startswith(run["device"]) else None, next(cublas, None),
        reading, max(reading, 2e-6 * m * n * k / peak if peak else 0),
    )  # fmt: skip


# --- tables -----------------------------------------------------------------------------------


def short(card: engine.Results) -> str:
    """Formats across, numbers of rows down: time, llama.cpp's, how many times as fast, share of the roof."""
    header, rows = _by_format([f for f in figures(card) if f.k == LONG], _compact)
    return f"{table(header, [[m, *cells] for m, cells, _ in rows])}\n\n{_roofs(card)}"


def _by_format(shown: list[Figure], cell: Any) -> tuple[list[str], list[tuple[int, list[str], list[Figure]]]]:
    """A header of formats; for each number of rows its cells, and the figures in them."""
    by_problem = {(f.name, f.m): f for f in shown}
    names = list(dict.fromkeys(name for name, _ in by_problem))
    rows = []
    for m in sorted({m for _, m in by_problem}):
        row = [by_problem.get((name, m)) for name in names]
        rows.append((m, ["" if f is None else cell(f) for f in row], [f for f in row if f is not None]))
    return ["M", *names], rows


def _compact(f: Figure) -> str:
    llama = " / –" if f.llama is None else f" / {f.llama:.1f} = {f.llama / f.us:.1f}×"
    return f"{f.us:.1f}{llama}, {f.roof / f.us:.0%}"


def _roofs(card: engine.Results) -> str:
    runs = [card["runs"][i] for i in sorted({f.row["run"] for f in figures(card)})]
    roofs = "; ".join(
        f"{r['read_GBps']} GB/s read, {r['cublas_f16_TFLOPS'] or '–'} TFLOP/s of cuBLAS on halves "
        f"(commit {r['commit']})"
        for r in runs
    )
    return f"{runs[-1]['device']}, driver {runs[-1].get('driver')}, {runs[-1]['date']}. Roofs: {roofs}."


# --- goals ------------------------------------------------------------------------------------


def goal(f: Figure, aim: bool) -> float | None:
    """Microseconds that a figure should not exceed; None where nothing is known to compare with."""
    m = f.m
    _, least, most = next(goal for goal in GOALS if m <= goal[0])
    reading = f.reading / SHARE_OF_READING
    if m <= GOALS[0][0] and aim:
        return reading
    limits = [] if f.llama is None else [f.llama / ((aim and most) or least)]
    if m >= FROM and f.cublas is not None:
        limits.append(f.cublas / SHARES_OF_CUBLAS[aim])
    return max(reading, min(limits)) if limits else None


def goals(card: engine.Results) -> str:
    """The figures above their goals, at least or aimed at."""
    rows = []
    for f in figures(card):
        least, aim = goal(f, False), goal(f, True)
        if any(limit is not None and f.us > limit for limit in (least, aim)):
            verdict = "missed" if least is not None and f.us > least else "short of the aim"
            limits = ["" if limit is None else f"{limit:.1f}" for limit in (least, aim)]
            facts = (f.name, f.k, f.m, f.row["kernel"], f"{f.us:.1f}")
            rows.append([*facts, *limits, f"{f.roof / f.us:.0%}", verdict])
    count = len(figures(card))
    summary = f"{count - len(rows)} of {count} figures reach their aim"
    header = ["format", "K", "M", "kernel", "µs", "at most", "aim", "of the roof", ""]
    return f"{table(header, rows)}\n\n{summary}" if rows else summary


# --- the picture ------------------------------------------------------------------------------


def picture(card: engine.Results) -> str:
    """Time over rows of activations on log scales: ours, llama.cpp, cuBLAS on halves, and the roof."""
    shown = [f for f in figures(card) if (f.name, f.k) == (PICTURED, LONG)]
    lines = {
        "ggmlq": ("o-", "#4878a8", {f.m: f.us for f in shown}),
        "llama.cpp": ("s-", "#c05020", {f.m: f.llama for f in shown}),
        "cuBLAS, halves": ("^-", "#70a050", {f.m: f.cublas for f in shown}),
        "roof: reading weights, cuBLAS at its best": ("--", "#555", {f.m: f.roof for f in shown}),
    }
    figure, axes = chart(figsize=(8, 5))
    for label, (style, color, points) in lines.items():
        measured = {m: us for m, us in points.items() if us is not None}
        axes.plot(measured.keys(), measured.values(), style, color=color, label=label)
    axes.set_xscale("log", base=2)
    rows = [f.m for f in shown]
    axes.set_xticks(rows, map(str, rows))
    axes.set(yscale="log", xlabel="rows of activations, M", ylabel="µs")
    axes.set_title(f"{PICTURED}, N={shown[0].n} K={LONG}, {shown[0].run['device']}")
    axes.legend(fontsize=9)
    axes.grid(which="major", alpha=0.3)
    return svg(figure)
