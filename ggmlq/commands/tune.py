"""``ggmlq tune``: times kernels on this machine, for ``auto`` to choose by."""

from __future__ import annotations

import argparse
import importlib
import os
import time
from typing import Any

from .. import __version__
from ..base.progress import Progress
from ..base.terminal import table
from ..errors import ConfigError, DeviceError, ShapeError
from . import _plain
from ._options import Commands, count, declare, flag, shape, shared

SUMMARY = "time kernels on this machine, so that the fastest is taken"
ABOUT = """\
Time the kernels that products of blocks could take on this machine, for formats, shapes and numbers of rows
of activations, or for the tensors of a model. Times are remembered beside compiled code, and products that
name no kernel take the fastest from then on. Ctrl-C keeps what was timed.

Products on a CPU or card that ggmlq has no table of do this by themselves when they are first used, with two
kernels; this command does it ahead, with all that could be fast. --out writes a table, which GGMLQ_TUNE=FILE
reads on any machine of the same kind; what FILE holds of other processors and products stays. --share prints
all that is remembered as such a table, to be sent to others: it has the CPU's or card's name and times,
nothing else of the machine.

The table that comes with ggmlq is made again in the same way, on each CPU or card that it is to have: the
last example, in a checkout.
"""
EXAMPLES = """\
  ggmlq tune
  ggmlq tune model.gguf --rows 1 64
  ggmlq tune --formats q4_K q6_K --shapes 4096x14336 14336x4096 --out tuned.json
  ggmlq tune --device cuda --json
  ggmlq tune --share > my_cpu.json
  OMP_NUM_THREADS=1 ggmlq tune --formats all --rows 1 2 4 8 16 32 64 128 256 512 1024 2048 4096 \\
      --out ggmlq/dispatch/measured.json
"""
FORMATS_TIMED, SHAPES, ROWS = ("q4_0", "q8_0", "q4_K", "q6_K"), ((4096, 4096),), (1, 2, 4, 8, 16, 32, 64, 512)
DEVICES = ("cpu", "cuda")


def add(commands: Commands) -> None:
    parser = declare(commands, "tune", "kernels", SUMMARY, ABOUT, EXAMPLES)
    parser.add_argument("file", nargs="?", metavar="MODEL", help="a .gguf file: its formats and shapes")
    shared(parser, "--device")
    parser.add_argument("--formats", nargs="+", metavar="FORMAT", help="or all (q4_0 q8_0 q4_K q6_K)")
    parser.add_argument("--shapes", nargs="+", type=_matrix, metavar="NxK", help="weights (4096x4096)")
    parser.add_argument(
        "--rows", nargs="+", type=count, metavar="M",
        help="rows of activations, up to a power of two each (1 2 4 8 16 32 64 512)",
    )  # fmt: skip
    parser.add_argument("--out", metavar="FILE", help="write the times into a table for GGMLQ_TUNE")
    flag(parser, "--share", "print all remembered times as such a table")
    shared(parser, "--json")


def _matrix(text: str) -> tuple[int, ...]:
    lengths = shape(text)
    if len(lengths) != 2 or not all(0 < n < 1 << 31 for n in lengths):
        raise argparse.ArgumentTypeError(f"{text!r} is no shape of weights; write NxK, such as 4096x14336")
    return lengths


def run(args: argparse.Namespace) -> int:
    kind = args.device.partition(":")[0]
    if kind not in DEVICES:
        raise DeviceError(f"tune --device {args.device}: no such device; devices are cpu, cuda and cuda:1")
    if args.share and args.json:
        raise ConfigError("tune --share --json: both print; --share prints JSON already, leave --json out")
    tuned: Any = importlib.import_module("ggmlq.dispatch.tuned")
    cases = _cases(args, tuned)
    processor = _processor(kind, args.device)
    named = args.file or args.formats or args.shapes or args.rows
    known, kept = tuned.remembered(processor), _kept(args.out, tuned)
    done: dict[Any, dict[str, float]] = {}
    complete = bool(args.share and not named and known) or _timed(cases, args.device, done)
    if args.out is not None and done:
        _write(args.out, _text(tuned, kept, processor, done))
    if args.share:
        print(_text(tuned, {}, processor, tuned.remembered(processor)), end="")
    elif args.json:
        rows = [tuned.row_of(case, us) for case, us in done.items()]
        facts = {"ggmlq": __version__, "processor": processor._asdict(), "linear": rows}
        _plain.print_json({**facts, "out": args.out, "complete": complete})
    else:
        _show(tuned, processor, done, args.out)
    return 0 if complete else 130


