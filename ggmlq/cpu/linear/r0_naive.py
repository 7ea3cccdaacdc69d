"""Each weight is decoded where it is multiplied, one element after the other.

Changed: nothing yet, this is the ground. Three loops and a format's atoms say all that a product
is; every format goes through it, one product at a time.

Limited by everything: each weight is decoded again for each row of activations, byte by byte, and
each addition waits for the one before.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ...arrays.array import QuantArray
from ...base.threads import share
from ...dispatch.ladder import register
from ...dispatch.problems import Linear
from ...formats import BlockFormat
from ..atoms import atoms
from ..machine.jit import jit


def refuses(problem: Linear) -> str | None:
    if not isinstance(problem.format, BlockFormat):
        return f"{problem.format.name} has no blocks"
    return None


@register(__name__, __doc__, arithmetic="f32", accumulate="f32", refuses=refuses, invariant=True)
def launch(x: Any, q: QuantArray, out: Any) -> None:
    assert isinstance(q.format, BlockFormat)
    rows, raw, multiply = np.ascontiguousarray(x, np.float32), np.ascontiguousarray(q.raw), kernel(q.format)
    share(lambda first, stop: multiply(rows, raw, out, first, stop), q.shape[0])


@cache
def kernel(fmt: BlockFormat) -> Any:
    """The compiled product of rows with blocks of one format."""
    code, scale, offset = atoms(fmt)
    size, group, nbytes = fmt.block_size, fmt.group, fmt.dtype.itemsize

    def multiply(x: Any, raw: Any, out: Any, first: int, stop: int) -> None:
        for n in range(first, stop):
            for m in range(x.shape[0]):
                total = np.float32(0)
                for k in range(x.shape[1]):
                    block = raw[n, k // size * nbytes : (k // size + 1) * nbytes]
                    i = k % size
                    w = scale(block, i // group) * np.float32(code(block, i)) - offset(block, i // group)
                    total += x[m, k] * w
                out[m, n] = total

    return jit(multiply)
