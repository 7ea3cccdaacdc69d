"""Whole models on the CPU beside a libllama, in turns: tokens a second of prompts and of generation.

    python bench/bench_model.py [MODEL ...] [--lib FOLDER] [--threads 1,2] [--prompts 4] [--tokens 100-600]
                                [--generate 64] [--cache f16] [--seed S] [--json FILE]
    python bench/bench_model.py [MODEL ...] --device cuda [--parts first,prompts,generated,sequences] …

Prompts have lengths and tokens drawn from the seed, which is printed; each is new, in a cache of its own, and
tokens are generated behind it. libllama goes with flash attention and without, and the faster one counts.
Each line has the mean, and the worst prompt beside libllama. The first prompt, for which weights are
prepared, is told apart. Without MODEL a whole Llama of 1B is made up in the types of q4_K_M.

On a GPU (model_card.py) each part is a process: the first token of a process, prompts of new lengths in new
caches and turns of a talk, what is generated behind short and long prompts, several sequences. There the
model that is made up has the shapes of an 8B and a vocabulary of 128,256.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from secrets import randbelow
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # of a script as of a module of the folder

import ggmlq as gq
from bench import model_card
from ggmlq.base.writing import write_whole
from ggmlq.testing.models import Shape, tiny_model
from ggmlq.trace.libllama import LibLlama, Wishes, locate_llama

ONE_BILLION = Shape(width=2048, hidden=8192, heads=32, kv_heads=8, layers=16, context=4096)
TYPES = {"q": "q4_K", "k": "q4_K", "v": "q6_K", "out": "q4_K", "gate": "q4_K", "up": "q4_K", "down": "q6_K"}
PARTS = "prompt", "generate"


class Peer:
    """libllama with one model."""

    def __init__(self, path: Path, lib: Path | None, cache: str) -> None:
        self.lib, self.cache = LibLlama(locate_llama(lib)[1]), cache
        self.model = self.lib.load(str(path))

    def turn(self, tokens: list[int], then: list[int], threads: int, flash: bool) -> tuple[float, float]:
        """Seconds of the prompt and of the tokens behind it."""
        wishes = Wishes(len(tokens) + len(then), threads, (self.cache, self.cache), flash)
        context = self.lib.context(self.model, wishes)
        begin = time.perf_counter()
        self.lib.decode(context, tokens, 0)
        middle = time.perf_counter()
        for i, token in enumerate(then):
            self.lib.decode(context, [token], len(tokens) + i)
        end = time.perf_counter()
        self.lib.free_context(context)
        return middle - begin, end - middle


def turn(model: Any, tokens: list[int], then: list[int]) -> tuple[float, float]:
    """Seconds of both by gq.model."""
    cache = model.cache(len(tokens) + len(then))
    begin = time.perf_counter()
    model.run(np.array(tokens), cache, last=True)
    middle = time.perf_counter()
    for token in then:
        model.run(np.array([token]), cache)
    return middle - begin, time.perf_counter() - middle


def mixed_types(layers: int) -> list[dict[str, str]]:
    """The types of q4_K_M by layers: of some of them values and down are q6_K."""
    kinds = []
    for layer in range(layers):
        ends = layer < layers // 8 or layer >= 7 * layers // 8
        more = "q6_K" if ends or (layer - layers // 8) % 3 == 2 else "q4_K"
        roles = dict.fromkeys(("q", "k", "out", "gate", "up", "embd"), "q4_K")
        kinds.append(roles | {"v": more, "down": more, "head": "q6_K"})
    return kinds


def measured(path: Path, args: argparse.Namespace, rng: np.random.Generator) -> dict[str, Any]:
    """The figures of a file: by threads and part, tokens a second of both, and their ratios."""
    begin = time.perf_counter()
    model = gq.model.load(path, cache=args.cache)
    peer, facts = Peer(path, args.lib, args.cache), dict[str, Any]()
    low, high = args.tokens
    for threads in args.threads:
        gq.set_num_threads(threads)
        speeds = []
        for i in range(args.prompts + 1):
            count = int(rng.integers(low, high + 1))
            numbers = rng.integers(3, min(model.vocabulary, 30000), count + args.generate).tolist()
            ours = turn(model, numbers[:count], numbers[count:])
            if not facts:
                facts["first_prompt"] = {"tokens": count, "seconds_from_load": time.perf_counter() - begin}
            if not i:
                continue  # of a number of threads the first prompt chooses kernels
            both = [peer.turn(numbers[:count], numbers[count:], threads, flash) for flash in (True, False)]
            sizes = count, args.generate
            best = [min(part) for part in zip(*both, strict=True)]
            speeds.append([[n / a, n / b] for n, a, b in zip(sizes, ours, best, strict=True)])
        table = np.array(speeds)  # [prompts, parts, sides]
        for p, part in enumerate(PARTS):
            ratios = table[:, p, 0] / table[:, p, 1]
            mean, peers = table[:, p].mean(axis=0)
            facts[f"{threads} threads, {part}"] = {
                "gq.model": mean, "libllama": peers, "ratio": ratios.mean(), "worst": ratios.min(),
            }  # fmt: skip
            print(
                f"{path.name:28.28} {threads:3} threads  {part:8} {mean:9.1f} tokens/s  libllama {peers:9.1f}"
                f"   {ratios.mean():5.2f} x, worst {ratios.min():5.2f} x",
                flush=True,
            )
    first = facts["first_prompt"]
    print(
        f"the first prompt, of {first['tokens']} tokens, took {first['seconds_from_load']:.2f} s with loading"
    )
    return facts


def main() -> None:
    """Print a line for each file, number of threads and part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--lib", type=Path)
    parser.add_argument("--threads", type=_numbers, default=[1, 2])
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--tokens", type=_range, default=(100, 600))
    parser.add_argument("--generate", type=int, default=64)
    parser.add_argument("--cache", default="f16")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--parts", type=lambda text: text.split(","), default=list(model_card.PARTS))
    args = parser.parse_args()
    seed = args.seed = randbelow(10**6) if args.seed is None else args.seed
    print(f"--seed {seed}")
    rng, facts = np.random.default_rng(seed), {"seed": seed}
    with tempfile.TemporaryDirectory() as folder:
        on_card = args.device == "cuda"
        paths = args.models or [made_up(Path(folder), on_card)]
        for path in paths:
            facts[path.name] = model_card.measured(path, args) if on_card else measured(path, args, rng)
    if args.json:
        write_whole(args.json, json.dumps(facts, indent=1))


def made_up(folder: Path, on_card: bool) -> Path:
    """A model of random weights in the types of q4_K_M."""
    if not on_card:
        return tiny_model(folder / "made-up-1B.gguf", TYPES, ONE_BILLION)
    shape = model_card.EIGHT_BILLION
    return tiny_model(folder / "made-up-8B.gguf", mixed_types(shape.layers), shape)


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def _range(text: str) -> tuple[int, int]:
    low, _, high = text.partition("-")
    return int(low), int(high or low)


if __name__ == "__main__":
    main()
