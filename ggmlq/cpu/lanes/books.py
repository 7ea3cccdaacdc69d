"""Look-ups in code books without a load for each row: tables held in vector registers.

A row of eight small codes with four levels, or of four with sixteen, takes 16 bits. Shuffles across two
registers look 32 rows up among 64 at a time, a tree of choices takes the right 64, and another shuffle
turns each field of bits into its level.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from ..machine.features import compiled_for
from .kind import Lanes, address, emitted

WORD, LONG = ir.IntType(16), ir.IntType(64)
WORDS, BYTES = ir.VectorType(WORD, 32), ir.VectorType(ir.IntType(8), 64)
PAIR = 64  # entries that one shuffle chooses from


def shuffles_words() -> bool:
    """True if the CPU has the three shuffles."""
    return {"avx512f", "avx512bw", "avx512vbmi"} <= compiled_for()


def _call(builder: Any, name: str, kind: ir.Type, *args: Any) -> Any:
    declared = builder.module.globals.get(name)
    function = declared or ir.Function(builder.module, ir.FunctionType(kind, [a.type for a in args]), name)
    return builder.call(function, args)


@emitted
def pick(typingctx: Any, table: Any, length: Any, indices: Any) -> Any:
    """table[i] for 32 lanes i of 16 bits; the table is one of 16 bits, its length a constant power of two."""
    count = length.literal_value

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        def entries(at: int) -> Any:
            place = address(context, builder, sig.args[0], args[0], LONG(at), WORDS)
            return builder.load(place, align=1)

        rows = [
            _call(builder, "llvm.x86.avx512.vpermi2var.hi.512", WORDS, entries(at), args[2], entries(at + 32))
            for at in range(0, count, PAIR)
        ]
        bit = PAIR
        while len(rows) > 1:
            bits = builder.and_(args[2], ir.Constant(WORDS, [bit] * 32))
            mask = builder.icmp_unsigned("!=", bits, ir.Constant(WORDS, None))
            rows = [builder.select(mask, b, a) for a, b in zip(rows[::2], rows[1::2], strict=True)]
            bit *= 2
        return rows[0]

    return indices(table, length, indices), codegen


@emitted
def levels(typingctx: Any, table: Any, words: Any) -> Any:
    """64 bytes for the fields of 8 or of 16 words; the table has 64 bytes and goes by a field's six bits.

    Fields narrower than six bits are followed by others, so their entries repeat.
    """
    count = 64 // words.n  # fields of a word
    width = 16 // count
    fields = [field // count * count * 8 + field % count * width for field in range(8)]

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        wide = builder.zext(args[1], ir.VectorType(ir.IntType(count * 8), words.n))
        at, bits = ir.Constant(BYTES, fields * 8), builder.bitcast(wide, BYTES)
        moved = _call(builder, "llvm.x86.avx512.pmultishift.qb.512", BYTES, at, bits)
        place = address(context, builder, sig.args[0], args[0], LONG(0), BYTES)
        entries = builder.load(place, align=1)
        return _call(builder, "llvm.x86.avx512.permvar.qi.512", BYTES, entries, moved)

    return Lanes(types.uint8, 64)(table, words), codegen
