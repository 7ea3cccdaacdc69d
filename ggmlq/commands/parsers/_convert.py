"""Options of `quantize` and `dequantize`."""

from __future__ import annotations

import argparse

from . import _engines
from ._options import add_all_tensors, add_force, add_json, count


def add_options(parser: argparse.ArgumentParser, rest: str | None = None) -> None:
    """The options of both. ``rest``: what may follow IN, where that is more than OUT."""
    parser.add_argument("input", metavar="IN", help="a .gguf file, any part of a split model")
    if rest is None:
        parser.add_argument("output", metavar="OUT", help="the new file; not IN")
    else:
        parser.add_argument("rest", nargs="*", metavar=rest, help="OUT: the new file, not IN")
    parser.add_argument(
        "--keep", "--tensor-type", type=_keep_rule, action="append", default=[], metavar="REGEX=TYPE",
        help="TYPE for tensors in whose name REGEX is found; `same` leaves them as they are; "
        "may be given again, the first that fits counts",
    )  # fmt: skip
    parser.add_argument(
        "--threads",
        type=count,
        metavar="N",
        help="threads, with workers of each; all cores if not given",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="only tell what each tensor and file would become"
    )
    _engines.add_options(parser)
    add_force(parser)
    add_all_tensors(parser)
    add_json(parser)


def _keep_rule(text: str) -> tuple[str, str]:
    pattern, equals, kind = text.rpartition("=")
    if not equals or not pattern or not kind:
        raise argparse.ArgumentTypeError(f"{text!r} is no REGEX=TYPE; write attn_v=q6_K or ^output=same")
    return pattern, kind
