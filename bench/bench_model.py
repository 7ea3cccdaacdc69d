"""A whole model on the CPU beside a libllama, in turns: tokens a second of a prompt and of generation.

    python bench/bench_model.py [MODEL] [--lib FOLDER] [--prompt 512] [--generate 64] [--threads 2]
                                [--cache f16] [--rounds 3] [--json FILE]

Without MODEL it is made up: four layers in the shapes of a Llama of 1B, in the types of q4_K_M. Each figure
is the best of the rounds. The first round prepares weights, and its prompt is shown too.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import ggmlq as gq
from ggmlq.base.writing import write_whole
from ggmlq.testing.models import Shape, tiny_model
from ggmlq.trace.libllama import LibLlama, Wishes, locate_llama

ONE_BILLION = Shape(width=2048, hidden=8192, heads=32, kv_heads=8, layers=4, context=4096)
TYPES = {"q": "q4_K", "k": "q4_K", "v": "q6_K", "out": "q4_K", "gate": "q4_K", "up": "q4_K", "down": "q6_K"}


class Peer:
    """libllama with one model."""

    def __init__(self, path: Path, lib: Path | None, wishes: Wishes) -> None:
        self.lib = LibLlama(locate_llama(lib)[1])
        self.model, self.wishes = self.lib.load(str(path)), wishes

    def turn(self, tokens: list[int], then: list[int]) -> tuple[float, float]:
        """Seconds of the prompt and of the tokens behind it."""
        context = self.lib.context(self.model, self.wishes)
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


def main() -> None:
    """Print a line for each program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--lib", type=Path)
    for name, default in (("prompt", 512), ("generate", 64), ("threads", 2), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--cache", default="f16")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    gq.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        path = args.model or tiny_model(Path(folder) / "model.gguf", TYPES, ONE_BILLION)
        rng = np.random.default_rng(0)
        model = gq.model.load(path, cache=args.cache)
        numbers = rng.integers(3, min(model.vocabulary, 30000), args.prompt + args.generate).tolist()
        tokens, then = numbers[: args.prompt], numbers[args.prompt :]
        wishes = Wishes(len(numbers), args.threads, (args.cache, args.cache))
        peer = Peer(path, args.lib, wishes)
        rows = [(turn(model, tokens, then), peer.turn(tokens, then)) for _ in range(args.rounds)]
    facts: dict[str, Any] = {"first_prompt_seconds": rows[0][0][0]}
    for i, name in enumerate(("gq.model", "libllama")):
        prompt, generated = (min(row[i][part] for row in rows) for part in (0, 1))
        facts[name] = {"prompt": args.prompt / prompt, "generate": args.generate / generated}
        print(
            f"{name:9} prompt {args.prompt / prompt:9.1f}  generate {args.generate / generated:8.2f} tokens/s"
        )
    print(f"the first prompt took {rows[0][0][0]:.2f} s")
    if args.json:
        write_whole(args.json, json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
