"""The options of tools/demo. Standard library only: they are judged before anything is installed."""

import argparse
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BLOCK = 256  # weights in the longest block; every type fits rows of whole ones
MOST = 1 << 26  # numbers in one array: half a GiB in float64, in which the check multiplies


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message):
        self.exit(2, f"{self.prog}: {message}\n")


def parse(arguments):
    """The options, all of them usable; exits with 0 after --help and with 2 where one is not."""
    parser = _Parser(
        prog="tools/demo",
        description="Quantize a layer to eight types, save it as a GGUF file, open that, multiply on the "
        "CPU, check every product and show what it took. The first run installs into .venv (a minute or "
        "two) and compiles (another); later ones start at once.",
        epilog="Exit status: 0 all products are right, 1 one is wrong, 2 it could not run.",
    )
    parser.add_argument("--rows", type=_count, default=2048, metavar="N", help="of the layer (default 2048)")
    parser.add_argument(
        "--columns", type=_columns, default=4096, metavar="K", help=f"a multiple of {BLOCK} (default 4096)"
    )
    parser.add_argument(
        "--tokens", type=_count, default=64, metavar="M", help="rows of activations (default 64)"
    )
    parser.add_argument(
        "--save",
        metavar="FILE",
        type=Path,
        default=ROOT / "demo.gguf",
        help="the file to write (default demo.gguf)",
    )
    args = parser.parse_args(arguments)
    shapes = {
        "--rows times --columns": args.rows * args.columns,
        "--tokens times --columns": args.tokens * args.columns,
        "--tokens times --rows": args.tokens * args.rows,
    }
    for asked, numbers in shapes.items():
        if numbers > MOST:
            parser.error(f"{asked} is {numbers:,}: the demo takes up to {MOST:,}; ask for less")
    if args.save.is_dir() or not os.path.isdir(args.save.resolve().parent):
        parser.error(
            f"--save {args.save}: that is a folder or lies in none; name a file in one that is there"
        )
    return args


def _count(text):
    number = _integer(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is too few; take 1 or more")
    return number


def _columns(text):
    number = _integer(text)
    if number < 1 or number % BLOCK:
        fits = max(1, -(-number // BLOCK)) * BLOCK
        raise argparse.ArgumentTypeError(
            f"rows of {number} do not divide into blocks of {BLOCK} weights, which the K types have; "
            f"take a multiple, such as {fits}"
        )
    return number


def _integer(text):
    try:
        return int(text)
    except ValueError:  # also thousands of digits, which int() refuses
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is no whole number") from None
