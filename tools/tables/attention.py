"""Tables of times in bench/notes/attention.md; docs/attention.svg, and docs/cache_error.svg: errors by type.

Drawn cells are measured by: python bench/attention_peers.py --json bench/results/attention_peers_h200.json,
and on a CPU by bench_attention.py; those of the picture are in attention_h200.json, llama.cpp's in
bench/baseline. Errors are computed here: of the
trained model of the tests on the house's page, and of arrays with a column of outliers.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

import ggmlq as gq
from bench import drawn

from . import PICTURE, RESULTS, ROOT, Options, Texts, chart, load, shares, svg, table

OPTIONS = PICTURE
TYPES = ("q8_0", "q4_0", "f16")
LLAMA = ROOT / "bench" / "baseline" / "ggml_cuda_attention_h200.json"
SHAPE = "32/8x128"  # heads, heads of keys, columns
COLORS = {"q8_0": "#4878a8", "q4_0": "#c05020", "f16": "#70a050"}
MODEL = ROOT / "tests" / "golden" / "speaks.gguf"
TEXT = ROOT / "docs" / "house.md"
OUTLIERS = 10.0  # times the other columns
Times = dict[tuple[str, int, int, str], dict[str, Any]]


def texts(options: Options) -> Texts:
    """The table, or the pictures."""
    rows, peers = load(RESULTS / "attention_h200.json"), load(LLAMA)
    times: Times = {key_of(row): row for row in rows if "op" not in row}
    llama = {key_of(row): row["us"] for row in peers["rows"]}
    if options.picture:
        yield "docs/attention.svg", picture(times, llama)
        yield "docs/cache_error.svg", errors()
        return
    cells = load(RESULTS / "attention_peers_h200.json")["rows"]
    yield "bench/notes/attention.md", shares(drawn.shares_of_attention(cells))
    yield "bench/notes/attention.md cpu", cpu()


def key_of(row: dict[str, Any]) -> tuple[str, int, int, str]:
    """The case of a row of figures."""
    return row.get("shape", SHAPE), row["queries"], row["positions"], row["type"]


def cpu() -> str:
    """Milliseconds on a CPU beside llama.cpp's, with one thread and with two, and errors."""
    records = [r for r in load(RESULTS / "attention_cpu.json") if r.get("kernel", "auto") == "auto"]
    rows = {(r["type"], r["queries"], r["threads"]): r for r in records}
    threads = sorted({key[2] for key in rows})
    header = ["type", "queries"]
    for count in threads:
        header += [f"{count} thread{'s' * (count > 1)}, ms", "llama.cpp"]
    lines = []
    for name, queries in dict.fromkeys(key[:2] for key in rows):
        cases = [rows[name, queries, count] for count in threads]
        times = [f"{ms:.2f}" for r in cases for ms in (r["ms"], r["llama_ms"])]
        lines.append([name, queries, *times, *(f"{cases[0][off]:.1e}" for off in ("off", "llama_off"))])
    return table([*header, "error", "llama.cpp's"], lines)


def picture(times: Times, llama: dict[tuple[str, int, int, str], float]) -> str:
    """Time of one query over positions on log scales: ours, llama.cpp's and torch's."""
    drawing, axes = chart(figsize=(8, 5))
    positions = sorted({p for shape, q, p, _ in times if q == 1 and shape == SHAPE})
    for name in TYPES:
        for label, style, points in (
            (f"ggmlq, {name}", "o-", [times[SHAPE, 1, p, name]["us"] for p in positions]),
            (f"llama.cpp, {name}", "s--", [llama.get((SHAPE, 1, p, name)) for p in positions]),
            (f"bytes of {name} over 4.46 TB/s", ":", [times[SHAPE, 1, p, name]["floor"] for p in positions]),
        ):
            axes.plot(positions, points, style, color=COLORS[name], label=label, markersize=4)
    torch = [times[SHAPE, 1, p, "f16"]["torch"] for p in positions]
    axes.plot(positions, torch, "^-", color="#555", label="torch, f16", markersize=4)
    axes.set_xscale("log", base=2)
    axes.set_xticks(positions, map(str, positions))
    axes.set(yscale="log", xlabel="positions", ylabel="µs", ylim=(0.2, None))
    axes.set_title("One query, 32 heads over 8 of 128 columns, NVIDIA H200")
    axes.legend(fontsize=8, ncols=2)
    axes.grid(which="major", alpha=0.3)
    return svg(drawing)


def errors() -> str:
    """The error of attention by the type of the cache, with and without the rotation."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, n, 512, 128), np.float32) for n in (8, 2, 2))
    k[..., 5] *= OUTLIERS
    q[..., 5] /= OUTLIERS
    arrays = gq.cache_error(q, k, v, causal=True)
    m = gq.model.load(MODEL)
    tokens = m.tokenizer.encode(TEXT.read_text())[: m.config.context]
    layers = [gq.cache_error(a.q, a.k, a.v, **a.options) for a in gq.model.attention_operands(m, tokens)]
    drawing, axes = chart(2, figsize=(10, 4.5), sharey=True)
    for place, tables, title in (
        (axes[0], layers, f"a small trained model, {len(tokens)} tokens"),
        (axes[1], [arrays], f"a column of the keys {OUTLIERS:.0f} times the others"),
    ):
        names = list(dict.fromkeys(row.type for row in arrays))
        for rotated, part, color in (
            (False, "keys", "#4878a8"), (True, "keys", "#a8c4e0"),
            (False, "values", "#c05020"), (True, "values", "#e8b090"),
        ):  # fmt: skip
            means = [
                np.mean([getattr(r, part) for t in tables for r in t if (r.type, r.rotated) == (n, rotated)])
                for n in names
            ]
            shift = 0.2 * ((part == "values") * 2 + rotated) - 0.3
            label = f"{part} alone{', rotated' * rotated}"
            place.bar(np.arange(len(names)) + shift, means, 0.2, color=color, label=label)
        place.set_xticks(range(len(names)), names, rotation=45)
        place.set(yscale="log", title=title)
        place.grid(axis="y", alpha=0.3)
    axes[0].set_ylabel("squares of what is off, beside those of the result")
    axes[0].legend(fontsize=8)
    return svg(drawing)
