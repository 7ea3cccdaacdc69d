"""``wgmma`` on 16-bit floats for attention: scores of two tiles in shared memory, then weights times values.

Sums are in an array of the thread, which stays in registers. Lane 4 g + t of warp w has those of rows
16 w + g and 16 w + g + 8, columns 8 j + 2 t and 8 j + 2 t + 1: four for each j. Tiles lie in parts of 64
columns, whose rows of 128 bytes are swizzled: chunk c of 16 bytes at c ^ (row % 8).

Products are started, and done once ``settle`` has waited for them. Only Hopper has these instructions.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from .assembly import FLOAT, WORD, as_intrinsic, emit_assembly, f32, only_on_a_gpu, u32
from .language import SIMULATED, ir, types
from .wgmma8 import HIGH, LOW

PART = 64  # columns of a part of a tile
DEEP = 16  # columns of a product, along K
SUMS, WORDS = types.Array(f32, 1, "C"), types.Array(u32, 1, "C")


def _places(context: Any, builder: Any, kind: Any, array: Any, count: int) -> list[Any]:
    """The addresses of an array's elements."""
    data = context.make_array(kind)(context, builder, array).data
    return [builder.gep(data, [ir.Constant(WORD, i)]) for i in range(count)]


def _descriptor(name: str, address: str, low: int) -> str:
    return f"shr.u32 low, {address}, 4; or.b32 low, low, {low}; mov.b64 {name}, {{low, {HIGH}}};"


@cache
def score_starter(columns: int, width: int, kind: str) -> Any:
    """The device function ``start(s, rows, keys)``: [64, width] times [columns, width] transposed, into s.

    ``kind``: "f16" or "bf16". Parts of the rows lie ``apart`` bytes from each other.
    """
    count = columns // 2

    def start(s: Any, rows: Any, keys: Any, apart: Any) -> Any:
        """Start to make scores; rows and keys are addresses, keys' parts lie next to each other."""
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        places = _places(context, builder, signature.args[0], operands[0], count)
        sums, first = ",".join(f"${i}" for i in range(count)), count
        lines = ["{.reg .b32 low, at; .reg .b64 a, b;", "wgmma.fence.sync.aligned;"]
        for part in range(width // PART):
            lines.append(f"mad.lo.u32 at, ${first + 2}, {part}, ${first};" + _descriptor("a", "at", LOW))
            lines.append(f"add.u32 at, ${first + 1}, {part * columns * 128};" + _descriptor("b", "at", LOW))
            for step in range(PART // DEEP):
                fresh = part == step == 0
                lines.append(
                    f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind} {{{sums}}}, a, b, "
                    f"{0 if fresh else 1}, 1, 1, 0, 0;"
                )
                if step < PART // DEEP - 1:
                    lines.append("add.u64 a, a, 2; add.u64 b, b, 2;")
        lines.append("wgmma.commit_group.sync.aligned;}")
        result = ir.LiteralStructType([FLOAT] * count)
        constraints = ["=f"] * count + ["r"] * 3
        values = emit_assembly(builder, result, "\n".join(lines), constraints, operands[1:], effect=True)
        for i, place in enumerate(places):
            builder.store(builder.extract_value(values, i), place)
        return context.get_dummy_value()

    return start if SIMULATED else as_intrinsic(start, types.void(SUMS, u32, u32, u32), emit)


@cache
def mix_starter(depth: int, width: int, kind: str) -> Any:
    """The device function ``start(o, weights, values)``: adds [64, depth] times [depth, width] to o."""
    count, words = width // 2, depth // 4
    leading = depth * 128 // 16 << 16  # from a part of 64 columns to the next

    def start(o: Any, weights: Any, values: Any) -> Any:
        """Start to add weights, pairs in registers, times values at an address."""
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        places = _places(context, builder, signature.args[0], operands[0], count)
        pairs = [
            builder.load(place) for place in _places(context, builder, signature.args[1], operands[1], words)
        ]
        sums = ",".join(f"${i}" for i in range(count))
        lines = ["{.reg .b32 low; .reg .b64 b;", "wgmma.fence.sync.aligned;"]
        lines.append(_descriptor("b", f"${count + words}", leading))
        for step in range(depth // DEEP):
            four = ",".join(f"${count + 4 * step + i}" for i in range(4))
            lines.append(
                f"wgmma.mma_async.sync.aligned.m64n{width}k16.f32.{kind}.{kind} {{{sums}}}, {{{four}}}, b, "
                "1, 1, 1, 1;"
            )
            if step < depth // DEEP - 1:
                lines.append(f"add.u64 b, b, {DEEP * 128 // 16};")
        lines.append("wgmma.commit_group.sync.aligned;}")
        constraints = ["=f"] * count + ["r"] * (words + 1) + [str(i) for i in range(count)]
        before = [builder.load(place) for place in places]
        result = ir.LiteralStructType([FLOAT] * count)
        values = emit_assembly(
            builder, result, "\n".join(lines), constraints, [*pairs, operands[2], *before], effect=True
        )
        for i, place in enumerate(places):
            builder.store(builder.extract_value(values, i), place)
        return context.get_dummy_value()

    return start if SIMULATED else as_intrinsic(start, types.void(SUMS, WORDS, u32), emit)


@cache
def settler(count: int, pending: int) -> Any:
    """The device function ``settle(sums)``: waits until all but ``pending`` started products are done."""

    def settle(sums: Any) -> Any:
        """Wait for the products that these sums are of."""
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        places = _places(context, builder, signature.args[0], operands[0], count)
        constraints = ["=f"] * count + [str(i) for i in range(count)]
        before = [builder.load(place) for place in places]
        result = ir.LiteralStructType([FLOAT] * count)
        text = f"wgmma.wait_group.sync.aligned {pending};"
        values = emit_assembly(builder, result, text, constraints, before, effect=True)
        for i, place in enumerate(places):
            builder.store(builder.extract_value(values, i), place)
        return context.get_dummy_value()

    return settle if SIMULATED else as_intrinsic(settle, types.void(SUMS), emit)
