"""Tables of docs/ladder.md and of notes (ladder.md, cpu.md), and docs/ladder.svg: the ladder rung by rung.

Figures are those of bench/results/ladder_<device>.json, which tools/keep.py writes.
"""

from __future__ import annotations

from typing import Any

import ggmlq as gq

from . import PICTURE, RESULTS, Options, Texts, chart, llama, load, svg, table

OPTIONS = PICTURE
BENCHMARK = (512, 4096, 14336)  # the shape of the ladder
FIRST = (512, 4096, 4096)  # that of the first experiment, bench/notes/ladder.md
CPU_TYPES = ("q4_0", "q8_0")
FIRST_FIGURES = {
    "cuda:naive": 0.147,
    "cuda:tiled": 0.259,
    "cuda:vectorized": 0.167,
}  # TFLOP/s, RTX 5070 Laptop
LADDER = ("kernel", "µs", "TFLOP/s", "of cuBLAS f16", "over naive", "over llama.cpp")
Figures, Row, Shape = dict[str, Any], dict[str, Any], tuple[int, int, int]


def texts(options: Options) -> Texts:
    """The tables, or the picture."""
    card = load(RESULTS / "ladder_h200.json")
    if options.picture:
        yield "docs/ladder.svg", picture(card, "q4_0")
        return
    yield "docs/ladder.md ladder q4_0", ladder(card, "q4_0", BENCHMARK)
    yield "bench/notes/ladder.md first experiment", ladder(card, "q4_0", FIRST)
    yield "bench/notes/cpu.md", on_cpu(load(RESULTS / "ladder_znver4.json"))


def ladder(card: Figures, name: str, shape: Shape) -> str:
    """One shape, rung by rung; beside naive and llama.cpp with as many rows of activations."""
    first, peak = shape == FIRST, card["roofs"]["cublas_f16_TFLOPS"]
    lines = []

    def add(kernel: str, us: float, m: int) -> None:
        """Add a line of the table."""
        here = (m, *shape[1:])
        theirs, rate = llama(name, *here), rate_of(here, us)
        naive = next(row["us"] for row in rows_of(card, name, here) if row["kernel"] == "cuda:naive")
        lines.append([
            kernel if here == shape else f"{kernel}, M={m}", f"{us:.1f}", f"{rate:.3g}",
            f"{100 * rate / peak:.2g} %", f"{naive / us:.3g}", f"{theirs / us:.2g}" if theirs else "–",
            *[FIRST_FIGURES.get(kernel, "")] * first,
        ])  # fmt: skip

    for row in nearest(card, name, shape):
        add(row["kernel"], row["us"], row["M"])
    if theirs := llama(name, *shape):
        add("llama.cpp", theirs, shape[0])
    return table([*LADDER, *["first experiment"] * first], lines)


def on_cpu(cpu: Figures) -> str:
    """The rungs of the CPU, with one row of activations and with many."""
    shapes = sorted({(row["M"], row["N"], row["K"]) for row in cpu["rows"]})
    cases = [(name, shape) for name in CPU_TYPES for shape in shapes]
    lines = []
    for kernel in dict.fromkeys(row["kernel"] for row in cpu["rows"] if row["asked"] == row["kernel"]):
        line = [kernel]
        for name, shape in cases:
            rows = [row for row in rows_of(cpu, name, shape) if row["kernel"] == kernel]
            line += [digits(rows[0]["us"] / 1e3), digits(rows[0]["TFLOPS"] * 1e3)] if rows else ["", ""]
        lines.append(line)
    header = [cell for name, shape in cases for cell in (f"{name}, M = {shape[0]}, ms", "GOP/s")]
    note = f"{cpu['device']}, all threads, commit {cpu['commit']}."
    return f"{table(['kernel', *header], lines)}\n\n{note}"


def rows_of(figures: Figures, name: str, shape: Shape) -> list[Row]:
    """The rows of one format and shape."""
    return [
        row for row in figures["rows"] if (row["format"], (row["M"], row["N"], row["K"])) == (name, shape)
    ]


