#!/usr/bin/env python3
"""Tables and a picture of the default path on a GPU, from bench/results.

python bench/bench_engine.py --json raw.json
python tools/engine_table.py keep raw.json [NAME]   # into bench/results/NAME.json, beside what was there
python tools/engine_table.py page [--check]         # the tables in docs/engine.md and the one in README.md
python tools/engine_table.py picture                # docs/engine.svg; needs matplotlib, extra `plot`
python tools/engine_table.py goals                  # prints where it is slower than it is meant to be
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from _page import llama, llama_card, put, settle, table

from ggmlq.formats import FORMATS
from ggmlq.testing import results

ROOT = Path(__file__).parents[1]
RESULTS, NAME = ROOT / "bench" / "results", "engine_h200"
PAGE, README, PICTURE = ROOT / "docs" / "engine.md", ROOT / "README.md", ROOT / "docs" / "engine.svg"
BEGIN = "<!-- table: tools/engine_table.py {} -->"
LONG, PICTURED = 14336, "q4_0"  # K of the short tables and of the picture
FIRST = (1, 8, 64, 512, 4096)  # rows of activations on the first page

# What the default path is meant to reach: times as fast as llama.cpp, at least and aimed at, up to so many
# rows (few of them: the time that reading takes at 80 % of the rate, if that is longer); and the share of
# cuBLAS on halves.
GOALS = ((4, 1.5, None), (64, 2, 4), (256, 2, 4), (1024, 2.2, 3.3), (4096, 2.5, None))
OF_READING, OF_CUBLAS, FROM = 0.8, (0.7, 0.85), 2048


@dataclass
class Figure:
    """What auto takes for one problem, beside everything that it is compared with."""

    found: results.Results
    row: results.Row

    @property
    def about(self) -> tuple[str, int, int, int]:
        """Format, M, N, K."""
        return self.row["format"], self.row["M"], self.row["N"], self.row["K"]

    @property
    def us(self) -> float:
        """Microseconds in a graph."""
        return float(self.row["us"])

    @property
    def run(self) -> dict[str, Any]:
        """The run that it was measured in, with its roofs."""
        run: dict[str, Any] = self.found["runs"][self.row["run"]]
        return run

    @cached_property
    def theirs(self) -> float | None:
        """llama.cpp's microseconds, if this is the card that they were measured on."""
        return llama(*self.about) if llama_card().startswith(self.run["device"]) else None

    @property
    def reading(self) -> float:
        """Microseconds that reading the file's bytes of the weights takes."""
        name, _, n, k = self.about
        return 1e-3 * n * FORMATS[name].row_bytes(k) / float(self.run["read_GBps"])

    @property
    def roof(self) -> float:
        """Microseconds below which the card cannot be: reading weights, or cuBLAS on halves at its best."""
        _, m, n, k = self.about
        peak = self.run["cublas_f16_TFLOPS"]
        return max(self.reading, 2e-6 * m * n * k / peak if peak else 0)

    @cached_property
    def halves(self) -> float | None:
        """Microseconds of cuBLAS on halves of the same shape in the same run."""
        return halves(self.found, *self.about[1:], self.row["run"])

    @cached_property
    def plain(self) -> results.Row | None:
        """The call without a graph."""
        rows = (r for r in self.found["rows"] if results.key(r) == self._plain and "us" in r)
        return next((r for r in rows if r["kernel"] == self.row["kernel"]), None)

    @property
    def _plain(self) -> tuple[Any, ...]:
        return (*results.key(self.row)[:-1], "plain")


def halves(found: results.Results, m: int, n: int, k: int, run: int) -> float | None:
    """Microseconds of cuBLAS in a run, if it was measured."""
    for r in found["rows"]:
        if (r["asked"], r["run"], r["M"], r["N"], r["K"]) == (results.ROOF, run, m, n, k) and "us" in r:
            return float(r["us"])
    return None


def figures(found: results.Results) -> list[Figure]:
    """The kernel that auto took for each problem and its time, as they were measured last."""
    last: dict[tuple[Any, ...], results.Row] = {}
    for row in sorted(found["rows"], key=lambda r: r["run"]):
        if "us" in row and row["way"] == "graph" and row["asked"] == "auto":
            last[row["format"], row["N"], row["K"], row["M"]] = row
    names = list(FORMATS)
    ordered = sorted(last.values(), key=lambda r: (names.index(r["format"]), r["N"], r["K"], r["M"]))
    return [Figure(found, r) for r in ordered]


