"""The kernels of r2, for any widths: the input terms, and a step in one launch.

They use no tensor cores. A thread has one unit of one row. Narrow operands are words of four bytes, and one
instruction makes four products of them; wide ones are multiplied one by one, with sums of 64 bits.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from ...cuda.driver.launch import Kernel, array, family
from ...cuda.intrinsics import codes8
from ...cuda.intrinsics.atoms import inlined
from ...cuda.intrinsics.language import cuda, int8, int16, int32, int64, uint32, uint64
from .. import step
from .atoms import (
    OUTS,
    STORED,
    VALID,
    Outs,
    RowConstants,
    add_counts,
    constants_and_counts,
    constants_type,
    number_type,
    step_functions,
    store_state,
)  # fmt: skip

UNITS, BESIDE = 32, 4  # of a block: units, rows
THREADS = UNITS * BESIDE
BOTH = ((True,), (False,))


def grid(rows: int, padded: int) -> tuple[int]:
    """Blocks for all units of ``rows`` rows."""
    return (-(-rows // BESIDE) * (padded // UNITS),)


class Work(NamedTuple):
    """A thread's unit of a row, and what it counts."""

    row: Any
    unit: Any
    k: Any  # constants of all units
    counts: Any


@cache
def thread_work(narrow: bool) -> Any:
    """The device function for the work of a thread."""
    begin = constants_and_counts(narrow)

    @inlined
    def work_of_thread(padded: Any, constants: Any) -> Any:
        k, counts = begin(constants)
        block, across = uint32(cuda.blockIdx.x), uint32(padded // UNITS)
        thread = uint32(cuda.threadIdx.x)
        row = uint32(uint32(uint32(block // across) * BESIDE) + uint32(thread // UNITS))
        unit = uint32(uint32(uint32(block % across) * UNITS) + uint32(thread % UNITS))
        return Work(row, unit, k, counts)

    return work_of_thread


@inlined
def row_constants(rows: Any, at: Any) -> Any:
    """The constants of a row of weights."""
    return RowConstants(rows[0, at], rows[1, at], rows[2, at], rows[3, at], rows[4, at])


@cache
def dot_product(narrow: bool) -> Any:
    """The device function of one sum: a row of weights times one of activations."""
    dp4a = codes8.dp4a("s8", "s8")

    @inlined
    def dot(w: Any, at: Any, x: Any, row: Any) -> Any:
        if narrow:
            total = int32(0)
            for i in range(w.shape[1]):
                total = dp4a(w[at, i], x[row, i], total)
            return total
        whole = int64(0)
        for i in range(w.shape[1]):
            whole += int64(w[at, i]) * int64(x[row, i])
        return whole

    return dot


def operands(narrow: bool) -> tuple[Any, Any]:
    """The types of weights and of activations."""
    return array(int32 if narrow else int16, 2), array(int32, 2)


@family(BOTH)
def project(narrow: bool) -> Kernel:
    """The kernel of the input terms, for rows of x."""
    dot, input_term = dot_product(narrow), step_functions(narrow).input_term
    z_shift, r_shift, g_shift, number = step.WX_Z, step.WX_R, step.WX_G, number_type(narrow)
    work_of_thread = thread_work(narrow)

    @inlined
    def gate_term(W: Any, at: Any, x: Any, rows: Any, bias: Any, shift: Any, w: Any) -> Any:
        s = number(dot(W, at, x, w.row))
        return input_term(s, row_constants(rows, at), bias, w.k, shift, w.counts)

    def work(
        W: Any, x: Any, rows: Any, biases: Any, p: Any, total: Any, units: Any, padded: Any, constants: Any
    ) -> None:
        w = work_of_thread(padded, constants)
        row, unit = w.row, w.unit
        if row < x.shape[0]:
            w.counts[VALID] = number(unit < units)
            at_r, at_g = uint32(padded + unit), uint32(uint32(padded + padded) + unit)
            p[row, unit] = gate_term(W, unit, x, rows, biases[0, unit], z_shift, w)
            p[row, at_r] = gate_term(W, at_r, x, rows, biases[1, unit], r_shift, w)
            p[row, at_g] = gate_term(W, at_g, x, rows, biases[2, unit], g_shift, w)
            add_counts(w.counts, total)

    name = f"gru what x brings, {'narrow' if narrow else 'wide'}"
    matrices = *operands(narrow), *(array(number, 2),) * 3
    return Kernel(name, work, *matrices, *tail(narrow), threads=THREADS)


def tail(narrow: bool) -> tuple[Any, ...]:
    """The types of the last parameters: counts, units, padded units, constants."""
    return array(int64, 1), uint32, uint32, constants_type(narrow)


@cache
def hidden_terms(narrow: bool) -> Any:
    """The device function for the deviation of Rh of a gate."""
    dot, hidden_term, number = dot_product(narrow), step_functions(narrow).hidden_term, number_type(narrow)

    @inlined
    def hidden(R: Any, at: Any, h: Any, rows: Any, w: Any) -> Any:
        return hidden_term(number(dot(R, at, h, w.row)), row_constants(rows, at), w.k, w.counts)

    return hidden


@cache
def state_epilogue(narrow: bool) -> Any:
    """The device function from gates to the next state, in ``states`` and in ``one``; it adds the counts."""
    number, next_state = number_type(narrow), step_functions(narrow).state

    @inlined
    def finish(h: Any, after: Any, gates: Any, outs: Any, w: Any, total: Any) -> None:
        before = number(number(h[w.row, w.unit]) - w.k[STORED])
        s = next_state(gates.z, gates.g, before, w.k, w.counts)
        after[w.row, w.unit] = number(s + w.k[STORED])
        store_state(outs, outs.row + w.row, w.unit, s, gates, w.k)
        add_counts(w.counts, total)

    return finish


@family(BOTH)
def one(narrow: bool) -> Kernel:
    """The kernel of a whole step: products, gates and state of a unit in one thread."""
    number, hidden, all_gates = number_type(narrow), hidden_terms(narrow), step_functions(narrow).gates
    finish, work_of_thread = state_epilogue(narrow), thread_work(narrow)
    bytes_ = array(int8 if narrow else int32, 2)

    def work(
        R: Any, words: Any, h: Any, after: Any, rows: Any, biases: Any, tables: Any, p: Any,
        first_p_row: Any,  # the row of p with which the step begins
        y: Any, codes: Any, v: Any, size: Any, scale: Any, first: Any, units: Any, total: Any, padded: Any,
        constants: Any,
    ) -> None:  # fmt: skip
        w = work_of_thread(padded, constants)
        row, unit = w.row, w.unit
        if row < h.shape[0] and unit < units:
            w.counts[VALID] = number(1)
            d = cuda.local.array(3, number)
            for gate in range(3):
                d[gate] = hidden(R, uint32(uint32(uint32(gate) * padded) + unit), words, rows, w)
            at_r, at_g = uint32(padded + unit), uint32(uint32(padded + padded) + unit)
            x_row = first_p_row + row
            gates = all_gates(
                d[0], d[1], d[2], p[x_row, unit], p[x_row, at_r], p[x_row, at_g], biases[3, unit],
                (tables[0], tables[1], tables[2]), w.k, w.counts,
            )  # fmt: skip
            finish(h, after, gates, Outs(y, codes, v, size, scale, first, units), w, total)

    name = f"gru a step at once, {'narrow' if narrow else 'wide'}"
    matrix = array(number, 2)
    parts = *operands(narrow), bytes_, bytes_, *(matrix,) * 4, uint64, *OUTS, array(int64, 1), uint32
    return Kernel(name, work, *parts, constants_type(narrow), threads=THREADS)
