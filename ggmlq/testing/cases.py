"""Cases that tests and benchmarks share: every block format, and weights of any of them."""

from __future__ import annotations

from ..arrays.array import QuantArray
from ..formats import FORMATS, BlockFormat, Format
from .blocks import random_blocks

BLOCKS = [fmt for fmt in FORMATS.values() if isinstance(fmt, BlockFormat)]
# A few that stand for all where a test asks about data and not about a type: with an offset and
# without, high bits, sub-scales, minima, a table, a grid.
FEW = ("q4_0", "q5_1", "q8_0", "q3_K", "q4_K", "q6_K", "iq4_nl", "iq2_xs")


def weights(fmt: str | Format, n: int, k: int, seed: int = 0) -> QuantArray:
    """[n, k] weights of random bytes whose scales are of ordinary size, the same for the same seed."""
    fmt = FORMATS[fmt]
    return QuantArray.from_bytes(random_blocks(fmt, n, k // fmt.block_size, seed), fmt, (n, k))
