#!/usr/bin/env python3
"""The table of many shapes in docs/engine.md, and its picture, from bench/results/shapes_h100.json.

python bench/bench_shapes.py --json PATH
python tools/shapes_table.py [--check]      # the table
python tools/shapes_table.py --picture      # docs/shapes.svg; extra `plot`

A figure is of the kernel that ``auto`` took (ggmlq/cuda/cost/packed.py).
"""

from __future__ import annotations

import argparse
import sys
from functools import cache
from pathlib import Path
from typing import Any

from _page import put, settle, table

from ggmlq.testing import results

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results" / "shapes_h100.json"
PAGE, PICTURE = ROOT / "docs" / "engine.md", ROOT / "docs" / "shapes.svg"
BEGIN = "<!-- table: tools/shapes_table.py -->"
TOLD, SHOWN = "q4_0", (4096, 13824)  # the type of the table, and K; others are counted
Figure = dict[str, Any]


@cache
def figures() -> dict[tuple[str, int, int, int], Figure]:
    """By type, N, K and M; those of the table's type first."""
    rows = [row for row in results.load(RESULTS)["rows"] if "us" in row and row["asked"] == "auto"]
    found = {(row["format"], row["N"], row["K"], row["M"]): row for row in rows}
    return dict(sorted(found.items(), key=lambda item: (item[0][0] != TOLD, item[0])))


def page() -> str:
    """The table, and how many figures of each type and M are within their bound."""
    rows = figures()
    shapes = sorted({(n, k) for name, n, k, _ in rows if name == TOLD and k in SHOWN})
    sizes = sorted({m for name, _, _, m in rows if name == TOLD})
    lines = [[f"{n} × {k}", *(cell(rows.get((TOLD, n, k, m))) for m in sizes)] for n, k in shapes]
    types = dict.fromkeys(name for name, *_ in rows)
    counted = [[f"{name} within the bound", *(count(name, m) for m in sizes)] for name in types]
    (run,) = results.load(RESULTS)["runs"]
    note = f"\n\n{run['device']}, {run['date']}, commit {run['commit']}, one run. "
    note += "The last lines count figures of all shapes of a type."
    return table([f"{TOLD}, N × K", *(f"M={m}" for m in sizes)], [*lines, *counted]) + note


def cell(row: Figure | None) -> str:
    """Microseconds, and times the bound; bold where it is within."""
    if row is None:
        return ""
    share = f"{row['us'] / row['bound']:.2f}"
    return f"{row['us']:.4g} ({f'**{share}**' if row['us'] <= row['bound'] else share})"


def count(name: str, m: int) -> str:
    """Of figures of a type with so many rows."""
    own = [row for (of, _, _, rows), row in figures().items() if (of, rows) == (name, m)]
    return f"{sum(row['us'] <= row['bound'] for row in own)} of {len(own)}"


def draw() -> None:
    """Times the bound, against M, a line a shape."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "ggmlq"
    import matplotlib.pyplot as plt

    rows = figures()
    shown = {(n, k) for name, n, k, _ in rows if name == TOLD and k in SHOWN}
    shapes = sorted(shown, key=lambda shape: shape[0] * shape[1])
    figure, axes = plt.subplots(figsize=(9, 5), layout="constrained")
    colors = mpl.colormaps["viridis"]
    for i, (n, k) in enumerate(shapes):
        own = sorted(
            (m, row["us"] / row["bound"])
            for (name, *of, m), row in rows.items()
            if (name, of) == (TOLD, [n, k])
        )
        axes.plot(*zip(*own, strict=True), color=colors(i / len(shapes)), marker=".", label=f"{n} × {k}")
    axes.axhline(1, color="black", linewidth=1)
    device = results.load(RESULTS)["runs"][0]["device"]
    axes.set(xscale="log", xlabel="rows of activations", ylabel="time, in bounds", title=f"{TOLD}, {device}")
    axes.set_xscale("log", base=2)
    axes.legend(fontsize=7, ncols=2, title="N × K, small ones dark")
    figure.savefig(PICTURE, metadata={"Date": None})


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="only say whether the table is fresh")
    parser.add_argument("--picture", action="store_true", help="draw docs/shapes.svg")
    args = parser.parse_args()
    if args.picture:
        draw()
        return 0
    return settle(PAGE, put(PAGE.read_text(), BEGIN, page()), args.check)


if __name__ == "__main__":
    sys.exit(main())
