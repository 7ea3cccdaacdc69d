"""The table of many shapes in docs/engine.md, and docs/shapes.svg, from bench/results/shapes_h100.json.

Measured by: python bench/bench_shapes.py --json PATH. A figure is of the kernel that ``auto`` took
(ggmlq/cuda/kernels/cost/choice.py).
"""

from __future__ import annotations

from typing import Any

from . import PICTURE, RESULTS, Options, Texts, chart, load, svg, table

OPTIONS = PICTURE
NAME, LENGTHS = "q4_0", (4096, 13824)  # the type of the table, and K; others are counted
Rows = dict[tuple[str, int, int, int], dict[str, Any]]


def texts(options: Options) -> Texts:
    """The table, or the picture."""
    results = load(RESULTS / "shapes_h100.json")
    rows: Rows = {
        (row["format"], row["N"], row["K"], row["M"]): row
        for row in results["rows"] if "us" in row and row["asked"] == "auto"
    }  # fmt: skip
    (run,) = results["runs"]
    shapes = sorted({(n, k) for name, n, k, _ in rows if name == NAME and k in LENGTHS})
    if options.picture:
        yield "docs/shapes.svg", picture(rows, shapes, run["device"])
        return
    sizes = sorted({m for name, _, _, m in rows if name == NAME})
    names = sorted({name for name, *_ in rows}, key=lambda name: (name != NAME, name))
    lines = [[f"{n} × {k}", *(cell(rows.get((NAME, n, k, m))) for m in sizes)] for n, k in shapes]
    lines += [[f"{name} within the bound", *(count(rows, name, m) for m in sizes)] for name in names]
    note = f"{run['device']}, {run['date']}, commit {run['commit']}, one run. "
    note += "The last lines count figures of all shapes of a type."
    yield "docs/engine.md", f"{table([f'{NAME}, N × K', *(f'M={m}' for m in sizes)], lines)}\n\n{note}"


def cell(row: dict[str, Any] | None) -> str:
    """Microseconds, and times the bound; bold where it is within."""
    if row is None:
        return ""
    share = f"{row['us'] / row['bound']:.2f}"
    return f"{row['us']:.4g} ({f'**{share}**' if row['us'] <= row['bound'] else share})"


def count(rows: Rows, name: str, m: int) -> str:
    """The figures of a type within their bound, with a number of rows of activations."""
    figures = [row for row in rows.values() if (row["format"], row["M"]) == (name, m)]
    within = [row["us"] <= row["bound"] for row in figures]
    return f"{sum(within)} of {len(within)}"


def picture(rows: Rows, shapes: list[tuple[int, int]], device: str) -> str:
    """Times the bound, against M, a line a shape."""
    from matplotlib import colormaps

    figure, axes = chart(figsize=(9, 5))
    colors = colormaps["viridis"]
    for i, (n, k) in enumerate(sorted(shapes, key=lambda shape: shape[0] * shape[1])):
        points = sorted((m, row["us"] / row["bound"]) for (*of, m), row in rows.items() if of == [NAME, n, k])
        axes.plot(*zip(*points, strict=True), color=colors(i / len(shapes)), marker=".", label=f"{n} × {k}")
    axes.axhline(1, color="black", linewidth=1)
    axes.set(xscale="log", xlabel="rows of activations", ylabel="time, in bounds", title=f"{NAME}, {device}")
    axes.set_xscale("log", base=2)
    axes.legend(fontsize=7, ncols=2, title="N × K, small ones dark")
    return svg(figure)
