"""``ggmlq run``: text in, text out."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from ._options import Commands, add_json, add_text, count, declare

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


def add(commands: Commands) -> None:
    """Declare ``ggmlq run`` with its options and examples."""
    parser = declare(commands, "run", "models", SUMMARY, ABOUT, EXAMPLES)
    parser.add_argument("model", metavar="MODEL", help="a GGUF file")
    what = add_text(parser, "the beginning of the text")
    what.add_argument("--chat", action="store_true", help="a conversation, a line at a time (needs Jinja2)")
    parser.add_argument("--generate", type=_number, metavar="N", help="the most tokens of an answer (256)")
    parser.add_argument(
        "--temperature",
        type=_temperature,
        default=0.0,
        metavar="T",
        help="draw tokens; 0 takes the best (default)",
    )
    parser.add_argument("--top-k", type=_number, default=0, metavar="K", help="of the K best ones alone")
    parser.add_argument(
        "--top-p", type=_share, default=1.0, metavar="P", help="of the best whose shares reach P"
    )
    parser.add_argument("--seed", type=_number, metavar="S", help="the seed of draws and of --tokens")
    parser.add_argument("--no-stop", action="store_true", help="go on behind tokens that end a text")
    parser.add_argument("--cache", metavar="TYPE", default="f16", help="type of K and V: q8_0, or q8_0,f16")
    parser.add_argument("--context", type=count, metavar="N", help="positions of the context")
    parser.add_argument(
        "--arithmetic", choices=("exact", "ggml-cpu"), help="multiply otherwise than by the fastest kernels"
    )
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda or cuda:1")
    parser.add_argument("--threads", type=count, metavar="N", help="threads (default: as doctor says)")
    parser.add_argument("--perplexity", type=Path, metavar="FILE", help="the perplexity of a text")
    parser.add_argument(
        "--kl-against", metavar="MODEL", help="how far the shares of tokens are from those of another model"
    )
    add_json(parser)


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > 18:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number; write a whole one, 0 or more")
    return int(text)


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
