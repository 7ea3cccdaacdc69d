"""``ggmlq cache-error``: the errors of attention by the type of a cache, of a model or of arrays."""

from __future__ import annotations

import argparse
import zipfile
from typing import TYPE_CHECKING, Any

from ..errors import GGMLQError, ShapeError, UnsupportedError
from . import _plain
from ._options import Commands, add_text, count, declare, flag, shared

if TYPE_CHECKING:
    from ..accuracy import CacheErrors
    from ..model import Model

SUMMARY = "show what keys and values in few bits cost attention"
ABOUT = """\
Show for each type of a cache the error of attention: with keys alone in it, values alone, and both, without
and with the rotation of gq.KVCache(rotate=True). Errors are squares of what is off, beside those of results.

FILE is a model as GGUF, which reads a text on the CPU: the errors are means over its layers, --json has each
layer. Or it is an .npz with arrays q [B, H, T, D], k [B, HK, S, D] and v [B, HK, S, DV].
"""
EXAMPLES = """\
  ggmlq cache-error model.gguf --file text.txt
  ggmlq cache-error model.gguf --tokens 512 --types q8_0,q4_0 --json
  ggmlq cache-error arrays.npz --causal
"""


def add(commands: Commands) -> None:
    parser = declare(commands, "cache-error", "models", SUMMARY, ABOUT, EXAMPLES)
    parser.add_argument("path", metavar="FILE", help="a model as GGUF, or an .npz with q, k and v")
    what = add_text(parser, "the text that the model reads")
    flag(what, "--causal", "of arrays: the last query is at the last position")
    parser.add_argument("--types", metavar="A,B", help="types of the cache, such as q8_0,q4_0")
    parser.add_argument("--context", type=count, metavar="N", default=512, help="the most tokens (512)")
    shared(parser, "--json")


def run(args: argparse.Namespace) -> int:
    from ..accuracy import cache_error
    from ..accuracy.cache import averaged
    from ..model import attention_operands, load

    settings: dict[str, Any] = {}
    if args.types is not None:
        settings["types"] = [name.strip() for name in args.types.split(",") if name.strip()]
    if args.path.endswith(".npz"):
        q, k, v = _arrays(args)
        errors = cache_error(q, k, v, causal=args.causal, **settings)
        facts: dict[str, Any] = {"errors": _facts(errors)}
    else:
        model = load(args.path, context=args.context)
        tokens = _tokens(args, model)
        layers = [
            cache_error(a.q, a.k, a.v, **settings, **a.options) for a in attention_operands(model, tokens)
        ]
        errors = averaged(layers)
        facts = {"tokens": len(tokens), "errors": _facts(errors), "layers": [*map(_facts, layers)]}
    if args.json:
        _plain.print_json({"file": args.path, **facts})
    else:
        print(errors)
    return 0


def _arrays(args: argparse.Namespace) -> tuple[Any, ...]:
    """Queries, keys and values of a file of NumPy."""
    import numpy as np

    request = args.path
    if args.prompt is not None or args.file is not None or args.tokens is not None:
        raise UnsupportedError(f"{request}: arrays read no text; leave --prompt, --file and --tokens out")
    try:
        with np.load(args.path, allow_pickle=False) as arrays:
            return tuple(arrays[name] for name in "qkv")
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise GGMLQError(
            f"{request}: it has no arrays q, k and v that can be read ({error}); write it with "
            "np.savez(path, q=q, k=k, v=v)"
        ) from error


def _tokens(args: argparse.Namespace, model: Model) -> list[int]:
    """The tokens that a model reads, as many as the context has."""
    import numpy as np

    request, most = args.path, min(args.context, model.config.context)
    if args.causal:
        raise UnsupportedError(
            f"{request}: --causal is for arrays; a model has masks of its own; leave it out"
        )
    if args.tokens:
        count = min(args.tokens, most)
        return [int(token) for token in np.random.default_rng(0).integers(0, model.vocabulary, count)]
    text = args.prompt if args.file is None else _plain.text_of("--file", args.file)
    if text is None:
        raise UnsupportedError(f"{request}: a model reads a text; pass --prompt, --file or --tokens N")
    tokens = model.tokenizer.encode(text)[:most]
    if not tokens:
        raise ShapeError(f"{request}: the text has no tokens; pass another")
    return tokens


def _facts(errors: CacheErrors) -> list[dict[str, Any]]:
    return [row._asdict() for row in errors]
