"""The walk of one product: activations to records, then panels shared by the threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...formats.format import Floats
from ..crew import share_kernel
from ..target import target
from .activations import quantizer
from .layout import ROWS, RUN, Layout, start
from .tile import ROWS_AT_ONCE, record_bytes

RECORDS = 4 << 20  # bytes of activations multiplied at a time: the last cache holds them


def multiply(x: Any, weights: Any, out: Any, layout: Layout, kernel: Callable[[int], Any]) -> None:
    """``out = x @ weights``; ``kernel(rows at once)`` compiles what multiplies panels.

    ``layout`` is the one of the panels that the tiles read. Arguments of a kernel: address, rows and
    bytes a row of the weights; the same of the records; address and columns of out; runs.
    """
    n, runs = out.shape[1], x.shape[1] // RUN
    if not runs:
        out[...] = 0
        return
    kind = target()
    nbytes = runs * record_bytes(layout)
    at_once = min(ROWS_AT_ONCE[kind.registers], 1 if len(x) == 1 else 8)
    step = max(64, RECORDS // nbytes // 8 * 8)
    quantize = quantizer(layout.halves, layout.offset, kind)
    multiply_panels = kernel(at_once)
    for first in range(0, len(x), step):
        rows = np.ascontiguousarray(x[first : first + step], np.float32)
        part: Floats = out[first : first + step]
        m = len(rows)
        records = np.empty((m, nbytes), np.uint8)
        to = records.ctypes.data
        share_kernel(quantize, (rows.ctypes.data, to, runs * RUN, nbytes, start(layout, kind)), m, 16)
        operands = (weights.ctypes.data, *weights.shape, to, m, nbytes, part.ctypes.data, n, runs)
        share_kernel(multiply_panels, operands, -(-n // ROWS))
