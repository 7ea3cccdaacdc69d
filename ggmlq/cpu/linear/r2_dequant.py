"""Decode a slab of weight rows to float32, multiply it with NumPy, go on with the next slab.

Changed: the product is NumPy's, which is a BLAS: it keeps sums of many rows in vector registers and
uses all threads.

Why it helps: a sum may be taken by many lanes at a time where nobody asks for an order. It serves
every format, the float ones too, because it only asks for decoded rows, and it never holds more
than one decoded slab.

Limited by decoding: each weight is expanded to four bytes, written and read again, for every call.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...arrays.array import QuantArray
from ...dispatch.ladder import register
from ..encode.halves import float_rows
from ..unpack import decode_into
from .r8_floats import multiply_floats

SLAB_BYTES = 4 << 20  # of decoded weights: fits the last-level cache beside the activations


def alone(x: Any, q: QuantArray, out: Any) -> None:
    """The product of ``launch`` with the sums of ``cpu:floats``, in one order for any number of rows."""
    n, k = q.shape
    x = np.ascontiguousarray(x, np.float32)
    rows = max(1, SLAB_BYTES // (4 * max(k, 1)))
    for start in range(0, n, rows):
        slab = np.empty((min(rows, n - start), k), np.float32)
        if not decode_into(q.format, np.ascontiguousarray(q.raw[start : start + rows]), slab):
            slab[...] = q.format.decode(q.blocks[start : start + rows])
        multiply_floats(x, slab, out, start)


@register(__name__, __doc__, arithmetic="f32", accumulate="f32", invariant=alone)
def launch(x: Any, q: QuantArray, out: Any) -> None:
    n, k = q.shape
    x = float_rows(x)  # a BLAS adds in another order where rows lie otherwise
    if q.format.dtype == np.float32:
        np.matmul(x, q.blocks.T, out=out)
        return
    rows = max(1, SLAB_BYTES // (4 * max(k, 1)))
    slab = np.empty((min(rows, n), k), np.float32)
    for start in range(0, n, rows):
        part = slab[: n - start]
        # on this thread: others would have to wake while those of the BLAS still look for work
        if not decode_into(q.format, np.ascontiguousarray(q.raw[start : start + rows]), part):
            part[...] = q.format.decode(q.blocks[start : start + rows])
        np.matmul(x, part.T, out=out[:, start : start + rows])
