"""Arguments as llama-quantize takes them: ``IN [OUT] TYPE [NTHREADS]`` and the options that it has."""

from __future__ import annotations

import argparse
import re


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of llama-quantize that are no options of ours by another name."""
    group = parser.add_argument_group("as in llama-quantize")
    group.add_argument("--pure", action="store_true", help="the positional TYPE means a type, not a mix")
    group.add_argument("--leave-output-tensor", action="store_true", help="output.weight stays as it is")
    group.add_argument("--output-tensor-type", metavar="TYPE", help="of output.weight")
    group.add_argument("--token-embedding-type", metavar="TYPE", help="of token_embd.weight")
    group.add_argument(
        "--override-kv", action="append", default=[], metavar="KEY=TYPE:VALUE",
        help="set metadata; TYPE is int, float, bool or str; may be given again",
    )  # fmt: skip
    group.add_argument("--prune-layers", type=_layers, metavar="L0,L1,…", help="leave out layers")
    group.add_argument(
        "--include-weights", action="append", default=[], metavar="TEXT",
        help="use the importance matrix only for tensors whose name has TEXT; may be given again",
    )  # fmt: skip
    group.add_argument(
        "--exclude-weights", action="append", default=[], metavar="TEXT",
        help="do not use it for these tensors; may be given again",
    )  # fmt: skip
    group.add_argument("--keep-split", action="store_true", help="the same parts as IN has")


def _layers(text: str) -> list[int]:
    if not re.fullmatch(r"\d{1,6}(,\d{1,6})*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of layers; write 3,4,17")
    return sorted({int(number) for number in text.split(",")})
