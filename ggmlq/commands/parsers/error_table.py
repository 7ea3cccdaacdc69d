"""``ggmlq error-table``: what numbers become in few bits."""

from __future__ import annotations

from ._options import Commands, add_json, declare

SUMMARY = "show how 8-bit codes and block types round numbers"
ABOUT = """\
Show for each value and each format the nearest code under a scale, the value of that code, and the error.
Without arguments: eight values in int8 and in a simulation of 8-bit floats (docs/scaled.md discusses them).
"""
EXAMPLES = """\
  ggmlq error-table
  ggmlq error-table 0.1 3.5 448 --formats e4m3,e5m2,int8,q4_0
  ggmlq error-table --scale 1 --calibrate amax -- -17 300
"""


def add(commands: Commands) -> None:
    """Declare ``ggmlq error-table`` with its options and examples."""
    parser = declare(commands, "error-table", "models", SUMMARY, ABOUT, EXAMPLES)
    parser.add_argument(
        "values", nargs="*", type=float, metavar="VALUE", help="numbers; negative ones after --"
    )
    parser.add_argument("--scale", type=float, help="the code is the one nearest to VALUE / SCALE")
    parser.add_argument(
        "--formats",
        default=None,
        metavar="A,B",
        help="formats, such as e4m3,e5m2,int8,bf16,q4_0,fp8_naive",
    )
    parser.add_argument(
        "--calibrate", choices=["amax"], help="a scale for each format, from the largest value"
    )
    parser.add_argument(
        "--language",
        choices=["en", "zh"],
        default="en",
        help="zh: a table for each format with Chinese headings and five decimals",
    )
    parser.add_argument("--plot", metavar="FILE", help="draw error against value; needs matplotlib")
    add_json(parser)
