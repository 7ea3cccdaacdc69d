"""The epilogue of a product: steps from its sums to its results that a kernel takes before it stores them."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..codes import Code


class Epilogue(NamedTuple):
    """The steps: add a bias, then make codes under static scales; the bits are those of separate kernels.

    Each step computes in float32.
    """

    bias: Any = None  # [N], C-contiguous: float32; for blocks also float16, or bits of bfloat16 as uint16
    code: Code | None = None  # of 8 bits, for floats; None: results stay floats
    scales: Any = None  # float32, (1 or M, 1 or N)


PLAIN = Epilogue()


def is_written(code: Code | None) -> bool:
    """True if kernels can write results in this code, or if results stay floats."""
    return code is None or (code.dtype.itemsize == 1 and code.kind != "scale")