# --- tables -----------------------------------------------------------------------------------


def short(found: results.Results) -> str:
    """Formats across, numbers of rows down: time, llama.cpp's, how many times as fast, share of the roof."""
    shown = {f.about[:2]: f for f in figures(found) if f.about[3] == LONG}
    names = list(dict.fromkeys(name for name, _ in shown))
    rows = []
    for m in sorted({m for _, m in shown}):
        cells = [shown.get((name, m)) for name in names]
        rows.append([m, *("" if f is None else _compact(f) for f in cells)])
    return table(["M", *names], rows) + "\n\n" + _told(found)


def _compact(f: Figure) -> str:
    theirs = " / –" if f.theirs is None else f" / {f.theirs:.1f} = {f.theirs / f.us:.1f}×"
    return f"{f.us:.1f}{theirs}, {f.roof / f.us:.0%}"


def first(found: results.Results) -> str:
    """For a few numbers of rows: time, how many times as fast as llama.cpp, and of which kernels."""
    shown = {f.about[:2]: f for f in figures(found) if f.about[3] == LONG and f.about[1] in FIRST}
    names = list(dict.fromkeys(name for name, _ in shown))
    rows = []
    for m in sorted({m for _, m in shown}):
        cells = [shown.get((name, m)) for name in names]
        kernels = dict.fromkeys(f.row["kernel"].removeprefix("cuda:") for f in cells if f is not None)
        rows.append([m, *("" if f is None else _briefly(f) for f in cells), ", ".join(kernels)])
    used = [found["runs"][i] for i in sorted({f.row["run"] for f in shown.values()})]
    return table(["M", *names, "kernel"], rows) + f"\n\n{used[-1]['device']}, {used[-1]['date']}."


def _briefly(f: Figure) -> str:
    return f"{f.us:.1f} µs" + ("" if f.theirs is None else f", {f.theirs / f.us:.1f}×")


def full(found: results.Results) -> str:
    """A row for each figure."""
    plainly = any(f.plain for f in figures(found))
    header = ["format", "K", "M", "kernel", "µs", *(["plain, µs", "host, µs"] if plainly else [])]
    header += [
        "llama.cpp, µs",
        "over it",
        "TFLOP/s",
        "weights, GB/s",
        "of the roof",
        "of cuBLAS f16",
        "commit",
    ]
    rows = []
    for f in figures(found):
        r, plain = f.row, f.plain
        call = [""] * (2 * plainly) if plain is None else [f"{plain['us']:.1f}", f"{plain['host_us']:.1f}"]
        over = ["–", "–"] if f.theirs is None else [f"{f.theirs:.1f}", f"{f.theirs / f.us:.2f}"]
        share = "" if f.halves is None else f"{f.halves / f.us:.0%}"
        rows.append([
            r["format"], r["K"], r["M"], r["kernel"].removeprefix("cuda:"), f"{f.us:.1f}", *call, *over,
            f"{r['TFLOPS']:.3g}", f"{r['weight_GBps']:.0f}", f"{f.roof / f.us:.0%}", share, f.run["commit"],
        ])  # fmt: skip
    picture = f"![time against rows of activations]({PICTURE.name})\n\n" if PICTURE.exists() else ""
    return f"{picture}{table(header, rows)}\n\n{_told(found)}"


def _told(found: results.Results) -> str:
    """The card and the roofs of each run that figures come from."""
    used = dict.fromkeys(f.row["run"] for f in figures(found))
    runs = [found["runs"][i] for i in sorted(used)]
    roofs = "; ".join(
        f"{r['read_GBps']} GB/s read, {r['cublas_f16_TFLOPS'] or '–'} TFLOP/s of cuBLAS on halves "
        f"(commit {r['commit']})"
        for r in runs
    )
    return f"{runs[-1]['device']}, driver {runs[-1].get('driver')}, {runs[-1]['date']}. Roofs: {roofs}."


def page(found: results.Results, check: bool) -> int:
    """The tables of docs/engine.md, and the one of README.md if it has a place for it."""
    text = put(PAGE.read_text(), BEGIN.format("short"), short(found))
    status = settle(PAGE, put(text, BEGIN.format("full"), full(found)), check)
    tour, begin = README.read_text(), BEGIN.format("first")
    if begin not in tour:
        print(f"{README.name} has no place for its table: {begin}")
        return status
    return settle(README, put(tour, begin, first(found)), check) | status


# --- goals ------------------------------------------------------------------------------------


