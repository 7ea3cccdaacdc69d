"""``ggmlq run``: text in, text out; or the quality of a model on a text."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from ..base.peak import peak_bytes
from ..base.terminal import is_terminal
from ..base.text import size
from ..base.threads import set_num_threads
from ..errors import ShapeError, UnsupportedError
from ..model import Model, load
from ..model.sampling import Sampling
from . import _plain, _quality
from ._talk import FEW, Talk

ANSWER = 256  # tokens
CHAT = 4096  # positions of a conversation, if the model has as many
NOT_ALONE = "--perplexity and --kl-against measure a text and generate nothing; leave out --chat and --tokens"


def run(args: argparse.Namespace) -> int:
    """Run ``ggmlq run``; the result is the exit status."""
    if args.threads:
        set_num_threads(args.threads)
    if args.perplexity or args.kl_against:
        return _measure(args)
    if args.chat and args.json:
        raise UnsupportedError("--chat with --json: a conversation is no record; leave one of them out")
    model = _load(args, args.model)
    tokens = None if args.chat else _tokens(args, model)
    talk = Talk(
        model, Sampling(args.temperature, args.top_k, args.top_p), np.random.default_rng(args.seed),
        frozenset() if args.no_stop or args.tokens else model.tokenizer.ends,
        _positions(args, model, 0 if tokens is None else len(tokens)),
    )  # fmt: skip
    if tokens is None:
        _converse(args, talk)
    else:
        _answer(args, talk, tokens)
    return 0


def _load(args: argparse.Namespace, path: str) -> Model:
    parts = args.cache.split(",")
    if len(parts) > 2:
        raise UnsupportedError(f"--cache {args.cache}: it is a type for both, or K's and V's: q8_0,f16")
    return load(path, args.device, args.arithmetic, (parts[0], parts[-1]), context=args.context)


def _tokens(args: argparse.Namespace, model: Model) -> list[int]:
    """The tokens that a text begins with."""
    if args.tokens:
        rng = np.random.default_rng(args.seed)
        return [int(token) for token in rng.integers(0, model.vocabulary, args.tokens)]
    text = args.prompt if args.file is None else _plain.text_of("--file", args.file)
    if text is None:
        raise UnsupportedError(
            "there is nothing to begin with; pass --prompt TEXT, --file F, --tokens N or --chat"
        )
    tokens = model.tokenizer.encode(text)
    if not tokens:
        raise ShapeError("the prompt has no tokens; an answer needs one to begin with; pass a text")
    return tokens


def _positions(args: argparse.Namespace, model: Model, count: int) -> int:
    """Positions of the cache: what is asked for, as far as the context goes."""
    if args.chat:
        return model.config.context if args.context else min(CHAT, model.config.context)
    return min(model.config.context, count + _most(args) + 1)


def _most(args: argparse.Namespace) -> int:
    return ANSWER if args.generate is None else int(args.generate)


# --- a text -----------------------------------------------------------------------------------


def _answer(args: argparse.Namespace, talk: Talk, tokens: list[int]) -> None:
    """Print a text and what follows it, or a record of both."""
    answer: list[int] = []
    if not args.json:
        _say([args.prompt or ""] if args.file is None else [])
    with suppress(KeyboardInterrupt):
        talk.hear(tokens)
        _say(_pieces(args, talk, answer), quiet=args.json)
    if args.json:
        _plain.print_json(_record(args, talk, tokens, answer))
        return
    print(flush=True)
    _close(talk)


def _pieces(args: argparse.Namespace, talk: Talk, answer: list[int]) -> Iterator[str]:
    """The answer as text, piece by piece; as numbers where tokens are random."""

    def noted() -> Iterator[int]:
        for token in talk.answer(_most(args)):
            answer.append(token)
            yield token

    if args.tokens:
        yield from (f"{token} " for token in noted())
    else:
        yield from talk.model.tokenizer.stream(noted(), begun=True)


def _say(pieces: Iterable[str], quiet: bool = False) -> None:
    """Print pieces as they come; control characters cannot move the cursor."""
    for piece in pieces:
        if not quiet:
            print(
                "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in piece),
                end="",
                flush=True,
            )


def _record(args: argparse.Namespace, talk: Talk, tokens: list[int], answer: list[int]) -> dict[str, Any]:
    return {
        "model": str(args.model), "architecture": talk.model.config.architecture, "prompt": tokens,
        "tokens": answer, "text": None if args.tokens else talk.model.tokenizer.decode(answer),
        "ended": talk.reason or "interrupted", "context": talk.positions,
        "prepared": {"seconds": talk.prepared},
        "read": talk.read.facts(), "generated": talk.said.facts() | {"tokens": talk.count}, **_memory(talk),
    }  # fmt: skip


def _memory(talk: Talk) -> dict[str, Any]:
    sizes = {"weights_bytes": talk.model.nbytes, "cache_bytes": talk.cache.nbytes}
    return {**sizes, "peak_bytes": peak_bytes()}


def _close(talk: Talk) -> None:
    """The last lines, on stderr: why it ended, speed and memory."""
    print(end="", flush=True)  # the text stands before them
    if talk.reason == "context":
        print(
            f"the context of {talk.positions:,} positions is full: the answer ends here; give a larger "
            "--context, or begin anew with a shorter text",
            file=sys.stderr,
        )
    m = _memory(talk)
    most = "" if m["peak_bytes"] is None else f", memory at most {size(m['peak_bytes'])}"
    print(
        f"prepared in {talk.prepared:.1f} s; read {talk.read.words(talk.read.tokens, FEW)}; generated "
        f"{talk.said.words(talk.count)}; weights {size(m['weights_bytes'])}, keys and values "
        f"{size(m['cache_bytes'])}{most}",
        file=sys.stderr,
    )


# --- a conversation ---------------------------------------------------------------------------


def _converse(args: argparse.Namespace, talk: Talk) -> None:
    """Lines and answers in turn, until the input ends; Ctrl-C ends an answer, or clears a line."""
    messages: list[dict[str, str]] = []
    shown = is_terminal(sys.stdin)
    while True:
        try:
            if (line := _line(shown)) is None:
                break
        except KeyboardInterrupt:
            print()
            continue
        if not line:
            continue
        messages.append({"role": "user", "content": line})
        tokens = talk.model.tokenizer.encode(talk.model.tokenizer.chat(messages), whole=False)
        answer: list[int] = []
        with suppress(KeyboardInterrupt):
            talk.hear(tokens)
            _say(_pieces(args, talk, answer))
        print(flush=True)
        messages.append({"role": "assistant", "content": talk.model.tokenizer.decode(answer)})
        if talk.reason == "context":
            break
    if shown:
        print()
    _close(talk)


def _line(shown: bool) -> str | None:
    """The next line of the input; None at its end, or where the process has none."""
    if shown and sys.stdout is not None and sys.stderr is not None:  # which input() wants, too
        try:
            return input("> ").strip()
        except EOFError:
            return None
    line = "" if sys.stdin is None else sys.stdin.readline()
    return line.strip() if line else None


# --- quality ----------------------------------------------------------------------------------


def _measure(args: argparse.Namespace) -> int:
    """Print the perplexity of a text, and the distance from another model."""
    if args.chat or args.tokens:
        raise UnsupportedError(NOT_ALONE)
    if args.perplexity:
        text = _plain.text_of("--perplexity", args.perplexity)
    elif args.file or args.prompt:
        text = args.prompt if args.file is None else _plain.text_of("--file", args.file)
    else:
        raise UnsupportedError(
            "--kl-against needs a text to measure on; pass --perplexity FILE, --file F or --prompt TEXT"
        )
    model = _load(args, args.model)
    against = _load(args, args.kl_against) if args.kl_against else None
    if against is not None and against.vocabulary != model.vocabulary:
        raise ShapeError(
            f"{args.model} has {model.vocabulary} tokens, {args.kl_against} {against.vocabulary}; "
            "shares of tokens are compared one by one; take two files of one model"
        )
    pieces = _quality.stretches(model, text, args.context)
    facts = _quality.measured(model, against, pieces, False if args.json else None)
    if args.json:
        _plain.print_json({"model": str(args.model), "against": args.kl_against, **facts})
    else:
        print("\n".join(_quality.said(facts)))
    return 0
