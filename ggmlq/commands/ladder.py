"""``ggmlq ladder``: judges and times every rung on this machine, and says what each gained here."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..base.text import three_digits
from ..errors import ConfigError, GGMLQError, MissingDependencyError
from . import _plain
from ._options import Commands, count, declare, shape, shared

if TYPE_CHECKING:
    from .. import pages
    from ..demo import climb

SUMMARY = "climb the ladder of kernels on this machine"
ABOUT = """\
Measure the roofs of this machine, then every rung of the ladder that takes the shape, from the naive kernel
to the fastest. Each product is judged in float64 before it is timed. A line says what the rung reaches of
its nearer roof, memory or arithmetic; at the end stands what each rung teaches and whether it pays here.
Ctrl-C keeps what was measured. Exit 0: all products are right, 1: one is wrong, 2: it could not run.
"""
EXAMPLES = """\
  ggmlq ladder
  ggmlq ladder --format q4_K --rows 1,512 --plot roofline.svg
  ggmlq ladder --json > here.json
  ggmlq ladder --against here.json                     beside an earlier run, or another machine's
  ggmlq ladder --device cuda --shape 4096x14336
  ggmlq ladder page cuda:dp4a                          what a rung changed, its inner loop, what limits it
  ggmlq ladder exercise                                lists the exercises
  ggmlq ladder exercise 4 --out mine.py                writes one: a file with a hole, and what judges it
