"""Whole models on a GPU as people have them: ``python bench/bench_model.py --device cuda``.

Lengths and tokens are drawn from the seed. Every prompt has a new length and a cache of its own. What a fresh
process takes from ``gq.model.load`` to its first token stands apart: two processes, the first of which may
find the file outside of the page cache.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import ggmlq as gq
from ggmlq.testing.models import Shape

EIGHT_BILLION = Shape(4096, 14336, 32, 8, 32, context=32768, tokens=128256)
RANGES = (100, 400), (400, 900), (2000, 5000)
PROMPTS, TURNS, MORE, LONG = 8, 6, 128, 16384
SEQUENCES, LENGTHS = (4, 16, 50), (50, 600)


def measured(path: Path, args: argparse.Namespace) -> dict[str, Any]:
    """The figures of a file, each part in a process of its own."""
    facts: dict[str, Any] = {}
    for name in ("first", "first", *PARTS):
        if name in args.parts:
            command = [sys.executable, __file__, str(path), name, str(args.seed), args.cache]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
            if done.returncode:
                sys.exit(f"{name} of {path.name} failed")
            *lines, figures = done.stdout.splitlines()
            print("\n".join(lines), flush=True)
            facts[name if name not in facts else f"{name}, again"] = json.loads(figures)
    return facts


class Run:
    """A model that is open, tokens of the seed, and a clock that waits for the card."""

    def __init__(self, path: Path, seed: int, cache: str) -> None:
        self.rng, self.begun = np.random.default_rng(seed), time.perf_counter()
        self.model = gq.model.load(path, device="cuda", cache=cache)

    def tokens(self, low: int, high: int) -> Any:
        """Tokens, of a number between two."""
        count = int(self.rng.integers(low, high + 1))
        return self.rng.integers(3, min(self.model.vocabulary, 30000), count)

    def read(self, tokens: Any, cache: Any) -> float:
        """Seconds until the logits behind a prompt have arrived."""
        begun = time.perf_counter()
        self.model.prompt(tokens, cache).get()
        return time.perf_counter() - begun

    def continued(self, tokens: Any, more: int) -> list[float]:
        """The times at which tokens arrived behind a beginning, or tokens of each of several."""
        begun = time.perf_counter()
        return [time.perf_counter() - begun for _ in self.model.generate(tokens, more)]


def first(run: Run) -> dict[str, Any]:
    """The first token of a process."""
    next(run.model.generate(run.tokens(30, 60), 1))
    seconds = time.perf_counter() - run.begun
    print(f"load to the first token: {seconds:.2f} s")
    return {"seconds": seconds}


def prompts(run: Run) -> dict[str, Any]:
    """Prompts of new lengths in new caches, twice eight of each range, then turns of a talk."""
    facts: dict[str, Any] = {}
    run.read(run.tokens(30, 60), run.model.cache(100))
    for low, high in RANGES:
        for turn in ("the first eight", "eight more"):
            seconds, count, worst = 0.0, 0, 0.0
            for _ in range(PROMPTS):
                tokens = run.tokens(low, high)
                one = run.read(tokens, run.model.cache(len(tokens) + MORE))
                seconds, count, worst = seconds + one, count + len(tokens), max(worst, one)
            facts[f"prompts of {low} to {high}, {turn}"] = count / seconds
            print(
                f"prompts of {low:,} to {high:,}, {turn}: {count / seconds:,.0f} tokens/s, "
                f"the longest {worst * 1e3:.1f} ms"
            )
    cache = run.model.cache(8192)
    turns = [1e3 * run.read(run.tokens(50, 600), cache) for _ in range(TURNS)]
    print("turns of a talk:", ", ".join(f"{ms:.1f}" for ms in turns), "ms")
    return {**facts, "turns, ms": turns}


def generated(run: Run) -> dict[str, Any]:
    """Tokens behind a prompt, twice, and behind a long one."""
    facts: dict[str, Any] = {}
    for name, low, high in (("short", 200, 400), ("short, again", 200, 400), ("long", LONG, LONG)):
        times = run.continued(run.tokens(low, high), MORE)
        facts[name] = (MORE - 8) / (times[-1] - times[7])
        print(f"generated {MORE}, {name}: {facts[name]:,.0f} tokens/s; the first after {times[0]:.3f} s")
    return facts


def sequences(run: Run) -> dict[str, Any]:
    """Several sequences of drawn lengths: to the first tokens, then tokens a second of all together."""
    facts: dict[str, Any] = {}
    run.continued(run.tokens(30, 60), 4)
    for count in SEQUENCES:
        for turn in ("first", "again"):
            begun = time.perf_counter()
            times = run.continued([run.tokens(*LENGTHS).tolist() for _ in range(count)], 64)
            facts[f"{count}, {turn}"] = times[0], count * (len(times) - 8) / (times[-1] - times[7])
            print(
                f"{count} sequences, {turn}: the first tokens after {times[0]:.3f} s, then "
                f"{facts[f'{count}, {turn}'][1]:,.0f} tokens/s ({time.perf_counter() - begun:.2f} s in all)"
            )
    return facts


PARTS: dict[str, Callable[[Run], dict[str, Any]]] = {
    "first": first, "prompts": prompts, "generated": generated, "sequences": sequences,
}  # fmt: skip


if __name__ == "__main__":
    _, file, part, number, kind = sys.argv
    print(json.dumps(PARTS[part](Run(Path(file), int(number), kind))))
