"""Decode to half, multiply with cuBLAS: what a library gives, and the bar for all others.

Changed: halves in place of float32, for weights and activations, so that cuBLAS has tensor cores for
them; it sums their products in float32. It serves every block format and does not care for blocks at
all.

Limited by the copy: each weight is written and read again as two bytes, which a large batch pays
for and a small one does not. The copy takes 256 MB (or 16 rows): larger matrices are decoded and
multiplied in slabs of rows. Halves end at 65504: larger activations become infinite.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ...arrays.array import QuantArray
from ...dispatch.ladder import register
from ._cublas import decoded_rows, multiply_by_cublas, refuses


@register(
    __name__, __doc__, arithmetic="f16", accumulate="f16", refuses=refuses,
    caution="halves end at 65504, larger activations become infinite",
)  # fmt: skip
def launch(x: Any, q: QuantArray, out: Any) -> None:
    multiply_by_cublas(x, q, out, "float16", partial(decoded_rows, "float16"))
