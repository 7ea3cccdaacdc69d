#!/usr/bin/env python3
"""What a 671B FP8 checkpoint costs to open, survey, requantize and serve on 8 x H200; and that model checked.

    python tools/scale.py                 the assumptions as lines, and what follows from them
    python tools/scale.py run             unit costs measured here, then a larger run predicted and measured
    python tools/scale.py run --keep      the same, kept in bench/results/scale_host.json
    python tools/scale.py page [--check]  docs/scale.md written anew, or only compared

`run` takes a minute or two and 1 GB of disk; on a machine that does other things as well it is worth little.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from dataclasses import asdict
from pathlib import Path

from _page import put, settle, table
from _scale_model import (
    BITS,
    GIVEN,
    Rates,
    Tensors,
    active,
    cache_of_token,
    decoding,
    deepseek_v3,
    opening,
    requantizing,
    surveying,
    total,
)
from _scale_run import run

ROOT = Path(__file__).parents[1]
PAGE, KEPT = ROOT / "docs" / "scale.md", ROOT / "bench" / "results" / "scale_host.json"
BEGIN = "<!-- figures: tools/scale.py page -->"
BATCHES = (1, 8, 64, 256, 512)


# --- what follows from the assumptions ------------------------------------------------------


def figures(rates: Rates, checked: list[list[str]], machine: str) -> str:
    tensors = deepseek_v3()
    parts = [
        "### Assumptions", *_assumptions(rates, machine), "### The checkpoint", _checkpoint(tensors),
        "### Files", _files(rates, tensors), "### Serving", _serving(tensors), "### The model against a run",
        f"On {machine}; unit costs from smaller runs of the same kind.", "",
        table(("what", "predicted", "measured", "measured / predicted"), checked),
    ]  # fmt: skip
    return "\n\n".join(part for part in parts if part)


def _assumptions(rates: Rates, machine: str) -> list[str]:
    rows = [(f"{_amount(g.value, g.unit)}", g.what, g.source) for g in GIVEN.values()]
    told = [(*line, f"measured on {machine}") for line in rates.lines()]
    return [table(("", "what", "where from"), [*rows, *told])]


def _amount(value: float, unit: str) -> str:
    if unit == "s":
        return f"{value * 1e6:g} µs" if value < 1e-3 else f"{value * 1e3:g} ms"
    for sign, scale in (("T", 1e12), ("G", 1e9), ("k", 1e3)):
        if unit and value >= scale:
            return f"{value / scale:g} {sign}{unit}"
    return f"{value:g} {unit}".strip()


def _checkpoint(tensors: list[Tensors]) -> str:
    weights, stored = sum(t.count * t.elements for t in tensors), sum(t.stored for t in tensors)
    spoken = sum(t.count * t.elements for t in tensors if t.read != "none")
    return (
        f"{weights / 1e9:.1f} G weights in {stored} tensors, scales counted, {total(tensors) / 1e9:.1f} GB "
        f"in {GIVEN['files'].value:.0f} files. A token is multiplied with {active(tensors) / 1e9:.1f} G of "
        f"{spoken / 1e9:.1f} G; it leaves {cache_of_token() / 1e3:.1f} kB for those that follow."
    )


def _files(rates: Rates, tensors: list[Tensors]) -> str:
    g = {name: given.value for name, given in GIVEN.items()}
    nbytes, stored = total(tensors), sum(t.stored for t in tensors)
    coded = [t for t in tensors if t.kind == "fp8"]
    weights, matrices = sum(t.count * t.elements for t in tensors), sum(t.count for t in coded)
    made = weights * BITS / 8
    rows = [
        ["open, files here", "headers", f"{opening(rates, g['files'], stored):.1f} s"],
        ["open, on a hub", "two requests a file", f"{2 * g['files'] * g['net_latency']:.0f} s"],
        ["fetch all of it", "the network", _time(nbytes / g["net_read"])],
    ]
    for workers in (1, g["cores"]):
        work = surveying(rates, weights, matrices, workers)
        rows.append(
            _bound(f"survey, {workers:.0f} at work", work, nbytes / g["disk_read"], "reading the disks")
        )
    for workers in (1, g["cores"]):
        work = requantizing(rates, weights, made, workers, float("inf"))
        slow = nbytes / g["disk_read"] + made / g["disk_write"]
        rows.append(
            _bound(
                f"requantize to q4_K ({made / 1e9:.0f} GB), {workers:.0f} at work", work, slow, "the disks"
            )
        )
    each = nbytes / (g["cards"] * g["link"] * g["link_share"])
    rows.append(_bound("load to 8 cards", each, nbytes / g["disk_read"], "reading the disks"))
    rows.append(
        ["load to 8 cards, files over the network", "the file system", _time(nbytes / g["shared_read"])]
    )
    most, rate = g["shared_most"] / g["shared_read"], 1 / (1 / rates.walk + matrices * rates.trial / weights)
    rows.append(["hosts that this file system feeds", "more bring nothing", f"{most:.0f}"])
    rows.append(
        [
            "cores that keep its 40 GB/s busy with a survey",
            "more bring nothing",
            f"{g['shared_most'] / rate:.0f}",
        ]
    )
    return table(("what", "bound by", "cost"), rows)


def _bound(what: str, work: float, disks: float, slow: str) -> list[str]:
    return [what, slow if disks > work else "the work itself", _time(max(work, disks))]


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _serving(tensors: list[Tensors]) -> str:
    g = {name: given.value for name, given in GIVEN.items()}
    weights, room = total(tensors), g["cards"] * g["card_memory"]
    tokens = (room * 0.95 - weights) / cache_of_token()
    rows = []
    for batch in BATCHES:
        s = decoding(tensors, batch)
        rate = batch / s.all * 1e3
        parts = (s.weights, s.cache, s.products, s.reduces, s.all)
        ends = (f"{rate:.0f}", f"{s.reduces / s.all:.0%}", f"{g['host_power'] / rate:.2f}")
        rows.append([str(batch), *(f"{part:.2f}" for part in parts), *ends])
    fast = g["cards"] * g["card_fp8"] / (2 * active(tensors))
    head = ("sequences", "weights", "cache", "products", "all-reduces", "a step, ms")
    return "\n\n".join([
        f"Weights take {weights / 1e9:.0f} GB of {room / 1e9:.0f}; with 5 % kept back the rest holds "
        f"{tokens / 1e6:.2f} M tokens, {tokens / g['context']:.0f} sequences of {g['context']:.0f}. "
        f"Reading a prompt is bound by products: {fast / 1e3:.0f} k tokens/s at most.",
        table((*head, "tokens/s", "all-reduces' share", "J a token"), rows),
        f"Power: a rack of {g['rack_power'] / 1e3:.0f} kW takes {g['rack_power'] // g['host_power']:.0f} "
        "such hosts.",
    ])  # fmt: skip


# --- the command ----------------------------------------------------------------------------


def machine() -> str:
    names = [line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name")]
    return f"{len(os.sched_getaffinity(0))} cores of {names[0] if names else platform.processor() or 'a CPU'}"


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def kept() -> tuple[Rates, list[list[str]], str]:
    found = json.loads(KEPT.read_text())
    return Rates(**found["rates"]), found["checked"], found["machine"]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command")
    measure = commands.add_parser("run", help="measure unit costs, then predict and measure a larger run")
    measure.add_argument("--keep", action="store_true", help=f"keep them in {KEPT.relative_to(ROOT)}")
    page = commands.add_parser("page", help="write docs/scale.md")
    page.add_argument("--check", action="store_true", help="only say whether it is fresh")
    args = parser.parse_args()
    if args.command == "page":
        return settle(PAGE, put(PAGE.read_text(), BEGIN, figures(*kept())), args.check)
    if args.command != "run":
        print(figures(*kept()))
        return 0
    rates, checked = run()
    if args.keep:
        found = {"machine": machine(), "rates": asdict(rates), "checked": checked}
        KEPT.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    print(figures(rates, checked, machine()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
