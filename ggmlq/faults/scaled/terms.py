"""The doctor's product of scaled arrays as a sum over groups of K, each group with its own scales.

For each group there are dots = Σ qa·qb, the sums of the codes of both operands, scales and zero points. Then

    y = Σ sa·sb·(dots - za·Σqb - zb·Σqa + n·za·zb)

and a mistake in scales or zero points is the same sum with one of its terms changed: nothing is
multiplied again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ...arrays.scaled import ScaledArray
from ...codes.code import Code
from ...reference.bound import UNIT
from ..numbers import HUGE, SMALLEST, Index, Wide
from ..survey import typical

RUN = 32  # terms after which sums on their way are looked at
ALONG = 6  # times sqrt(K), of the largest sum on the way
EXTRA, SPREAD = 8, 4  # roundings of one term, and what grows like sqrt(K): as in reference/bound.py


@dataclass(frozen=True, eq=False)
class Side:
    """Some rows of one operand: codes as numbers, scales and zero points."""

    name: str  # "x" or "w"
    s: ScaledArray | None  # None where floats are taken as they are
    rows: Index
    values: Wide  # [rows, K]: codes as numbers, without scale and zero point
    grid: Wide  # all scales
    zeros: Wide | None  # all zero points
    r: int
    c: int
    moves: Wide | None = None  # [rows, K]: steps of codes that lie near a tie, of floats quantized here

    @property
    def code(self) -> Code:
        """The code of an operand that has one."""
        assert self.s is not None
        return self.s.code

    @cached_property
    def tiles(self) -> Index:
        """The row of the scales that belongs to each row."""
        return self.rows // self.r

    def columns(self, starts: Index) -> Index:
        """The column of the scales that belongs to each group of K."""
        return starts // self.c

    def with_values(self, values: Wide) -> Side:
        """These rows with other codes."""
        return replace(self, values=values, moves=None)


def side(name: str, s: ScaledArray, rows: Index, moves: Wide | None = None) -> Side:
    """Rows of an array of two dimensions."""
    m = s.matrix()
    values = m.code.decode(np.ascontiguousarray(m.codes[rows])).astype(np.float64)
    zeros = None if m.zeros is None else m.zeros.astype(np.float64)
    return Side(name, s, rows, values, m.scales.astype(np.float64), zeros, m.over.r, m.over.c, moves)


def floats(x: Wide, rows: Index) -> Side:
    """Activations as they are, under a scale of 1."""
    return Side("x", None, rows, x[rows], np.ones((1, 1)), None, max(len(x), 1), max(x.shape[1], 1))


@dataclass(frozen=True, eq=False)
class Terms:
    """A product taken apart by groups of K, so that one part can be replaced."""

    dots: Wide  # [G, M, N]: of codes, zero points not taken off
    sums: tuple[Wide, Wide]  # [M, G], [N, G]: of codes
    lengths: Wide  # [G]
    scales: tuple[Wide, Wide]  # [M, G], [N, G]
    zeros: tuple[Wide | None, Wide | None]
    magnitudes: Wide  # [G, M, N]: Σ |qa - za|·|qb - zb|
    starts: Index  # [G]

    @cached_property
    def corrections(self) -> tuple[Wide | None, Wide | None, Wide | None]:
        """za·Σqb, zb·Σqa and n·za·zb, each [G, M, N]."""
        (za, zb), (sum_a, sum_b) = self.zeros, self.sums
        first = None if za is None else za.T[:, :, None] * sum_b.T[:, None]
        second = None if zb is None else sum_a.T[:, :, None] * zb.T[:, None]
        if za is None or zb is None:
            return first, second, None
        return first, second, self.lengths[:, None, None] * za.T[:, :, None] * zb.T[:, None]

    def inner(self, factors: tuple[float, float, float] = (1, 1, 1)) -> Wide:
        """The sums of each group before scales; factors of the corrections other than 1 are mistakes."""
        sums = self.dots
        for sign, factor, term in zip((-1, -1, 1), factors, self.corrections, strict=True):
            if term is not None and factor:
                sums = sums + sign * factor * term
        return sums

    @cached_property
    def right(self) -> Wide:
        """The sums before scales, as they should be."""
        return self.inner()

    @property
    def parts(self) -> Wide:
        """The terms of y that each group of K adds, [G, M, N]."""
        a, b = self.scales
        return self.right * a.T[:, :, None] * b.T[:, None]

    def product(self, inner: Wide | None = None, a: Wide | None = None, b: Wide | None = None) -> Wide:
        """The product [M, N], with other sums or scales where some are passed."""
        inner = self.right if inner is None else inner
        a, b = self.scales[0] if a is None else a, self.scales[1] if b is None else b
        y: Wide = np.einsum("gmn,mg,ng->mn", inner, a, b)
        return y

    def limit(self, y: Wide, a: Wide | None = None, b: Wide | None = None, sums: Wide | None = None) -> Wide:
        """The distance that float32 sums in any order may have from y, which has these scales.

        The rounding of the sums is bounded by the magnitudes of all terms, unless ``sums`` has it.
        """
        a, b = self.scales[0] if a is None else a, self.scales[1] if b is None else b
        a, b = np.abs(np.nan_to_num(a)).T[:, :, None], np.abs(np.nan_to_num(b)).T[:, None]
        scale, size = a * b, np.nan_to_num(self.magnitudes)
        y = np.nan_to_num(y, posinf=0, neginf=0)  # where it is not finite the class alone counts
        k = float(self.lengths.sum())
        if sums is None:
            sums = UNIT * ((EXTRA + SPREAD * np.sqrt(k)) * (scale * size).sum(axis=0) + k * np.abs(y))
        limit = sums
        if any(term is not None for term in self.corrections):
            magnitudes = [np.abs(term) for term in (self.dots, *self.corrections) if term is not None]
            limit = limit + 4 * UNIT * (scale * sum(magnitudes)).sum(axis=0)
        flushed = (a < SMALLEST) | (b < SMALLEST) | (scale < SMALLEST)
        limit = limit + np.where(flushed, scale * size, 0).sum(axis=0)
        limit = limit + SMALLEST * (k + (self.lengths[:, None, None] * (a + b)).sum(axis=0))
        large = np.maximum(size, 1) * np.maximum(np.maximum(a, b), scale)
        over = (large.max(axis=0, initial=0) > HUGE) | (size.max(axis=0, initial=0) > HUGE)
        return np.where(over, np.inf, np.nan_to_num(limit, nan=np.inf))


def grouped(a: Side, b: Side) -> int:
    """Columns of K that share all scales."""
    return int(max(1, min(a.c, b.c, max(a.values.shape[1], 1))))


def runs(values: Wide, length: int) -> Wide:
    """Rows cut into pieces of so many columns, [G, rows, length], the last one filled up with zeros."""
    rows, k = values.shape
    count = -(-k // length)
    padded = np.zeros((rows, count * length))
    padded[:, :k] = values
    return padded.reshape(rows, count, length).transpose(1, 0, 2)


def dots(a: Wide, b: Wide, length: int) -> Wide:
    """Sums of a·b over each run of so many columns, [runs, M, N]."""
    return runs(a, length) @ runs(b, length).transpose(0, 2, 1)


def less_zeros(s: Side) -> Wide:
    """Codes less their zero points, [rows, K]."""
    if s.zeros is None:
        return s.values
    taken: Wide = s.zeros[s.tiles][:, np.arange(s.values.shape[1]) // s.c]
    return s.values - taken


def terms(a: Side, b: Side) -> Terms:
    """The Terms of the product of some rows of x with some rows of w."""
    group, k = grouped(a, b), a.values.shape[1]
    starts = np.arange(0, k, group)
    sums = [runs(s.values, group).sum(axis=2).T for s in (a, b)]
    scales, zeros = [], []
    for s in (a, b):
        at = np.ix_(s.tiles, s.columns(starts))
        scales.append(s.grid[at])
        zeros.append(None if s.zeros is None else s.zeros[at])
    magnitudes = dots(np.abs(less_zeros(a)), np.abs(less_zeros(b)), group)
    lengths = np.diff(np.append(starts, k)).astype(np.float64)
    return Terms(
        dots(a.values, b.values, group), (sums[0], sums[1]), lengths, (scales[0], scales[1]),
        (zeros[0], zeros[1]), magnitudes, starts,
    )  # fmt: skip


def value_of(s: Side) -> Wide:
    """The numbers that codes stand for, scale · (code - zero), [rows, K]."""
    return less_zeros(s) * s.grid[s.tiles][:, np.arange(s.values.shape[1]) // s.c]


def size_of(a: Side, b: Side) -> Wide:
    """The size of each element of y, were its terms of random sign."""
    left, right = (np.nan_to_num(value_of(s), posinf=0, neginf=0) for s in (a, b))
    return np.maximum(typical(left, right), 1e-300)


def rounded_off(a: Side, b: Side, y: Wide) -> Wide:
    """The error of float32 sums of K terms.

    Each addition rounds by half an ulp of the sum so far: at random, which grows like sqrt(K), as large as
    sums become on their way along K; or, where terms are all alike, always to the same side.
    """
    left, right = (np.nan_to_num(value_of(s), posinf=0, neginf=0) for s in (a, b))
    k = left.shape[1]
    so_far, largest = np.zeros(y.shape), np.zeros(y.shape)
    for start in range(0, k, RUN):
        part = slice(start, start + RUN)
        so_far += left[:, part] @ right[:, part].T
        largest = np.maximum(largest, np.abs(so_far))
    terms_together = np.sqrt((left**2) @ (right**2).T)  # of the terms, together
    alike = np.minimum(so_far**2 / np.maximum(k * terms_together**2, 1e-300), 1)
    limit: Wide = UNIT * (
        (EXTRA + ALONG * np.sqrt(k)) * (largest + terms_together) + k * alike * np.abs(so_far)
    )
    return limit