def goal(f: Figure, aim: bool) -> float | None:
    """Microseconds that a figure should not exceed; None where nothing is known to compare with."""
    m = f.about[1]
    _, least, most = next(g for g in GOALS if m <= g[0])
    reading = f.reading / OF_READING
    if m <= GOALS[0][0] and aim:
        return reading
    limits = [] if f.theirs is None else [f.theirs / ((aim and most) or least)]
    if m >= FROM and f.halves is not None:
        limits.append(f.halves / OF_CUBLAS[aim])
    return max(reading, min(limits)) if limits else None


def goals(found: results.Results) -> str:
    """Figures that are above what they should be, at least or aimed at."""
    rows = []
    for f in figures(found):
        least, aim = goal(f, False), goal(f, True)
        if any(limit is not None and f.us > limit for limit in (least, aim)):
            word = "missed" if least is not None and f.us > least else "short of the aim"
            limits = ["" if limit is None else f"{limit:.1f}" for limit in (least, aim)]
            rows.append(
                [
                    f.row["format"],
                    f.row["K"],
                    f.row["M"],
                    f.row["kernel"],
                    f"{f.us:.1f}",
                    *limits,
                    f"{f.roof / f.us:.0%}",
                    word,
                ]
            )
    count = len(figures(found))
    said = f"{count - len(rows)} of {count} figures reach their aim"
    header = ["format", "K", "M", "kernel", "µs", "at most", "aim", "of the roof", ""]
    return f"{table(header, rows)}\n\n{said}" if rows else said


# --- the picture ------------------------------------------------------------------------------


def picture(found: results.Results, path: Path) -> None:
    """Time over rows of activations on log scales: ours, llama.cpp, cuBLAS on halves, and the roof."""
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    shown = [f for f in figures(found) if (f.about[0], f.about[3]) == (PICTURED, LONG)]
    lines = {
        "ggmlq": ("o-", "#4878a8", {f.about[1]: f.us for f in shown}),
        "llama.cpp": ("s-", "#c05020", {f.about[1]: f.theirs for f in shown}),
        "cuBLAS, halves": ("^-", "#70a050", {f.about[1]: f.halves for f in shown}),
        "roof: reading weights, cuBLAS at its best": ("--", "#555", {f.about[1]: f.roof for f in shown}),
    }
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    for label, (style, color, points) in lines.items():
        known = {m: us for m, us in points.items() if us is not None}
        axes.plot(known.keys(), known.values(), style, color=color, label=label)
    axes.set_xscale("log", base=2)
    rows = [f.about[1] for f in shown]
    axes.set_xticks(rows, map(str, rows))
    axes.set(yscale="log", xlabel="rows of activations, M", ylabel="µs")
    axes.set_title(f"{PICTURED}, N={shown[0].about[2]} K={LONG}, {shown[0].run['device']}")
    axes.legend(fontsize=9)
    axes.grid(which="major", alpha=0.3)
    figure.savefig(path, format="svg", metadata={"Date": None})


def keep(raw: Path, name: str, commit: str | None) -> None:
    """Merge a run into the results of its card."""
    fresh, path = results.load(raw), RESULTS / f"{name}.json"
    for run in fresh["runs"]:
        run["commit"] = run["commit"] or commit or ""
    old = results.load(path)
    if results.device_of(old) not in (None, results.device_of(fresh)):
        sys.exit(f"{path.name} holds results of {results.device_of(old)}; name another file")
    results.save(path, results.merged(old, fresh))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["keep", "page", "picture", "goals"])
    parser.add_argument("raw", nargs="?", type=Path, help="keep: the file of bench_engine")
    parser.add_argument("name", nargs="?", default=NAME, help="keep: under which name")
    parser.add_argument(
        "--results", type=Path, default=RESULTS / f"{NAME}.json", help="the others: of which file"
    )
    parser.add_argument("--commit", help="keep: where the run's folder was no git checkout")
    parser.add_argument("--check", action="store_true", help="page: compare, write nothing")
    args = parser.parse_args()
    if args.what == "keep":
        if args.raw is None:
            parser.error("keep: which file?")
        keep(args.raw, args.name, args.commit)
        return 0
    found = results.load(args.results)
    if not figures(found):
        print(f"{args.results.name}: no figures of auto yet; bench/bench_engine.py measures them")
        return 0
    if args.what == "page":
        return page(found, args.check)
    if args.what == "picture":
        picture(found, PICTURE)
    else:
        print(goals(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
