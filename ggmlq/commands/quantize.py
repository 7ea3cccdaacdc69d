"""``ggmlq quantize``: a model in a smaller type, with llama.cpp's bytes."""

from __future__ import annotations

import argparse

from .. import gguf
from ..convert import plan_quantize
from . import _convert

ABOUT = """\
Quantize the tensors of IN that llama.cpp would quantize: all to one type, as `llama-quantize --pure`
does, or to the types of one of its mixes (q4_K_M). Prints sizes and NMSE of each tensor. OUT is there
in full or not at all.
"""
EXAMPLES = """\
examples:
  ggmlq quantize model-f16.gguf model-q4_K.gguf --type q4_K
  ggmlq quantize model-f16.gguf model-q4_K_M.gguf --type q4_K_M --imatrix imatrix.gguf
  ggmlq quantize in.gguf out.gguf --type q4_0 --keep '^output=q6_K' --keep 'ffn_down=q5_0'
  ggmlq quantize in.gguf out.gguf --type q8_0 --keep '^token_embd=same' --dry-run
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "quantize",
        help="write a GGUF model in another type or mix, with llama.cpp's bytes",
        description=ABOUT,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _convert.add_options(parser)
    parser.add_argument("--type", required=True, help="q4_K, q8_0, f16, … or a mix such as q4_K_M")
    parser.add_argument(
        "--mixed", action="store_true", help="TYPE names llama.cpp's mix, also where a type has that name"
    )
    parser.add_argument("--imatrix", metavar="FILE", help="importance matrix, .gguf or .dat")
    parser.add_argument(
        "--any-name", action="store_true",
        help="every tensor of two axes or more; else llama.cpp's rules by name hold",
    )  # fmt: skip
    parser.add_argument(
        "--allow-requantize",
        action="store_true",
        help="quantize tensors of blocks again; adds to their error",
    )
    parser.add_argument(
        "--no-fallback", action="store_true",
        help="an error, not another type, where rows are not whole blocks",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    with gguf.open(args.input) as file:
        plan = plan_quantize(
            file, args.type, imatrix=args.imatrix, keep=args.keep, mixed=args.mixed, any_name=args.any_name,
            allow_requantize=args.allow_requantize, allow_fallback=not args.no_fallback,
        )  # fmt: skip
        return _convert.carry_out(plan, args)
