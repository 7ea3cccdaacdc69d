"""Arguments as in llama-quantize: ``IN [OUT] TYPE [NTHREADS]`` and options that only it has."""

from __future__ import annotations

import argparse
import re


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of llama-quantize that ggmlq does not have under another name."""
    group = parser.add_argument_group("as in llama-quantize")
    group.add_argument("--pure", action="store_true", help="the positional TYPE means a type, not a mix")
    group.add_argument("--leave-output-tensor", action="store_true", help="do not change output.weight")
    group.add_argument("--output-tensor-type", metavar="TYPE", help="type of output.weight")
    group.add_argument("--token-embedding-type", metavar="TYPE", help="type of token_embd.weight")
    group.add_argument(
        "--override-kv", action="append", default=[], metavar="KEY=TYPE:VALUE",
        help="set metadata; TYPE is int, float, bool or str; may be repeated",
    )  # fmt: skip
    group.add_argument("--prune-layers", type=_layers, metavar="L0,L1,…", help="leave out these layers")
    group.add_argument(
        "--include-weights", action="append", default=[], metavar="TEXT",
        help="use the importance matrix only for tensors whose name contains TEXT; may be repeated",
    )  # fmt: skip
    group.add_argument(
        "--exclude-weights", action="append", default=[], metavar="TEXT",
        help="do not use it for tensors whose name contains TEXT; may be repeated",
    )  # fmt: skip
    group.add_argument("--keep-split", action="store_true", help="write the same parts as IN")


def _layers(text: str) -> list[int]:
    if not re.fullmatch(r"\d{1,6}(,\d{1,6})*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of layers; write 3,4,17")
    return sorted({int(number) for number in text.split(",")})
