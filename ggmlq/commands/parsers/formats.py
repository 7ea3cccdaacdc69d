"""``ggmlq formats``: the tables of types, and of llama.cpp's mixes of them."""

from __future__ import annotations

from ._options import Commands, add_json, declare

SUMMARY = "show the tables of all types and of all mixes"
ABOUT = """\
Show all types that a GGUF file can hold, and llama.cpp's mixes. The column imatrix says whether the encoder
uses an importance matrix, needs one, or works without one but `ggmlq quantize` and llama-quantize refuse to
use the type without one, except for token_embd and output.
"""
EXAMPLES = """\
  ggmlq formats
  ggmlq formats q4_K iq2_xs
  ggmlq formats q4_K_M                                    the types in a mix
  ggmlq formats --mixes
"""


def add(commands: Commands) -> None:
    """Declare ``ggmlq formats`` with its options and examples."""
    parser = declare(commands, "formats", "files", SUMMARY, ABOUT, EXAMPLES)
    parser.add_argument("name", nargs="*", help="only these (name in any case, ggml id, or a mix)")
    parser.add_argument("--mixes", action="store_true", help="only the mixes")
    add_json(parser)
