#!/usr/bin/env python3
"""Tables and a picture of the ladder, from bench/results.

pytest bench/bench_ladder.py --benchmark-enable --benchmark-json raw.json
python tools/ladder_table.py keep raw.json          # bench/results/ladder_<device>.json: figures, versions
python tools/ladder_table.py page [--check]         # the tables in docs/ladder.md and docs/cpu.md
python tools/ladder_table.py picture                # docs/ladder.svg; needs matplotlib, extra `plot`
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from _page import llama, put, settle

import ggmlq as gq

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "bench" / "results", ROOT / "docs" / "ladder.md"
CPU_PAGE, PICTURE = ROOT / "docs" / "cpu.md", ROOT / "docs" / "ladder.svg"
BEGIN = "<!-- table: tools/ladder_table.py {} -->"
BENCHMARK = (512, 4096, 14336)  # the shape of the ladder
FIRST = (512, 4096, 4096)  # that of the first experiment, docs/compensation.md
CPU_TYPES = ("q4_0", "q8_0")
THERE = {"cuda:naive": 0.147, "cuda:tiled": 0.259, "cuda:vectorized": 0.167}  # TFLOP/s, RTX 5070 Laptop
ON_GPU = (
    "one linear on the GPU's clock: activations quantized within, weights prepared before and "
    "rotated over 200 MB up to 64 rows; median of 12 (slow rungs 3)"
)
ON_CPU = (
    "one linear on the host's clock, all threads: activations quantized within, weights prepared before and "
    "the same in each call; median of the rounds of pytest-benchmark"
)
FACTS = ("kernel", "asked", "format", "M", "N", "K", "us", "TFLOPS", "weight_GBps")


def keep(raw: Path, name: str | None, commit: str | None, replace: bool) -> None:
    """Write what is worth keeping of a run, without the names of the machine; not over another machine's."""
    fresh = kept(json.loads(raw.read_text()), commit)
    path = RESULTS / f"{name or named(fresh['device'])}.json"
    if path.exists() and not replace:
        _check_same(path, json.loads(path.read_text()), fresh)
    lines = json.dumps(fresh, indent=1, ensure_ascii=False).replace("\n   ", " ").replace("\n  }", " }")
    RESULTS.mkdir(exist_ok=True)
    beside = path.with_name(f".{path.name}.part")
    beside.write_text(lines + "\n")
    os.replace(beside, path)
    print(f"{path.name}: {len(fresh['rows'])} figures of {fresh['device']}")


def named(device: str) -> str:
    """The name of a device's file: ladder_h200 of "NVIDIA H200"."""
    return "ladder_" + re.sub(r"\W+", "_", device.removeprefix("NVIDIA ").lower()).strip("_")


def _check_same(path: Path, old: dict[str, Any], fresh: dict[str, Any]) -> None:
    """End where figures of another machine, or of more cases, would be lost.

    The name of a CPU is that of many machines; they are one only where their threads are as many too.
    """
    way = "pass another name behind the file, or --replace"
    if (old["device"], old.get("threads", -1)) != (fresh["device"], fresh.get("threads", -1)):
        sys.exit(
            f"keep: {path.name} holds figures of {machine(old)}, the run is of {machine(fresh)}; figures of "
            f"two machines are two files; {way}"
        )
    lost = {case(row) for row in old["rows"]} - {case(row) for row in fresh["rows"]}
    if lost:
        sys.exit(
            f"keep: {path.name} holds {len(old['rows'])} figures, the run lacks {len(lost)} of them, "
            f"{' '.join(map(str, min(lost)))} first; run all of bench/bench_ladder.py, or "
            f"{way}"
        )


def machine(found: dict[str, Any]) -> str:
    """The device as people call it."""
    on_gpu = found["rows"][0]["kernel"].startswith("cuda:")
    return found["device"] if on_gpu else f"{found['device']} with {found.get('threads', 'untold')} threads"


def case(row: dict[str, Any]) -> tuple[str, str, int, int, int]:
    """The subject of a figure."""
    return row["asked"], row["format"], row["M"], row["N"], row["K"]


def kept(run: dict[str, Any], commit: str | None) -> dict[str, Any]:
    """Figures, device and versions of a run; the device is the one that the kernels ran on."""
    found, rows = run["ggmlq"], [mark["extra_info"] for mark in run["benchmarks"] if mark["extra_info"]]
    if not rows:
        sys.exit("keep: the file holds no figures; run bench/bench_ladder.py with --benchmark-enable")
    gpu = found["gpu"]["devices"][0] if rows[0]["kernel"].startswith("cuda:") else {}
    threads = {} if gpu else {"threads": found["cpu"]["threads"]}
    return {
        "what": ON_GPU if gpu else ON_CPU,
        "device": gpu.get("name", found["cpu"]["name"]),
        **threads,
        "driver_cuda": gpu.get("driver_cuda"),
        "date": run["datetime"][:10],
        "commit": commit or found["commit"],
        "packages": {k: v for k, v in found["packages"].items() if v},
        "roofs": {key: rows[0][key] for key in ("copy_GBps", "cublas_f16_TFLOPS") if key in rows[0]},
        "rows": [{key: row[key] for key in FACTS} for row in rows],
    }


