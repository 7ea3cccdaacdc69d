"""``ggmlq demo``: multiplies, judges and times layers on this machine, from a user's model or at random."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from .. import __version__, demo, gguf
from ..base.text import count, size
from ..errors import ConfigError
from ..store import disk
from . import _plain
from .parsers.demo import checked


def run(args: argparse.Namespace) -> int:
    """Run ``ggmlq demo``; the result is the exit status."""
    try:
        checked(args)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    steps = 6 * len(demo.layers.FORMATS) if args.file is None else 0
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
    if args.file is not None:
        return demo.model_layers(args.file, args.tensor, args.tokens), 0.0
    return demo.random_layer(args.rows, args.columns, args.save, tell)


def _head(args: argparse.Namespace) -> str:
    what = f"a layer [{args.rows}, {args.columns}]" if args.file is None else _plain.name(args.file)
    head = f"ggmlq {__version__}: {what} times {count(args.tokens, 'token')}"
    where = disk.root()
    if args.device == "cpu" and (where is None or not where.exists()):
        head += f"\n\nnothing is compiled for this CPU yet: a minute or so, kept {_kept_in(where)}"
    return head + "\n"


def _text(rows: Sequence[demo.Row], args: argparse.Namespace, opened: float) -> str:
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
    form = "{desc:44}{bar} {elapsed}" if steps else "{desc:44} {elapsed}"
    disable = True if quiet else None
    bar = tqdm(total=steps or None, leave=False, disable=disable, dynamic_ncols=True, bar_format=form)

    def tell(what: str) -> None:
        bar.set_description_str(what)
        bar.update(1)

    with bar:
        yield tell
