"""Results as halves: float32 to float16 in vectors, by code that may have come with the package.

NumPy's own conversion takes 6 ns a number, ten times as long as reading it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ..machine.arguments import reader
from ..machine.jit import jit
from ..machine.memory import bytes_at, floats_at
from ._halves import Narrowing
from .f16 import kernel

narrowing = reader(Narrowing)


@cache
def narrower() -> Any:
    """Compiled: numbers ``first`` … ``stop`` of ``Narrowing`` to halves."""

    def work(arguments: int, first: int, stop: int) -> None:
        fields = narrowing(arguments)
        values = floats_at(fields.values, 1, stop)[0]
        halves = bytes_at(fields.halves, 1, 2 * stop)[0]
        kernel(values[first:stop], halves[2 * first : 2 * stop])

    return jit(work)
