"""Attention from the module's own queries, keys and values, and what may be wrong with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .. import reference
from ..model.arithmetic.kernels import apply_rope, rope_angles
from ..model.config import Config, Rope
from .judge import Floats, Try

BASES = (1e4, 5e5, 1e6, 1e5, 1.5e5, 5e6, 1e7)
CAPPED = "{} are capped at {:.6g} in the file, {:.6g} in the module (0: not)"


@dataclass(frozen=True)
class Operands:
    """The operands of a layer's attention, and its settings."""

    q: Floats  # [T, H, D], without RoPE
    k: Floats
    v: Floats
    rope: Rope
    factors: Any
    scale: float
    window: int
    cap: float
    sinks: Any

    def __call__(self, q: Floats | None = None, k: Floats | None = None, **other: Any) -> Floats:
        """The attention of all heads, [T, H · DV], with some operands or settings replaced."""
        o = replace(self, **other)
        q, k = o.q if q is None else q, o.k if k is None else k
        cos, sin = rope_angles(o.rope, np.arange(len(q)), o.factors)
        q, k = (apply_rope(x, o.rope, cos, sin) for x in (q, k))
        y: Floats = reference.attention(
            *(x.swapaxes(0, 1)[None] for x in (q, k, o.v)),
            causal=True, scale=o.scale, window=o.window or None, softcap=o.cap, sinks=o.sinks,
        )[0]  # fmt: skip
        return y.swapaxes(0, 1).reshape(len(q), -1)


def rope_tries(o: Operands, c: Config, frequencies: Sequence[Floats], module: Any) -> Iterator[Try]:
    """Mistakes of the rotation: which pairs, by which angles; ``frequencies``: those that the module has."""
    q, k, usual = module
    for neox in (True, False):
        pairs = "half a head apart" if neox else "neighbours"
        kind, words = "rope-type", f"the module rotates pairs that are {pairs}, the model does not"
        if not usual:
            kind, words = "rope-order", "rows of q or k are not in the order that the module rotates"
        yield kind, words, o(q, k, rope=replace(o.rope, neox=neox))
    for base in dict.fromkeys([*(float(f"{said[1] ** -len(said):.6g}") for said in frequencies), *BASES]):
        words = f"RoPE's base is {o.rope.base:g} in the file, {base:g} in the module"
        yield "rope-base", words, o(rope=replace(o.rope, base=base))
    plain = replace(o.rope, scale=1.0, mix=0.0, length=1.0)
    yield "rope-scaling", "the module does not stretch positions", o(rope=plain)
    yield "rope-scaling", "the module has no factors of pairs", o(factors=None)
    yield "rope-scaling", "the module does not lengthen rotated pairs", o(rope=replace(o.rope, length=1.0))
    for factor in (2.0, 4.0, 8.0, 16.0, 32.0):
        words = f"positions are divided by {1 / o.rope.scale:g} in the file, by {factor:g} in the module"
        yield "rope-scaling", words, o(rope=replace(plain, scale=1 / factor))
    for said in frequencies:
        if 2 * len(said) == o.rope.dims:
            factors = o.rope.base ** (-np.arange(len(said)) / len(said)) / said
            yield (
                "rope-scaling",
                "pairs have the frequencies of the module's inv_freq",
                o(rope=plain, factors=factors),
            )
    for dims in (c.key_width, c.key_width // 2, c.key_width // 4):
        words = f"RoPE rotates {o.rope.dims} columns of a head in the file, {dims} in the module"
        yield "rope-dims", words, o(rope=replace(o.rope, dims=dims - dims % 2 or 2))
    yield "rope-missing", "the module does not rotate queries and keys", o(rope=replace(plain, scale=0.0))


def score_tries(o: Operands, c: Config, y: Floats) -> Iterator[Try]:
    """Mistakes of scores: their scale, their cap, the positions that are seen."""
    for cap in (0.0, fitted(lambda cap: off(o(cap=cap), y), o.cap or 30.0)):
        yield "soft-cap", CAPPED.format("scores", o.cap, cap), o(cap=cap)
    scale = fitted(lambda scale: off(o(scale=scale), y), o.scale)
    words = f"scores are multiplied by {o.scale:.6g} in the file, {scale:.6g} in the module"
    known = {1 / math.sqrt(n): n for n in (c.key_width, c.width // c.heads[0])}
    exact = min(known, key=lambda one: abs(one - scale))
    if abs(exact - scale) < 1e-4 * scale:
        words += f", 1/sqrt({known[exact]:g})"
    yield "attention-scale", words, o(scale=scale)
    yield "attention-scale", words, o(scale=exact)
    for window in range(len(y)):
        words = f"a query sees {o.window or 'all'} positions in the file, {window or 'all'} in the module"
        yield "window", words, o(window=window)
    has = ("no", "a") if o.window else ("a", "no")
    words = f"the layer has {has[1]} window in the file, {has[0]} in the module"
    for window in range(1) if o.window else range(1, len(y) + 1):
        yield "window", words, o(rope=c.window_rope if window else c.rope, window=window)


def head_tries(o: Operands, before: Any) -> Iterator[Try]:
    """Mistakes of heads: their norms, their number, which of keys goes with which of queries."""
    if before is not None:
        yield "head-norms", "the module has no norms of heads", o(*before)
    heads, several = o.q.shape[1], o.k.shape[1]
    if 1 < several < heads:
        order = np.arange(heads).reshape(several, -1).T.reshape(-1)  # query h goes with key h % several
        y = o(o.q[:, order]).reshape(len(o.q), heads, -1)[:, np.argsort(order)]
        yield "head-pairs", "query h takes key h % n in the module", y.reshape(len(y), -1)
    for by in (2, 0.5):
        width, new = int(o.q.shape[2] / by), int(heads * by)
        if width % 2 or width < 2 or int(several * by) < 1 or several * by % 1:
            continue
        q, k, v = (x.reshape(len(x), -1, int(x.shape[2] / by)) for x in (o.q, o.k, o.v))
        rope, scale = replace(o.rope, dims=min(width, o.rope.dims)), o.scale * math.sqrt(by)
        for dims in (rope.dims, width):
            words = f"there are {heads} heads in the file, {new} in the module"
            yield "head-count", words, o(q, k, v=v, rope=replace(rope, dims=dims), scale=scale)


def off(ours: Floats, y: Floats) -> float:
    """The square of a difference."""
    return float(np.square(ours - y).sum())


def fitted(error: Callable[[float], float], start: float) -> float:
    """The factor near a start, up to 64 times as large or small, with the least error."""
    low, high, share = math.log(start) - 4.2, math.log(start) + 4.2, (math.sqrt(5) - 1) / 2
    grid = np.linspace(low, high, 29)
    best = int(np.argmin([error(math.exp(at)) for at in grid]))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    for _ in range(44):
        a, b = high - share * (high - low), low + share * (high - low)
        low, high = (low, b) if error(math.exp(a)) < error(math.exp(b)) else (a, high)
    return math.exp((low + high) / 2)
