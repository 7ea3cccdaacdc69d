"""Keep the weights in panels of 16 rows, as few bits as in the file, and unpack them in registers.

Changed: the order of the bits is changed once, when an array is first multiplied, and kept with
the array. A vector load then brings codes of 16 rows; one or two instructions make them the
operand of the dot product.

Why it helps: nothing is unpacked through memory, so a single row of activations runs as fast as
the weights can be read. With many rows, formats that take several instructions to unpack go
through bytes once a panel.

Limited by the memory's bandwidth with few rows of activations, by the dot products with many.
"""

from __future__ import annotations

from typing import Any

from ...arrays.array import QuantArray
from ...dispatch.ladder import register
from ...dispatch.problems import Linear
from ..machine.features import zen
from ..machine.kernels import kernel
from ..machine.target import AVX512, Target, target
from ..panels.layout import PanelLayout, expanded, layout_of
from ..panels.multiply import coding, multiply, panels

DIRECT, THROUGH_BYTES = "panels.product.direct", "panels.product.through_bytes"
MANY = 32  # rows of activations that pay for expanding panels
LATER = 128  # likewise on AMD, where unpacking without look-ups runs beside the dot products


def refuses(problem: Linear) -> str | None:
    if layout_of(problem.format) is None:
        return f"{problem.format.name} has no codes that can be kept one by one: its blocks are read"
    if not (target().shuffles and target().halves):
        return "this CPU has no vector look-up of bytes or no 16-bit floats"
    return None


def expands(layout: PanelLayout, kind: Target, m: int) -> bool:
    """True if panels are expanded to bytes before they meet ``m`` rows of activations."""
    several = layout.offset or len(layout.planes) > 1
    return several and m >= (LATER if zen() and kind == AVX512 and not layout.table else MANY)


def alone(x: Any, q: QuantArray, out: Any) -> None:
    """The product of ``launch`` without bytes in between, which add in another order."""
    layout, kind = layout_of(q.format), target()
    assert layout is not None
    how = coding(layout, kind)
    multiply(x, q.prepared(panels), out, how, lambda rows: kernel(DIRECT, layout, rows, kind))


@register(
    __name__, __doc__, arithmetic="q8", accumulate="int32", refuses=refuses, repeats=True, invariant=alone
)
def launch(x: Any, q: QuantArray, out: Any) -> None:
    layout, kind = layout_of(q.format), target()
    assert layout is not None
    name, read = DIRECT, layout
    if expands(layout, kind, len(x)):
        name, read = THROUGH_BYTES, expanded(layout, kind)
    multiply(x, q.prepared(panels), out, coding(read, kind), lambda rows: kernel(name, layout, rows, kind))