def _cases(args: argparse.Namespace, tuned: Any) -> list[Any]:
    """The cases to time, those of the same weights one after the other."""
    from .. import gguf
    from ..formats import BLOCK_FORMATS, FORMATS, BlockFormat

    weights: list[tuple[Any, int, int]]
    if args.file is not None:
        if args.formats or args.shapes:
            raise ConfigError(
                f"tune {_plain.name(args.file)}: a model has its formats and shapes; leave --formats and "
                "--shapes out"
            )
        with gguf.open(args.file) as file:
            matrices = [(q.format, q.shape) for q in file.values() if q.ndim >= 2]
        weights = [(fmt, shape[-2], shape[-1]) for fmt, shape in matrices if isinstance(fmt, BlockFormat)]
    else:
        names = args.formats or FORMATS_TIMED
        formats = list(BLOCK_FORMATS) if "all" in names else [FORMATS[name] for name in names]
        weights = [(fmt, n, k) for fmt in formats for n, k in args.shapes or SHAPES]
    for fmt, _, k in weights:
        if not isinstance(fmt, BlockFormat) or k % fmt.block_size:
            raise ShapeError(
                f"tune: rows of {k} weights in {fmt.name}; only blocks are timed, and rows are whole blocks "
                f"of {fmt.block_size}; name other formats or shapes"
            )
    spans = list(dict.fromkeys(tuned.span(m) for m in sorted(args.rows or ROWS)))
    return [tuned.Case(fmt.name, n, k, *rows) for fmt, n, k in dict.fromkeys(weights) for rows in spans]


def _processor(kind: str, device: str) -> Any:
    """The CPU or card that is timed; an error without a GPU."""
    from ..formats import FORMATS

    if kind == "cuda":
        importlib.import_module("ggmlq.cuda.driver.device").named(device)
    ladder: Any = importlib.import_module("ggmlq.dispatch.ladder")
    problems: Any = importlib.import_module("ggmlq.dispatch.problems")
    problem = problems.Linear.here(FORMATS["q4_0"], 1, 32, 32, device=kind)
    return importlib.import_module(ladder.CHOICES[kind]).processor(problem)


def _timed(cases: list[Any], device: str, done: dict[Any, dict[str, float]]) -> bool:
    """Time all cases; False if Ctrl-C came before the last one. ``done`` has what was timed."""
    tuning: Any = importlib.import_module("ggmlq.ops.tuning")
    try:
        with Progress(len(cases), "timing", "case") as bar:
            for case, times in tuning.ahead(cases, device):
                done[case] = times
                bar.advance(1)
    except KeyboardInterrupt:
        return False
    return True


def _kept(path: str | None, tuned: Any) -> dict[Any, Any]:
    """The content of the table that --out names, which stays; nothing where there is no file."""
    if path is None or not os.path.exists(path):
        return {}
    try:
        return dict(tuned.read(path))
    except ConfigError as error:
        raise ConfigError(
            f"tune --out {_plain.name(path)}: the file is there, and is no table to add to "
            f"({str(error).split('; the file is not used')[0]}); name another file"
        ) from None


def _text(tuned: Any, kept: dict[Any, Any], processor: Any, times: dict[Any, Any]) -> str:
    """A table with the times of a processor in place of those that it had of the same cases."""
    before = kept[processor].times if processor in kept else {}
    others = {case: us for case, us in before.items() if not any(map(case.overlaps, times))}
    entry = tuned.Entry({**others, **times}, f"{__version__}, {time.strftime('%Y-%m-%d')}")
    text: str = tuned.text_of({**kept, processor: entry})
    return text


def _write(path: str, text: str) -> None:
    from ..gguf.atomic import Staging

    try:
        with Staging([path]) as staging:
            staging.write([text.encode()])
            staging.commit()
    except OSError as error:
        raise ConfigError(
            f"tune --out {_plain.name(path)}: the system refused: {error.strerror or error}; the times are "
            "remembered; name another file and add --share to print them"
        ) from None


def _show(tuned: Any, processor: Any, done: dict[Any, dict[str, float]], out: str | None) -> None:
    """Print a line a case, the fastest kernel first."""
    rows = []
    for case, us in done.items():
        order = tuned.ranked(us)
        times = ", ".join(f"{name} {us[name]:.0f}" for name in order)
        rows.append([case.format, case.n, case.k, case.rows, order[0], times])
    print(table(["format", "N", "K", "rows", "takes", "µs"], rows))
    print(f"remembered for {_plain.name(processor.name)}" + (f", written to {out}" if out and done else ""))
