"""Scores of attention, q·k of all positions, with the roundings of the program that is judged.

Each function takes queries [R, D] and the keys [n, D] of one head, as blocks or numbers, and gives scores
times ``scale``. ``kind`` is the type of the keys.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...arrays.array import QuantArray
from ...errors import UnsupportedError
from ..bound import limits
from ..multiply import multiply
from ..operands import Activations, Weights, activations, rounded, weights
from ..rules import Quantizer, Rule, rule
from ..runs import quantize_runs
from .number import SMALLEST, UNIT, Number, Wide, contract, half_step

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
