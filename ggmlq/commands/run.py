"""``ggmlq run``: text in, text out; or the quality of a model on a text."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.system import peak_memory
from ..base.terminal import is_terminal
from ..base.text import size
from ..errors import ShapeError, UnsupportedError
from . import _plain
from ._options import Commands, add_text, count, declare, flag, natural, shared

if TYPE_CHECKING:
    from ..model import Model
    from ._talk import Talk

SUMMARY = "run a model: text in, text out, or its quality on a text"
ABOUT = """\
Run a model on the CPU and print what it says while it says it; speed and memory come at the end, on stderr.
Without a temperature the most likely token is taken each time. Ctrl-C ends an answer. With --perplexity or
--kl-against nothing is generated: the text is measured, in stretches of 512 tokens or --context. Exit 0:
fine, 2: it could not run.
"""
EXAMPLES = """\
  ggmlq run model.gguf --prompt 'Once upon a time' --generate 200
  ggmlq run model.gguf --chat --temperature 0.7 --top-p 0.95
  ggmlq run model.gguf --perplexity text.txt
  ggmlq run small.gguf --kl-against model-f16.gguf --file text.txt --json
"""
ANSWER = 256  # tokens
CHAT = 4096  # positions of a conversation, if the model has as many
NOT_ALONE = "--perplexity and --kl-against measure a text and generate nothing; leave out --chat and --tokens"


def add(commands: Commands) -> None:
    parser = declare(commands, "run", "models", SUMMARY, ABOUT, EXAMPLES)
    shared(parser, "model")
    what = add_text(parser, "the beginning of the text")
    flag(what, "--chat", "a conversation, a line at a time (needs Jinja2)")
    parser.add_argument("--generate", type=natural, metavar="N", help="the most tokens of an answer (256)")
    parser.add_argument(
        "--temperature",
        type=_temperature,
        default=0.0,
        metavar="T",
        help="draw tokens; 0 takes the best (default)",
    )
    parser.add_argument("--top-k", type=natural, default=0, metavar="K", help="of the K best ones alone")
    parser.add_argument(
        "--top-p", type=_share, default=1.0, metavar="P", help="of the best whose shares reach P"
    )
    parser.add_argument("--seed", type=natural, metavar="S", help="the seed of draws and of --tokens")
    flag(parser, "--no-stop", "go on behind tokens that end a text")
    parser.add_argument(
        "--draft", metavar="WHAT", help="guess tokens ahead: 'lookup' in the text, or a smaller MODEL"
    )
    flag(parser, "--invariant", "logits by kernels whose rows keep their bits: with drafts the same text")
    parser.add_argument("--cache", metavar="TYPE", default="f16", help="type of K and V: q8_0, or q8_0,f16")
    parser.add_argument("--context", type=count, metavar="N", help="positions of the context")
    parser.add_argument(
        "--arithmetic", choices=("exact", "ggml-cpu"), help="multiply otherwise than by the fastest kernels"
    )
    shared(parser, "--device")
    parser.add_argument("--threads", type=count, metavar="N", help="threads (default: as doctor says)")
    parser.add_argument("--perplexity", type=Path, metavar="FILE", help="the perplexity of a text")
    parser.add_argument(
        "--kl-against", metavar="MODEL", help="how far the shares of tokens are from those of another model"
    )
    shared(parser, "--json")


def _temperature(text: str) -> float:
    value = _float(text)
    if not 0 <= value < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a temperature; write a number, 0 or more")
    return value


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _share(text: str) -> float:
    value = _float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share; write a number above 0, up to 1")
    return value


def run(args: argparse.Namespace) -> int:
    import numpy as np

    from ..base.threads import set_num_threads
    from ..model.sampling import Sampling
    from ._talk import Talk

    if args.threads:
        set_num_threads(args.threads)
    if args.perplexity or args.kl_against:
        return _measure(args)
    if args.chat and args.json:
        raise UnsupportedError("--chat with --json: a conversation is no record; leave one of them out")
    model = _load(args, args.model)
    tokens = None if args.chat else _tokens(args, model)
    draft = _load(args, args.draft) if args.draft not in (None, "lookup") else args.draft
    talk = Talk(
        model, Sampling(args.temperature, args.top_k, args.top_p), np.random.default_rng(args.seed),
        frozenset() if args.no_stop or args.tokens else model.tokenizer.ends,
        _positions(args, model, 0 if tokens is None else len(tokens)), draft=draft,
    )  # fmt: skip
    if tokens is None:
        _converse(args, talk)
    else:
        _answer(args, talk, tokens)
    return 0


def _load(args: argparse.Namespace, path: str) -> Model:
    from ..model import load

    parts = args.cache.split(",")
    if len(parts) > 2:
        raise UnsupportedError(f"--cache {args.cache}: it is a type for both, or K's and V's: q8_0,f16")
    types, more = (parts[0], parts[-1]), {"context": args.context, "invariant": args.invariant}
    return load(path, args.device, args.arithmetic, types, **more)


def _tokens(args: argparse.Namespace, model: Model) -> list[int]:
    """The tokens that a text begins with."""
    import numpy as np

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
        "read": talk.read.facts(), "generated": talk.said.facts() | {"tokens": talk.count},
        "drafts": {"tokens": talk.batch.drafted, "accepted": talk.batch.accepted}, **_memory(talk),
    }  # fmt: skip


def _memory(talk: Talk) -> dict[str, Any]:

    sizes = {"weights_bytes": talk.model.nbytes, "cache_bytes": talk.cache.nbytes}
    return {**sizes, "peak_bytes": peak_memory()}


def _close(talk: Talk) -> None:
    """The last lines, on stderr: why it ended, speed and memory."""
    from ._talk import FEW

    print(end="", flush=True)  # the text stands before them
    if talk.reason == "context":
        print(
            f"the context of {talk.positions:,} positions is full: the answer ends here; give a larger "
            "--context, or begin anew with a shorter text",
            file=sys.stderr,
        )
    m, b = _memory(talk), talk.batch
    drafts = f", {b.accepted:,} of {b.drafted:,} drafted ones right" if talk.draft is not None else ""
    most = "" if m["peak_bytes"] is None else f", memory at most {size(m['peak_bytes'])}"
    print(
        f"prepared in {talk.prepared:.1f} s; read {talk.read.words(talk.read.tokens, FEW)}; generated "
        f"{talk.said.words(talk.count)}{drafts}; weights {size(m['weights_bytes'])}, keys and values "
        f"{size(m['cache_bytes'])}{most}",
        file=sys.stderr,
    )


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


def _measure(args: argparse.Namespace) -> int:
    """Print the perplexity of a text, and the distance from another model."""
    from ..model.quality import check_alike, measured, stretches
    from . import _quality

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
    if against is not None:
        check_alike(model, against)
    pieces = stretches(model, text, args.context)
    facts = measured(model, against, pieces, False if args.json else None)
    if args.json:
        _plain.print_json({"model": str(args.model), "against": args.kl_against, **facts})
    else:
        print("\n".join(_quality.said(facts)))
    return 0