"""
ROWS = {"cpu": (1, 64), "cuda": (1, 64, 512)}
MOST = 1 << 28  # numbers in an array
COLUMNS, WORDS = ("kernel", "rows", "ms", "GFLOP/s", "of the roof", "roof"), ("kernel", "roof")  # of a page


def add(commands: Commands) -> None:
    parser = declare(commands, "ladder", "kernels", SUMMARY, ABOUT, EXAMPLES)
    parser.add_argument(
        "words",
        nargs="*",
        metavar="exercise [N] | page [RUNG]",
        help="list the exercises, or write one; list the pages of the book, or print one",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="file of the exercise (exercise_N.py)")
    shared(parser, "--device")
    parser.add_argument("--format", default="q4_0", help="type of the weights (q4_0)")
    parser.add_argument(
        "--shape", type=shape, default=(4096, 4096), metavar="NxK", help="of the weights (4096x4096)"
    )
    parser.add_argument(
        "--rows", type=_rows, metavar="M,…", help="rows of activations (1,64; on a GPU 1,64,512)"
    )
    parser.add_argument(
        "--kernel", action="append", default=[], metavar="NAME", help="only this rung; may be repeated"
    )
    parser.add_argument("--plot", metavar="FILE", help="write the rungs under the roofs as .svg or .html")
    parser.add_argument(
        "--against",
        type=Path,
        metavar="FILE",
        help="compare with the JSON of another run; on a page, figures to add",
    )
    shared(parser, "--json")


def _rows(text: str) -> tuple[int, ...]:
    return tuple(count(part) for part in text.split(","))


def run(args: argparse.Namespace) -> int:
    from ..demo import climb
    from .demo import telling

    if args.words[:1] == ["page"]:
        return _page(args.words[1:], args.against)
    if args.words:
        return _exercise(args.words, args.out)
    (n, k), rows = _checked(args)
    then = _earlier(args.against)
    title = f"the ladder of {args.format}, N={n} K={k}, on {args.device}"
    machine = {"ggmlq": __version__, "device": args.device, "format": args.format, "shape": [n, k]}
    with telling(0, args.json) as tell:
        q = climb.weights(args.format, n, k, args.device)
        show = _silent if args.json else _printed
        show(f"ggmlq {__version__}: {title}")
        roof = climb.roofs_over(q, tell)
        show(climb.head(roof, args.format))
        if words := climb.other_ladder(args.device):
            show(words)
        steps, interrupted = _climbed(climb.climb(q, rows, args.kernel, roof, tell), then, show)
    if args.json:
        _plain.print_json(climb.facts(steps, roof, machine))
    else:
        _close(steps, interrupted)
    if args.plot and any(step.seconds for step in steps):
        _plot(args.plot, climb.roofline(steps, roof, title[0].upper() + title[1:]), steps)
    return 130 if interrupted else 0 if all(s.right for s in steps if not s.reason) else 1


def _printed(text: str) -> None:
    print(text, flush=True)


def _silent(text: str) -> None:
    """Print nothing: JSON stands alone."""


def _climbed(
    climbing: Iterator[climb.Step], then: dict[tuple[str, int], float], show: Callable[[str], None]
) -> tuple[list[climb.Step], bool]:
    """The steps, each shown in a line as it comes; and whether an interrupt came before the last."""
    from ..demo import climb

    steps: list[climb.Step] = []
    try:
        for step in climbing:
            if not steps or step.rows != steps[-1].rows:
                show("\n" + climb.columns(step.rows, bool(then)))
            steps.append(step)
            earlier = then.get((step.rung.name, step.rows))
            show(climb.line(step, climb.below(step, steps), earlier, bool(then)))
    except KeyboardInterrupt:
        return steps, True
    return steps, False


def _page(names: list[str], against: Path | None) -> int:
    """Print the page of a rung, or the names of all."""
    from ..demo import book

    if len(names) > 1:
        raise ConfigError(f"page {' '.join(names)}: name one rung; `ggmlq ladder page` lists them")
    if not names:
        titles = {rung.name: rung.teaches for rung in book.all_rungs()} | book.chapter_titles()
        print("\n".join(f"{name:24}{title}" for name, title in titles.items()))
        return 0
    if names[0] in book.chapters():
        print(book.chapter_page(names[0]), end="")
        return 0
    rung = book.rung_named(names[0])
    more = None if against is None else book.measured_in(_run_in(against), rung, against.stem)
    print(book.page(rung, more), end="")
    return 0


def _exercise(words: list[str], out: Path | None) -> int:
    """List the exercises, or write the file of one; a file that is there is not replaced."""
    from ..demo import exercises

    word, *numbers = words
    if word != "exercise" or len(numbers) > 1 or not all(number.isdecimal() for number in numbers):
        raise ConfigError(
            f"{' '.join(words)}: `ggmlq ladder exercise` lists the exercises, and with a number it writes "
            "one; `ggmlq ladder page` lists the pages"
        )
    if not numbers:
        print("\n".join(f"{number}  {title}" for number, title in exercises.titles().items()))
        return 0
    text = exercises.source(int(numbers[0]))
    out = out or Path(f"exercise_{int(numbers[0])}.py")
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(
            f"{out}: is there, and may hold your solution; name another file with --out"
        ) from None
    except OSError as error:
        raise ConfigError(f"{out}: cannot be written ({error}); name another file with --out") from None
    print(f"{out}: write what raises NotImplementedError, and run it: python {out}")
    return 0


def _close(steps: list[climb.Step], interrupted: bool) -> None:
    from ..demo import climb

    if interrupted:
        print("\ninterrupted: what follows is of the rungs above")
    for text in climb.lessons(steps):
        print("\n" + textwrap.fill(text, 110, subsequent_indent="  "))
    wrong = sorted({step.rung.name for step in steps if not step.right and not step.reason})
    print(f"\nWRONG PRODUCTS: {', '.join(wrong)}" if wrong else "\nall products are right")


def _plot(path: str, chart: pages.Lines, steps: list[climb.Step]) -> None:
    """Write the picture, or a page with it, the figures and the words."""
    from .. import pages
    from ..demo import climb

    if not path.lower().endswith(".html"):
        pages.draw([chart], path)
        return
    lines: list[list[pages.Cell]] = [
        [s.rung.name, s.rows, three_digits(s.seconds * 1e3), three_digits(s.operations / s.seconds / 1e9),
         f"{s.share:.0%}", s.limit]
        for s in steps if s.seconds
    ]  # fmt: skip
    columns = [pages.Column(name, number=name not in WORDS) for name in COLUMNS]
    table = pages.Table("Measured here", columns, lines)
    words = [pages.Text(text) for text in climb.lessons(steps)]
    page = pages.Page(chart.title, chart.note, [
        pages.Section("Under the roofs", [pages.Figure(chart)]),
        pages.Section("Every rung", [table]),
        pages.Section("What each gained here", words),
    ])  # fmt: skip
    pages.write(page, path)


def _checked(args: argparse.Namespace) -> tuple[tuple[int, int], tuple[int, ...]]:
    """The shape and the rows; an error if the options do not fit."""
    from .. import pages
    from ..dispatch.ladder import DEVICES, absent, rungs
    from ..formats import FORMATS

    kind = args.device.partition(":")[0]
    if kind not in DEVICES:
        raise ConfigError(f"--device {args.device}: no such device; write cpu, cuda or cuda:1")
    if (reason := absent("linear", kind)) is not None:
        raise MissingDependencyError(f"--device {args.device}: {reason}")
    fmt = FORMATS[args.format]
    args.format = fmt.name
    if len(args.shape) != 2 or not all(args.shape) or args.shape[1] % fmt.block_size:
        raise ConfigError(
            f"--shape {'x'.join(map(str, args.shape))} of {fmt.name}: rows and columns are expected, and "
            f"columns in blocks of {fmt.block_size}; write 4096x4096"
        )
    n, k = args.shape
    rows = args.rows or ROWS[kind]
    sizes = {"--shape": n * k, "--rows times K": max(rows) * k, "--rows times N": max(rows) * n}
    for what, size in sizes.items():
        if size > MOST:
            raise ConfigError(f"{what} is {size:,}: the ladder takes up to {MOST:,}; ask for less")
    names = [rung.name for rung in rungs("linear", kind)]
    args.kernel = [name if ":" in name else f"{kind}:{name}" for name in args.kernel]
    for name in args.kernel:
        if name not in names:
            raise ConfigError(f"--kernel {name}: no such rung on {kind}; they are {', '.join(names)}")
    if args.plot:
        check = pages.check_target if args.plot.lower().endswith(".html") else pages.check_picture
        check(args.plot)
    return (n, k), rows


def _earlier(path: Path | None) -> dict[tuple[str, int], float]:
    """The seconds of another run by kernel and rows."""
    steps = [] if path is None else _run_in(path)["steps"]
    return {(step["kernel"], step["rows"]): step["seconds"] for step in steps if step["seconds"]}


def _run_in(path: Path) -> dict[str, Any]:
    """The JSON of another run, with what is read of it in the types that it should have."""
    try:
        run = json.loads(path.read_text("utf-8"))
        keys = {"kernel": str, "rows": int, "seconds": float}
        steps = [{key: kind(step[key]) for key, kind in keys.items()} for step in run["steps"]]
        return {"shape": [int(size) for size in run["shape"]], "steps": steps}
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise GGMLQError(
            f"--against {path}: this is no result of `ggmlq ladder --json` ({error}); write one with it"
        ) from None
