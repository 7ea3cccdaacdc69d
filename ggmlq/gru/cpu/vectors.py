"""The atoms of a step (``ggmlq/gru/step.py``), compiled from their source for vectors of 32 units.

A step of a unit is one long chain: product, gate, product, gate, products. Two registers of 16 lanes side by
side are two chains, of which one can run while the other waits.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from ...cpu.lanes import chosen, convert, emitted, gather, load, order, store
from ...cpu.machine.features import compiled_for
from ...cpu.machine.jit import inline
from ...formats.atoms import recompiler
from .. import step

LANES, HALF = 32, 16
SHORT = 256  # entries of tables that lie in registers, 32 in each
PLAIN, ONE = ir.IntType(8).as_pointer(), ir.IntType(1)


@inline
def clamp(v: Any, low: Any, high: Any) -> Any:
    above = chosen(v < low, low, v)
    return chosen(above > high, high, above)


@emitted
def _looked_up(typingctx: Any, table: Any, index: Any) -> Any:
    """Entries of a table by the instructions for it: short tables of int16 lie in registers."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        data = context.make_array(sig.args[0])(context, builder, args[0]).data
        emit = _permuted if table.dtype == types.int16 else _gathered
        return emit(builder, data, args[1])

    return index(table, index), codegen


def _function(builder: Any, name: str, result: Any, parts: list[Any]) -> Any:
    """The declaration of an LLVM intrinsic."""
    declared = builder.module.globals.get(name)
    return declared or ir.Function(builder.module, ir.FunctionType(result, parts), name)


def _gathered(builder: Any, data: Any, index: Any) -> Any:
    kind, mask = ir.VectorType(ir.IntType(32), HALF), ir.VectorType(ONE, HALF)
    name = "llvm.x86.avx512.mask.gather.dpi.512"
    function = _function(builder, name, kind, [kind, PLAIN, kind, mask, ir.IntType(32)])
    every, base = ir.Constant(mask, [1] * HALF), builder.bitcast(data, PLAIN)
    parts = []
    for first in (0, HALF):
        some = builder.shuffle_vector(index, index, order(range(first, first + HALF)))
        parts.append(builder.call(function, [ir.Constant(kind, None), base, some, every, ir.IntType(32)(4)]))
    return builder.shuffle_vector(*parts, order(range(LANES)))


