"""The epilogue of a product: steps from its sums to its results that a kernel takes before it stores them."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..codes import Code


class Epilogue(NamedTuple):
    """The steps: add a bias and a residual, or multiply with a gate; then make codes under static scales.

    All are in float32. Bits are those of separate kernels. But where warps or blocks of packed weights share
    the columns of a tile, a residual is one of their sums, and a gate multiplies each of them.
    """

    bias: Any = None  # [N], C-contiguous: float32; for blocks also float16, or bits of bfloat16 as uint16
    code: Code | None = None  # of 8 bits, for floats; None: results stay floats
    scales: Any = None  # float32, (1 or M, 1 or N)
    residual: Any = None  # [M, N], N even, C-contiguous, of a kind like the bias; without a code
    gate: str | None = None  # "silu" or "gelu" of the residual, then float32, multiplies sums without a bias


PLAIN = Epilogue()


def is_written(code: Code | None) -> bool:
    """True if kernels can write results in this code, or if results stay floats."""
    return code is None or (code.dtype.itemsize == 1 and code.kind != "scale")
