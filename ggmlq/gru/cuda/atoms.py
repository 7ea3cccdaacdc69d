"""The atoms of a step (``ggmlq/gru/step.py``), compiled for the GPU in words of 32 bits or of 64.

Constants that all units share are one tuple of a kernel's parameters, so that instructions take them from the
parameters' memory. A kernel first copies the tuple to a local array: then the compiler knows every place, and
nothing of the copy is left.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from ...cuda.intrinsics import ptx
from ...cuda.intrinsics.atoms import inlined
from ...cuda.intrinsics.language import cuda, float32, int32, int64, types, uint32, uint64
from ...cuda.intrinsics.ptx import take4
from ...formats.atoms import recompiler
from .. import step

COUNTS = len(step.COUNTED)
VALID = COUNTS  # place behind a thread's counts: 1 for a real unit and row, 0 for padding
COUNTER_LENGTH = COUNTS + 1
STORED, ZERO, ZEROS = (
    step.SIZE,
    step.SIZE + 1,
    step.SIZE + 2,
)  # places behind k: offsets of stored states, of codes, of v
CONSTANT_COUNT = step.SIZE + 6


def count_clamped(counts: Any, which: Any, before: Any, after: Any) -> None:
    """``step.moved`` for a GPU: count a value that left the ends of its tensor."""
    if before != after:
        counts[which >> 1] += counts[VALID]


@inlined
def look_up_shared(table: Any, index: Any) -> Any:
    return int32(take4(uint32(table + uint32(uint32(index) << 2))))


def number_type(narrow: bool) -> Any:
    """The type of a step's numbers."""
    return int32 if narrow else int64


def constants_type(narrow: bool) -> Any:
    """The type of the tuple of constants."""
    return types.UniTuple(number_type(narrow), CONSTANT_COUNT)


@cache
def atom_compiler(narrow: bool, shared: bool = False) -> Any:
    """A compiler of atoms; ``shared``: tables are addresses in shared memory."""
    replacements: dict[str, Any] = {"moved": inlined(count_clamped)}
    if narrow:
        replacements |= {
            "plus": ptx.plus, "minus": ptx.minus, "times": ptx.times,
            "clamp": ptx.clamped, "shifted": ptx.shifted,
        }  # fmt: skip
    if shared:
        replacements["look"] = look_up_shared
    return recompiler(inlined, replacements)


class RowConstants(NamedTuple):
    """The constants of a row of W or R, which make a term of its sum."""

    correction: Any
    left: Any
    half: Any
    negative: Any
    right: Any


class Gates(NamedTuple):
    """Results of the gates of a unit."""

    z: Any
    r: Any
    g: Any
    added: Any  # R_g h + b_rg


class StepFunctions(NamedTuple):
    """Device functions for the parts of a step."""

    input_term: Any  # (sum, RowConstants, bias, k, gate's shift, counts): a gate's input term
    hidden_term: Any  # (sum, RowConstants, k, counts): the deviation of Rh
    gates: Any  # (dz, dr, dg, pz, pr, pg, bias_added, tables, k, counts): Gates
    state: Any  # (z, g, h, k, counts): the next state


