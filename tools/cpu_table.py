#!/usr/bin/env python3
"""Write the tables of docs/cpu.md and README.md from what bench/bench_cpu.py measured, machines side by side.

python tools/cpu_table.py [--results bench/results/cpu_amd.json …] [--check] [--print]
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
Report = dict[str, Any]


def main() -> int:
    """Write the pages, or say whether they are fresh."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    found = sorted((ROOT / "bench" / "results").glob("cpu_*.json"))
    parser.add_argument(
        "--results", nargs="*", default=[str(path) for path in found], help="one of each machine"
    )
    parser.add_argument("--check", action="store_true", help="only say whether the pages are fresh")
    parser.add_argument("--print", action="store_true", help="print the tables, write nothing")
    args = parser.parse_args()
    reports = [json.loads(Path(path).read_text()) for path in args.results]
    if args.print:
        print(tables(reports), summary(reports), sep="\n\n")
        return 0
    page = settle(PAGE, put(PAGE.read_text(), BEGIN, tables(reports)), args.check)
    return settle(README, put(README.read_text(), BEGIN, summary(reports)), args.check) or page


def tables(reports: list[Report]) -> str:
    """What the machines are, then a table for each number of threads."""
    counts = dict.fromkeys(r["threads"] for report in reports for r in report["results"])
    return "\n\n".join(["\n".join(map(roofs, reports)), *(table(reports, threads) for threads in counts)])


def roofs(report: Report) -> str:
    """A machine, and what it can do at most: of several runs the best."""
    results, machine = report["results"], report["machine"]
    most = "; ".join(
        f"{n} thread{'s' * (n > 1)} {best(results, n, 'peak_gops'):.0f} GOP/s in registers, "
        f"{best(results, n, 'read_gbs'):.1f} GB/s read"
        for n in dict.fromkeys(r["threads"] for r in results)
    )
    commits = ", ".join(dict.fromkeys(r["commit"] for r in results))
    return (
        f"- {machine['cpu']['name']}: {report['peer']}, Python {machine['python']}, "
        f"numba {machine['packages']['numba']}, commits {commits}; {most}"
    )


def best(results: list[dict[str, Any]], threads: int, roof: str) -> float:
    """The highest that a run saw."""
    return max(float(r[roof]) for r in results if r["threads"] == threads)


def table(reports: list[Report], threads: int) -> str:
    """One row a format."""
    names = list(dict.fromkeys(r["format"] for report in reports for r in report["results"]))
    each = "M = 1, GB/s | × llama.cpp | from memory, of read | many rows, GOP/s | of peak | × llama.cpp"
    columns = " | ".join(f"{cpu(report)}: {each}" for report in reports)
    lines = [f"| type, {threads} thread{'s' * (threads > 1)} | many | {columns} |"]
    lines.append("|---" * (2 + 6 * len(reports)) + "|")
    for name in names:
        found = [of(report["results"], name, threads) for report in reports]
        many = next(each[1]["m"] for each in found if each)
        cells = [
            _cells(each, report["results"], threads) for each, report in zip(found, reports, strict=True)
        ]
        lines.append(f"| {name} | {many} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cells(found: tuple[Any, Any, Any] | None, results: list[dict[str, Any]], threads: int) -> str:
    """Six of a machine."""
    if found is None:
        return " | ".join("–" * 6)
    one, many, memory = found
    read = (memory or {}).get("beside_gbs") or best(results, threads, "read_gbs")
    rotated = f"{memory['gbs'] / read:.0%}" if memory else "–"
    return (
        f"{one['gbs']:.1f} | {one['ratio']:.2f} | {rotated} | {many['gops']:.0f} "
        f"| {many['gops'] / best(results, threads, 'peak_gops'):.0%} | {many['ratio']:.2f}"
    )


def summary(reports: list[Report]) -> str:
    """Types that are asked for most, on all threads; and which of all types are slower than llama.cpp."""
    each = "one row, GB/s | × llama.cpp | 512 rows, GOP/s | × llama.cpp"
    lines = ["| type | " + " | ".join(f"{cpu(report)}: {each}" for report in reports) + " |"]
    lines.append("|---" * (1 + 4 * len(reports)) + "|")
    said, of_all = [], []
    for report in reports:
        results = report["results"]
        most = max(r["threads"] for r in results)
        of_all.append({r["format"]: of(results, r["format"], most) for r in results})
        slow = [
            _slower([(name, found[i]["ratio"]) for name, found in of_all[-1].items() if found])
            for i in (0, 1)
        ]
        name = report["machine"]["cpu"]["name"]
        said.append(
            f"{cpu(report)}: {most} threads of {name}, {report['peer']}. Slower than llama.cpp, of "
            f"{len(of_all[-1])} types: with one row {slow[0]}; with many rows {slow[1]}."
        )
    for name in SHOWN:
        cells = [
            f"{one['gbs']:.1f} | {one['ratio']:.2f} | {many['gops']:.0f} | {many['ratio']:.2f}"
            for one, many, _ in (found[name] for found in of_all)
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *said])


def cpu(report: Report) -> str:
    """Who made the CPU, as a heading."""
    name = report["machine"]["cpu"]["name"]
    return "Intel" if "Intel" in name else "AMD" if name.startswith(("AMD", "znver")) else str(name)


def _slower(ratios: list[tuple[str, float]]) -> str:
    """The types that are, the slowest first."""
    found = sorted((ratio, name) for name, ratio in ratios if ratio < 1)
    return ", ".join(f"{name} ({ratio:.2f})" for ratio, name in found) or "none"


def of(results: list[dict[str, Any]], name: str, threads: int) -> tuple[Any, Any, Any] | None:
    """Records of a format: one row of activations, many, and one with weights from memory (or None)."""
    rows = [r for r in results if (r["format"], r["threads"]) == (name, threads)]
    if not rows:
        return None
    return (
        next(r for r in rows if r["m"] == 1 and "ratio" in r),
        next(r for r in rows if r["m"] > 1),
        next((r for r in rows if r.get("in_memory")), None),
    )


if __name__ == "__main__":
    sys.exit(main())
