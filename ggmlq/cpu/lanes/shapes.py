"""Lanes from other lanes or numbers: rearranged, repeated, converted, their bits taken as another type."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from .kind import Lanes, element, emitted, order, plain, splatted, vector


@emitted
def interleave(typingctx: Any, a: Any, b: Any, run: Any) -> Any:
    """Runs of lanes from two vectors in turn; a run of all lanes joins them."""
    kind, step = Lanes(a.of, 2 * a.n), run.literal_value
    picked = order(i // (2 * step) * step + i % step + i // step % 2 * a.n for i in range(kind.n))

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.shuffle_vector(args[0], args[1], picked)

    return kind(a, a, run), codegen


@emitted
def part(typingctx: Any, lanes: Any, start: Any, n: Any) -> Any:
    """The ``n`` lanes of a vector from ``start`` on, both constants."""
    kind, first = Lanes(lanes.of, n.literal_value), start.literal_value
    picked = order(range(first, first + kind.n))

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.shuffle_vector(args[0], ir.Constant(args[0].type, ir.Undefined), picked)

    return kind(lanes, start, n), codegen


@emitted
def ramp(typingctx: Any, kind: Any, n: Any, step: Any) -> Any:
    """0, step, 2 * step, … as lanes."""
    lanes = Lanes(kind.dtype, n.literal_value)
    numbers = ir.Constant(vector(lanes), [i * step.literal_value for i in range(lanes.n)])

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return numbers

    return lanes(kind, n, step), codegen


@emitted
def splat(typingctx: Any, number: Any, kind: Any, n: Any) -> Any:
    """A number n times, as lanes of a type."""
    lanes = Lanes(kind.dtype, n.literal_value)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return splatted(builder, args[0], lanes.n)

    return lanes(lanes.of, kind, n), codegen


@emitted
def recast(typingctx: Any, bits: Any, kind: Any) -> Any:
    """The bits of lanes, or of an integer, as lanes of another type; one lane is a number."""
    of = kind.dtype
    new = Lanes(of, bits.bitwidth // of.bitwidth) if bits.bitwidth > of.bitwidth else of

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.bitcast(args[0], vector(new) if isinstance(new, Lanes) else element(new))

    return new(plain(bits), kind), codegen


@emitted
def convert(typingctx: Any, lanes: Any, kind: Any) -> Any:
    """Numbers as lanes of another type; floats become integers towards zero, a mask 1 and 0."""
    old, new = lanes.of, Lanes(kind.dtype, lanes.n)
    if isinstance(old, types.Boolean):
        name = "zext"
    elif isinstance(old, types.Float):
        name = "fpext" if isinstance(new.of, types.Float) else "fptosi"
    elif isinstance(new.of, types.Float):
        name = "sitofp" if old.signed else "uitofp"
    elif new.of.bitwidth > old.bitwidth:
        name = "sext" if old.signed else "zext"
    else:
        name = "trunc" if new.of.bitwidth < old.bitwidth else "bitcast"

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return getattr(builder, name)(args[0], vector(new))

    return new(lanes, kind), codegen
