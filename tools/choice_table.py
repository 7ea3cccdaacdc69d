#!/usr/bin/env python3
"""Write ggmlq/cuda/choice.json, by which ``kernel="auto"`` chooses on a GPU, from what was measured.

python tools/choice_table.py [RESULTS] [--capability 9.0 --multiprocessors 132] [--check] [--print]

RESULTS: what bench/bench_engine.py wrote, bench/results/engine_h200.json if none is named. Results of
the ladder serve too, with the two facts of the card that they lack. Other cards stay as they are.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

from _page import settle

import ggmlq as gq
from ggmlq.cuda.cost.choice import TABLE

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results" / "engine_h200.json"
NEAR = 3.0  # times the fastest: what is listed behind it, for formats and arithmetics that it refuses
WHAT = "The fastest kernels, written by tools/choice_table.py; ggmlq/cuda/cost/choice.py says how to read it"
Cells = dict[tuple[str, int, int], dict[int, dict[str, float]]]


def cells(rows: list[dict[str, Any]]) -> Cells:
    """Microseconds by format and shape, by rows of activations, by kernel; of rungs that auto may take."""
    rungs = {rung.name: rung for rung in gq.kernels(device="cuda")}
    found: Cells = {}
    for row in rows:
        rung = rungs.get(row["kernel"])
        if rung is None or rung.caution or row.get("us") is None or row.get("way", "graph") != "graph":
            continue
        times = found.setdefault((row["format"], row["N"], row["K"]), {}).setdefault(row["M"], {})
        times[rung.name] = min(row["us"], times.get(rung.name, math.inf))
    return _whole(found)


def _whole(found: Cells) -> Cells:
    """Cells that compare kernels, of shapes that were measured with many numbers of rows."""
    compared = {key: {m: t for m, t in by_m.items() if len(t) > 1} for key, by_m in found.items()}
    most = max(map(len, compared.values()), default=0)
    return {key: by_m for key, by_m in compared.items() if by_m and 2 * len(by_m) >= most}


def order(times: dict[str, float]) -> list[str]:
    """Kernels near the fastest, which comes first."""
    ranked = sorted(times, key=lambda name: times[name])
    return [name for name in ranked if times[name] <= NEAR * times[ranked[0]]]


def ranges(orders: dict[int, list[str]]) -> list[tuple[int | None, list[str]]]:
    """Up to which number of rows which order holds: half the way to the next measured, on a log scale."""
    found: list[tuple[int | None, list[str]]] = []
    measured = sorted(orders)
    for m, after in zip(measured, [*measured[1:], None], strict=True):
        end = None if after is None else math.isqrt(m * after)
        if found and found[-1][1] == orders[m]:
            found[-1] = (end, orders[m])
        else:
            found.append((end, orders[m]))
    return found


def entry(results: dict[str, Any], capability: str | None, multiprocessors: int | None) -> dict[str, Any]:
    """All of one card."""
    runs = results.get("runs") or [results]
    newest = runs[-1]
    dotted = capability or newest["compute_capability"]
    names = list(gq.formats)
    return {
        "card": newest["device"],
        "capability": [int(part) for part in dotted.split(".")],
        "multiprocessors": multiprocessors or newest["multiprocessors"],
        "commit": newest["commit"],
        "date": newest["date"],
        "linear": [
            {"format": name, "N": n, "K": k, "up to": ranges({m: order(times) for m, times in by_m.items()})}
            for (name, n, k), by_m in sorted(
                cells(results["rows"]).items(), key=lambda item: (names.index(item[0][0]), item[0][1:])
            )
        ],
    }


def written(cards: list[dict[str, Any]], what: str = WHAT, them: str = "cards") -> str:
    """JSON for people: a line a range."""
    lines = ["{", f' "what": {json.dumps(what)},', f' "{them}": [']
    for i, card in enumerate(cards):
        facts = {key: value for key, value in card.items() if key != "linear"}
        lines += [f"  {json.dumps(facts)[:-1]},", '   "linear": [']
        for j, row in enumerate(card["linear"]):
            head = {key: value for key, value in row.items() if key != "up to"}
            spans = ",\n".join(f"      {json.dumps(span)}" for span in row["up to"])
            lines += [f'    {json.dumps(head)[:-1]}, "up to": [', spans]
            lines.append("    ]}" + "," * (j + 1 < len(card["linear"])))
        lines.append("   ]}" + "," * (i + 1 < len(cards)))
    return "\n".join([*lines, " ]", "}"]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("results", nargs="?", type=Path, default=RESULTS)
    parser.add_argument("--capability", help="of the card, where the results do not say it")
    parser.add_argument("--multiprocessors", type=int, help="the same")
    parser.add_argument("--check", action="store_true", help="only say whether the table is fresh")
    parser.add_argument("--print", action="store_true", help="print the table, write nothing")
    args = parser.parse_args()
    fresh = entry(json.loads(args.results.read_text()), args.capability, args.multiprocessors)
    if not fresh["linear"]:
        sys.exit(f"{args.results}: no cell compares two kernels that auto may take; measure more of them")
    known = json.loads(TABLE.read_text())["cards"] if TABLE.exists() else []
    for card in known:
        if card["card"] == fresh["card"]:
            fresh = {key: fresh.get(key, value) for key, value in card.items()}
    others = [card for card in known if card["card"] != fresh["card"]]
    text = written([fresh, *others])
    if args.print:
        print(text, end="")
        return 0
    return settle(TABLE, text, args.check)


if __name__ == "__main__":
    sys.exit(main())
