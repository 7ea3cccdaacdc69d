"""A thread's sums of ``wgmma`` to rows of results that a list names: as thread_sums.py, but anywhere."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from .assembly import as_intrinsic, emit_assembly, f32, only_on_a_gpu, u32, u64
from .language import SIMULATED, ir, types
from .wgmma8 import unpacked

AT_ONCE = 8  # loads of the list that are under way


@cache
def scatterer(columns: int) -> Callable[..., Any]:
    """The device function (sums, y, list, column, count, row, n) for 64 rows of weights and so many columns.

    ``column``: the thread's first one, 2 t; the list, words of 32 bits of which the first is that of column
    0, says to which row of y, float32 [..., n], each of the first ``count`` columns goes.
    """
    count = columns // 2
    kind = types.UniTuple(f32, count)

    def scatter(sums: Any, y: Any, list: Any, column: Any, count: Any, row: Any, n: Any) -> Any:
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        sums, *given = operands
        values = unpacked(builder, sums, count)
        constraints = [*"llrrrr", *"f" * count]
        emit_assembly(builder, ir.VoidType(), _text(columns), constraints, [*given, *values], effect=True)
        return context.get_dummy_value()

    if SIMULATED:
        return scatter
    found: Callable[..., Any] = as_intrinsic(scatter, types.void(kind, u64, u64, u32, u32, u32, u32), emit)
    return found


def _text(columns: int) -> str:
    """Operands: y, list, column, count, row, n, then the sums: of two columns and two rows, 8 columns on."""
    groups = columns // 8
    names = ", ".join(f"u{i}" for i in range(2 * min(groups, AT_ONCE)))
    lines = [f"{{.reg .pred low, high, p; .reg .b32 c, r, {names}; .reg .b64 at, of, far;"]
    lines += ["setp.lt.u32 low, $4, $5; add.u32 r, $4, 8; setp.lt.u32 high, r, $5;"]
    lines += ["mul.wide.u32 far, $4, 4; add.u64 far, far, $0; shl.b32 r, $5, 2;"]
    lines += ["mul.wide.u32 of, $2, 4; add.u64 of, of, $1;"]
    for first in range(0, groups, AT_ONCE):
        some = range(first, min(groups, first + AT_ONCE))
        for i in some:
            u = 2 * (i - first)
            lines += [f"ld.global.v2.u32 {{u{u}, u{u + 1}}}, [of + {32 * i}];"]
        for i in some:
            for e in range(2):
                lines += [f"add.u32 c, $2, {8 * i + e}; setp.lt.and.u32 p, c, $3, low;"]
                lines += [f"mul.wide.u32 at, u{2 * (i - first) + e}, r; add.u64 at, at, far;"]
                lines += [f"@p st.global.f32 [at], ${6 + 4 * i + e}; setp.lt.and.u32 p, c, $3, high;"]
                lines += [f"@p st.global.f32 [at + 32], ${8 + 4 * i + e};"]
    return "\n".join([*lines, "}"])
