"""Planes: operands of int8 kernels with codes in one array, scales in another.

Blocks of 18 or 34 bytes cannot be loaded with wide instructions. So codes go into a matrix of bytes
and scales into a matrix of floats, by column of blocks; both padded to whole tiles, so that kernels
load without a check. Codes in the padding may be anything, its scales are 0.

    codes   int8     [rows', k']          rows' and k' are multiples of 128
    scale   float32  [k' / run, rows']    run: 16 or 32 elements
    offset  float32  [k' / run, rows']    weights with an offset
    sums    float32  [k' / run, rows']    activations for those: scale times the sum of the codes

Weights keep their planes as long as the array lives (9 bits a weight, or 10 with runs of 16).
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
    """One operand; see the head of the file."""

    codes: Any
    scale: Any
    extra: Any  # offset or sums, or None
    run: int


def padded(n: int) -> int:
    """So many rows or columns, in whole tiles."""
    return -(-n // TILE) * TILE


def refuses(problem: Linear) -> str | None:
    """Why planes do not serve a problem, or None: the ``refuses`` of rungs that work on them."""
    if not isinstance(problem.format, BlockFormat):
        return "is written for blocks"
    if problem.m > MOST:
        return f"takes up to {MOST} rows of activations"
    return None
