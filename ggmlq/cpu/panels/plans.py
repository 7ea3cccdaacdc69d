"""How a product is run again: two kernels on tables that are written already, but for two addresses.

What a product of a shape with the same weights does is the same each time. So the first one is watched
(``workers.recorded``), and the next only write where x and the result lie. That is for few rows: with many
this time does not matter, and the memory of a plan does. One thread does what is small, because the others
would take longer to wake.
"""

from __future__ import annotations

from array import array
from typing import Any, NamedTuple

import numpy as np

from ..machine.kernels import Kernel
from ..machine.workers import Call, recorded, share_table
from .operands import Activations, Operands

SMALL = 1 << 18  # products of a weight and an activation: some 10 µs, which is what waking takes
MOST = 64 << 10  # bytes of activations as records, which a plan keeps for each thread that calls it
VALUES, WIDTH = Activations._fields.index("values"), Activations._fields.index("columns")
OUT, COLUMNS = Operands._fields.index("out"), Operands._fields.index("n")


class Tables(NamedTuple):
    """What one call needs for itself."""

    quantize: Any
    quantize_at: int
    multiply: Any
    multiply_at: int
    records: Any  # their memory


class Plan:
    """A product of rows with weights; any number of threads may call it."""

    __slots__ = (
        "_alone", "_calls", "_count", "_free", "_given", "_multiply", "_quantize", "_rows", "weights"
    )  # fmt: skip

    def __init__(self, calls: list[Call], weights: Any) -> None:
        first, second = self._calls = calls
        self._quantize, self._multiply = first.work.code.call, second.work.code.call
        self._rows, self._count = first.whole, second.whole
        self._given: Any = first.arguments, second.arguments
        self._alone = self._rows * second.arguments[COLUMNS] * first.arguments[WIDTH] <= SMALL
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
        if self._alone:
            self._quantize(quantize_at, 0, self._rows)
            self._multiply(multiply_at, 0, self._count)
        else:
            for call, at in zip(self._calls, (quantize_at, multiply_at), strict=True):
                share_table(call.work.code, at, call.whole, call.grain)
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
    taken: Any = calls[0].arguments
    given: Any = calls[1].arguments
    if taken.row_bytes * calls[0].whole > MOST:
        return None
    if (taken.values, given.out) != (x.ctypes.data, out.ctypes.data) or taken.records != given.records:
        return None
    if not all(isinstance(call.work, Kernel) for call in calls):
        return None
    kept = [each for each in (q.raw, *q.all_kept()) if isinstance(each, np.ndarray)]
    weights = next((each for each in kept if each.ctypes.data == given.weights), None)
    return None if weights is None else Plan(calls, weights)
