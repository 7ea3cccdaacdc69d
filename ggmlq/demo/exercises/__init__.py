"""Exercises of `ggmlq ladder exercise`: files with a hole, which the doctor of wrong kernels judges.

``check`` runs a solution on seeded cases: it is right, or has a mistake by name; and its time is told.

e1_decode.py    blocks of q4_0 to floats
e2_codes.py     activations to 8-bit codes
e3_sums.py      the constant inside the codes, taken off through a sum
e4_reuse.py     each weight decoded once for all rows of activations
e5_panel.py     sixteen rows of weights side by side
e6_split.py     a sum in parts, for threads
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import resources
from typing import Any

import numpy as np

from ... import faults
from ...arrays.array import QuantArray
from ...arrays.blocks import random_blocks
from ...errors import GGMLQError, UnsupportedError
from ...formats import FORMATS
from ...ops import linear

SHAPES = ((1, 16, 32), (3, 33, 160), (17, 40, 256))  # rows of activations, rows of weights, columns
TIMED = (8, 256, 1024)
FORMAT = "q4_0"

Solution = Callable[[Any, Any], Any]


def files() -> dict[int, Any]:
    """The files of the exercises by number."""
    folder = resources.files(__package__)
    names = sorted(file.name for file in folder.iterdir() if file.name[0] == "e" and file.name[1].isdecimal())
    return {int(name[1 : name.index("_")]): folder / name for name in names}


def titles() -> dict[int, str]:
    """The first line of each exercise."""
    texts = {number: file.read_text("utf-8") for number, file in files().items()}
    return {number: text.partition('"""')[2].partition("\n")[0] for number, text in texts.items()}


def source(number: int) -> str:
    """The text of an exercise's file."""
    exercises = files()
    if number not in exercises:
        raise UnsupportedError(
            f"exercise {number}: there are exercises {min(exercises)} to {max(exercises)}; "
            "`ggmlq ladder exercise` lists them"
        )
    text: str = exercises[number].read_text("utf-8")
    return text


def check(solution: Solution, arithmetic: str, seed: int = 0) -> None:
    """Judge ``solution(x, blocks)`` and print the verdict with its time; an AssertionError if it is wrong.

    ``x`` is float32 [M, K], ``blocks`` are those of q4_0 [N, K / 32]; the result is float32 [M, N].
    """
    for m, n, k in SHAPES:
        x, q = case(m, n, k, seed)
        y = np.asarray(solution(x.copy(), q.blocks))
        if y.shape != (m, n):
            shapes = f"x {x.shape}, blocks {q.blocks.shape}"
            raise AssertionError(f"{shapes}: the result is {y.shape}; it has to be {(m, n)}")
        verdict = faults.diagnose(y, x, q, arithmetic=arithmetic)
        if not verdict.ok:
            raise AssertionError(f"{m} rows of x, {n} of weights, {k} columns:\n{verdict.text}")
    print(f"right, in the arithmetic {arithmetic}")
    x, q = case(*TIMED, seed)
    works: dict[str, Callable[[], object]] = {"yours": lambda: solution(x, q.blocks)}
    for name in ("cpu:naive", "auto"):
        works[name] = partial(linear, x, q, kernel=name)
    times = ", ".join(f"{name} {1e3 * _seconds(work):.3g} ms" for name, work in works.items())
    print(f"{TIMED[0]} rows of x, {TIMED[1]} of weights, {TIMED[2]} columns: {times}")


def case(m: int, n: int, k: int, seed: int) -> tuple[Any, QuantArray]:
    """Activations and weights that are the same for the same seed."""
    fmt = FORMATS[FORMAT]
    rng = np.random.default_rng([seed, m, n, k])
    blocks = random_blocks(fmt, n, k // fmt.block_size, seed=int(rng.integers(1 << 30)))
    return rng.standard_normal((m, k), np.float32), QuantArray.from_bytes(blocks.view(np.uint8), fmt, (n, k))


def main(solution: Solution, arithmetic: str) -> None:
    """Judge a solution as the file of an exercise does when it is run; exit 1 if it is wrong."""
    try:
        check(solution, arithmetic)
    except NotImplementedError as hole:
        sys.exit(f"not written yet: {hole}")
    except (AssertionError, GGMLQError) as error:
        sys.exit(str(error))


def _seconds(work: Callable[[], object]) -> float:
    """The time of the fastest of three runs, after one that may compile."""
    times = []
    for _ in range(4):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times[1:])


__all__ = ["check", "main", "source", "titles"]
