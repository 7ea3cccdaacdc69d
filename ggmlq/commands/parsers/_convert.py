"""Options of `quantize` and `dequantize`."""

from __future__ import annotations

import argparse

from . import _engines
from ._options import add_all_tensors, add_force, add_json, count


def add_options(parser: argparse.ArgumentParser, rest: str | None = None) -> None:
    """Declare the options of both commands. ``rest``: the words after IN, if they are more than OUT."""
    parser.add_argument("input", metavar="IN", help="a .gguf file, any part of a split model")
    if rest is None:
        parser.add_argument("output", metavar="OUT", help="the new file; not IN")
    else:
        parser.add_argument("rest", nargs="*", metavar=rest, help="OUT: the new file, not IN")
    parser.add_argument(
        "--keep", "--tensor-type", type=_keep_rule, action="append", default=[], metavar="REGEX=TYPE",
        help="TYPE for tensors whose name contains REGEX; `same` does not change them; "
        "may be repeated, the first that fits counts",
    )  # fmt: skip
    parser.add_argument(
        "--threads",
        type=count,
        metavar="N",
        help="number of threads, of each worker if there are workers (default: all cores)",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="write nothing, only show the new types and sizes"
    )
    _engines.add_options(parser)
    add_force(parser)
    add_all_tensors(parser)
    add_json(parser)


def _keep_rule(text: str) -> tuple[str, str]:
    pattern, equals, kind = text.rpartition("=")
    if not equals or not pattern or not kind:
        raise argparse.ArgumentTypeError(f"{text!r} is not REGEX=TYPE; write attn_v=q6_K or ^output=same")
    return pattern, kind
