"""The blocks of a tensor: damaged ones, histograms of scales and of codes.

Every block is checked for damage. In large tensors scales and codes are counted in evenly spaced runs of
blocks only: millions of codes, which is enough for every bar of a histogram.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..formats import BlockFormat, Format
from ..gguf.source import release

SLAB = 1 << 16  # blocks looked at together
RUN = 1 << 10  # blocks taken apart together
LOOK = 1 << 22  # elements of a tensor whose codes are counted
LISTED = 16  # damaged blocks that are named
CODES = 256


@dataclass
class Blocks:
    """Facts about a tensor's blocks; about plain numbers only their damage."""

    blocks: int
    damaged: int = 0
    first_damaged: list[tuple[int, int]] = field(default_factory=list)  # row and block of it
    seen: int = 0  # blocks taken apart
    scales: dict[int, int] = field(default_factory=dict)  # exponent of two: how many
    groups: int = 0  # scales looked at
    bad_scales: int = 0  # NaN or infinite
    zero_scales: int = 0
    negative_scales: int = 0
    codes: NDArray[np.int64] | None = None  # counts of all int8, from -128 on
    code_range: tuple[int, int] = (0, 0)
    steps: float = 0.0  # mean of the squared scales, each a step between codes

    @property
    def saturated(self) -> int:
        """The number of codes at an end of their range."""
        if self.codes is None:
            return 0
        low, high = (end + CODES // 2 for end in self.code_range)
        return int(self.codes[: low + 1].sum() + self.codes[high:].sum())

    @property
    def saturated_share(self) -> float:
        """Their share of all codes."""
        return 0.0 if self.codes is None else self.saturated / max(int(self.codes.sum()), 1)

    def facts(self) -> dict[str, Any]:
        """The facts as JSON has them."""
        facts: dict[str, Any] = {
            "blocks": self.blocks,
            "damaged": self.damaged,
            "first_damaged": [{"row": row, "block": block} for row, block in self.first_damaged],
        }
        if self.codes is None:
            return facts
        low, high = self.code_range
        return facts | {
            "blocks_seen": self.seen,
            "scales": {
                "groups": self.groups,
                "not_finite": self.bad_scales,
                "zero": self.zero_scales,
                "negative": self.negative_scales,
                "histogram": [
                    {"from": 2.0**e, "to": 2.0 ** (e + 1), "count": n} for e, n in sorted(self.scales.items())
                ],
            },
            "codes": {
                "min": low,
                "max": high,
                "saturated": self.saturated,
                "saturated_share": self.saturated_share,
                "counts": self.codes[low + CODES // 2 : high + CODES // 2 + 1].tolist(),
            },
        }


def examine(q: QuantArray, look: int | None = None) -> Blocks:
    """The facts about all blocks of a tensor; the codes of some ``look`` elements are counted (``LOOK``)."""
    flat = q.blocks.reshape(-1)
    blocks = Blocks(len(flat))
    row = max(1, q.blocks.shape[-1] if q.shape else 1)
    for start in range(0, len(flat), SLAB):
        part = flat[start : start + SLAB]
        with np.errstate(invalid="ignore"):  # arm64 tells of a NaN that is converted
            bad = np.flatnonzero(q.format.invalid(part))
        blocks.damaged += len(bad)
        for at in bad[: LISTED - len(blocks.first_damaged)].tolist():
            blocks.first_damaged.append(divmod(start + at, row))
        release(part)
    if isinstance(q.format, BlockFormat):
        _take_apart(blocks, q.format, flat, look or LOOK)
    return blocks


def _take_apart(blocks: Blocks, fmt: BlockFormat, flat: NDArray[Any], look: int) -> None:
    codes, squares = np.zeros(CODES, np.int64), 0.0
    for start in _runs(len(flat), fmt, look):
        part = flat[start : start + RUN]
        with np.errstate(all="ignore"):  # damaged scales are what one looks for
            parts = fmt.unpack(part)
        codes += np.bincount(parts.codes.reshape(-1).view(np.uint8) ^ np.uint8(128), minlength=CODES)
        good = parts.scale[np.isfinite(parts.scale)].astype(np.float64)
        squares += float(np.square(good).sum())
        blocks.groups += parts.scale.size
        blocks.bad_scales += parts.scale.size - good.size
        blocks.zero_scales += int((good == 0).sum())
        blocks.negative_scales += int((good < 0).sum())
        exponents, counts = np.unique(np.frexp(good[good != 0])[1] - 1, return_counts=True)
        for exponent, count in zip(exponents.tolist(), counts.tolist(), strict=True):
            blocks.scales[exponent] = blocks.scales.get(exponent, 0) + count
        blocks.seen += len(part)
        release(part)
    blocks.codes, blocks.code_range = codes, code_range(fmt)
    blocks.steps = squares / max(blocks.groups - blocks.bad_scales, 1)


def _runs(blocks: int, fmt: Format, look: int) -> list[int]:
    """The first blocks of the runs that are taken apart: of all, or of evenly spaced ones."""
    starts = range(0, blocks, RUN)
    most = max(1, -(-look // (RUN * fmt.block_size)))
    if len(starts) <= most:
        return list(starts)
    return [starts[int(i)] for i in np.linspace(0, len(starts) - 1, most)]


@cache
def code_range(fmt: BlockFormat) -> tuple[int, int]:
    """Smallest and largest code, taken from random blocks; -128 counts as -127, which encoders use."""
    rng = np.random.default_rng(0)
    raw = rng.integers(0, 256, 1024 * fmt.dtype.itemsize, np.uint8)
    with np.errstate(all="ignore"):
        codes = fmt.unpack(raw.view(fmt.dtype)).codes
    return max(int(codes.min()), -127), int(codes.max())
