"""FLASH_ATTN_EXT: softmax(scale·q·kᵀ + slope·mask)·v of each head, with a bound for each element.

``params["arithmetic"]`` names how a program computes it (``ATTENTIONS``); then only what this program may do
is granted. Without a name right kernels may differ in what they round: q to the type that K is multiplied
with (halves, or 8-bit codes where K has blocks), weights of the softmax to halves. Some add in halves: that
is a freedom of its own (``half_sums``), which a judge grants only where the result needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...arrays.array import QuantArray
from ...errors import UnsupportedError
from ..multiply import STEP
from . import scores
from .number import (
    FREEDOMS,
    HALF,
    LARGEST,
    SMALLEST_HALF,
    SPREAD,
    UNIT,
    Number,
    Wide,
    combined,
    contract,
    half_step,
    quick,
)
from .registry import Call, Result, oracle, settled
from .rows import powers, slopes, weights

# The names of arithmetics of attention, with what each means.
ATTENTIONS = {
    "exact": "everything in float64",
    "f32": "decoded keys and values, scores and sums in float32, in any order",
    "bf16": "queries, decoded keys and values, and weights as bfloat16, sums in float32",
    "ggml-cpu-attention": "llama.cpp on x86, row by row: q in the type that K is multiplied with; f16 values "
    "are added up in halves, position by position, others in float32",
    "ggml-cpu-attention-fp16": "the same with AVX512-FP16: in whole groups of 128 columns sums of q·k, and "
    "weights of f16 values, are halves too",
    "ggml-cuda-vec": "llama.cpp's vec kernel on CUDA: scale·q in float32, or as Q8_1 where K has blocks; the "
    "rest in float32",
    "ggml-cuda-mma": "llama.cpp's mma kernel on CUDA: q, keys, values and weights as halves; scores in "
    "float32, values added up in halves",
}
BFLOAT = 2.0**-8  # the most that bfloat16 loses of a number
POWER = 4e-6  # the most that a kernel in bfloat16 may lose of an exponential
AT_ONCE = 1 << 22  # weights and weighted values of heads that are added up in halves together
Method = Callable[["Use", list["Head"]], Iterator[tuple["Head", Number]]]


class Use(NamedTuple):
    """The parameters of one attention."""

    scale: float
    cap: float
    alibi: bool
    kinds: tuple[str, str]  # types of keys and values
    parts: int  # of the positions, which a program adds up apart


class Head(NamedTuple):
    """Heads of queries that share the keys and values of one head."""

    at: slice  # their numbers
    q: Wide  # [R, D], the rows of all these heads
    k: Any  # [n, D]
    v: Any  # [n, DV]
    bias: Wide | None  # [R, n]
    sinks: Wide | None  # [R, 1]


@oracle("FLASH_ATTN_EXT", sources=5, words="scale:f bias:f cap:f", rowwise=False)
def flash_attention(c: Call) -> Result:
    """Attention of q [S, H, M, D] to k, v [S', H', n, D]; the result is [S, M, H, D]."""
    name = c.params.get("arithmetic")
    if name is not None and name not in METHODS:
        raise UnsupportedError(
            f"arithmetic {name!r} of attention: there is no such arithmetic; this version computes "
            f"{', '.join(map(repr, ATTENTIONS))}; use one of these"
        )
    streams, heads, rows, _ = _four(c.array(0)).shape
    value, error = np.zeros((2, streams, rows, heads, c.inputs[2].shape[-1]))
    use = _use(c)
    if not c.inputs[1].shape[-2]:
        return Result(value, np.full(value.shape, np.inf))
    for stream in range(streams):
        for head, one in METHODS[name](use, list(_heads(c, stream))):
            part = one.map(lambda x, h=head: x.reshape(h.at.stop - h.at.start, rows, -1).swapaxes(0, 1))
            # A sum with an infinite value is infinite or NaN, but for a kernel that leaves out weights of 0.
            errors = np.where(np.isfinite(part.value), part.errors(), np.inf)
            value[stream, :, head.at], error[stream, :, head.at] = part.value, errors
    return settled(Number(value, error), c.kind)


def _use(c: Call) -> Use:
    scale, cap = c.params["scale"], c.params.get("cap", 0.0)
    if cap:
        named = c.params.get("arithmetic") is not None
        scale = float(np.float32(scale) / np.float32(cap)) if named else scale / cap
    k, v = c.params.get("kinds") or (_kind(c.inputs[1]), _kind(c.inputs[2]))
    return Use(scale, cap, bool(c.params.get("bias")), (k, v), int(c.params.get("parts", 1)))


def _kind(rows: Any) -> str:
    if isinstance(rows, QuantArray):
        return rows.format.name
    return "f16" if np.asarray(rows).dtype == np.float16 else "f32"


def _four(x: Any) -> Any:
    """An array with all four axes."""
    if isinstance(x, QuantArray):
        shape = (1,) * (4 - x.ndim) + x.shape
        return x if x.ndim == 4 else QuantArray.from_bytes(np.asarray(x.raw).reshape(-1), x.format, shape)
    return x.reshape((1,) * (4 - x.ndim) + x.shape)


def _heads(c: Call, stream: int) -> Iterator[Head]:
    """The heads of one stream, those that share keys and values together."""
    q, k, v = (_four(c.inputs[i]) for i in range(3))
    mask = _four(c.array(3)) if c.has(3) else None
    sinks = c.array(4).astype(np.float64).reshape(-1) if c.has(4) else None
    streams, heads, rows, _ = q.shape
    slope = slopes(heads, c.params.get("bias", 0.0))
    shared = heads // k.shape[1] if k.shape[1] == v.shape[1] and heads % k.shape[1] == 0 else 1
    for first in range(0, heads, shared):
        at = slice(first, first + shared)
        rows_of = q[stream, at].astype(np.float64).reshape(-1, q.shape[-1])
        keys, values = (x[stream * len(x) // streams, first * x.shape[1] // heads] for x in (k, v))
        bias = None
        if mask is not None:
            of_heads = np.arange(first, first + shared) % mask.shape[1]
            one = mask[stream % len(mask), of_heads, :rows].astype(np.float64) * slope[at, None, None]
            bias = one.reshape(-1, one.shape[-1])
        sink = None if sinks is None else sinks[at].repeat(rows)[:, None]
        yield Head(at, rows_of, keys, values, bias, sink)


def _shaped(use: Use, head: Head, products: Number) -> Number:
    """Scores with their soft cap and mask; one that float32 may not hold has an infinite error.

    Rounding a sum costs at least half an ulp of its largest partial sum. So where the error is more than that
    of the largest float, the sum may overflow on its way, and what cancels there is no number.
    """
    held = np.isfinite(products.value) & (products.errors() <= UNIT * LARGEST)
    if use.cap:
        products = products.tanh() * use.cap
    if head.bias is not None:
        finite = np.where(np.isinf(head.bias), 0.0, np.abs(head.bias))
        products = products + Number(head.bias, 8 * UNIT * finite if use.alibi else 0.0)
    hidden = np.isneginf(np.broadcast_to(0.0 if head.bias is None else head.bias, held.shape))
    value = np.where(hidden, -np.inf, np.where(held, products.value, 0.0))
    return Number(value, np.where(hidden, 0.0, np.where(held, products.errors(), np.inf)))


def _where_something_is_seen(products: Number, result: Number) -> Number:
    """The result; a row that attends to nothing is zero, which a GPU's kernels do not promise.

    Nothing is promised of a row with a score beyond float32: it takes infinity from infinity.
    """
    nothing = np.isneginf(products.value).all(axis=-1, keepdims=True)
    beyond = np.isposinf(products.errors()).any(axis=-1, keepdims=True)
    free = np.inf if quick() else 0.0
    error = np.where(beyond, np.inf, np.where(nothing, free, result.errors()))
    return Number(np.where(nothing, 0.0, result.value), error)


def _granted(use: Use, heads: list[Head]) -> Iterator[tuple[Head, Number]]:
    """Attention of a kernel that may round what right kernels round."""
    halves = FREEDOMS.get().half_sums
    for head in heads:
        v = scores.decoded_values(head.v).value
        products = scores.granted(head.q, head.k, use.kinds[0], use.scale)
        if halves:
            k = scores.decoded_values(head.k).value
            sums = in_halves(head.q, k.T, products.value / use.scale) * use.scale
            products = Number(products.value, products.error + sums)
        products = _shaped(use, head, products)
        if halves:
            finite = np.where(np.isinf(products.value), 0.0, products.value)
            products = Number(products.value, products.error + half_step(finite))
        share = weights(products, head.sinks)
        share = Number(share.value, share.errors() + half_step(share.value))
        if halves:  # errors of weights are independent of each other: they add up as random numbers do
            result = contract("mn,nd->md", share.value, v, len(v))
            spread = SPREAD * np.sqrt(share.errors() ** 2 @ v**2)
            result = Number(result.value, result.error + spread + in_halves(share.value, v, result.value))
        else:
            result = contract("mn,nd->md", share, v, len(v))
        yield head, _where_something_is_seen(products, result)


def in_halves(a: Wide, b: Wide, value: Wide) -> Wide:
    """The rounding of sums a @ b that are kept in halves.

    Partial sums of n terms t of random signs reach |value| + 2·sqrt(Σt²); each is rounded once, and sqrt(n)
    such roundings are more than four of their standard deviations. Below the smallest normal half each is of
    half a step of the smallest, and sqrt(n) steps are more than three.
    """
    partial = np.abs(value) + 2 * np.sqrt(a**2 @ b**2)
    limit: Wide = np.sqrt(a.shape[-1]) * (HALF * partial + SMALLEST_HALF) + half_step(partial)
    return limit


def _in_floats(score: Any, quick: bool = False) -> Method:
    """Attention with scores of its own, else in float32."""

    def method(use: Use, heads: list[Head]) -> Iterator[tuple[Head, Number]]:
        for head in heads:
            products = _shaped(use, head, score(head.q, head.k, use.kinds[0], use.scale))
            v = scores.decoded_values(head.v, quick)
            if quick and use.kinds[1] == "f32":
                v = scores.as_halves(head.v, "f32")
            above, below = powers(products, head.sinks)
            # The error of the sum below is common to a row, whether weights or the result are divided by it.
            result = contract("mn,nd->md", above, v, 2 * v.shape[0]) / below
            yield head, _where_something_is_seen(products, result)

    return method


def _in_bfloats(use: Use, heads: list[Head]) -> Iterator[tuple[Head, Number]]:
    """Attention on the matrix unit of Intel's CPUs: weights are rounded after their sum is formed."""
    for head in heads:
        products = _shaped(use, head, scores.in_bfloats(head.q, head.k, use.kinds[0], use.scale))
        above, below = powers(products, head.sinks)
        largest = np.abs(np.where(np.isinf(products.value), 0.0, products.value)).max(-1, keepdims=True)
        loss = POWER + 4 * UNIT * largest  # relative; the second is that of scores less the largest
        total = Number(below.value, below.errors() + loss * below.value)
        above = Number(above.value, above.errors() + (BFLOAT + loss) * above.value)
        v = scores.as_bfloats(head.v)
        result = contract("mn,nd->md", above, v, 2 * head.v.shape[0]) / total
        yield head, _where_something_is_seen(products, result)


