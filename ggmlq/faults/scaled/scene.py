"""The doctor's scene and survey for scaled arrays: y compared with right results, all of it or a part."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ...arrays.scaled import ScaledArray
from ...base.devices import to_host
from ...codes.scaling import values as as_scales
from ...codes.tiling import expanded
from ...dispatch.checks import as_floats
from ...errors import DTypeError, ShapeError, UnsupportedError
from ...ops.operands import check_pair, how_quantized, takes_zeros
from ...ops.quantize_scaled import quantize_scaled
from ...reference.operands import rounded
from ..frame import Results, results
from ..numbers import BF16, CAP, HALF, LEAST_HALF, OVERFLOWS_HALF, Index, Mask, Wide, half
from ..survey import Part, Survey, by_slabs, sampled
from .terms import Side, Terms, floats, rounded_off, side, size_of, terms

SCENE = 1 << 21  # groups × rows × columns that are examined closely
SLAB = 1 << 22  # groups × rows × columns that are judged at a time
LARGE = 100  # typical sizes: errors of a larger y are measured by y itself
FEW = 0.1  # of y may be wrong beside a store in 16 bits
CHANCE = 0.3  # part of y that another way to take x must explain beyond the first
TIE = 2.0**-21  # 4 ulp: a quotient so near to a tie may round either way


@dataclass(frozen=True, eq=False)
class Activations:
    """One way in which a right kernel takes x."""

    name: str
    s: ScaledArray | None  # quantized
    floats_of_x: Wide | None = None  # floats before they were quantized

    def side(self, rows: Index) -> Side:
        """Some of its rows."""
        if self.s is None:
            assert self.floats_of_x is not None
            return floats(self.floats_of_x, rows)
        moves = None if self.floats_of_x is None else _near_ties(self.s, self.floats_of_x, rows)
        return side("x", self.s, rows, moves)


def _near_ties(s: ScaledArray, x: Wide, rows: Index) -> Wide | None:
    """Steps by which codes may differ where x / s lies within 4 ulp of a tie, in units of their scale."""
    if s.zeros is not None:
        return None
    over = s.tiling._replace(r=1, rows=len(rows))
    scale = expanded(np, as_scales(s.scales)[rows // s.tiling.r], over).astype(np.float64)
    v = x[rows] / scale
    low, high = (s.code.decode(s.code.encode(v * f)).astype(np.float64) for f in (1 - TIE, 1 + TIE))
    steps: Wide = np.nan_to_num(np.abs(high - low) * scale)
    return steps


@dataclass(frozen=True, eq=False)
class Case:
    """A result with its operands, on the host."""

    y: Wide  # [M, N]
    ways: list[Activations]
    w: ScaledArray  # [N, K]
    store: float = 0.0  # what storing y rounded off, relatively
    cast: bool = False  # y was stored in 16 bits, though it came as float32

    def scene(self, way: Activations, rows: Index, columns: Index) -> Scene:
        """Some rows and columns of the case."""
        return Scene(self, way, rows, columns)


@dataclass(frozen=True, eq=False)
class Scene:
    """Some rows and columns of a case, with x taken in one way."""

    case: Case
    way: Activations
    rows: Index
    columns: Index

    @cached_property
    def y(self) -> Wide:
        return self.case.y[np.ix_(self.rows, self.columns)]

    @cached_property
    def a(self) -> Side:
        return self.way.side(self.rows)

    @cached_property
    def b(self) -> Side:
        return side("w", self.case.w, self.columns)

    @cached_property
    def terms(self) -> Terms:
        return terms(self.a, self.b)

    @cached_property
    def size(self) -> Wide:
        return size_of(self.a, self.b)

    @cached_property
    def prediction(self) -> Wide:
        return self.terms.product()

    @cached_property
    def limit(self) -> Wide:
        sums = rounded_off(self.a, self.b, self.prediction)
        return self.stored(self.terms.limit(self.prediction, sums=sums), self.prediction) + self.moved

    @cached_property
    def moved(self) -> Wide:
        """The error that codes of activations near a tie may add."""
        if self.a.moves is None or not self.a.moves.any():
            return np.zeros(self.y.shape)
        from_w = np.abs(self.case.w[self.columns].dequantize(np.float64))
        return np.nan_to_num(self.a.moves @ from_w.T)

    @property
    def in_floats(self) -> bool:
        """True where both operands are 8-bit floats."""
        return self.a.s is not None and self.a.s.code.kind == "float"

    def resemblance(self, y: Wide) -> tuple[float, float]:
        """The share of a mistake's changes that y shows, and its correlation with them; 0 if undefined."""
        error, lost = (((v - self.prediction) / self.size).reshape(-1) for v in (self.y, y))
        both, square = float(error @ lost), float(lost @ lost)
        if not (square > 0 and np.isfinite(both)):
            return 0.0, 0.0
        return both / square, both / float(np.sqrt(square * (error @ error)))

    def stored(self, limit: Wide, prediction: Wide) -> Wide:
        """The limit, widened by what storing the result rounds off."""
        store = self.case.store
        wider: Wide = limit + store * np.abs(np.nan_to_num(prediction, posinf=0, neginf=0))
        return wider + (LEAST_HALF if store == HALF else 0)

    def within(self, prediction: Wide, limit: Wide) -> Mask:
        """Elements that a prediction explains; elements that are not finite in both count as equal."""
        near = np.abs(self.y - prediction) <= limit
        wild = ~np.isfinite(self.y)
        inside: Mask = near | (wild & ~np.isfinite(prediction))
        inside |= ~np.isfinite(limit) & ~np.isnan(prediction)  # float32 may overflow: anything goes
        if self.case.store == HALF:
            inside |= np.isinf(self.y) & (np.abs(prediction) + limit >= OVERFLOWS_HALF)
        return inside

    def score(self, prediction: Wide) -> float:
        """The mean squared error in units of typical sizes, the worst elements capped."""
        if not self.y.size:
            return 0.0
        size = np.maximum(self.size, np.abs(np.nan_to_num(self.y, posinf=0, neginf=0)) / LARGE)
        error = ((self.y - prediction) / size) ** 2
        error[~np.isfinite(self.y) & ~np.isfinite(prediction)] = 0
        return float(np.minimum(np.nan_to_num(error, nan=CAP, posinf=CAP), CAP).mean())


