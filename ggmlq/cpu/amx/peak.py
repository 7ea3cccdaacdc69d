"""The kernel that measures the matrix unit's own rate: a product's steps, with operands that stay near."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..machine.arguments import reader
from ..machine.jit import jit
from ..machine.peaks import Region
from .instructions import instructions
from .unit import TILE, Unit


@cache
def multiplier() -> Any:
    """Compiled: ``rounds`` steps an index, each of 32 × 32 sums of 32 products."""
    region = reader(Region)
    begin, end, no_sums, _, _, step, _ = instructions(Unit, "dot")

    def multiply(arguments: int, first: int, stop: int) -> None:
        fields = region(arguments)
        memory = np.empty(4096, np.uint8)
        unit_at, at = memory.ctypes.data + 63 & -64, fields.memory
        begin(unit_at)
        no_sums(unit_at)
        for _ in range(first, stop):
            for _ in range(fields.rounds):
                step(unit_at, at, at + 2 * TILE, at + 3 * TILE)
        end(unit_at)
        memory[0] = 0  # an array lives until its last mention

    return jit(multiply)
