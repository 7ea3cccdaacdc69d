"""Multiply 8-bit codes of both sides in integers, which LLVM turns into vector code by itself.

Changed: activations become 8-bit codes with a scale for each 32, once for all rows of weights.
Products of codes are summed as integers, and only a run's sum meets the scales.

Why it helps: integer sums may be taken in any order, so LLVM adds many at a time; float sums may not.

Limited by what LLVM finds: it widens bytes to 16 and 32 bits before it multiplies, sums across a
vector for each run of 32, and keeps nothing in registers from one row to the next.
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
from ...formats.packing import RUN
from ..machine.jit import jit
from ..machine.target import target
from ..panels.layout import unpacked, x_run_bytes
from ..panels.multiply import coding_for_blocks, x_rows_of
from ..unpack import unpacker


def refuses(problem: Linear) -> str | None:
    if not isinstance(problem.format, BlockFormat):
        return f"{problem.format.name} has no integer codes"
    return None


@register(__name__, __doc__, arithmetic="q8", accumulate="int32", refuses=refuses)
def launch(x: Any, q: QuantArray, out: Any) -> None:
    assert isinstance(q.format, BlockFormat)
    x_rows, _ = x_rows_of(x, coding_for_blocks(q.format, target()))
    raw, multiply = np.ascontiguousarray(q.raw), kernel(q.format)
    share(lambda first, stop: multiply(x_rows, raw, out, first, stop), q.shape[0])


@cache
def kernel(fmt: BlockFormat) -> Any:
    """The compiled product of rows of codes with blocks of one format."""
    unpack, layout = unpacker(fmt), unpacked(fmt, target())
    size, group, nbytes, has_offset = fmt.block_size, fmt.group, fmt.dtype.itemsize, fmt.has_offset
    pitch, groups, width = x_run_bytes(layout), layout.groups, layout.group

    def multiply(x_rows: Any, raw: Any, out: Any, first: int, stop: int) -> None:
        columns = raw.shape[1] // nbytes * size
        x, floats = x_rows.view(np.int8), x_rows.view(np.float32)
        codes = np.empty(columns, np.int8)
        scales, offsets = np.empty(columns // group, np.float32), np.empty(columns // group, np.float32)
        length = columns // len(scales)  # = width; a loop of constant length would be unrolled into scalars
        for n in range(first, stop):
            unpack(raw[n], codes, scales, offsets)
            for m in range(x_rows.shape[0]):
                total = np.float32(0)
                for run in range(columns // RUN):
                    scaled = np.float32(0)
                    for part in range(groups):
                        w, a, dot = run * RUN + part * width, run * pitch + part * width, np.int32(0)
                        for i in range(length):  # unsigned indices: no index counts from the end
                            product = np.int32(codes[np.uint64(w + i)]) * np.int32(x[m, np.uint64(a + i)])
                            dot = np.int32(dot + product)
                        scaled += scales[w // group] * np.float32(dot)
                        if has_offset:  # the row holds -scale · Σq
                            less = floats[m, (run * pitch + RUN) // 4 + 1 + groups + part]
                            total += offsets[w // group] * less
                    total += scaled * floats[m, (run * pitch + RUN) // 4]
                out[m, n] = total

    return jit(multiply)
