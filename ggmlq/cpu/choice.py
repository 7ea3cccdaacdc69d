"""Which rungs are fast for a problem on this CPU: what was measured, in choice.json.

``tools/table.py cpu_choice`` measures and writes the file; :mod:`ggmlq.dispatch.measured` says how it is
read. An entry holds for CPUs that Numba compiles the same code for. On others the highest rung that takes a
problem is taken, but for ``cpu:lines``: there more than three rows of activations go to ``cpu:tiles``.

``cpu:amx`` is taken wherever it does not refuse, from ``MATRIX_ROWS`` rows of activations on: on both CPUs
with a matrix unit that were measured it was ahead there with every type. With fewer rows only an entry can
name it. Entries compare kernels of ``q8``, and ``cpu:amx``, whose arithmetic loses less.

Of codes with scales the highest rung that takes a problem is taken, but for 8-bit floats: on CPUs but AMD's,
of which ``cpu:pairs`` was not measured, it is taken by name alone; and where a package comes with code, but
not with that of ``cpu:pairs``, nobody waits until it is compiled.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

from ..dispatch import measured
from ..dispatch.ladder import Problem, Rung, rungs
from ..dispatch.measured import NOTHING, Entry, Preference
from ..dispatch.problems import Linear, ScaledLinear
from ..formats import BlockFormat
from .codes8 import float_needs
from .machine import served
from .machine.features import cpu_name, model_name, zen
from .machine.target import target

FEW, FOR_FEW = 3, "cpu:lines"
MATRIX, MATRIX_ROWS = "cpu:amx", 28  # the matrix unit multiplies 32 rows of activations at a time
OF_FLOATS = "cpu:floats"  # which takes no blocks
USUAL = "usual on a CPU that was not measured"
AHEAD = "ahead wherever there is a matrix unit"
AT_HAND = "the highest whose code came with the package"
TABLE = Path(__file__).with_name("choice.json")


class Cpu(NamedTuple):
    """What tells CPUs apart."""

    cpu: str  # what its maker calls it
    compiled_for: str  # LLVM's name
    dot: str  # which integer dot product kernels use


@cache
def here() -> Cpu:
    """The one of this process."""
    return Cpu(model_name() or cpu_name(), cpu_name(), target().dot)


def card() -> None:
    """There is none."""


def code() -> str:
    """Where the code of kernels comes from in this process."""
    if (level := served.level()) is None:
        return "CPU: kernels are compiled when first used; none for this process came with the package."
    return (
        f"CPU: kernels that products of blocks take by themselves came with the package, for {level.folder}; "
        "others are compiled when first used."
    )


@cache
def table() -> list[Entry]:
    """The CPUs that were measured."""
    return measured.entries(TABLE, "cpus")


def preference(problem: Problem) -> Preference:
    """The order of rungs for a problem; only products of blocks and of 8-bit floats have one."""
    if isinstance(problem, ScaledLinear):
        return of_codes(problem)
    if not isinstance(problem, Linear) or not isinstance(problem.format, BlockFormat):
        return NOTHING
    order = of_vectors(problem)
    if problem.m < MATRIX_ROWS or matrix_unit().refuses(problem) is not None:
        return order
    return Preference((MATRIX, *order.kernels), AHEAD)


@cache
def matrix_unit() -> Rung:
    """The rung of Intel's matrix unit."""
    return next(rung for rung in rungs("linear", "cpu") if rung.name == MATRIX)


def of_vectors(problem: Linear) -> Preference:
    """The order of a CPU without a matrix unit: by its entry, or the usual one."""
    entry = next((entry for entry in table() if is_of(entry, here())), None)
    if entry is None or (found := measured.preference(problem, entry, entry["cpu"])) is NOTHING:
        return Preference(usual(problem), USUAL)
    return found


def of_codes(problem: ScaledLinear) -> Preference:
    """The order for codes with scales, where it is not just from the highest down."""
    if problem.integer or float_needs.refused() is not None:
        return NOTHING
    if not zen():  # where cpu:pairs was measured
        return Preference((FOR_FEW, "cpu:dequant"), USUAL)
    return NOTHING if float_needs.at_hand(problem) else Preference((FOR_FEW, "cpu:dequant"), AT_HAND)


def is_of(entry: Entry, cpu: Cpu) -> bool:
    """Whether an entry was measured on such a CPU."""
    return (entry["compiled_for"], entry["dot"]) == (cpu.compiled_for, cpu.dot)


def usual(problem: Linear) -> tuple[str, ...]:
    """The order without figures, which is not just from the highest down."""
    passed = {MATRIX, OF_FLOATS} | ({FOR_FEW} if problem.m > FEW else set())
    names = [rung.name for rung in reversed(rungs(problem.op, problem.device))]
    return tuple(name for name in names if name not in passed)