def _permuted(builder: Any, data: Any, index: Any) -> Any:
    """Each instruction has 64 of the 256 entries; bits 6 and 7 of the index say whose result counts."""
    kind = ir.VectorType(ir.IntType(16), LANES)
    function = _function(builder, "llvm.x86.avx512.vpermi2var.hi.512", kind, [kind] * 3)
    at, places = builder.bitcast(data, kind.as_pointer()), builder.trunc(index, kind)
    parts = [builder.load(builder.gep(at, [ir.IntType(32)(i)]), align=64) for i in range(SHORT // LANES)]
    entries = [
        builder.call(function, [low, places, high]) for low, high in zip(parts[::2], parts[1::2], strict=True)
    ]
    for bit in (64, 128):
        set_ = builder.icmp_unsigned(
            "!=", builder.and_(places, ir.Constant(kind, [bit] * LANES)), ir.Constant(kind, None)
        )
        entries = [
            builder.select(set_, high, low) for low, high in zip(entries[::2], entries[1::2], strict=True)
        ]
    return builder.sext(entries[0], index.type)


@inline
def _by_instruction(table: Any, index: Any) -> Any:
    return _looked_up(table, index)


@inline
def _one_by_one(table: Any, index: Any) -> Any:
    return gather(table, index)


def in_registers(table: Any) -> bool:
    """True if a table is looked up in registers: then it is SHORT numbers of int16 that begin a cache line.

    A gather takes a load for each lane; permuting eight registers two by two takes a twelfth off a step.
    """
    ends = np.iinfo(np.int16)
    return (
        "avx512bw" in compiled_for()
        and len(table) <= SHORT
        and bool((table >= ends.min).all() and (table <= ends.max).all())
    )


@cache
def counter(kind: Any) -> Any:
    """The atom ``moved`` for vectors: it counts lane by lane."""

    def moved(counts: Any, which: Any, before: Any, after: Any) -> None:
        at = (which >> 1) * LANES
        store(counts, at, load(counts, at, LANES) + convert(before != after, kind))

    return inline(moved)


def looker(narrow: bool) -> Any:
    """The atom ``look`` for vectors: entries of a table for 32 units."""
    return _by_instruction if narrow and "avx512f" in compiled_for() else _one_by_one


@cache
def build(narrow: bool) -> Any:
    """A compiler of atoms for vectors of int32 or of int64."""
    kind = types.int32 if narrow else types.int64
    return recompiler(
        inline,
        {"clamp": clamp, "look": looker(narrow), "moved": counter(kind), "TOP": 31 if narrow else 63},
    )


@cache
def gates(narrow: bool) -> Any:
    """Compiled: from the sums of R·h to the next state and z, r, g, for 32 units of one sequence."""
    make = build(narrow)
    product, gate, added, reset, state = (
        make(atom) for atom in (step.product, step.gate, step.added, step.reset, step.state)
    )
    kind = types.int32 if narrow else types.int64
    z_pre, r_pre, g_pre, rh = step.Z_PRE, step.R_PRE, step.G_PRE, step.RH
    rh_z, rh_r, reset_g = step.RH_Z, step.RH_R, step.RESET_G

    def hidden(sums: Any, at: int, rows: Any, row: int, k: Any, counts: Any) -> Any:
        correction, left, half, negative, right = rows
        return product(
            convert(load(sums, at, LANES), kind), load(correction, row, LANES), load(left, row, LANES),
            load(half, row, LANES), load(negative, row, LANES), load(right, row, LANES), k, rh, counts,
        )  # fmt: skip

    hidden = inline(hidden)

    def one(
        sums: Any, at: int, step_: int, terms: Any, t_at: int, t_step: int, rows: Any, unit: int, padded: int,
        bias_added: Any, tables: Any, k: Any, h: Any, counts: Any,
    ) -> Any:  # fmt: skip
        z_table, r_table, g_table = tables
        pz, pr = load(terms, t_at, LANES), load(terms, t_at + t_step, LANES)
        pg = load(terms, t_at + 2 * t_step, LANES)
        z = gate(pz, hidden(sums, at, rows, unit, k, counts), k, rh_z, z_pre, z_table, counts)
        r = gate(
            pr, hidden(sums, at + step_, rows, unit + padded, k, counts), k, rh_r, r_pre, r_table, counts
        )
        dg = hidden(sums, at + 2 * step_, rows, unit + 2 * padded, k, counts)
        a = added(dg, load(bias_added, unit, LANES), k, counts)
        m = reset(r, a, k, counts)
        g = gate(pg, m, k, reset_g, g_pre, g_table, counts)
        return state(z, g, h, k, counts), z, r, g, a

    return inline(one)


@cache
def terms(narrow: bool) -> Any:
    """Compiled: the input terms of the three gates, for 32 units of one row of x."""
    make = build(narrow)
    product, scaled = make(step.product), make(step.scaled)
    kind = types.int32 if narrow else types.int64
    wx = step.WX
    shifts = step.WX_Z, step.WX_R, step.WX_G

    def one(
        sums: Any, at: int, step_: int, rows: Any, unit: int, padded: int, biases: Any, k: Any, counts: Any,
        out: Any, to: int, to_step: int,
    ) -> None:  # fmt: skip
        correction, left, half, negative, right = rows
        for gate in range(3):
            row = unit + gate * padded
            d = product(
                convert(load(sums, at + gate * step_, LANES), kind), load(correction, row, LANES),
                load(left, row, LANES), load(half, row, LANES), load(negative, row, LANES),
                load(right, row, LANES), k, wx, counts,
            )  # fmt: skip
            bias = load(biases, row, LANES)
            store(out, to + gate * to_step, scaled(d, k, shifts[0] + 4 * gate) + bias)

    return inline(one)


__all__ = ["LANES", "build", "gates", "terms"]
