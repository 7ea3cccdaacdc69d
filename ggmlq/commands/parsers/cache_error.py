"""``ggmlq cache-error``: what keys and values in few bits cost attention."""

from __future__ import annotations

from ._options import Commands, add_json, add_text, count, declare

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
    what = add_text(parser, "the text that the model reads")
    what.add_argument(
        "--causal", action="store_true", help="of arrays: the last query is at the last position"
    )
    parser.add_argument("--types", metavar="A,B", help="types of the cache, such as q8_0,q4_0")
    parser.add_argument("--context", type=count, metavar="N", default=512, help="the most tokens (512)")
    add_json(parser)
