"""The tables of docs/scale.md: what a 671B FP8 checkpoint costs on 8 x H200, and that model checked.

It is opened, surveyed, requantized and served. --run measures the unit costs of this machine, then predicts
and measures a larger run, in a minute or two and 1 GB of disk; on a machine that does other things as well it
is worth little. Without --run figures are those of bench/results/scale_host.json.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict

from ggmlq.testing.machine import machine

from . import RESULTS, Options, Texts, load, table
from ._scale_model import (
    ASSUMPTIONS,
    BITS,
    VALUES,
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
from ._scale_run import run

OPTIONS = {"--run": {"action": "store_true", "help": "measure on this machine, and keep what was measured"}}
BATCHES = (1, 8, 64, 256, 512)


def texts(options: Options) -> Texts:
    """The page, and with --run the results."""
    results = load(RESULTS / "scale_host.json")
    if options.run:
        rates, checked = run()
        name = f"{len(os.sched_getaffinity(0))} cores of {machine()['cpu']['name']}"
        results = {"machine": name, "rates": asdict(rates), "checked": checked}
        yield "bench/results/scale_host.json", json.dumps(results, indent=2, ensure_ascii=False) + "\n"
    yield "docs/scale.md", figures(Rates(**results["rates"]), results["checked"], results["machine"])


def figures(rates: Rates, checked: list[list[str]], machine: str) -> str:
    """All sections below the page's first words."""
    tensors = deepseek_v3()
    assumptions = [(_amount(a.value, a.unit), a.what, a.source) for a in ASSUMPTIONS.values()]
    units = [(*line, f"measured on {machine}") for line in rates.lines()]
    return "\n\n".join([
        "### Assumptions", table(("", "what", "where from"), [*assumptions, *units]),
        "### The checkpoint", _checkpoint(tensors), "### Files", _files(rates, tensors),
        "### Serving", _serving(tensors), "### The model against a run",
        f"On {machine}; unit costs from smaller runs of the same kind.",
        table(("what", "predicted", "measured", "measured / predicted"), checked),
    ])  # fmt: skip


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
        f"in {VALUES['files']:.0f} files. A token is multiplied with {active(tensors) / 1e9:.1f} G of "
        f"{spoken / 1e9:.1f} G; it leaves {cache_of_token() / 1e3:.1f} kB for those that follow."
    )


def _files(rates: Rates, tensors: list[Tensors]) -> str:
    v = VALUES
    nbytes, stored = total(tensors), sum(t.stored for t in tensors)
    weights = sum(t.count * t.elements for t in tensors)
    matrices = sum(t.count for t in tensors if t.kind == "fp8")
    smaller = weights * BITS / 8  # bytes of q4_K
    reading = nbytes / v["disk_read"]
    rows = [
        ["open, files here", "headers", f"{opening(rates, v['files'], stored):.1f} s"],
        ["open, on a hub", "two requests a file", f"{2 * v['files'] * v['net_latency']:.0f} s"],
        ["fetch all of it", "the network", _time(nbytes / v["net_read"])],
    ]
    for workers in (1, v["cores"]):
        work = surveying(rates, weights, matrices, workers)
        rows.append(_bound(f"survey, {workers:.0f} at work", work, reading, "reading the disks"))
    for workers in (1, v["cores"]):
        work = requantizing(rates, weights, smaller, workers, float("inf"))
        title = f"requantize to q4_K ({smaller / 1e9:.0f} GB), {workers:.0f} at work"
        rows.append(_bound(title, work, reading + smaller / v["disk_write"], "the disks"))
    links = nbytes / (v["cards"] * v["link"] * v["link_share"])
    hosts = v["shared_most"] / v["shared_read"]
    cores = v["shared_most"] * (1 / rates.walk + matrices * rates.trial / weights)
    network = _time(nbytes / v["shared_read"])
    rows += [
        _bound("load to 8 cards", links, reading, "reading the disks"),
        ["load to 8 cards, files over the network", "the file system", network],
        ["hosts that this file system feeds", "more bring nothing", f"{hosts:.0f}"],
        ["cores that keep its 40 GB/s busy with a survey", "more bring nothing", f"{cores:.0f}"],
    ]
    return table(("what", "bound by", "cost"), rows)


def _bound(title: str, work: float, disks: float, slow: str) -> list[str]:
    return [title, slow if disks > work else "the work itself", _time(max(work, disks))]


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _serving(tensors: list[Tensors]) -> str:
    v = VALUES
    weights, memory = total(tensors), v["cards"] * v["card_memory"]
    tokens = (memory * 0.95 - weights) / cache_of_token()
    rows = []
    for batch in BATCHES:
        s = decoding(tensors, batch)
        rate = batch / s.all * 1e3
        times = (s.weights, s.cache, s.products, s.reduces, s.all)
        ratios = (f"{rate:.0f}", f"{s.reduces / s.all:.0%}", f"{v['host_power'] / rate:.2f}")
        rows.append([str(batch), *(f"{time:.2f}" for time in times), *ratios])
    fast = v["cards"] * v["card_fp8"] / (2 * active(tensors))
    header = ("sequences", "weights", "cache", "products", "all-reduces", "a step, ms")
    return "\n\n".join([
        f"Weights take {weights / 1e9:.0f} GB of {memory / 1e9:.0f}; with 5 % kept back the rest holds "
        f"{tokens / 1e6:.2f} M tokens, {tokens / v['context']:.0f} sequences of {v['context']:.0f}. "
        f"Reading a prompt is bound by products: {fast / 1e3:.0f} k tokens/s at most.",
        table((*header, "tokens/s", "all-reduces' share", "J a token"), rows),
        f"Power: a rack of {v['rack_power'] / 1e3:.0f} kW takes {v['rack_power'] // v['host_power']:.0f} "
        "such hosts.",
    ])  # fmt: skip
