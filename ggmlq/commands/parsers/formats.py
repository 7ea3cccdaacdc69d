"""``ggmlq formats``: the tables of types, and of llama.cpp's mixes of them."""

from __future__ import annotations

from ._options import Commands, add_json, declare

SUMMARY = "the table of all types, and of the mixes of them"
ABOUT = """\
All types that a GGUF file can hold, and llama.cpp's mixes. imatrix: types whose encoder uses an importance
matrix; cannot do without; or can, but `ggmlq quantize` and llama-quantize refuse to make weights other than
token_embd and output of them without one.
"""
EXAMPLES = """\
  ggmlq formats
  ggmlq formats q4_K iq2_xs
  ggmlq formats q4_K_M                                    what a mix is made of
  ggmlq formats --mixes
"""


def add(commands: Commands) -> None:
    """Declare ``ggmlq formats`` with its options and examples."""
    parser = declare(commands, "formats", "files", SUMMARY, ABOUT, EXAMPLES)
    parser.add_argument("name", nargs="*", help="only these (name in any case, ggml id, or a mix)")
    parser.add_argument("--mixes", action="store_true", help="only the mixes")
    add_json(parser)