def fastest(card: Figures, name: str, m: int) -> Row:
    """The fastest rung for a number of rows."""
    return min(rows_of(card, name, (m, *BENCHMARK[1:])), key=lambda row: row["us"])


def upwards(rows: list[Row]) -> list[Row]:
    """The rows of one ladder, from its lowest rung to the summit."""
    level = {rung.name: rung.level for rung in gq.kernels(device="cuda")}
    return sorted(rows, key=lambda row: level[row["kernel"]])


def nearest(card: Figures, name: str, shape: Shape) -> list[Row]:
    """The rows of one shape; of a rung that does not take it, the one with the most rows of activations."""
    m, n, k = shape
    fewer = sorted({row["M"] for row in card["rows"] if row["M"] < m})
    best = {row["kernel"]: row for below in (*fewer, m) for row in rows_of(card, name, (below, n, k))}
    return upwards(list(best.values()))


def rate_of(shape: Shape, us: float) -> float:
    """TFLOP/s of a product that takes so long."""
    return 2e-6 * shape[0] * shape[1] * shape[2] / us


def digits(value: float) -> str:
    """Three digits that count, never an exponent: 0.357, 21.8, 1203."""
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


# --- the picture ------------------------------------------------------------------------------


def picture(card: Figures, name: str) -> str:
    """Bars on a log scale with llama.cpp and cuBLAS as lines, and the fastest rungs under the roofs."""
    figure, (left, right) = chart(2, figsize=(12, 4.6))
    rows = upwards(rows_of(card, name, BENCHMARK))
    kernels = [row["kernel"].removeprefix("cuda:") for row in rows]
    left.barh(kernels, [row["TFLOPS"] for row in rows], color="#4878a8")
    for i, row in enumerate(rows):
        left.text(row["TFLOPS"] * 1.06, i, f"{row['TFLOPS']:.3g}", va="center", fontsize=8)
    left.set(xscale="log", xlabel="TFLOP/s", title=f"{name}, M=512 N=4096 K=14336, {card['device']}")
    left.set_xlim(right=3000)
    left.invert_yaxis()
    theirs, peak = llama(name, *BENCHMARK), card["roofs"]["cublas_f16_TFLOPS"]
    assert theirs is not None
    rate = rate_of(BENCHMARK, theirs)
    left.axvline(rate, color="#c05020", label=f"llama.cpp {rate:.0f}")
    left.axvline(peak, color="#555", ls="--", label=f"cuBLAS f16 {peak:.0f}")
    left.legend(fontsize=8, loc="lower left")
    _roofline(right, card, name, peak)
    return svg(figure)


def _roofline(axes: Any, card: Figures, name: str, peak: float) -> None:
    """TFLOP/s over operations for a byte of the weights as the file has them."""
    _, n, k = BENCHMARK
    ours, theirs = {}, {}
    for m in sorted({row["M"] for row in card["rows"]}):
        best = fastest(card, name, m)
        per_byte = 2 * m * n * k / (best["weight_GBps"] * 1e3 * best["us"])
        ours[per_byte] = best["TFLOPS"]
        if us := llama(name, m, n, k):
            theirs[per_byte] = rate_of((m, n, k), us)
    x = [min(ours) / 2, *ours, max(ours) * 2]
    roof = [min(peak, v * card["roofs"]["copy_GBps"] * 1e-3) for v in x]
    axes.plot(x, roof, color="#555", ls="--", label="copy bandwidth, cuBLAS f16")
    axes.plot(ours.keys(), ours.values(), "o-", color="#4878a8", label="fastest rung")
    axes.plot(theirs.keys(), theirs.values(), "s-", color="#c05020", label="llama.cpp")
    axes.set(xscale="log", yscale="log", xlabel="operations for a byte of weights", ylabel="TFLOP/s")
    axes.set_title(f"{name}, N={n} K={k}, M=1 to 4096")
    axes.legend(fontsize=8)
