"""``ggmlq dequantize``: a model of blocks as floats."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from . import quantize
from ._options import Commands, declare, with_workers

if TYPE_CHECKING:
    from concurrent.futures import Executor

SUMMARY = "write a GGUF model of blocks as floats"
ABOUT = """\
Decode the quantized tensors of IN. f32 loses nothing; f16 and bf16 round once more. OUT is written in full or
not at all.
"""
EXAMPLES = """\
  ggmlq dequantize model-q4_K.gguf model-f32.gguf
  ggmlq dequantize model-q4_K.gguf model-bf16.gguf --type bf16 --keep '^token_embd=f32'
"""


def add(commands: Commands) -> None:
    parser = declare(commands, "dequantize", "models", SUMMARY, ABOUT, EXAMPLES)
    quantize.add_options(parser)
    parser.add_argument("--type", default="f32", help="f32 (default), f16 or bf16")


@with_workers
def run(args: argparse.Namespace, executor: Executor | None) -> int:
    from .. import gguf
    from ..convert import plan_dequantize

    with gguf.open(args.input) as file:
        plan = plan_dequantize(file, args.type, keep=args.keep)
        return quantize.carry_out(plan, args, executor=executor)
