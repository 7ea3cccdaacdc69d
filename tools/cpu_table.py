#!/usr/bin/env python3
"""Write the tables of docs/cpu.md from what bench/bench_cpu.py measured.

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
PAGE = ROOT / "docs" / "cpu.md"
BEGIN = "<!-- table: tools/cpu_table.py -->"


def main() -> int:
    """Write the page, or say whether it is fresh."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--results", default=str(ROOT / "bench" / "results" / "cpu.json"))
    parser.add_argument("--check", action="store_true", help="only say whether the page is fresh")
    parser.add_argument("--print", action="store_true", help="print the table, write nothing")
    args = parser.parse_args()
    text = table(json.loads(Path(args.results).read_text()))
    if args.print:
        print(text)
        return 0
    return settle(PAGE, put(PAGE.read_text(), BEGIN, text), args.check)


def table(report: dict[str, Any]) -> str:
    """One row a format and number of threads."""
    results, machine = report["results"], report["machine"]
    peak = {r["threads"]: r["peak_gops"] for r in results}
    read = {r["threads"]: r["read_gbs"] for r in results}
    roofs = "; ".join(
        f"{n} thread{'s' * (n > 1)}: {peak[n]:.0f} GOP/s in registers, {read[n]:.1f} GB/s read" for n in peak
    )
    lines = [
        f"{machine['cpu']['name']}, {report['peer']}, Python {machine['python']}, "
        f"numba {machine['packages']['numba']}, commit {machine['commit']}. Roofs: {roofs}.",
        "",
        "| type | threads | M = 1, GB/s | × llama.cpp | from memory, GB/s | of read "
        "| M | GOP/s | of peak | × llama.cpp |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for threads, most in peak.items():
        for name in dict.fromkeys(r["format"] for r in results):
            rows = [r for r in results if (r["format"], r["threads"]) == (name, threads)]
            one = next(r for r in rows if r["m"] == 1 and "ratio" in r)
            many = next(r for r in rows if r["m"] > 1)
            memory = next((r for r in rows if r.get("in_memory")), None)
            rotated = f"{memory['gbs']:.1f} | {memory['gbs'] / read[threads]:.0%}" if memory else "– | –"
            lines.append(
                f"| {name} | {threads} | {one['gbs']:.1f} | {one['ratio']:.2f} | {rotated} | {many['m']} "
                f"| {many['gops']:.0f} | {many['gops'] / most:.0%} | {many['ratio']:.2f} |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
