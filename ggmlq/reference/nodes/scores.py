"""Scores of attention, q·k of all positions, with the roundings of the program that is judged.

Each function takes queries [R, D] and the keys [n, D] of one head, as blocks or numbers, and gives scores
times ``scale``. ``kind`` is the type of the keys.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...arrays.array import QuantArray
from ...errors import UnsupportedError
from ..bound import limits
from ..multiply import multiply
from ..operands import Activations, Weights, activations, quantize_runs, rounded, weights
from ..rules import Quantizer, Rule, rule
from .number import SMALLEST, SMALLEST_HALF, SPREAD, UNIT, Number, Wide, contract, half_step

LANES = 32  # partial sums of vector code: four registers of eight, at least
CODES = 32  # elements that share a scale where q is rounded to 8 bits
LARGE_CODES = 256  # and where K has blocks of 256
IN_FLOATS: dict[str, Any] = {"f32": "f32", "f16": "f16", "bf16": "bf16"}
TENSOR = 4 * UNIT  # tensor cores cut off what they add
# llama.cpp's vec kernel on CUDA: scales and sums of q stay float32, codes of K are multiplied as they lie.
VEC = Quantizer(CODES, "x/(amax/127)", "away", "float")
VEC_TYPES = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0")


def granted(q: Wide, k: Any, kind: str, scale: float) -> Number:
    """Scores of a kernel that may hold q as halves, or as 8-bit codes where K has blocks."""
    return contract("md,nd->mn", _rounded_query(q, k), _decoded(k), q.shape[-1]) * scale


def in_floats(q: Wide, k: Any, kind: str, scale: float) -> Number:
    """Scores in float32, in any order."""
    return contract("md,nd->mn", q, _decoded(k), q.shape[-1]) * scale


def in_bfloats(q: Wide, k: Any, kind: str, scale: float) -> Number:
    """The matrix unit of Intel's CPUs: queries and decoded keys as bfloat16, sums in float32."""
    left, keys = rounded(q, "bf16"), as_bfloats(k).value
    return contract("md,nd->mn", left, keys, q.shape[-1]) * scale


def as_bfloats(rows: Any) -> Number:
    """Keys or values decoded and rounded to bfloat16."""
    return Number(rounded(_decoded(rows), "bf16"))


def on_cpu(q: Wide, k: Any, kind: str, scale: float) -> Number:
    """llama.cpp on x86: q is rounded to the type that K is multiplied with, as in a product of weights."""
    if isinstance(k, QuantArray):
        how = rule(k.format, "ggml-cpu")
        a, w = activations(q, k.format, how), weights(k, how)
        return Number(multiply(w, a, how), limits(w, a, how)) * scale
    left = rounded(q, IN_FLOATS[kind])
    size = np.abs(left) @ np.abs(k).T
    roundings = 2 * math.ceil(q.shape[-1] / LANES) + math.log2(LANES) + 3
    return Number(left @ k.T, UNIT * roundings * size + q.shape[-1] * SMALLEST) * scale


def on_cpu_lanes(q: Wide, k: Any, kind: str, scale: float) -> Number:
    """llama.cpp on x86 with AVX512-FP16: products of halves are added up in lanes of halves."""
    if kind != "f16":
        return on_cpu(q, k, kind, scale)
    how = rule("f16", "ggml-cpu-fp16")
    a = Activations(None, rounded(q, "f16"), None, None, 1)
    w = Weights(None, None, None, 1, values=np.asarray(k, np.float64))
    return Number(multiply(w, a, how), limits(w, a, how)) * scale