def results(name: str = "ladder_h200") -> dict[str, Any]:
    """The figures of a run; of the reference card if none is named."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def at(found: dict[str, Any], name: str, shape: tuple[int, int, int]) -> list[dict[str, Any]]:
    """The rows of one format and shape."""
    return [r for r in found["rows"] if (r["format"], (r["M"], r["N"], r["K"])) == (name, shape)]


def upwards(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of one ladder, from its lowest rung to the summit."""
    level = {rung.name: rung.level for rung in gq.kernels(device="cuda")}
    return sorted(rows, key=lambda r: level[r["kernel"]])


def nearest(found: dict[str, Any], name: str, shape: tuple[int, int, int]) -> list[dict[str, Any]]:
    """The rows of one shape; of a rung that does not take it, the one with the most rows of activations."""
    m, n, k = shape
    fewer = sorted({r["M"] for r in found["rows"] if r["M"] < m})
    best = {r["kernel"]: r for below in (*fewer, m) for r in at(found, name, (below, n, k))}
    return upwards(list(best.values()))


def ladder(found: dict[str, Any], name: str, shape: tuple[int, int, int]) -> str:
    """One shape, rung by rung; each beside naive and llama.cpp with as many rows of activations."""
    first, roof = shape == FIRST, found["roofs"]["cublas_f16_TFLOPS"]
    lines = [
        "| kernel | µs | TFLOP/s | of cuBLAS f16 | over naive | over llama.cpp |"
        + " first experiment |" * first,
        "|---" * (6 + first) + "|",
    ]
    for r in nearest(found, name, shape):
        here = (r["M"], *shape[1:])
        naive = next(s["us"] for s in at(found, name, here) if s["kernel"] == "cuda:naive")
        kernel = r["kernel"] if here == shape else f"{r['kernel']}, M={r['M']}"
        lines.append(line(kernel, r["us"], here, roof, naive, llama(name, *here)))
        lines[-1] += f" {THERE.get(r['kernel'], '')} |" * first
    if theirs := llama(name, *shape):
        naive = next(r["us"] for r in at(found, name, shape) if r["kernel"] == "cuda:naive")
        lines.append(line("llama.cpp", theirs, shape, roof, naive, theirs) + "  |" * first)
    return "\n".join(lines)


def line(
    kernel: str, us: float, shape: tuple[int, int, int], roof: float, naive: float, theirs: float | None
) -> str:
    """A row of such a table."""
    rate = 2e-6 * shape[0] * shape[1] * shape[2] / us
    cells = [kernel, f"{us:.1f}", f"{rate:.3g}", f"{100 * rate / roof:.2g} %", f"{naive / us:.3g}"]
    return f"| {' | '.join([*cells, f'{theirs / us:.2g}' if theirs else '–'])} |"


def by_rows(found: dict[str, Any], name: str) -> str:
    """The fastest rung for each number of rows beside llama.cpp."""
    lines = ["| M | fastest | µs | TFLOP/s | weights, GB/s | llama.cpp, µs | over it |", "|---" * 7 + "|"]
    for m in sorted({r["M"] for r in found["rows"]}):
        rows = at(found, name, (m, *BENCHMARK[1:]))
        best = min(rows, key=lambda r: r["us"])
        theirs = llama(name, m, *BENCHMARK[1:])
        over = ["–", "–"] if theirs is None else [f"{theirs:.1f}", f"{theirs / best['us']:.2g}"]
        cells = [
            m,
            best["kernel"],
            f"{best['us']:.1f}",
            f"{best['TFLOPS']:.3g}",
            f"{best['weight_GBps']:.0f}",
            *over,
        ]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def others(found: dict[str, Any]) -> str:
    """What auto chooses for the other formats."""
    lines = ["| format | M | kernel | µs | TFLOP/s | llama.cpp, µs | over it |", "|---" * 7 + "|"]
    for r in found["rows"]:
        if r["asked"] == "auto":
            theirs = llama(r["format"], r["M"], r["N"], r["K"])
            over = ["–", "–"] if theirs is None else [f"{theirs:.1f}", f"{theirs / r['us']:.2g}"]
            cells = [r["format"], r["M"], r["kernel"], f"{r['us']:.1f}", f"{r['TFLOPS']:.3g}", *over]
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def digits(value: float) -> str:
    """Three digits that count, never an exponent: 0.357, 21.8, 1203."""
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


