"""The atoms of a step (``ggmlq/gru/step.py``), compiled for the GPU in words of 32 bits or of 64.

Constants that all units share come as one tuple of a kernel's parameters, so that instructions take them
from where parameters lie. A kernel copies it to an array of its own first: then every place is known to the
compiler, and nothing of the copy is left.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from ...cuda.intrinsics import integers, ptx
from ...cuda.intrinsics.atoms import inlined
from ...cuda.intrinsics.bf16x2 import take4
from ...cuda.intrinsics.language import cuda, float32, int32, int64, types, uint32, uint64
from ...formats.atoms import recompiler
from .. import step

COUNTS = len(step.COUNTED)
VALID = COUNTS  # behind the counts of a thread: 1 where they count, 0 for units or rows that are none
COUNTER_LENGTH = COUNTS + 1
STORED, ZERO, ZEROS = step.SIZE, step.SIZE + 1, step.SIZE + 2  # behind k: added to states, to codes, to v
CONSTANT_COUNT = step.SIZE + 6


def count_clamped(counts: Any, which: Any, before: Any, after: Any) -> None:
    if before != after:
        counts[which >> 1] += counts[VALID]


@inlined
def look_up_shared(table: Any, index: Any) -> Any:
    return int32(take4(uint32(table + uint32(uint32(index) << uint32(2)))))


def number_type(narrow: bool) -> Any:
    """What numbers of a step are."""
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
            "plus": integers.plus, "minus": integers.minus, "times": integers.times,
            "clamp": integers.clamped, "shifted": integers.shifted,
        }  # fmt: skip
    if shared:
        replacements["look"] = look_up_shared
    return recompiler(inlined, replacements)


class StepFunctions(NamedTuple):
    """Device functions."""

    input_term: Any  # (sum, five constants, bias, k, gate's shift, counts): what x brings to a gate
    hidden_term: Any  # (sum, five constants, k, counts): the deviation of Rh
    gates: Any  # (dz, dr, dg, pz, pr, pg, bias_added, tables, k, counts): z, r, g, R_g h + b_rg
    state: Any  # (z, g, h, k, counts)


@cache
def step_functions(narrow: bool, shared: bool = False) -> StepFunctions:
    """Those of ``step.py``, put together."""
    make = atom_compiler(narrow, shared)
    product, gate, added, reset, state, scaled = (
        make(atom) for atom in (step.product, step.gate, step.added, step.reset, step.state, step.scaled)
    )
    plus = integers.plus if narrow else make(step.plus)
    wx, rh, z_pre, r_pre, g_pre = step.WX, step.RH, step.Z_PRE, step.R_PRE, step.G_PRE
    rh_z, rh_r, reset_g = step.RH_Z, step.RH_R, step.RESET_G

    @inlined
    def input_term(
        total: Any, correction: Any, left: Any, half: Any, negative: Any, right: Any, bias: Any, k: Any, shift: Any,
        counts: Any,
    ) -> Any:  # fmt: skip
        return plus(
            scaled(product(total, correction, left, half, negative, right, k, wx, counts), k, shift), bias
        )

    @inlined
    def hidden_term(
        total: Any, correction: Any, left: Any, half: Any, negative: Any, right: Any, k: Any, counts: Any
    ) -> Any:  # fmt: skip
        return product(total, correction, left, half, negative, right, k, rh, counts)

    @inlined
    def gates(
        dz: Any, dr: Any, dg: Any, pz: Any, pr: Any, pg: Any, bias: Any, of_z: Any, of_r: Any, of_g: Any,
        k: Any, counts: Any,
    ) -> Any:  # fmt: skip
        z = gate(pz, dz, k, rh_z, z_pre, of_z, counts)
        r = gate(pr, dr, k, rh_r, r_pre, of_r, counts)
        a = added(dg, bias, k, counts)
        m = reset(r, a, k, counts)
        g = gate(pg, m, k, reset_g, g_pre, of_g, counts)
        return z, r, g, a

    return StepFunctions(input_term, hidden_term, gates, state)


def _copier() -> Any:
    """The device function ``(k, to)``: each number by its own line, for a loop would look each of them up."""
    lines = [f"    to[{i}] = k[{i}]" for i in range(CONSTANT_COUNT)]
    made: dict[str, Any] = {"__name__": __name__}
    exec("\n".join(["def copied(k, to):", *lines]), made)
    return inlined(made["copied"])


copy_constants = _copier()


@inlined
def clear_counts(counts: Any) -> None:
    """A thread's counts."""
    for i in range(COUNTER_LENGTH):
        counts[i] = 0


@inlined
def add_counts(counts: Any, total: Any) -> None:
    """Add a thread's counts to those of the call: few have any."""
    for i in range(COUNTS):
        if counts[i] != 0:
            cuda.atomic.add(total, i, int64(counts[i]))


@inlined
def store_state(
    y: Any, codes: Any, v: Any, size: Any, at: Any, row: Any, unit: Any, units: Any, scale: Any,
    state: Any, z: Any, r: Any, g: Any, a: Any, k: Any,
) -> None:  # fmt: skip
    """A state to y, and where they were asked for to codes and intermediates. ``at``: element of y."""
    ptx.store_float(y + at * uint64(4), ptx.mul(float32(state), ptx.float_of(scale)))
    if codes != uint64(0):
        code = uint32(state + k[ZERO])
        if size == uint32(1):
            ptx.store1(codes + at, code)
        else:
            ptx.store2(codes + at * uint64(2), code)
    if v != uint64(0):
        to = v + (row * uint64(units) * uint64(4) + uint64(unit)) * uint64(4)
        every = uint64(units) * uint64(4)
        ptx.store4(to, uint32(z + k[ZEROS]))
        ptx.store4(to + every, uint32(r + k[ZEROS + 1]))
        ptx.store4(to + every * uint64(2), uint32(g + k[ZEROS + 2]))
        ptx.store4(to + every * uint64(3), uint32(a + k[ZEROS + 3]))