def on_vec(q: Wide, k: Any, kind: str, scale: float) -> Number:
    """llama.cpp's vec kernel on CUDA: scale times q in float32, or as codes of Q8_1 where K has blocks."""
    scaled = (q.astype(np.float32) * np.float32(scale)).astype(np.float32)
    if not isinstance(k, QuantArray):
        keys = rounded(k, "f16") if kind == "f32" else k
        return contract("md,nd->mn", scaled.astype(np.float64), keys, q.shape[-1])
    if k.format.name not in VEC_TYPES:
        raise UnsupportedError(
            f"arithmetic 'ggml-cuda-vec': keys are {k.format.name}; llama.cpp's kernel multiplies f16, bf16, "
            f"{', '.join(VEC_TYPES)}; pass others as decoded numbers"
        )
    runs = quantize_runs(scaled, VEC)
    sums = scaled.astype(np.float64).reshape(len(q), -1, CODES).sum(axis=-1)
    a = Activations(runs.codes, None, runs.scale, sums, CODES, runs.ties)
    how = Rule(VEC, sums="kept", zero_in_code=k.format.name in ("q4_0", "q5_0"))
    w = weights(k, how)
    error = limits(w, a, how)
    if w.offset is not None:  # sums of 32 numbers are rounded on their way
        sizes = np.abs(scaled).astype(np.float64).reshape(len(q), -1, CODES).sum(axis=-1)
        error = error + 8 * UNIT * (sizes @ np.abs(w.offset).T)
    return Number(multiply(w, a, how), error)


def on_tensor_cores(q: Wide, k: Any, kind: str, scale: float) -> Number:
    """llama.cpp's mma kernel on CUDA: q as halves times the half of ``scale``, as halves; keys as halves."""
    left = rounded(rounded(q, "f16") * float(np.float16(scale)), "f16")
    return contract("md,nd->mn", left, as_halves(k, kind), q.shape[-1], TENSOR)


def as_halves(rows: Any, kind: str) -> Number:
    """Keys or values decoded to halves; where a program may have rounded before, the other half is too."""
    exact = _decoded(rows)
    halves = rounded(exact, "f16")
    if not isinstance(rows, QuantArray):
        return Number(halves)
    largest = np.abs(exact.reshape(*exact.shape[:-1], -1, CODES)).max(axis=-1, keepdims=True)
    loss = np.broadcast_to(2 * UNIT * largest, (*largest.shape[:-1], CODES)).reshape(exact.shape)
    sides = rounded(exact - loss, "f16"), rounded(exact + loss, "f16")
    return Number(halves, np.maximum(np.abs(sides[0] - halves), np.abs(sides[1] - halves)))


def decoded_values(rows: Any, quick: bool = False) -> Number:
    """Values in float32; a GPU may round a product and a sum of a block's parts once or twice."""
    exact = _decoded(rows)
    if not quick or not isinstance(rows, QuantArray):
        return Number(exact)
    largest = np.abs(exact.reshape(*exact.shape[:-1], -1, CODES)).max(axis=-1, keepdims=True)
    loss = np.broadcast_to(2 * UNIT * largest, (*largest.shape[:-1], CODES)).reshape(exact.shape)
    return Number(exact, loss)


def _decoded(rows: Any) -> Wide:
    wide: Wide = np.asarray(rows.dequantize(np.float32) if isinstance(rows, QuantArray) else rows, np.float64)
    return wide


def _rounded_query(q: Wide, k: object) -> Number:
    """The query as kernels hold it."""
    if not isinstance(k, QuantArray):
        return Number(q, half_step(q))
    run = min(LARGE_CODES if k.format.block_size == LARGE_CODES else CODES, q.shape[-1])
    if q.shape[-1] % run:
        run = q.shape[-1]
    largest = np.abs(q.reshape(*q.shape[:-1], -1, run)).max(axis=-1, keepdims=True)
    step = np.broadcast_to(largest / 127, (*largest.shape[:-1], run)).reshape(q.shape)
    return Number(q, 0.51 * step + 2.0**-10 * np.abs(q))


# --- weights times values, where a program adds them up in halves ---------------------------------
#
# ``running`` follows llama.cpp's CPU code position by position: each step is rounded to a half. Both ends of
# the interval in which a right sum may lie are rounded, so they stay together until a value comes so near to
# the middle of two halves that float32 errors decide; then they part by one half. ``in_tiles`` does not know
# the order of sums of tensor cores and bounds their roundings as random ones.

