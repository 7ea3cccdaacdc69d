"""The blocks of a tensor, for ``ggmlq report``: damaged ones, histograms of scales and of codes.

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
from ..base.progress import Progress
from ..formats import BlockFormat, Format
from ..gguf.source import release

# --- statistics for ggmlq show: values, scales and codes, a slab at a time -------------------

DECODED = 1 << 18  # elements decoded together


def statistics(q: QuantArray) -> dict[str, Any]:
    """Range, mean, zeros, NaN and infinity of the values; for blocks also scales and codes."""
    blocks = q.blocks.reshape(-1)
    values, scales, codes = _Values(), _Scales(), _Codes(q.format)
    step = max(1, DECODED // q.format.block_size)
    progress = Progress(q.nbytes, "counting")
    try:
        for start in range(0, len(blocks), step):
            part = blocks[start : start + step]
            values.add(q.format.decode(part, np.float64 if q.format.block_size == 1 else np.float32))
            if isinstance(q.format, BlockFormat):
                with np.errstate(all="ignore"):  # damaged scales are what one looks for
                    parts = q.format.unpack(part)
                scales.add(parts.scale)
                codes.add(parts.codes)
            progress.advance(part.nbytes)
    finally:
        progress.close()
    facts = values.result()
    if isinstance(q.format, BlockFormat):
        facts |= {"scales": scales.result(), "codes": codes.result()}
    return facts


class _Values:
    def __init__(self) -> None:
        self.n = self.zeros = self.nans = self.infinities = 0
        self.low, self.high = np.inf, -np.inf
        self.sum = self.squares = 0.0

    def add(self, values: NDArray[Any]) -> None:
        finite = values[np.isfinite(values)].astype(np.float64, copy=False)
        self.n += values.size
        self.nans += int(np.isnan(values).sum())
        self.infinities += int(np.isinf(values).sum())
        self.zeros += int((values == 0).sum())
        if finite.size:
            self.low, self.high = min(self.low, float(finite.min())), max(self.high, float(finite.max()))
            with np.errstate(over="ignore"):
                self.sum += float(finite.sum())
                self.squares += float(np.square(finite).sum())

    def result(self) -> dict[str, Any]:
        finite = self.n - self.nans - self.infinities
        return {
            "elements": self.n,
            "min": self.low if finite else None,
            "max": self.high if finite else None,
            "mean": self.sum / finite if finite else None,
            "rms": float(np.sqrt(self.squares / finite)) if finite else None,
            "zeros": self.zeros,
            "nan": self.nans,
            "infinite": self.infinities,
        }


class _Scales:
    """The number of scales between powers of two."""

    def __init__(self) -> None:
        self.n = self.zeros = self.negative = self.bad = 0
        self.bins: dict[int, int] = {}

    def add(self, scales: NDArray[np.float32]) -> None:
        good = scales[np.isfinite(scales)]
        self.n += scales.size
        self.bad += scales.size - good.size
        self.zeros += int((good == 0).sum())
        self.negative += int((good < 0).sum())
        exponents = np.frexp(good[good != 0])[1] - 1
        for exponent, count in zip(*np.unique(exponents, return_counts=True), strict=True):
            self.bins[int(exponent)] = self.bins.get(int(exponent), 0) + int(count)

    def result(self) -> dict[str, Any]:
        return {
            "groups": self.n,
            "zero": self.zeros,
            "negative": self.negative,
            "not_finite": self.bad,
            "histogram": [
                {"from": 2.0**e, "to": 2.0 ** (e + 1), "count": n} for e, n in sorted(self.bins.items())
            ],
        }


class _Codes:
    """The number of codes at the ends of the range that the format can store."""

    def __init__(self, fmt: Format) -> None:
        self.low, self.high = code_range(fmt) if isinstance(fmt, BlockFormat) else (0, 0)
        self.n = self.ends = 0

    def add(self, codes: NDArray[np.int8]) -> None:
        self.n += codes.size
        self.ends += int(((codes <= self.low) | (codes >= self.high)).sum())

    def result(self) -> dict[str, Any]:
        share = self.ends / self.n if self.n else 0.0
        return {"min": self.low, "max": self.high, "saturated": self.ends, "saturated_share": share}


@cache
def code_range(fmt: BlockFormat) -> tuple[int, int]:
    """Smallest and largest code, taken from random blocks; -128 counts as -127, which encoders use."""
    rng = np.random.default_rng(0)
    raw = rng.integers(0, 256, 1024 * fmt.dtype.itemsize, np.uint8)
    with np.errstate(all="ignore"):
        codes = fmt.unpack(raw.view(fmt.dtype)).codes
    return max(int(codes.min()), -127), int(codes.max())


# --- blocks for ggmlq report -----------------------------------------------------------------

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
    zero_scales: int = 0
    negative_scales: int = 0
    codes: NDArray[np.int64] | None = None  # counts of all int8, from -128 on
    code_range: tuple[int, int] = (0, 0)
    steps: float = 0.0  # mean of the squared scales, each a step between codes

    @property
    def saturated(self) -> float:
        """The share of codes at an end of their range."""
        if self.codes is None or not self.codes.sum():
            return 0.0
        low, high = (end + CODES // 2 for end in self.code_range)
        return float((self.codes[: low + 1].sum() + self.codes[high:].sum()) / self.codes.sum())

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
                "zero": self.zero_scales,
                "negative": self.negative_scales,
                "histogram": [
                    {"from": 2.0**e, "to": 2.0 ** (e + 1), "count": n} for e, n in sorted(self.scales.items())
                ],
            },
            "codes": {
                "min": low,
                "max": high,
                "saturated_share": self.saturated,
                "counts": self.codes[low + CODES // 2 : high + CODES // 2 + 1].tolist(),
            },
        }


def examine(q: QuantArray) -> Blocks:
    """The facts about all blocks of a tensor."""
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
        _take_apart(blocks, q.format, flat)
    return blocks


def _take_apart(blocks: Blocks, fmt: BlockFormat, flat: NDArray[Any]) -> None:
    codes, squares, groups = np.zeros(CODES, np.int64), 0.0, 0
    for start in _runs(len(flat), fmt):
        part = flat[start : start + RUN]
        with np.errstate(all="ignore"):  # damaged scales are what one looks for
            parts = fmt.unpack(part)
        codes += np.bincount(parts.codes.reshape(-1).view(np.uint8) ^ np.uint8(128), minlength=CODES)
        good = parts.scale[np.isfinite(parts.scale)].astype(np.float64)
        squares += float(np.square(good).sum())
        groups += good.size
        blocks.zero_scales += int((good == 0).sum())
        blocks.negative_scales += int((good < 0).sum())
        exponents, counts = np.unique(np.frexp(good[good != 0])[1] - 1, return_counts=True)
        for exponent, count in zip(exponents.tolist(), counts.tolist(), strict=True):
            blocks.scales[exponent] = blocks.scales.get(exponent, 0) + count
        blocks.seen += len(part)
        release(part)
    blocks.codes, blocks.code_range = codes, code_range(fmt)
    blocks.steps = squares / groups if groups else 0.0


def _runs(blocks: int, fmt: Format) -> list[int]:
    """The first blocks of the runs that are taken apart: of all, or of evenly spaced ones."""
    starts = range(0, blocks, RUN)
    most = max(1, LOOK // (RUN * fmt.block_size))
    if len(starts) <= most:
        return list(starts)
    return [starts[int(i)] for i in np.linspace(0, len(starts) - 1, most)]
