"""The rungs that are fast for a problem on this CPU: by tables, or by its instructions.

:mod:`ggmlq.dispatch.tuned` has the tables. The shipped one holds for CPUs that Numba compiles the same code
for. Other CPUs use the highest rung that accepts the problem, except ``cpu:lines``: with more than three rows
of activations they use ``cpu:tiles`` instead.

``cpu:amx`` comes first for every problem that it accepts, from ``MATRIX_ROWS`` rows of activations on: both
CPUs with a matrix unit that were measured were fastest with it, with every type. With fewer rows only an
entry can name it. Entries compare kernels of ``q8``, and ``cpu:amx``, whose arithmetic loses less.

Codes with scales use the highest rung that accepts the problem. 8-bit floats are the exception: they use the
matrix unit where there is one. ``cpu:pairs`` is chosen automatically on AMD alone, where it was measured, and
only if its code came with the package, or if no code of this process did.
"""

from __future__ import annotations

from functools import cache

from ..base.system import cpu_model
from ..base.threads import num_threads
from ..dispatch import tuned
from ..dispatch.ladder import Problem, Rung, rungs
from ..dispatch.problems import Linear, ScaledLinear
from ..dispatch.tuned import NOTHING, Preference, Processor
from ..formats import BlockFormat
from .codes8 import float_multiply
from .machine import served
from .machine.features import cpu_name, zen
from .machine.target import target

LINES, MAX_LINES_ROWS = "cpu:lines", 3  # taken by itself up to so many rows of activations
MATRIX, MATRIX_ROWS = "cpu:amx", 28  # the matrix unit multiplies 32 rows of activations at a time
PANELS = "cpu:panels"
MIN_TIMED_MATRIX_ROWS, MAX_TIMED_LINES_ROWS = 8, 8  # rows from, and up to, which two others are timed
FEW_THREADS = 2  # up to which a table of one thread holds
LEAST_LEVEL = 4  # of rungs that are timed: those below explain
FLOATS = "cpu:floats"  # it takes no blocks
USUAL = "usual on a CPU that was not measured"
MATRIX_FIRST = "ahead wherever there is a matrix unit"
IN_PACKS = {  # rungs whose code comes with the package, by operation (tools/_kernels_cpu.py)
    "linear": ("cpu:tiles", "cpu:lines", "cpu:panels", "cpu:amx", "cpu:floats"),
    "scaled_linear": ("cpu:lines", "cpu:tiles", "cpu:amx", "cpu:pairs"),
    "expert_linear": ("cpu:tiles", "cpu:panels"),
}
PACKED = "the highest whose code came with the package"


@cache
def here() -> Processor:
    """The CPU of this process."""
    return Processor("cpu", cpu_model() or cpu_name(), cpu_name(), target().dot)


def card() -> None:
    """None: a CPU has no card, by which GPUs choose."""


def packed(cases: dict[str, list[Problem]]) -> dict[str, bool | None]:
    """By kernel, whether its code for some problems comes with the package."""
    level = served.level()
    return {
        name: level is not None and all(name in IN_PACKS.get(problem.op, ()) for problem in problems)
        for name, problems in cases.items()
    }


def code() -> str:
    """A sentence on where the code of kernels comes from in this process."""
    if (level := served.level()) is None:
        return "CPU: kernels are compiled when first used; none for this process came with the package."
    return (
        f"CPU: kernels that products of blocks take by themselves came with the package, for {level.folder}; "
        "others are compiled when first used."
    )


def preference(problem: Problem, timed: bool = True) -> Preference:
    """The order of rungs for a problem; only products of blocks and of 8-bit floats have one.

    ``timed``: times that were measured on this machine come first.
    """
    if isinstance(problem, ScaledLinear):
        return scaled_order(problem)
    if not isinstance(problem, Linear) or not isinstance(problem.format, BlockFormat):
        return NOTHING
    usually = untimed(problem)
    return tuned.preference(problem, processor(problem), candidates, usually) if timed else usually


def untimed(problem: Linear) -> Preference:
    """The order of rungs where nothing was timed on this machine: by the shipped table, or the usual one."""
    order = tuned.shipped(problem, here())
    if order is NOTHING:
        order = Preference(usual(problem), USUAL)
    if problem.m < MATRIX_ROWS or by_name()[MATRIX].refuses(problem) is not None:
        return order
    return Preference((MATRIX, *order.kernels), MATRIX_FIRST)


def processor(problem: Problem) -> Processor:
    """The CPU and the threads of this process, as measured times belong to them."""
    return here()._replace(threads=num_threads())


def is_measured(problem: Linear) -> bool:
    """True if the shipped table has this CPU, and was measured with as many threads.

    With more, the matrix unit gains less than vectors do: a product has few pairs of panels for it.
    """
    entry = tuned.entry_of(tuned.table(), here())
    return entry is not None and num_threads() <= max(entry[0].threads, FEW_THREADS)


def shortlist(problem: Linear) -> tuple[str, ...]:
    """The rungs that could be fastest for a product of blocks, in the order in which they come untimed.

    They are few, and the package has their code.
    """
    panels = by_name()[PANELS].refuses(problem) is None
    names = (PANELS, MATRIX) if panels else ("cpu:tiles", LINES)
    takes = {MATRIX: problem.m >= MIN_TIMED_MATRIX_ROWS, LINES: problem.m <= MAX_TIMED_LINES_ROWS}
    return _in_order(problem, [name for name in names if takes.get(name, True)])


def candidates(problem: Linear) -> tuple[str, ...]:
    """All rungs that ``ggmlq tune`` times for a product of blocks, whoever has to compile them."""
    return _in_order(problem, [name for name, rung in by_name().items() if rung.level >= LEAST_LEVEL])


def _in_order(problem: Linear, names: list[str]) -> tuple[str, ...]:
    """Those of some rungs that take a problem, in the order in which they come untimed."""
    able = [name for name in names if by_name()[name].refuses(problem) is None]
    order = [*untimed(problem).kernels, *names]
    return tuple(sorted(able, key=order.index))


def estimate(problem: Problem, kernel: str) -> float | None:
    """Microseconds of a kernel as they were timed on this machine; None where they were not."""
    if not isinstance(problem, Linear) or not tuned.is_on():
        return None
    return tuned.remembered(processor(problem)).get(tuned.case_of(problem), {}).get(kernel)


@cache
def by_name() -> dict[str, Rung]:
    """The rungs of products of blocks."""
    return {rung.name: rung for rung in reversed(rungs("linear", "cpu"))}


def scaled_order(problem: ScaledLinear) -> Preference:
    """The order of rungs for codes with scales, or none where it is just from the highest down."""
    if problem.integer or float_multiply.refused() is not None:
        return NOTHING
    matrix = next(rung for rung in rungs("scaled_linear", "cpu") if rung.name == MATRIX)
    if matrix.refuses(problem) is None:
        return Preference((MATRIX, LINES, "cpu:dequant"), MATRIX_FIRST)
    if not zen():  # where cpu:pairs was measured
        return Preference((LINES, "cpu:dequant"), USUAL)
    return NOTHING if float_multiply.at_hand(problem) else Preference((LINES, "cpu:dequant"), PACKED)


def usual(problem: Linear) -> tuple[str, ...]:
    """The order on a CPU that was not measured: from the highest rung down, without some."""
    passed = {MATRIX, FLOATS} | ({LINES} if problem.m > MAX_LINES_ROWS else set())
    names = [rung.name for rung in reversed(rungs(problem.op, problem.device))]
    return tuple(name for name in names if name not in passed)
