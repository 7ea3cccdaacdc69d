"""How a small product is run again: two kernels on tables that are written already, but for two addresses.

What a product of a shape with the same weights does is the same each time. So the first one is watched
(``workers.recorded``), and the next only write where x and the result lie. That is for products which one
thread does, because the others would take longer to wake.
"""

from __future__ import annotations

from array import array
from typing import Any, NamedTuple

import numpy as np

from ..machine.kernels import Kernel
from ..machine.workers import recorded
from .operands import Activations, Operands

SMALL = 1 << 18  # products of a weight and an activation: some 10 µs, which is what waking takes
VALUES, OUT = Activations._fields.index("values"), Operands._fields.index("out")


class Tables(NamedTuple):
    """What one call needs for itself."""

    quantize: Any
    quantize_at: int
    multiply: Any
    multiply_at: int
    records: Any  # their memory


class Plan:
    """A product of rows with weights; any number of threads may call it."""

    __slots__ = ("_count", "_free", "_given", "_multiply", "_quantize", "_rows", "weights")

    def __init__(self, calls: Any, weights: Any) -> None:
        (quantize, taken, self._rows), (multiply, given, self._count) = calls
        self._quantize, self._multiply = quantize.code.call, multiply.code.call
        self._given: tuple[Activations, Operands] = taken, given
        self._free: list[Tables] = []
        self.weights = weights  # lies where the table says as long as the plan does

    def __call__(self, x: int, out: int) -> None:
        """From float32 at one address to float32 at another."""
        try:
            tables = self._free.pop()
        except IndexError:
            tables = self._tables()
        quantize, quantize_at, multiply, multiply_at, _ = tables
        quantize[VALUES], multiply[OUT] = x, out
        self._quantize(quantize_at, 0, self._rows)
        self._multiply(multiply_at, 0, self._count)
        self._free.append(tables)

    def _tables(self) -> Tables:
        taken, given = self._given
        records = np.empty((self._rows, taken.row_bytes), np.uint8)
        at = records.ctypes.data
        first, second = array("q", taken._replace(records=at)), array("q", given._replace(records=at))
        return Tables(first, first.buffer_info()[0], second, second.buffer_info()[0], records)


def planned(launch: Any, x: Any, q: Any, out: Any) -> Plan | None:
    """Run a rung; the plan of what it did, or None where it did something else than plans do."""
    with recorded() as calls:
        launch(x, q, out)
    if [type(call.arguments) for call in calls] != [Activations, Operands]:
        return None
    taken, given = calls[0].arguments, calls[1].arguments
    if (taken.values, given.out) != (x.ctypes.data, out.ctypes.data) or taken.records != given.records:
        return None
    if not all(isinstance(call.work, Kernel) for call in calls):
        return None
    kept = [each for each in (q.raw, *q.all_kept()) if isinstance(each, np.ndarray)]
    weights = next((each for each in kept if each.ctypes.data == given.weights), None)
    return None if weights is None else Plan(calls, weights)
