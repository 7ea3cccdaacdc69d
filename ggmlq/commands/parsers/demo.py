"""``ggmlq demo``: products on this machine. tools/demo reads the options before it installs anything."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from ._options import Commands, add_json, declare

SUMMARY = "multiply layers, check the results and compare the time"
ABOUT = """\
Multiply with the layers of a model, or with a random layer in eight types, which is saved as a GGUF file and
opened. Every product is judged in float64 before it is timed. Its time is compared with NumPy on float32
weights and, if there is one, with llama.cpp's CPU backend. Exit 0: all products are right, 1: one is wrong,
2: it could not run.
"""
EXAMPLES = """\
  ggmlq demo
  ggmlq demo model.gguf                                one tensor of each type and shape
  ggmlq demo model.gguf --tensor 'blk.0.ffn_*' --tokens 1
  ggmlq demo model.gguf --device cuda --json
"""
BLOCK = 256  # weights in the longest block; every type fits rows of whole ones
MOST = 1 << 26  # numbers in one array: half a GiB in float64, in which the check multiplies
FILE = "demo.gguf"


def add(commands: Commands) -> None:
    """Declare ``ggmlq demo`` with its options and examples."""
    add_options(declare(commands, "demo", "kernels", SUMMARY, ABOUT, EXAMPLES))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``ggmlq demo``."""
    parser.add_argument(
        "file", nargs="?", metavar="MODEL", help="a .gguf file or safetensors; without it a random layer"
    )
    parser.add_argument(
        "--tensor", action="append", default=[], metavar="GLOB",
        help="only tensors of MODEL whose whole name fits; may be repeated",
    )  # fmt: skip
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda or cuda:1")
    parser.add_argument("--rows", type=_count, metavar="N", help="rows of the random layer (2048)")
    parser.add_argument(
        "--columns",
        type=_columns,
        metavar="K",
        help=f"columns of the random layer, a multiple of {BLOCK} (4096)",
    )
    parser.add_argument(
        "--tokens", type=_count, default=64, metavar="M", help="rows of activations (default 64)"
    )
    parser.add_argument("--save", metavar="FILE", type=Path, help=f"the file of the random layer ({FILE})")
    parser.add_argument("--lib", type=Path, help="llama.cpp's library or build (default: as doctor finds it)")
    add_json(parser)


def checked(args: argparse.Namespace) -> argparse.Namespace:
    """The options; a ValueError if some of them cannot be combined."""
    if args.file is not None:
        names = [name for name in ("rows", "columns", "save") if getattr(args, name) is not None]
        if names:
            raise ValueError(
                f"--{names[0]} with {args.file}: it is an option of the random layer; leave one of them out"
            )
        return args
    if args.tensor:
        raise ValueError(f"--tensor {args.tensor[0]}: it is an option for a model; name a model before it")
    args.rows, args.columns = args.rows or 2048, args.columns or 4096
    args.save = Path(FILE) if args.save is None else args.save
    numbers = {
        "--rows times --columns": args.rows * args.columns,
        "--tokens times --columns": args.tokens * args.columns,
        "--tokens times --rows": args.tokens * args.rows,
    }
    for product, n in numbers.items():
        if n > MOST:
            raise ValueError(f"{product} is {n:,}: the demo takes up to {MOST:,}; ask for less")
    if args.save.is_dir() or not os.path.isdir(args.save.resolve().parent):
        raise ValueError(
            f"--save {args.save}: this is a folder or in none; name a file in an existing folder"
        )
    return args


def _count(text: str) -> int:
    number = _integer(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is too few; take 1 or more")
    return number


def _columns(text: str) -> int:
    number = _integer(text)
    if number < 1 or number % BLOCK:
        fits = max(1, -(-number // BLOCK)) * BLOCK
        raise argparse.ArgumentTypeError(
            f"rows of {number} do not divide into blocks of {BLOCK} weights, which the K types have; "
            f"take a multiple, such as {fits}"
        )
    return number


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:  # also thousands of digits, which int() refuses
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is no whole number") from None
