"""``ggmlq ladder``: every rung of the ladder, measured on this machine."""

from __future__ import annotations

from pathlib import Path

from ._options import Commands, add_json, count, declare, shape

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


def add(commands: Commands) -> None:
    """Declare ``ggmlq ladder`` with its options and examples."""
    parser = declare(commands, "ladder", "kernels", SUMMARY, ABOUT, EXAMPLES)
    parser.add_argument(
        "words",
        nargs="*",
        metavar="exercise [N] | page [RUNG]",
        help="list the exercises, or write one; list the pages of the book, or print one",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="file of the exercise (exercise_N.py)")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda or cuda:1")
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
    add_json(parser)


def _rows(text: str) -> tuple[int, ...]:
    return tuple(count(part) for part in text.split(","))
