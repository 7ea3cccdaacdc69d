"""The kernels of r0 to r2, for any widths: the input terms, and a step in three launches or in one.

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
    CONSTANT_COUNT,
    COUNTER_LENGTH,
    STORED,
    VALID,
    add_counts,
    clear_counts,
    constants_type,
    copy_constants,
    number_type,
    step_functions,
    store_state,
)  # fmt: skip

UNITS, BESIDE = 32, 4  # of a block: units, rows
THREADS = UNITS * BESIDE
BOTH = ((True,), (False,))
OUTS = (uint64, uint64, uint64, uint32, uint32, uint64, uint32)  # Outs


class Outs(NamedTuple):
    """The destinations of states (``atoms.store_state``)."""

    y: Any  # addresses; 0 for outputs that the call does not want
    codes: Any
    v: Any
    size: int  # bytes of a code
    scale: int  # bits of a float
    row: int  # the first: t · N
    units: int


def grid(rows: int, padded: int) -> tuple[int]:
    """Blocks for all units of ``rows`` rows."""
    return (-(-rows // BESIDE) * (padded // UNITS),)


@inlined
def place_thread(padded: Any) -> Any:
    """The row and the unit of a thread."""
    block, across = uint32(cuda.blockIdx.x), uint32(padded // UNITS)
    thread = uint32(cuda.threadIdx.x)
    row = uint32(uint32(uint32(block // across) * BESIDE) + uint32(thread // UNITS))
    return row, uint32(uint32(uint32(block % across) * UNITS) + uint32(thread % UNITS))


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

    @inlined
    def gate_term(
        W: Any, at: Any, x: Any, row: Any, rows: Any, bias: Any, k: Any, shift: Any, counts: Any
    ) -> Any:  # fmt: skip
        s = number(dot(W, at, x, row))
        return input_term(
            s, rows[0, at], rows[1, at], rows[2, at], rows[3, at], rows[4, at], bias, k, shift, counts
        )

    def work(
        W: Any, x: Any, rows: Any, biases: Any, p: Any, total: Any, units: Any, padded: Any, constants_k: Any
    ) -> None:
        k, counts = cuda.local.array(CONSTANT_COUNT, number), cuda.local.array(COUNTER_LENGTH, number)
        copy_constants(constants_k, k)
        clear_counts(counts)
        row, unit = place_thread(padded)
        if row < x.shape[0]:
            counts[VALID] = number(unit < units)
            at_r, at_g = uint32(padded + unit), uint32(uint32(padded + padded) + unit)
            p[row, unit] = gate_term(W, unit, x, row, rows, biases[0, unit], k, z_shift, counts)
            p[row, at_r] = gate_term(W, at_r, x, row, rows, biases[1, unit], k, r_shift, counts)
            p[row, at_g] = gate_term(W, at_g, x, row, rows, biases[2, unit], k, g_shift, counts)
            add_counts(counts, total)

    name = f"gru what x brings, {'narrow' if narrow else 'wide'}"
    parts = (
        *operands(narrow), *(array(number, 2),) * 3, array(int64, 1), uint32, uint32, constants_type(narrow),
    )  # fmt: skip
    return Kernel(name, work, *parts, threads=THREADS)


@family(BOTH)
def products(narrow: bool) -> Kernel:
    """The kernel of the first part of a step: deviations of Rh [N, 3 · padded]."""
    dot, hidden_term, number = dot_product(narrow), step_functions(narrow).hidden_term, number_type(narrow)

    def work(
        R: Any, h: Any, rows: Any, deviations: Any, total: Any, units: Any, padded: Any, constants_k: Any
    ) -> None:  # fmt: skip
        k, counts = cuda.local.array(CONSTANT_COUNT, number), cuda.local.array(COUNTER_LENGTH, number)
        copy_constants(constants_k, k)
        clear_counts(counts)
        row, unit = place_thread(padded)
        if row < h.shape[0]:
            counts[VALID] = number(unit < units)
            for gate in range(3):
                at = uint32(uint32(uint32(gate) * padded) + unit)
                s = number(dot(R, at, h, row))
                deviations[row, at] = hidden_term(
                    s, rows[0, at], rows[1, at], rows[2, at], rows[3, at], rows[4, at], k, counts
                )
            add_counts(counts, total)

    name = f"gru products of a step, {'narrow' if narrow else 'wide'}"
    parts = (
        *operands(narrow), *(array(number, 2),) * 2, array(int64, 1), uint32, uint32, constants_type(narrow),
    )  # fmt: skip
    return Kernel(name, work, *parts, threads=THREADS)


@family(BOTH)
def gates(narrow: bool) -> Kernel:
    """The kernel of the second part: z, r, g and R_g h + b_rg [N, 4 · padded], from Rh and input terms."""
    number, all_gates = number_type(narrow), step_functions(narrow).gates

    def work(
        deviations: Any, p: Any, first: Any, biases: Any, tables: Any, mid: Any, total: Any, units: Any,
        padded: Any, constants_k: Any,
    ) -> None:  # fmt: skip
        k, counts = cuda.local.array(CONSTANT_COUNT, number), cuda.local.array(COUNTER_LENGTH, number)
        copy_constants(constants_k, k)
        clear_counts(counts)
        row, unit = place_thread(padded)
        if row < deviations.shape[0] and unit < units:
            counts[VALID] = number(1)
            at_r, at_g = uint32(padded + unit), uint32(uint32(padded + padded) + unit)
            x_row = first + row
            z, r, g, a = all_gates(
                deviations[row, unit], deviations[row, at_r], deviations[row, at_g],
                p[x_row, unit], p[x_row, at_r], p[x_row, at_g], biases[3, unit],
                tables[0], tables[1], tables[2], k, counts,
            )  # fmt: skip
            mid[row, unit], mid[row, at_r], mid[row, at_g] = z, r, g
            mid[row, uint32(at_g + padded)] = a
            add_counts(counts, total)

    name = f"gru gates of a step, {'narrow' if narrow else 'wide'}"
    matrix = array(number, 2)
    parts = matrix, matrix, uint64, *(matrix,) * 3, array(int64, 1), uint32, uint32, constants_type(narrow)
    return Kernel(name, work, *parts, threads=THREADS)


@cache
def state_epilogue(narrow: bool) -> Any:
    """The device function from gates to the next state, in ``states`` and in ``one``; it adds the counts."""
    number, next_state = number_type(narrow), step_functions(narrow).state

    @inlined
    def finish(
        h: Any, after: Any, row: Any, unit: Any, z: Any, r: Any, g: Any, a: Any, y: Any, codes: Any, v: Any,
        size: Any, scale: Any, first: Any, units: Any, k: Any, counts: Any, total: Any,
    ) -> None:  # fmt: skip
        before = number(number(h[row, unit]) - k[STORED])
        s = next_state(z, g, before, k, counts)
        after[row, unit] = number(s + k[STORED])
        x_row = first + row
        store_state(
            y,
            codes,
            v,
            size,
            x_row * units + unit,
            x_row,
            unit,
            units,
            scale,
            s,
            z,
            r,
            g,
            a,
            k,
        )
        add_counts(counts, total)

    return finish


@family(BOTH)
def states(narrow: bool) -> Kernel:
    """The kernel of the third part of a step: the next states."""
    number, finish = number_type(narrow), state_epilogue(narrow)
    bytes_ = array(int8 if narrow else int32, 2)

    def work(
        mid: Any, h: Any, after: Any, y: Any, codes: Any, v: Any, size: Any, scale: Any, first: Any,
        units: Any, total: Any, padded: Any, constants_k: Any,
    ) -> None:  # fmt: skip
        k, counts = cuda.local.array(CONSTANT_COUNT, number), cuda.local.array(COUNTER_LENGTH, number)
        copy_constants(constants_k, k)
        clear_counts(counts)
        row, unit = place_thread(padded)
        if row < h.shape[0] and unit < units:
            counts[VALID] = number(1)
            z, g = mid[row, unit], mid[row, uint32(uint32(padded + padded) + unit)]
            r, a = (
                mid[row, uint32(padded + unit)],
                mid[row, uint32(uint32(padded + padded) + uint32(padded + unit))],
            )
            finish(
                h, after, row, unit, z, r, g, a, y, codes, v, size, scale, first, units, k, counts, total
            )  # fmt: skip

    name = f"gru states of a step, {'narrow' if narrow else 'wide'}"
    parts = array(number, 2), bytes_, bytes_, *OUTS, array(int64, 1), uint32, constants_type(narrow)
    return Kernel(name, work, *parts, threads=THREADS)


@family(BOTH)
def one(narrow: bool) -> Kernel:
    """The kernel of a whole step: products, gates and state of a unit in one thread."""
    number, dot, atoms = number_type(narrow), dot_product(narrow), step_functions(narrow)
    hidden_term, all_gates, finish = atoms.hidden_term, atoms.gates, state_epilogue(narrow)
    bytes_ = array(int8 if narrow else int32, 2)

    def work(
        R: Any, words: Any, h: Any, after: Any, rows: Any, biases: Any, tables: Any, p: Any,
        first_p_row: Any,  # the row of p with which the step begins
        y: Any, codes: Any, v: Any, size: Any, scale: Any, first: Any, units: Any, total: Any, padded: Any,
        constants_k: Any,
    ) -> None:  # fmt: skip
        k, counts = cuda.local.array(CONSTANT_COUNT, number), cuda.local.array(COUNTER_LENGTH, number)
        copy_constants(constants_k, k)
        clear_counts(counts)
        row, unit = place_thread(padded)
        if row < h.shape[0] and unit < units:
            counts[VALID] = number(1)
            d = cuda.local.array(3, number)
            for gate in range(3):
                at = uint32(uint32(uint32(gate) * padded) + unit)
                s = number(dot(R, at, words, row))
                d[gate] = hidden_term(
                    s, rows[0, at], rows[1, at], rows[2, at], rows[3, at], rows[4, at], k, counts
                )
            at_r, at_g = uint32(padded + unit), uint32(uint32(padded + padded) + unit)
            x_row = first_p_row + row
            z, r, g, a = all_gates(
                d[0], d[1], d[2], p[x_row, unit], p[x_row, at_r], p[x_row, at_g], biases[3, unit],
                tables[0], tables[1], tables[2], k, counts,
            )  # fmt: skip
            finish(
                h, after, row, unit, z, r, g, a, y, codes, v, size, scale, first, units, k, counts, total
            )  # fmt: skip

    name = f"gru a step at once, {'narrow' if narrow else 'wide'}"
    matrix = array(number, 2)
    parts = *operands(narrow), bytes_, bytes_, *(matrix,) * 4, uint64, *OUTS, array(int64, 1), uint32
    return Kernel(name, work, *parts, constants_type(narrow), threads=THREADS)
