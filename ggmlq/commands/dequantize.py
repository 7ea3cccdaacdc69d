"""``ggmlq dequantize``: a model of blocks as floats."""

from __future__ import annotations

import argparse
from concurrent.futures import Executor

from .. import gguf
from ..convert import plan_dequantize
from . import _convert, _engines

ABOUT = """\
Decode the quantized tensors of IN. f32 loses nothing; f16 and bf16 round once more. OUT is there in full
or not at all.
"""
EXAMPLES = """\
examples:
  ggmlq dequantize model-q4_K.gguf model-f32.gguf
  ggmlq dequantize model-q4_K.gguf model-bf16.gguf --type bf16 --keep '^token_embd=f32'
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "dequantize",
        help="write a GGUF model of blocks as floats",
        description=ABOUT,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _convert.add_options(parser)
    parser.add_argument("--type", default="f32", help="f32 (default), f16 or bf16")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    return _engines.run(_run, args)


def _run(args: argparse.Namespace, executor: Executor | None) -> int:
    with gguf.open(args.input) as file:
        plan = plan_dequantize(file, args.type, keep=args.keep)
        return _convert.carry_out(plan, args, executor=executor)
