"""Statistics of a tensor for ``ggmlq show``: its values, its scales and its codes, a slab at a time."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..base.progress import Progress
from ..formats import BlockFormat, Format

SLAB = 1 << 18  # elements decoded together


def statistics(q: QuantArray) -> dict[str, Any]:
    """Range, mean, zeros, NaN and infinity of the values; for blocks also scales and codes."""
    blocks = q.blocks.reshape(-1)
    values, scales, codes = _Values(), _Scales(), _Codes(q.format)
    step = max(1, SLAB // q.format.block_size)
    with Progress(q.nbytes, "counting") as progress:
        for start in range(0, len(blocks), step):
            part = blocks[start : start + step]
            values.add(q.format.decode(part, np.float64 if q.format.block_size == 1 else np.float32))
            if isinstance(q.format, BlockFormat):
                with np.errstate(all="ignore"):  # damaged scales are what one looks for
                    parts = q.format.unpack(part)
                scales.add(parts.scale)
                codes.add(parts.codes)
            progress.advance(part.nbytes)
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