@cache
def step_functions(narrow: bool, shared: bool = False) -> StepFunctions:
    """The device functions of a step, compiled from the atoms of ``step.py``."""
    make = atom_compiler(narrow, shared)
    product, gate, added, reset, state, scaled = (
        make(atom) for atom in (step.product, step.gate, step.added, step.reset, step.state, step.scaled)
    )
    plus = ptx.plus if narrow else make(step.plus)
    wx, rh, z_pre, r_pre, g_pre = step.WX, step.RH, step.Z_PRE, step.R_PRE, step.G_PRE
    rh_z, rh_r, reset_g = step.RH_Z, step.RH_R, step.RESET_G

    @inlined
    def input_term(total: Any, row: Any, bias: Any, k: Any, shift: Any, counts: Any) -> Any:
        term = product(total, row.correction, row.left, row.half, row.negative, row.right, k, wx, counts)
        return plus(scaled(term, k, shift), bias)

    @inlined
    def hidden_term(total: Any, row: Any, k: Any, counts: Any) -> Any:
        return product(total, row.correction, row.left, row.half, row.negative, row.right, k, rh, counts)

    @inlined
    def gates(
        dz: Any, dr: Any, dg: Any, pz: Any, pr: Any, pg: Any, bias: Any, tables: Any, k: Any, counts: Any
    ) -> Any:  # fmt: skip
        z_table, r_table, g_table = tables
        z = gate(pz, dz, k, rh_z, z_pre, z_table, counts)
        r = gate(pr, dr, k, rh_r, r_pre, r_table, counts)
        a = added(dg, bias, k, counts)
        m = reset(r, a, k, counts)
        g = gate(pg, m, k, reset_g, g_pre, g_table, counts)
        return Gates(z, r, g, a)

    return StepFunctions(input_term, hidden_term, gates, state)


def _copier() -> Any:
    """The device function ``(k, to)`` that copies the constants, a line each, for a loop would compute each
    place.
    """
    lines = [f"    to[{i}] = k[{i}]" for i in range(CONSTANT_COUNT)]
    namespace: dict[str, Any] = {"__name__": __name__}
    exec("\n".join(["def copied(k, to):", *lines]), namespace)
    return inlined(namespace["copied"])


copy_constants = _copier()


@cache
def constants_and_counts(narrow: bool) -> Any:
    """The device function for a thread's copy of the constants, and its counts, which are zero."""
    number = number_type(narrow)

    @inlined
    def begin(constants: Any) -> Any:
        k, counts = cuda.local.array(CONSTANT_COUNT, number), cuda.local.array(COUNTER_LENGTH, number)
        copy_constants(constants, k)
        for i in range(COUNTER_LENGTH):
            counts[i] = 0
        return k, counts

    return begin


@inlined
def add_counts(counts: Any, total: Any) -> None:
    """Add a thread's counts to those of the call: few threads have any."""
    for i in range(COUNTS):
        if counts[i] != 0:
            cuda.atomic.add(total, i, int64(counts[i]))


class Outs(NamedTuple):
    """The destinations of states."""

    y: Any  # addresses; 0 for outputs that the call does not want
    codes: Any
    v: Any
    size: Any  # bytes of a code
    scale: Any  # bits of a float
    row: Any  # the first: t · N
    units: Any


OUTS = uint64, uint64, uint64, uint32, uint32, uint64, uint32


@inlined
def store_gates(to: Any, row_bytes: Any, gates: Any, k: Any) -> None:
    """Store the intermediates of a unit, ``row_bytes`` apart."""
    ptx.store4(to, uint32(gates.z + k[ZEROS]))
    ptx.store4(to + row_bytes, uint32(gates.r + k[ZEROS + 1]))
    ptx.store4(to + row_bytes * 2, uint32(gates.g + k[ZEROS + 2]))
    ptx.store4(to + row_bytes * 3, uint32(gates.added + k[ZEROS + 3]))


@inlined
def store_state(outs: Any, row: Any, unit: Any, state: Any, gates: Any, k: Any) -> None:
    """Store a state of a row to y, and to codes and intermediates where these are not 0."""
    at = row * outs.units + unit
    ptx.store_float(outs.y + at * 4, ptx.mul(float32(state), ptx.float_of(outs.scale)))
    if outs.codes != 0:
        code = uint32(state + k[ZERO])
        if outs.size == 1:
            ptx.store1(outs.codes + at, code)
        else:
            ptx.store2(outs.codes + at * 2, code)
    if outs.v != 0:
        store_gates(outs.v + (row * outs.units * 4 + unit) * 4, uint64(outs.units) * 4, gates, k)