@dataclass(frozen=True, eq=False)
class ScaledSurvey(Survey):
    """All of y beside the product with x taken in one way."""

    case: Case
    way: Activations

    def scene(self, bad: Mask | None = None) -> Scene:
        """The scene of some rows and columns, to examine closely; bad ones are among them."""
        return self.case.scene(self.way, *_sample(self.case, bad))


def survey(case: Case) -> ScaledSurvey:
    """All of y compared with the best right kernel, also if y was stored in 16 bits before it came."""
    plain = _survey(case)
    if case.store or not plain.bad.any() or not np.isfinite(case.y).all() or not case.y.any():
        return plain
    stores = ((HALF, half(case.y)), (BF16, rounded(case.y, "bf16")))
    casts = [_survey(replace(case, store=n, cast=True)) for n, y in stores if (y == case.y).all()]
    best = min(casts, key=lambda cast: cast.bad.sum(), default=plain)
    return best if best.bad.mean() < FEW else plain


def _survey(case: Case) -> ScaledSurvey:
    looked = _sample(case, None)
    shares = []
    for way in case.ways:
        scene = case.scene(way, *looked)
        inside = scene.within(scene.prediction, scene.limit)
        shares.append(float(inside.mean()) if inside.size else 1.0)
    best = int(np.argmax(shares))
    if shares[best] < shares[0] + CHANCE:
        best = 0  # where all are wrong a few elements agree by chance
    return beside(case, case.ways[best])