def on_cpu(found: dict[str, Any]) -> str:
    """The rungs of the CPU, with one row of activations and with many."""
    shapes = sorted({(r["M"], r["N"], r["K"]) for r in found["rows"]})
    lines = [
        "| kernel |"
        + "".join(f" {name}, M = {shape[0]}, ms | GOP/s |" for name in CPU_TYPES for shape in shapes),
        "|---" * (1 + 2 * len(CPU_TYPES) * len(shapes)) + "|",
    ]
    ladder = dict.fromkeys(r["kernel"] for r in found["rows"] if r["asked"] == r["kernel"])
    for kernel in ladder:
        cells = []
        for name in CPU_TYPES:
            for shape in shapes:
                rows = [r for r in at(found, name, shape) if r["kernel"] == kernel]
                cells += [digits(rows[0]["us"] / 1e3), digits(rows[0]["TFLOPS"] * 1e3)] if rows else ["", ""]
        lines.append(f"| {kernel} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", f"{found['device']}, all threads, commit {found['commit']}."])


def page(check: bool) -> int:
    """The tables of docs/ladder.md and docs/cpu.md."""
    found = results()
    text = PAGE.read_text()
    for name in ("q4_0", "q8_0"):
        text = put(text, BEGIN.format(f"ladder {name}"), ladder(found, name, BENCHMARK))
        text = put(text, BEGIN.format(f"rows {name}"), by_rows(found, name))
    text = put(text, BEGIN.format("first experiment"), ladder(found, "q4_0", FIRST))
    text = put(text, BEGIN.format("others"), others(found))
    cpu = put(CPU_PAGE.read_text(), BEGIN.format("cpu"), on_cpu(results("ladder_znver4")))
    return settle(PAGE, text, check) | settle(CPU_PAGE, cpu, check)


def picture() -> None:
    """Bars on a log scale with llama.cpp and cuBLAS as lines, and the fastest rungs under the roofs."""
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    found, name = results(), "q4_0"
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.6), layout="constrained")
    rows = upwards(at(found, name, BENCHMARK))
    left.barh([r["kernel"].removeprefix("cuda:") for r in rows], [r["TFLOPS"] for r in rows], color="#4878a8")
    for i, r in enumerate(rows):
        left.text(r["TFLOPS"] * 1.06, i, f"{r['TFLOPS']:.3g}", va="center", fontsize=8)
    left.set(xscale="log", xlabel="TFLOP/s", title=f"{name}, M=512 N=4096 K=14336, {found['device']}")
    left.set_xlim(right=3000)
    left.invert_yaxis()
    theirs = llama(name, *BENCHMARK)
    assert theirs is not None
    rate = 2e-6 * BENCHMARK[0] * BENCHMARK[1] * BENCHMARK[2] / theirs
    left.axvline(rate, color="#c05020", label=f"llama.cpp {rate:.0f}")
    roof, bandwidth = found["roofs"]["cublas_f16_TFLOPS"], found["roofs"]["copy_GBps"]
    left.axvline(roof, color="#555", ls="--", label=f"cuBLAS f16 {roof:.0f}")
    left.legend(fontsize=8, loc="lower left")
    _roofline(right, found, name, roof, bandwidth)
    figure.savefig(PICTURE, metadata={"Date": None})


def _roofline(axes: Any, found: dict[str, Any], name: str, roof: float, bandwidth: float) -> None:
    """TFLOP/s over operations for a byte of the weights as the file has them."""
    _, n, k = BENCHMARK
    ours, theirs = {}, {}
    for m in sorted({r["M"] for r in found["rows"]}):
        best = min(at(found, name, (m, n, k)), key=lambda r: r["us"])
        per_byte = 2 * m * n * k / (best["weight_GBps"] * 1e3 * best["us"])
        ours[per_byte] = best["TFLOPS"]
        if us := llama(name, m, n, k):
            theirs[per_byte] = 2e-6 * m * n * k / us
    x = [min(ours) / 2, *ours, max(ours) * 2]
    axes.plot(
        x,
        [min(roof, v * bandwidth * 1e-3) for v in x],
        color="#555",
        ls="--",
        label="copy bandwidth, cuBLAS f16",
    )
    axes.plot(ours.keys(), ours.values(), "o-", color="#4878a8", label="fastest rung")
    axes.plot(theirs.keys(), theirs.values(), "s-", color="#c05020", label="llama.cpp")
    axes.set(xscale="log", yscale="log", xlabel="operations for a byte of weights", ylabel="TFLOP/s")
    axes.set_title(f"{name}, N={n} K={k}, M=1 to 4096")
    axes.legend(fontsize=8)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["keep", "page", "picture"])
    parser.add_argument("raw", nargs="?", type=Path, help="keep: the file of pytest-benchmark")
    parser.add_argument("name", nargs="?", help="keep: under which name, if not ladder_<device>")
    parser.add_argument("--replace", action="store_true", help="keep: also over figures of others, or more")
    parser.add_argument("--commit", help="keep: where the run's folder was no git checkout")
    parser.add_argument("--check", action="store_true", help="page: compare, write nothing")
    args = parser.parse_args()
    if args.what == "keep":
        if args.raw is None:
            parser.error("keep: which file of pytest-benchmark?")
        keep(args.raw, args.name, args.commit, args.replace)
    elif args.what == "page":
        return page(args.check)
    else:
        picture()
    return 0


if __name__ == "__main__":
    sys.exit(main())
