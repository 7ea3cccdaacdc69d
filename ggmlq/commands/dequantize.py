"""``ggmlq dequantize``: a model of blocks as floats."""

from __future__ import annotations

import argparse
from concurrent.futures import Executor

from .. import gguf
from ..convert import plan_dequantize
from . import _convert, _engines


def run(args: argparse.Namespace) -> int:
    """Run ``ggmlq dequantize``; the result is the exit status."""
    return _engines.run(_run, args)


def _run(args: argparse.Namespace, executor: Executor | None) -> int:
    with gguf.open(args.input) as file:
        plan = plan_dequantize(file, args.type, keep=args.keep)
        return _convert.carry_out(plan, args, executor=executor)
