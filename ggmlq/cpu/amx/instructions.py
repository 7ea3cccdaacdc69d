"""What kernels do with tiles: four of them are sums of 32 × 32, two hold weights, two activations.

Sums in memory are [32, 32] of four bytes, wherever they lie.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import types

from ..machine.simd import I64
from ..machine.numba_names import intrinsic
from .unit import PITCH, TILE, Unit

SUMS = 4 * TILE  # bytes of 32 x 32 sums
LINE = 2 * PITCH  # of one row of these


@cache
def instructions(unit: Any, dot: str) -> tuple[Any, ...]:
    """Begin, end, zeros, load, store and step, by a kind of ``Unit`` and the name of its dot product."""

    @intrinsic
    def begin(typing: Any, here: Any) -> Any:
        return types.void(types.int64), _emitted(unit, lambda u: u.begin())

    @intrinsic
    def end(typing: Any, here: Any) -> Any:
        return types.void(types.int64), _emitted(unit, lambda u: u.end())

    @intrinsic
    def no_sums(typing: Any, here: Any) -> Any:
        return types.void(types.int64), _emitted(unit, lambda u: [u.zero(t) for t in range(4)])

    @intrinsic
    def load_sums(typing: Any, here: Any, kept: Any) -> Any:
        def load(u: Unit, kept: Any) -> None:
            for t in range(4):
                u.load(t, u.b.add(kept, I64(2 * TILE * (t // 2) + PITCH * (t % 2))), I64(LINE))

        return types.void(types.int64, types.int64), _emitted(unit, load)

    @intrinsic
    def store_sums(typing: Any, here: Any, to: Any, pitch: Any, below: Any) -> Any:
        """Rows at a pitch; the second 16 of them begin so many bytes below."""

        def store(u: Unit, to: Any, pitch: Any, below: Any) -> None:
            for t in range(4):
                at = u.b.add(to, below) if t // 2 else to
                u.store(t, u.b.add(at, I64(PITCH * (t % 2))), pitch)

        return types.void(*[types.int64] * 4), _emitted(unit, store)

    @intrinsic
    def step(typing: Any, here: Any, x: Any, left: Any, right: Any) -> Any:
        def multiply(u: Unit, x: Any, left: Any, right: Any) -> None:
            add = getattr(u, dot)
            u.load(6, x, passing=True)
            u.load(4, left)
            add(0, 6, 4)
            u.load(5, right)
            add(1, 6, 5)
            u.load(7, u.b.add(x, I64(TILE)), passing=True)
            add(2, 7, 4)
            add(3, 7, 5)

        return types.void(*[types.int64] * 4), _emitted(unit, multiply)

    return begin, end, no_sums, load_sums, store_sums, step


def _emitted(unit: Any, what: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        what(unit(builder, args[0]), *args[1:])
        return context.get_dummy_value()

    return emit
