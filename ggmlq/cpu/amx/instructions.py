"""The steps of kernels on the matrix unit: four tiles hold sums of 32 × 32, two weights, two activations.

Sums in memory are [32, 32] of four bytes, wherever they lie.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ..machine.intrinsics import intrinsic_of
from ..machine.simd import I64
from .unit import PITCH, TILE, Unit

SUMS = 4 * TILE  # bytes of 32 x 32 sums
LINE = 2 * PITCH  # of one row of these


@cache
def instructions(unit: Any, dot: str) -> tuple[Any, ...]:
    """The intrinsics begin, end, zeros, load, store, step and half_step of a ``Unit``.

    Steps use its method ``dot``.
    """

    def instruction(emit: Any, words: int) -> Any:
        return intrinsic_of(lambda builder, here, *args: emit(unit(builder, here), *args), 1 + words)

    return (
        instruction(lambda u: u.begin(), 0),
        instruction(lambda u: u.end(), 0),
        instruction(_zero, 0),
        instruction(_load, 1),
        instruction(_store, 3),
        instruction(_step(dot, 2), 3),
        instruction(_step(dot, 1), 3),
    )


def _zero(u: Unit) -> None:
    for t in range(4):
        u.zero(t)


def _load(u: Unit, sums: Any) -> None:
    for t in range(4):
        u.load(t, u.b.add(sums, I64(2 * TILE * (t // 2) + PITCH * (t % 2))), I64(LINE))


def _store(u: Unit, to: Any, pitch: Any, below: Any) -> None:
    """Store sums as rows at a pitch, the second 16 of them from ``below`` bytes on."""
    for t in range(4):
        at = u.b.add(to, below) if t // 2 else to
        u.store(t, u.b.add(at, I64(PITCH * (t % 2))), pitch)


def _step(dot: str, halves: int) -> Any:
    """16 or 32 rows of activations at an address times the left and the right 16 rows of weights."""

    def multiply(u: Unit, x: Any, left: Any, right: Any) -> None:
        add = getattr(u, dot)
        u.load(6, x, passing=True)
        u.load(4, left)
        add(0, 6, 4)
        u.load(5, right)
        add(1, 6, 5)
        if halves == 1:
            return
        u.load(7, u.b.add(x, I64(TILE)), passing=True)
        add(2, 7, 4)
        add(3, 7, 5)

    return multiply
