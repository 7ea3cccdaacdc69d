#!/usr/bin/env python3
"""Write the table of coding speed in docs/formats.md from a run of bench_formats.py.

python bench/bench_formats.py --json bench/results/formats.json
python tools/format_speed_table.py [--check]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from _page import put, settle

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "formats.md"
RESULTS = ROOT / "bench" / "results" / "formats.json"
BEGIN = "<!-- table: tools/format_speed_table.py -->"


def table(results: dict[str, Any]) -> str:
    """One line a format, and what was measured."""
    lines = [
        "| type | decode, Gw/s | ggml | ratio | all threads | encode, Mw/s | ggml | ratio | all threads |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [f"| {name} | {line(figures)} |" for name, figures in results["Mw/s"].items()]
    facts = results["ggmlq"]
    lines += [
        "",
        f"{facts['cpu']['name']}, {results['threads']} threads; ggml {results['libggml']}; Python "
        f"{facts['python']}, NumPy {facts['packages']['numpy']}, Numba {facts['packages']['numba']}; "
        f"ggmlq at {results['commit']}.",
    ]
    return "\n".join(lines)


def line(figures: dict[str, float]) -> str:
    """The cells of a format."""
    return " | ".join(cells(figures, "decode", 1000) + cells(figures, "encode", 1))


def cells(figures: dict[str, float], what: str, unit: int) -> list[str]:
    """Ours, ggml's, their ratio, ours on all threads."""
    rates = [figures.get(f"{what}{peer}") for peer in ("", ", ggml", ", all threads")]
    ours, theirs, shared = (None if rate is None else rate / unit for rate in rates)
    ratio = f"{ours / theirs:.1f}" if ours and theirs else ""
    return [shown(ours), shown(theirs), ratio, shown(shared)]


def shown(rate: float | None) -> str:
    """A rate with what is known of it."""
    if rate is None:
        return ""
    return f"{rate:.2f}" if rate < 10 else f"{rate:.1f}" if rate < 100 else f"{rate:.0f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare with the page, write nothing")
    check, results = parser.parse_args().check, json.loads(RESULTS.read_text())
    return settle(PAGE, put(PAGE.read_text(), BEGIN, table(results)), check)


if __name__ == "__main__":
    sys.exit(main())