def _on_cpu(
    use: Use, heads: list[Head], score: Any = scores.on_cpu, lanes: int = 0
) -> Iterator[tuple[Head, Number]]:
    """llama.cpp's attention on x86: only values in halves are added up in halves."""
    if use.kinds[1] != "f16":
        yield from _in_floats(score)(use, heads)
        return
    positions, width = heads[0].v.shape
    together = max(1, AT_ONCE // (len(heads[0].q) * (positions + width)))
    for start in range(0, len(heads), together):
        some = heads[start : start + together]
        each = [_shaped(use, one, score(one.q, one.k, use.kinds[0], use.scale)) for one in some]
        products = combined(np.stack, each)
        v = np.stack([np.asarray(one.v, np.float64) for one in some])
        each_sink = [one.sinks for one in some if one.sinks is not None]
        sinks = np.stack(each_sink) if each_sink else None
        result = _where_something_is_seen(products, scores.running(products, v, sinks, use.parts, lanes))
        yield from ((one, result[i]) for i, one in enumerate(some))


def _on_tensor_cores(use: Use, heads: list[Head]) -> Iterator[tuple[Head, Number]]:
    """llama.cpp's mma kernel on CUDA."""
    for head in heads:
        products = _shaped(use, head, scores.on_tensor_cores(head.q, head.k, use.kinds[0], use.scale))
        result = scores.in_tiles(products, scores.as_halves(head.v, use.kinds[1]), head.sinks)
        yield head, _where_something_is_seen(products, result)


METHODS: dict[str | None, Method] = {
    None: _granted, "exact": _in_floats(scores.in_floats), "f32": _in_floats(scores.in_floats),
    "bf16": _in_bfloats,
    "ggml-cpu-attention": _on_cpu,
    "ggml-cpu-attention-fp16": partial(_on_cpu, score=scores.on_cpu_lanes, lanes=STEP),
    "ggml-cuda-vec": _in_floats(scores.on_vec, quick=True), "ggml-cuda-mma": _on_tensor_cores,
}  # fmt: skip