def beside(case: Case, way: Activations) -> ScaledSurvey:
    """All of y beside the product with x taken in one way."""
    (m, n), k, c = case.y.shape, case.w.shape[1], case.w.tiling.c
    groups = -(-k // (c if way.s is None else min(way.s.tiling.c, c)))
    tall = max(1, min(m, 256))

    def judge(rows: Index, columns: Index) -> Part:
        scene = case.scene(way, rows, columns)
        return scene.prediction, scene.size, scene.limit, ~scene.within(scene.prediction, scene.limit)

    wide = max(1, min(n, SLAB // (max(groups, 1) * tall), 1024))
    return ScaledSurvey(case.y, *by_slabs(case.y.shape, tall, wide, judge), case, way)


def _sample(case: Case, bad: Mask | None) -> tuple[Index, Index]:
    """Rows and columns of a scene, fewer where there are many groups."""
    rows, columns = sampled(case.y.shape, case.w.shape[1], bad)
    first = case.ways[0]
    a, b = (way.tiling.c if way is not None else 1 << 62 for way in (first.s, case.w))
    most = max(4, SCENE // max(1, -(-case.w.shape[1] // max(1, min(a, b)))))
    while len(rows) * len(columns) > most and max(len(rows), len(columns)) > 2:
        rows, columns = (rows[::2], columns) if len(rows) >= len(columns) else (rows, columns[::2])
    return rows, columns


# --- operands, checked and on the host -------------------------------------------------------------

CALL = "diagnose(y, x, w)"
CUSTOMS = ((1, 128), (1, None), (None, None))  # tiles of activations that kernels choose by themselves


def checked(
    y: Any, x: Any, w: ScaledArray, arithmetic: Any, repeats: Any, activations: Any
) -> tuple[Case, Results]:
    """The case and all results; errors say what does not fit."""
    if arithmetic is not None:
        raise UnsupportedError(
            f"{CALL} with arithmetic={arithmetic!r}: products of {w!r} have one arithmetic, their own; "
            "arithmetics are of block formats; leave it out"
        )
    w = to_host(w)
    if w.ndim != 2:
        raise ShapeError(f"{CALL}: {w!r} is {w.ndim}-D; weights are [N, K]; pass w[e] for one matrix of them")
    ways, lead = usual_ways(to_host(x), w, activations)
    r = results(y, repeats, (*lead, w.shape[0]), math.prod(lead))
    return Case(r.y, ways, w, r.store), r


def usual_ways(x: Any, w: ScaledArray, activations: Any = None) -> tuple[list[Activations], tuple[int, ...]]:
    """Ways in which a right kernel may take x (codes, or floats in some tile), and x's axes before K."""
    if isinstance(x, ScaledArray):
        if activations is not None:
            raise DTypeError(
                f"{CALL}: activations={activations!r}, but x is {x!r}, quantized already; leave activations "
                "out, or pass floats"
            )
        check_pair(CALL, x, w)
        flat = ScaledArray(
            x.codes.reshape(x.tiling.rows, x.tiling.columns), x.scales, x.code, x.tile, x.zeros
        )
        return [Activations("these codes under these scales", flat)], x.shape[:-1]
    x = as_floats(CALL, x, "x")
    if x.ndim == 0 or x.shape[-1] != w.shape[1]:
        raise ShapeError(
            f"{CALL}: x has shape {x.shape}, w {w.shape}; the last axis of both is K; "
            f"pass x as [..., {w.shape[1]}]"
        )
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    wide = rows.astype(np.float32).astype(np.float64)
    if isinstance(activations, tuple | list) and len(activations) == 3:
        code, tile, scales = activations
        quantized = quantize_scaled(rows, code, tile, scales=scales, ragged="pad")
        check_pair(CALL, quantized, w)
        return [_quantized(quantized, wide)], x.shape[:-1]
    code, tile = how_quantized(activations, w)
    tiles = [tile] if activations is not None else list(dict.fromkeys((tuple(tile), *CUSTOMS)))
    more: dict[str, Any] = {"zeros": takes_zeros(activations, code), "ragged": "pad"}
    check_pair(CALL, quantize_scaled(rows, code, tile, **more), w)
    ways = [_quantized(quantize_scaled(rows, code, t, **more), wide) for t in tiles if _fits(t, w)]
    if activations is None:
        ways.append(Activations("x as floats", None, wide))
    return ways, x.shape[:-1]


def _fits(tile: Any, w: ScaledArray) -> bool:
    """True if tiles of x and w divide each other along K."""
    k = max(w.shape[1], 1)
    a, b = sorted((k if tile[1] is None else min(tile[1], k), w.tiling.c))
    return b % a == 0 or b >= k


def _quantized(s: ScaledArray, x: Wide) -> Activations:
    return Activations(f"x quantized to {s.code.name} in tiles {s.tile}", s, x)
