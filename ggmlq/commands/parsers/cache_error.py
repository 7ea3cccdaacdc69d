"""``ggmlq cache-error``: what keys and values in few bits cost attention."""

from __future__ import annotations

from pathlib import Path

from ._options import Commands, add_json, count, declare

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
    """Declare ``ggmlq cache-error`` with its options and examples."""
    parser = declare(commands, "cache-error", "models", SUMMARY, ABOUT, EXAMPLES)
    parser.add_argument("path", metavar="FILE", help="a model as GGUF, or an .npz with q, k and v")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--prompt", metavar="TEXT", help="the text that the model reads")
    what.add_argument("--file", type=Path, metavar="F", help="a file with it")
    what.add_argument("--tokens", type=count, metavar="N", help="N random tokens instead")
    what.add_argument(
        "--causal", action="store_true", help="of arrays: the last query is at the last position"
    )
    parser.add_argument("--types", metavar="A,B", help="types of the cache, such as q8_0,q4_0")
    parser.add_argument("--context", type=count, metavar="N", default=512, help="the most tokens (512)")
    add_json(parser)