POWER = 2 * UNIT  # error of a float32 exponential, relative
DEEP = 8  # products that a tensor core adds, at least, before it rounds to a half
TILE = 32  # positions, at least, after which a sum is scaled to a new largest score
RAISED = 3 * 0.6931  # what the largest score is raised by, so that sums of halves do not overflow


class Stretch(NamedTuple):
    """The state after some positions: largest score, sum of weights, and the interval of weighted values."""

    top: Wide  # [B, R, 1]
    off: Wide  # how far a program's largest score may be from it
    total: Wide  # [B, R, 1]
    unsure: Wide  # the error of the total
    low: Wide  # [B, R, D]
    high: Wide


def running(scores: Number, v: Wide, sinks: Wide | None, parts: int, lanes: int = 0) -> Number:
    """Attention of scores [B, R, n] to values [B, n, D], [B, R, D]; ``parts`` of them are added apart.

    ``sinks`` [B, R, 1] are scores that only count below. Values are halves, and so is their sum. In whole
    groups of ``lanes`` columns weights are halves too, and a product is added with one rounding.
    """
    n, width = v.shape[-2:]
    fused = np.arange(width) < (width // lanes * lanes if lanes else 0)
    step = -(-n // parts)
    stretches = [
        _stretch(scores[..., start : start + step], v[..., start : start + step, :], fused)
        for start in range(0, n, step)
    ]
    top = np.max([one.top for one in stretches], axis=0)
    if sinks is not None:
        top = np.maximum(top, sinks)
    merges = len(stretches) + 1
    total, value = Number(np.zeros(top.shape)), Number(np.zeros(stretches[0].low.shape))
    for one in stretches:
        seen = np.isfinite(one.top)
        lost = np.where(seen, one.top - top, 0.0)
        factor = Number(np.where(seen, np.exp(lost), 0.0))
        factor = Number(
            factor.value, factor.value * (one.off + UNIT * merges * np.abs(lost) + merges * POWER)
        )
        total = total + Number(one.total, one.unsure) * factor
        middle = (one.low + one.high) / 2
        value = value + Number(middle, (one.high - one.low) / 2) * factor
    if sinks is not None:
        lost = sinks - top
        total = total + Number(np.exp(lost), np.exp(lost) * (UNIT * np.abs(lost) + POWER))
    return value / total


def _stretch(scores: Number, v: Wide, fused: NDArray[np.bool_]) -> Stretch:
    """All positions of a stretch, one after the other; ``fused`` columns are added in lanes of halves."""
    shape = scores.shape[:-1]
    top, off = np.full((*shape, 1), -np.inf), np.zeros((*shape, 1))
    total, unsure = np.zeros((*shape, 1)), np.zeros((*shape, 1))
    low = np.zeros((*shape, v.shape[-1]))
    high = np.zeros(low.shape)
    errors = scores.errors()
    for i in range(v.shape[-2]):
        s, e = scores.value[..., i, None], errors[..., i, None]
        seen = s != -np.inf
        if not seen.any():
            continue
        first = top == -np.inf
        gap = np.where(first | ~seen, 0.0, s - top)
        slack = np.where(first, 0.0, e + off)
        sure = first | (np.abs(gap) > slack)
        rises = first | (gap > 0)
        power = np.exp(-np.abs(gap))
        relative = slack + UNIT * np.abs(gap) + POWER
        least, most = power * (1 - relative), np.minimum(power * (1 + relative), 1.0)
        fresh = seen & rises & sure  # the largest so far: its weight is 1, and the others shrink
        shrink = (np.where(seen & ~(~rises & sure), least, 1.0), np.where(fresh, most, 1.0))
        weight = (np.where(fresh, 1.0, least) * seen, np.where(fresh, 1.0, np.where(sure, most, 1.0)) * seen)
        if fused.any():
            shrink, weight = ((_or_half(a, fused), _or_half(b, fused)) for a, b in (shrink, weight))
        if (shrink[0] < 1).any():
            low, high = _half(_times(low, shrink)[0], fused), _half(_times(high, shrink)[1], fused)
        low, high = _added(low, high, v[..., None, i, :], weight, fresh, fused)
        grown = np.where(seen & rises & ~first, power, 1.0)
        added = np.where(seen, np.where(rises, 1.0, power), 0.0)
        total = total * grown + added
        unsure = unsure * grown + np.where(seen, np.maximum(total, added) * UNIT + added * relative, 0.0)
        unsure = unsure + np.where(seen & rises, (total - added) * (relative + UNIT), 0.0)
        off = np.where(fresh, e, np.where(seen & ~sure, np.maximum(off, e), off))
        top = np.where(seen, np.maximum(top, s), top)
    return Stretch(top, off, total, unsure, low, high)


def _added(
    low: Wide, high: Wide, v: Wide, weight: tuple[Wide, Wide], exact: Any, fused: NDArray[np.bool_]
) -> tuple[Wide, Wide]:
    """The interval with a weighted value added; a product is rounded but by a weight of 1 or if fused."""
    ends = _times(v, weight)
    loss = [np.where(exact | fused, 0.0, UNIT * np.abs(end)) for end in ends]
    return _half(low + ends[0] - loss[0], fused), _half(high + ends[1] + loss[1], fused)


def _times(x: Wide, factor: tuple[Wide, Wide]) -> tuple[Wide, Wide]:
    """The least and the largest of x times a factor that is not negative."""
    return x * np.where(x >= 0, factor[0], factor[1]), x * np.where(x >= 0, factor[1], factor[0])


def _half(x: Wide, fused: NDArray[np.bool_]) -> Wide:
    """Numbers rounded to float32, then to a half, as a program stores a register; fused ones at once."""
    wide: Wide = x.astype(np.float32).astype(np.float16).astype(np.float64)
    return _or_half(x, fused, wide) if fused.any() else wide


def _or_half(x: Wide, fused: NDArray[np.bool_], others: Wide | None = None) -> Wide:
    """Numbers for each column: rounded to a half where it is fused."""
    return np.where(fused, x.astype(np.float16).astype(np.float64), x if others is None else others)


def in_tiles(scores: Number, v: Number, sinks: Wide | None) -> Number:
    """Attention of scores [R, n] to values [n, D] on tensor cores: weights and the sum are halves.

    Roundings of halves are independent of each other. Partial sums of terms t of random signs reach
    |value| + 2·sqrt(Σt²); r roundings of them are r at most, and 2·sqrt(r) are more than four of their
    standard deviations.
    """
    n = v.shape[0]
    top = scores.value.max(axis=-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        top = np.maximum(top, sinks)
    lost = np.where(np.isneginf(scores.value), -np.inf, scores.value - top - RAISED)
    error = np.where(np.isneginf(lost), 0.0, scores.errors() + UNIT * np.abs(lost))
    weights = Number(lost, error).exp()
    total = weights.sum(-1)
    if sinks is not None:
        total = total + Number(sinks - top - RAISED, UNIT * np.abs(sinks - top)).exp()
    value = weights.value @ v.value
    sizes = np.abs(v.value)
    squares = weights.value**2 @ v.value**2
    roundings = math.ceil(n / DEEP) + math.ceil(n / TILE) + 4
    partial = half_step(np.abs(value) + 2 * np.sqrt(squares))
    off = weights.errors() @ sizes + weights.value @ v.errors()
    off = off + SPREAD * np.sqrt(half_step(weights.value) ** 2 @ v.value**2)
    off = off + min(roundings, 2 * math.sqrt(roundings)) * partial
    smallest = SMALLEST_HALF * (n / 8) * sizes.max(axis=0, initial=0.0)  # factors that are smallest halves
    return Number(value, off + smallest) / total
