"""The file ggmlq/cuda/choice.json, by which ``kernel="auto"`` chooses on a GPU, from what was measured.

RESULTS: a file of bench/bench_engine.py, bench/results/engine_h200.json if none is named. Results of
the ladder serve too, with the two facts of the card that they lack. Other cards stay as they are.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import ggmlq as gq
from ggmlq.cuda.cost.choice import TABLE

from . import RESULTS, Options, Texts

OPTIONS = {
    "results": {"nargs": "?", "type": Path, "default": RESULTS / "engine_h200.json", "metavar": "RESULTS"},
    "--capability": {"help": "of the card, where the results do not say it, for example 9.0"},
    "--multiprocessors": {"type": int, "help": "of the card, likewise"},
}
NEAR = 3.0  # times the fastest: what is listed behind it, for formats and arithmetics that it refuses
WHAT = (
    "The fastest kernels, written by tools/table.py cuda_choice; "
    "ggmlq/cuda/cost/choice.py says how to read it"
)
Cells = dict[tuple[str, int, int], dict[int, dict[str, float]]]


def texts(options: Options) -> Texts:
    """The file with this card's entry first."""
    fresh = entry(json.loads(options.results.read_text()), options.capability, options.multiprocessors)
    if not fresh["linear"]:
        sys.exit(f"{options.results}: no cell compares two kernels that auto may take; measure more of them")
    cards = json.loads(TABLE.read_text())["cards"] if TABLE.exists() else []
    for card in cards:
        if card["card"] == fresh["card"]:
            fresh = {key: fresh.get(key, value) for key, value in card.items()}
    others = [card for card in cards if card["card"] != fresh["card"]]
    yield "ggmlq/cuda/choice.json", lines([fresh, *others], WHAT, "cards")


def entry(results: dict[str, Any], capability: str | None, multiprocessors: int | None) -> dict[str, Any]:
    """The entry of one card."""
    newest = (results.get("runs") or [results])[-1]
    dotted = capability or newest["compute_capability"]
    names = list(gq.formats)
    ordered = sorted(cells(results["rows"]).items(), key=lambda item: (names.index(item[0][0]), *item[0][1:]))
    return {
        "card": newest["device"],
        "capability": [int(part) for part in dotted.split(".")],
        "multiprocessors": multiprocessors or newest["multiprocessors"],
        "commit": newest["commit"],
        "date": newest["date"],
        "linear": [
            {"format": name, "N": n, "K": k, "up to": ranges({m: order(times) for m, times in by_m.items()})}
            for (name, n, k), by_m in ordered
        ],
    }


def cells(rows: list[dict[str, Any]]) -> Cells:
    """Microseconds by format and shape, by rows of activations, by kernel; of rungs that auto may take.

    A cell compares two kernels at least, and a shape was measured with many numbers of rows.
    """
    rungs = {rung.name: rung for rung in gq.kernels(device="cuda")}
    times: Cells = {}
    for row in rows:
        rung = rungs.get(row["kernel"])
        if rung is None or rung.caution or row.get("us") is None or row.get("way", "graph") != "graph":
            continue
        cell = times.setdefault((row["format"], row["N"], row["K"]), {}).setdefault(row["M"], {})
        cell[rung.name] = min(row["us"], cell.get(rung.name, math.inf))
    compared = {key: {m: cell for m, cell in by_m.items() if len(cell) > 1} for key, by_m in times.items()}
    most = max(map(len, compared.values()), default=0)
    return {key: by_m for key, by_m in compared.items() if by_m and 2 * len(by_m) >= most}


def order(times: dict[str, float]) -> list[str]:
    """Kernels near the fastest, which comes first."""
    ranked = sorted(times, key=lambda name: times[name])
    return [name for name in ranked if times[name] <= NEAR * times[ranked[0]]]


def ranges(orders: dict[int, list[str]]) -> list[tuple[int | None, list[str]]]:
    """Orders, and up to which number of rows they hold: half the way to the next measured, on a log scale."""
    spans: list[tuple[int | None, list[str]]] = []
    measured = sorted(orders)
    for m, after in zip(measured, [*measured[1:], None], strict=True):
        end = None if after is None else math.isqrt(m * after)
        if spans and spans[-1][1] == orders[m]:
            spans.pop()
        spans.append((end, orders[m]))
    return spans


def lines(entries: list[dict[str, Any]], what: str, key: str) -> str:
    """JSON for people: a line a range."""
    text = ["{", f' "what": {json.dumps(what)},', f' "{key}": [']
    for i, machine in enumerate(entries):
        facts = {key: value for key, value in machine.items() if key != "linear"}
        text += [f"  {json.dumps(facts)[:-1]},", '   "linear": [']
        for j, row in enumerate(machine["linear"]):
            head = {key: value for key, value in row.items() if key != "up to"}
            spans = ",\n".join(f"      {json.dumps(span)}" for span in row["up to"])
            text += [f'    {json.dumps(head)[:-1]}, "up to": [', spans]
            text.append("    ]}" + "," * (j + 1 < len(machine["linear"])))
        text.append("   ]}" + "," * (i + 1 < len(entries)))
    return "\n".join([*text, " ]", "}"]) + "\n"
