#!/usr/bin/env python3
"""Write the tables of docs/cpu.md and README.md from what bench/bench_cpu.py measured.

python tools/cpu_table.py [--results bench/results/cpu.json] [--check] [--print]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from _page import put, settle

ROOT = Path(__file__).parents[1]
PAGE, README = ROOT / "docs" / "cpu.md", ROOT / "README.md"
BEGIN = "<!-- table: tools/cpu_table.py -->"
SHOWN = ("q4_0", "q8_0", "q4_K", "q6_K", "mxfp4")


def main() -> int:
    """Write the pages, or say whether they are fresh."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--results", default=str(ROOT / "bench" / "results" / "cpu.json"))
    parser.add_argument("--check", action="store_true", help="only say whether the pages are fresh")
    parser.add_argument("--print", action="store_true", help="print the tables, write nothing")
    args = parser.parse_args()
    report = json.loads(Path(args.results).read_text())
    if args.print:
        print(table(report), summary(report), sep="\n\n")
        return 0
    page = settle(PAGE, put(PAGE.read_text(), BEGIN, table(report)), args.check)
    return settle(README, put(README.read_text(), BEGIN, summary(report)), args.check) or page


def table(report: dict[str, Any]) -> str:
    """One row a format and number of threads."""
    results, machine = report["results"], report["machine"]
    count = dict.fromkeys(r["threads"] for r in results)  # each run measures roofs of its own: the highest
    peak = {n: max(r["peak_gops"] for r in results if r["threads"] == n) for n in count}
    read = {n: max(r["read_gbs"] for r in results if r["threads"] == n) for n in count}
    commits = ", ".join(dict.fromkeys(r["commit"] for r in results))
    roofs = "; ".join(
        f"{n} thread{'s' * (n > 1)}: {peak[n]:.0f} GOP/s in registers, {read[n]:.1f} GB/s read" for n in peak
    )
    lines = [
        f"{machine['cpu']['name']}, {report['peer']}, Python {machine['python']}, "
        f"numba {machine['packages']['numba']}, commits {commits}. Roofs: {roofs}.",
        "",
        "| type | threads | M = 1, GB/s | × llama.cpp | from memory, GB/s | of read "
        "| M | GOP/s | of peak | × llama.cpp |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for threads in peak:
        for name in dict.fromkeys(r["format"] for r in results):
            one, many, memory = of(results, name, threads)
            rotated = f"{memory['gbs']:.1f} | {memory['gbs'] / memory['read_gbs']:.0%}" if memory else "– | –"
            lines.append(
                f"| {name} | {threads} | {one['gbs']:.1f} | {one['ratio']:.2f} | {rotated} | {many['m']} "
                f"| {many['gops']:.0f} | {many['gops'] / many['peak_gops']:.0%} | {many['ratio']:.2f} |"
            )
    return "\n".join(lines)


def summary(report: dict[str, Any]) -> str:
    """Types that are asked for most, on all threads; and which of all types are slower than llama.cpp."""
    results, machine = report["results"], report["machine"]
    most = max(r["threads"] for r in results)
    names = list(dict.fromkeys(r["format"] for r in results))
    pairs = {name: of(results, name, most)[:2] for name in names}
    lines = [
        "| type | one row, GB/s | × llama.cpp | 512 rows, GOP/s | × llama.cpp |",
        "|---|---|---|---|---|",
    ]
    for name in SHOWN:
        one, many = pairs[name]
        lines.append(
            f"| {name} | {one['gbs']:.1f} | {one['ratio']:.2f} | {many['gops']:.0f} | {many['ratio']:.2f} |"
        )
    slow = [_slower([(name, pair[i]["ratio"]) for name, pair in pairs.items()]) for i in (0, 1)]
    lines += [
        "",
        f"{machine['cpu']['name']}, {most} threads; {report['peer']}. Of {len(names)} types, slower than "
        f"llama.cpp with one row: {slow[0]}; with many rows: {slow[1]}.",
    ]
    return "\n".join(lines)


def _slower(ratios: list[tuple[str, float]]) -> str:
    """The types that are, the slowest first."""
    found = sorted((ratio, name) for name, ratio in ratios if ratio < 1)
    return ", ".join(f"{name} ({ratio:.2f})" for ratio, name in found) or "none"


def of(results: list[dict[str, Any]], name: str, threads: int) -> tuple[Any, Any, Any]:
    """Records of a format: one row of activations, many, and one with weights from memory (or None)."""
    rows = [r for r in results if (r["format"], r["threads"]) == (name, threads)]
    return (
        next(r for r in rows if r["m"] == 1 and "ratio" in r),
        next(r for r in rows if r["m"] > 1),
        next((r for r in rows if r.get("in_memory")), None),
    )


if __name__ == "__main__":
    sys.exit(main())
