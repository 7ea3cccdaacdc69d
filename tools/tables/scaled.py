"""The tables of docs/scaled.md: number formats, errors, why sums are promoted; peers; and docs/scaled.svg.

All but one are computed: they are the same on every machine. That one and the picture have scaled products
beside DeepGEMM and cuBLASLt, whose times are those of bench/results/scaled_peers_h200.json; the picture also
has each rung of the ladder, whose times are read from bench/notes/codes8_peers.md, where the peers stand too.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

import ggmlq as gq
from ggmlq.accuracy.table import DOCUMENT

from . import PICTURE, RESULTS, ROOT, Options, Texts, chart, load, svg, table
from ._numbers import NUMBERS, Number

OPTIONS = PICTURE
K, ROWS, SEED = 4096, 32, 1  # of the products whose sums are compared
PROMOTED = (None, 1024, 512, 256, 128, 64)
NUMBER = (
    "format", "bits", "sign / exponent / mantissa", "largest", "smallest normal", "smallest", "step at 1",
    "infinities", "NaN",
)  # fmt: skip
UNSCALED = ("int8_full", "fp8_naive", "e4m3", "e5m2")
PEERS = {"deep_gemm": ("DeepGEMM", "#c05020"), "cuBLASLt": ("cuBLASLt", "#6a9a50")}


def texts(options: Options) -> Texts:
    """The tables, or the picture."""
    if options.picture:
        yield "docs/scaled.svg", picture()
        return
    more = (0.001, 0.123, 1.234, 17.0, 33.0, *DOCUMENT[3:])
    yield "docs/scaled.md numbers", table(NUMBER, map(number, NUMBERS))
    yield "docs/scaled.md unscaled", errors(more)
    yield "docs/scaled.md promotion", promotion()
    yield "bench/notes/codes8_peers.md peers", peers()


def number(n: Number) -> list[str]:
    """The cells of a number format."""
    if n.bias is None:
        return [n.name, str(n.bits), "integer", f"{n.lowest:g} … {n.max:g}", "–", "1", "1", "no", "no"]
    return [
        n.name, str(n.bits), f"{n.sign} / {n.exponent} / {n.mantissa}, bias {n.bias}", f"{n.max:.9g}",
        f"{n.smallest_normal:.7g}", f"{n.smallest:.7g}" if n.subnormals else "none below",
        f"{n.eps:.7g}" if n.mantissa else "a factor of 2", "yes" if n.infinities else "no",
        "yes" if n.nans.startswith("all") else n.nans,
    ]  # fmt: skip


def errors(values: tuple[float, ...]) -> str:
    """The values that are read back, and their errors, a column a format."""
    result = gq.error_table(values, 1.0, UNSCALED)
    columns = [result.of(name) for name in UNSCALED]
    rows = [
        [f"{value:g}", *(f"{c[i].dequantized:.6g} ({c[i].error:.4g})" for c in columns)]
        for i, value in enumerate(values)
    ]
    return table(["value", *UNSCALED], rows)


def of_peers() -> dict[tuple[str, str], dict[str, dict[str, float]]]:
    """The figures of each product beside its peers, by kind of codes and shape."""
    products: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    for figure in load(RESULTS / "scaled_peers_h200.json")["figures"]:
        products.setdefault((figure["case"], figure["shape"]), {})[figure["of"]] = figure
    return products


def peers() -> str:
    """The times of products, after a rest and sustained, and how many times as fast as each peer they are."""
    rows = []
    for (case, shape), figures in of_peers().items():
        row, ours = [f"{case} {shape.replace('x', ' × ')}"], figures["ggmlq"]
        for which in ("us", "sustained us"):
            row.append(f"{ours[which]:.{0 if ours[which] > 100 else 1}f}")
            for name in PEERS:
                ratio = figures[name][which] / ours[which] if name in figures else None
                row.append("–" if ratio is None else f"**{ratio:.2f}**" if ratio >= 0.995 else f"{ratio:.2f}")
        rows.append(row)
    beside = [f"× {label}" for label, _ in PEERS.values()]
    return table(["M × N × K", "µs rested", *beside, "µs sustained", *beside], rows)


def promotion() -> str:
    """The error of sums that keep 13 bits, by how many products they take before they go over to float32."""
    cases = operands(np.random.default_rng(SEED))
    rows = [
        [
            f"every {every}" if every else f"never (K = {K})",
            *(f"{error(x, w, every):.1e}" for x, w in cases.values()),
        ]
        for every in PROMOTED
    ]
    return table(["sums go over into float32", *cases], rows)


def operands(rng: np.random.Generator) -> dict[str, tuple[gq.ScaledArray, gq.ScaledArray]]:
    """Operands whose sums are of different kinds, under one scale each."""
    shape = (2, ROWS, K)
    even = rng.uniform(-448, 448, shape)
    normal = rng.standard_normal(shape)
    positive = rng.uniform(0, 1, shape)
    return {
        name: tuple(gq.quantize_scaled(part, "e4m3", (1, None)) for part in data)
        for name, data in (("uniform", even), ("normal", normal), ("positive", positive))
    }  # type: ignore[return-value]


def error(x: gq.ScaledArray, w: gq.ScaledArray, every: int | None) -> float:
    """The mean error of a product by its mean."""
    exact = gq.reference.scaled_linear(x, w)
    rounded = gq.reference.scaled_linear(x, w, "fp22", promote=every)
    return float(np.abs(rounded - exact).mean() / np.abs(exact).mean())


# --- the picture ------------------------------------------------------------------------------


def picture() -> str:
    """The ladder on the left, ratios to peers on the right."""
    figure, (left, right) = chart(2, figsize=(12, 6.4), width_ratios=(2, 3))
    draw_ladder(left)
    draw_ratios(right)
    return svg(figure)


def draw_ladder(axes: Any) -> None:
    """Rates of int8 and FP8 at the largest shape, from the note's table; none where there is a dash."""
    page = (ROOT / "bench" / "notes" / "codes8_peers.md").read_text()
    lines = re.findall(r"^\| `cuda:([^|]+)` \|([^|]+)\|[^|]+\|([^|]+)\|", page, re.MULTILINE)
    rungs = [
        (name.replace("`, `cuda:", ", "), *(float(n.strip(" *–") or 0) for n in rates))
        for name, *rates in lines
    ]
    rungs = [rung for rung in rungs if any(rung[1:])]
    for shift, (name, color) in enumerate((("int8", "#88a8c8"), ("FP8", "#4878a8"))):
        values = [rung[1 + shift] for rung in rungs]
        heights = [i + 0.4 * shift - 0.2 for i in range(len(rungs))]
        axes.barh(heights, values, 0.38, color=color, label=name)
        for height, value in zip(heights, values, strict=True):
            if value:
                axes.text(value + 15, height, f"{value:.0f}", va="center", fontsize=8)
    axes.set_yticks(range(len(rungs)), [name for name, *_ in rungs], fontsize=8)
    axes.set(title="4096 × 7168 × 16384", xlabel="TOPS, TFLOP/s", xlim=(0, 1950))
    axes.invert_yaxis()
    axes.legend(fontsize=8, loc="lower right")


def draw_ratios(axes: Any) -> None:
    """Times as fast as each peer, by kind of codes and shape."""
    times = {key: {of: each["us"] for of, each in figures.items()} for key, figures in of_peers().items()}
    for name, (label, color) in PEERS.items():
        points = [(us[name] / us["ggmlq"], i) for i, us in enumerate(times.values()) if name in us]
        axes.plot(*zip(*points, strict=True), "o", color=color, label=f"beside {label}")
    axes.axvline(1, color="#555", lw=0.8)
    names = [f"{case} {shape.replace('x', ' × ')}" for case, shape in times]
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set(title="times as fast", xscale="log", xlim=(0.85, 4))
    axes.set_xticks([0.9, 1, 1.2, 1.5, 2, 3], ["0.9", "1", "1.2", "1.5", "2", "3"])
    axes.minorticks_off()
    axes.invert_yaxis()
    axes.grid(axis="x", lw=0.3)
    axes.legend(fontsize=8, loc="lower right")
