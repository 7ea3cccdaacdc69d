"""Unpacked operands of int8 kernels: codes in one array, scales in another.

Blocks of 18 or 34 bytes cannot be loaded with wide instructions. So codes go into a matrix of bytes
and scales into a matrix of floats, by column of blocks; both padded to whole tiles, so that kernels
load without a check. Codes in the padding may be anything, its scales are 0.

    codes   int8     [rows', k']          rows' and k' are multiples of 128
    scale   float32  [k' / run, rows']    run: 16 or 32 elements
    offset  float32  [k' / run, rows']    weights with an offset
    sums    float32  [k' / run, rows']    activations for those: scale times the sum of the codes

An array keeps its unpacked weights as long as it lives (9 bits a weight, or 10 with runs of 16).
Activations are quantized as the arithmetic q8 says: x * (127 / amax) of 32, to nearest even.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...dispatch.problems import Linear
from ...formats import BlockFormat

TILE = 128
MOST = 8 * 65535  # rows of activations: a grid has 65535 rows of blocks, of 8 rows each or more


@dataclass(frozen=True)
class Unpacked:
    """An unpacked operand; the head of the file has its arrays."""

    codes: Any
    scale: Any
    extra: Any  # offset of weights, sums of activations, or None
    run: int


def padded(n: int) -> int:
    """The number of rows or columns, filled up to whole tiles."""
    return -(-n // TILE) * TILE


def refuses(problem: Linear) -> str | None:
    """The reason why unpacked operands do not serve a problem, or None."""
    if not isinstance(problem.format, BlockFormat):
        return "is written for blocks"
    if problem.m > MOST:
        return f"takes up to {MOST} rows of activations"
    return None
