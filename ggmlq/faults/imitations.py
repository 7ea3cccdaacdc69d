"""Mistakes of nodes: the same operation on other operands or with other parameters, or another operation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..reference.nodes.elementwise import GATES, UNARY
from ..reference.nodes.rows import slopes

TILES = (16, 32, 64, 128, 256)  # positions of a cache that kernels take at a time
NEIGHBOURS = ((-1, 1), (-1, -1), (-2, 1), (-2, -1))  # an axis, and a step along it


class Imitation(NamedTuple):
    """A node that is computed in place of the right one; its result is that of the mistake."""

    fault: str
    op: str
    inputs: list[Any]
    params: dict[str, Any]


class Node(NamedTuple):
    """The right node, and ways to change it."""

    op: str
    inputs: list[Any]
    params: dict[str, Any]

    def has(self, i: int) -> bool:
        """True where source number i is there."""
        return i < len(self.inputs) and self.inputs[i] is not None

    def but(
        self, fault: str, /, op: str = "", inputs: Iterable[Any] | None = None, **params: Any
    ) -> Imitation:
        """The mistake that computes another operation, or other sources, or takes other parameters."""
        sources = self.inputs if inputs is None else list(inputs)
        return Imitation(fault, op or self.op, sources, {**self.params, **params})

    def source(self, fault: str, i: int, value: Any) -> Imitation:
        """The mistake that reads something else as source number i."""
        return self.but(fault, inputs=[value if j == i else x for j, x in enumerate(self.inputs)])

    def rolled(self, fault: str, i: int, steps: Iterable[tuple[int, int]]) -> Iterator[Imitation]:
        """The mistakes that read source number i some steps along an axis."""
        for axis, step in steps:
            yield self.source(fault, i, np.roll(self.inputs[i], step, axis))


Mistakes = Callable[[Node], Iterable[Imitation]]


def imitations(op: str, inputs: Sequence[Any], params: Mapping[str, Any]) -> Iterator[Imitation]:
    """All mistakes that an operation may have with these operands."""
    node = Node(op, list(inputs), dict(params))
    for mistakes in (*MAKERS.get(op, ()), _strides, _exchanged, _broadcast):
        yield from mistakes(node)
    if op in NEUTRAL:
        yield node.source("node-operand-ignored", 1, np.full_like(inputs[1], NEUTRAL[op]))
    if op in ("GET_ROWS", "SET_ROWS"):
        yield from node.rolled("node-ids", 1, ((-1, -1), (-1, 1)))
    if op == "GET_ROWS":
        yield node.source("node-ids", 1, np.maximum(inputs[1] - 1, 0))


# --- of any operation -------------------------------------------------------------------------

NEUTRAL = {"ADD": 0.0, "SUB": 0.0, "MUL": 1.0, "DIV": 1.0, "ADD_ID": 0.0, "ACC": 0.0}


def _strides(n: Node) -> Iterator[Imitation]:
    """Sources read by other strides, where all that these reach lies within their memory."""
    for i, x in enumerate(n.inputs):
        if not isinstance(x, np.ndarray) or x.flags.c_contiguous or x.ndim < 2 or not x.size:
            continue
        order = sorted(range(x.ndim), key=lambda axis: (x.strides[axis], -axis))  # as memory has the axes
        turned = {axes for axes in permutations(range(x.ndim)) if axes[0] == order[0]}
        inward = range(x.ndim)[::-1]
        dense = _dense(x, inward)
        each = [dense, *(_dense(x, axes) for axes in sorted(turned))]
        for axes in (order, inward):  # some inner axes are right, the outer ones not
            each += [_dense(x, axes, inner) for inner in range(1, x.ndim)]
        each += [(*x.strides[:at], *dense[at:]) for at in range(1, x.ndim - 1)]  # outer axes are right
        long = [axis for axis in range(x.ndim) if x.shape[axis] > 1]
        for strides in dict.fromkeys(each):
            same = all(strides[axis] == x.strides[axis] for axis in long)
            if not same and _reach(x.shape, strides) <= _reach(x.shape, x.strides):
                other = np.lib.stride_tricks.as_strided(x, x.shape, strides, writeable=False)
                yield n.source("node-stride", i, other)


def _dense(x: NDArray[Any], axes: Sequence[int], right: int = 0) -> tuple[int, ...]:
    """Strides of memory with these axes from the inner one on, and no gaps behind the first ``right``."""
    strides = list(x.strides)
    for at, axis in enumerate(axes):
        if at >= right:
            strides[axis] = strides[axes[at - 1]] * x.shape[axes[at - 1]] if at else x.itemsize
    return tuple(strides)


def _reach(shape: tuple[int, ...], strides: Any) -> int:
    return sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


def _exchanged(n: Node) -> Iterator[Imitation]:
    if n.op in ("SUB", "DIV", *GATES) and n.has(1) and n.inputs[0].shape == n.inputs[1].shape:
        yield n.but("node-operands-exchanged", inputs=[n.inputs[1], n.inputs[0]])
    if "swapped" in n.params and not n.has(1):
        yield n.but("node-operands-exchanged", swapped=not n.params["swapped"])


def _broadcast(n: Node) -> Iterator[Imitation]:
    if n.op == "OUT_PROD" and isinstance(n.inputs[0], np.ndarray):
        x = n.inputs[0]
        for axis, (a, b) in enumerate(zip(x.shape[:-2], n.inputs[1].shape[:-2], strict=True)):
            yield n.source("node-broadcast", 0, x.take(np.arange(b) % a, axis))
    if n.op not in ("ADD", "SUB", "MUL", "DIV", "REPEAT", "SOFT_MAX"):
        return
    whole, i = (n.params.get("shape"), 0) if n.op == "REPEAT" else (n.inputs[0].shape, 1)
    if whole is None or not n.has(i) or n.inputs[i].shape == tuple(whole):
        return
    b = n.inputs[i]
    for axis, (length, m) in enumerate(zip(whole, b.shape, strict=True)):
        if 1 < m < length:
            yield n.source("node-broadcast", i, b.repeat(length // m, axis=axis))
        if m > 1:
            yield n.source("node-broadcast", i, np.take(b, [0] * m, axis=axis))


# --- of some ----------------------------------------------------------------------------------


def _scale(n: Node) -> Iterator[Imitation]:
    scale, bias = n.params["scale"], n.params.get("bias", 0.0)
    for changes in ({"bias": 0.0}, {"bias": scale * bias}, {"scale": 1.0, "bias": scale * bias}):
        yield n.but("node-bias", **changes)
    yield n.but("node-scale-ignored", scale=1.0)


def _functions(n: Node) -> Iterator[Imitation]:
    for other in GATES if n.op in GATES else UNARY:
        if other != n.op:
            yield n.but("node-function", other)


def _norms(n: Node) -> Iterator[Imitation]:
    x, eps = np.asarray(n.inputs[0], np.float64), n.params["eps"]
    if n.op == "NORM":
        yield n.but("node-mean", "RMS_NORM")
        x = x - x.mean(axis=-1, keepdims=True)
    if n.op != "L2_NORM":
        width = x.shape[-1]
        size = np.sqrt((x * x).mean(axis=-1, keepdims=True))
        yield n.but("node-epsilon", "DIV", [x, size + eps])
        yield n.but("node-mean", "L2_NORM", [x])
        yield n.but("node-mean", "DIV", [x, np.sqrt(size**2 * width / max(width - 1, 1) + eps)])
    else:
        total = (x * x).sum(axis=-1, keepdims=True)
        for size in (np.sqrt(np.maximum(total, eps)), np.sqrt(total + eps), np.sqrt(total) + eps):
            yield n.but("node-epsilon", "DIV", [x, size])
    yield n.but("node-epsilon", eps=0.0)


def _orders(n: Node) -> Iterator[Imitation]:
    x, p = n.inputs[0], n.params
    if n.op == "ARGSORT":
        yield n.but("node-order", descending=1 - p["descending"])
    if n.op == "TRI":
        yield from (n.but("node-order", part=part) for part in range(4) if part != p["part"])
    if n.op == "ROLL":
        back: dict[str, Any] = {f"shift{i}": -p[f"shift{i}"] for i in range(4)}
        yield n.but("node-order", **back)
    if n.op == "TOP_K":
        yield n.but("node-order", inputs=[-x])
    if n.op == "CUMSUM":
        before = np.concatenate([np.zeros_like(x[..., :1]), x[..., :-1]], axis=-1)
        yield n.but("node-order", inputs=[before])
        yield n.but("node-order", inputs=[x[..., ::-1]])


def _axes(n: Node) -> Iterator[Imitation]:
    x = n.inputs[0]
    if n.op in ("SUM_ROWS", "MEAN", "CUMSUM", "ARGSORT") and x.shape[-1] == x.shape[-2]:
        yield n.but("node-axis", inputs=[x.swapaxes(-1, -2)])
    if n.op in ("MEAN", "SUM_ROWS"):
        yield n.but("node-mean", "SUM_ROWS" if n.op == "MEAN" else "MEAN")


def _windows(n: Node) -> Iterator[Imitation]:
    p = n.params
    for a, b in (("s0", "s1"), ("p0", "p1"), ("d0", "d1"), ("k0", "k1")):
        if a in p and b in p and p[a] != p[b]:
            yield n.but("node-window", **{a: p[b], b: p[a]})
    for names, value in ((("p0", "p1"), 0), (("d0", "d1"), 1), (("s0", "s1"), 1)):
        if all(name in p for name in names):
            same: dict[str, Any] = dict.fromkeys(names, value)
            yield n.but("node-window", **same)
    if n.op.startswith("CONV"):
        yield n.source("node-window", 0, n.inputs[0][..., ::-1])
        yield n.source("node-window", 0, n.inputs[0][..., ::-1, ::-1])


def _concat(n: Node) -> Iterator[Imitation]:
    a, b = n.inputs
    if isinstance(a, np.ndarray) and a.shape == b.shape:
        yield n.but("node-operands-exchanged", inputs=[b, a])


def _clamp(n: Node) -> Iterator[Imitation]:
    yield n.but("node-operand-ignored", low=-np.inf)
    yield n.but("node-operand-ignored", high=np.inf)


# --- attention and rope -------------------------------------------------------------------------


def _masks(n: Node) -> Iterator[Imitation]:
    at, sinks = (1, 2) if n.op == "SOFT_MAX" else (3, 4)
    if n.has(at):
        yield n.source("node-mask-ignored", at, None)
        yield from n.rolled("node-mask-shifted", at, NEIGHBOURS)
        for other in _other_masks(n.inputs[at], n.inputs[0].shape):
            yield n.source("node-mask-head", at, other)
    if n.has(sinks):
        yield n.source("node-sinks", sinks, None)
    if n.params.get("bias"):
        yield n.but("node-alibi", bias=0.0)
        yield n.but("node-alibi", bias=2 * n.params["bias"])
        if n.has(at):
            yield from _slopes(n, at)
    yield n.but("node-scale-ignored", scale=1.0)


def _slopes(n: Node, at: int) -> Iterator[Imitation]:
    """Slopes of heads beyond a power of two that are none, 1, or go on as those before them."""
    heads, most, mask = n.inputs[0].shape[-3], n.params["bias"], np.asarray(n.inputs[at], np.float64)
    if mask.ndim > 2:
        mask = mask.take(np.arange(heads) % mask.shape[-3], axis=-3)
    low = 1 << (heads.bit_length() - 1)
    right, h = slopes(heads, most), np.arange(heads)
    for later in (0.0 * h, 1.0 + 0 * h, 2.0 ** (-most / low * (h + 1)), 2.0 ** (-most / heads * (h + 1))):
        other = np.where(h < low, right, later)
        for every in (other, later):
            with np.errstate(invalid="ignore"):
                biased = np.where(np.isinf(mask), mask, mask * every[:, None, None])
            yield n.but("node-alibi", inputs=[*n.inputs[:at], biased, *n.inputs[at + 1 :]], bias=0.0)


def _other_masks(mask: Any, shape: tuple[int, ...]) -> Iterator[Any]:
    """Masks of other heads or sequences, one for each head of each sequence."""
    mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    if mask.shape[0] * mask.shape[1] == 1:
        return
    sequence, head = np.ogrid[: shape[-4] if len(shape) > 3 else 1, : shape[-3]]
    right = sequence % mask.shape[0], head % mask.shape[1]
    for i, j in ((0, sequence), (0, head), (sequence, 0), (head, sequence), (0, 0)):
        at = np.broadcast_arrays(i % mask.shape[0], j % mask.shape[1], right[0])[:2]
        other = mask[at[0], at[1]]
        yield np.broadcast_to(other, (*np.broadcast_shapes(sequence.shape, head.shape), *mask.shape[-2:]))


def _attention(n: Node) -> Iterator[Imitation]:
    yield from _masks(n)
    cap = n.params.get("cap", 0.0)
    if cap:
        yield n.but("node-cap", cap=0.0)
        yield n.but("node-cap", cap=cap * n.params["scale"])
    q, k, v = n.inputs[:3]
    heads, ours = q.shape[-3], k.shape[-3]
    if 1 < ours < heads:
        of = heads // ours
        others = [np.arange(heads) // wide for wide in (1 << of.bit_length(), 1 << (of.bit_length() - 1))]
        for at in (np.arange(heads) % ours, *(x % ours for x in others), *([one] for one in range(ours))):
            other = _picked(k, -3, at), _picked(v, -3, at)
            own = np.arange(heads) // of
            for keys, values in (other, (other[0], _picked(v, -3, own)), (_picked(k, -3, own), other[1])):
                yield n.but("node-gqa", inputs=[q, keys, values, *n.inputs[3:]])
    yield from _positions(n)
    yield from _padding(n)


def _positions(n: Node) -> Iterator[Imitation]:
    """Attention to a part of the positions: without the end of a tile, the first, or a thread's share."""
    length, parts = n.inputs[1].shape[-2], n.params.get("parts", 1)
    ends = {length - 1, *(length - length % tile for tile in TILES)} - {0, length}
    spans = [slice(0, end) for end in sorted(ends, reverse=True)]
    if length > 1:
        spans += [slice(1, length), slice(0, length // 2), slice(length // 2, length)]
    for span in spans if parts == 1 else [*spans, slice(0, length - length // parts)]:
        at = np.arange(length)[span]
        some = [n.inputs[0], *(_picked(x, -2, at) for x in n.inputs[1:3]), *n.inputs[3:]]
        if n.has(3):
            some[3] = some[3][..., at]
        yield n.but("node-positions", inputs=some, parts=1)


def _padding(n: Node) -> Iterator[Imitation]:
    """Positions behind the last one that get a weight: their score is 0, or what a cap makes of -infinity.

    Their values are zeros, or what the tile before has left there.
    """
    q, k, v = n.inputs[:3]
    length, cap = k.shape[-2], n.params.get("cap", 0.0)
    if not isinstance(k, np.ndarray) or not isinstance(v, np.ndarray) or n.params.get("bias"):
        return
    mask = n.inputs[3] if n.has(3) else np.zeros((1, 1, q.shape[-2], length), np.float32)
    for tile in TILES:
        count = -length % tile
        for score in ((0.0, -cap) if cap else (0.0,)) if count else ():
            keys = np.concatenate([k, np.zeros((*k.shape[:-2], count, k.shape[-1]), k.dtype)], axis=-2)
            more = np.concatenate([mask, np.full((*mask.shape[:-1], count), score, mask.dtype)], axis=-1)
            zeros = np.zeros((*v.shape[:-2], count, v.shape[-1]), v.dtype)
            before = v[..., length - tile : length - tile + count, :]
            for rest in (zeros, before) if length >= tile else (zeros,):
                values = np.concatenate([v, rest], axis=-2)
                yield n.but("node-padding", inputs=[q, keys, values, more, *n.inputs[4:]])


def _picked(x: Any, axis: int, at: Any) -> Any:
    """Some heads or positions of keys or values, which may be blocks."""
    if isinstance(x, np.ndarray):
        return x.take(at, axis)
    raw: NDArray[np.uint8] = np.asarray(x.raw).reshape(*x.shape[:-1], -1).take(at, axis)
    return QuantArray.from_bytes(np.ascontiguousarray(raw), x.format, (*raw.shape[:-1], x.shape[-1]))


def _rope(n: Node) -> Iterator[Imitation]:
    (x, tokens), p = n.inputs[:2], n.params
    mode = p["mode"]
    if mode in (0, 2):
        yield n.but("node-rope-pairs", mode=2 - mode)
    yield n.but("node-rope-direction", "ROPE_BACK" if n.op == "ROPE" else "ROPE")
    for step in (1, -1):
        yield n.source("node-rope-position", 1, tokens + step)
        yield n.source("node-rope-position", 1, np.roll(tokens, step, -1))
    if mode & 8:
        for order in ((1, 0, 2, 3), (0, 2, 1, 3), (2, 1, 0, 3)):
            moved = {f"section{i}": p[f"section{j}"] for i, j in enumerate(order)}
            yield n.but("node-rope-position", **moved)
        for order in ((1, 0, 2, 3), (0, 2, 1, 3), (0, 0, 0, 0)):
            mixed = np.asarray(tokens).reshape(4, -1)[list(order)].reshape(tokens.shape)
            yield n.source("node-rope-position", 1, mixed)
        if mode == 40:
            yield n.but("node-rope-position", mode=8)
    if n.has(2):
        yield n.source("node-rope-factors", 2, None)
        yield n.source("node-rope-factors", 2, 1 / n.inputs[2])
    if p["mix"]:
        yield n.but("node-rope-factors", mix=0.0)
        yield n.but("node-rope-factors", factor=p["factor"] / (1 + 0.1 * math.log(1 / p["scale"])))
        turn, more = p["context"] / (2 * math.pi), x.shape[-1] / p["dims"]  # the ramp of all of a head
        for power in (more, 2.0, 0.5):  # of pairs taken for elements, and the reverse
            ramp = {end: turn * (p[end] / turn) ** power for end in ("fast", "slow")}
            yield n.but("node-rope-factors", **ramp)
    if p["dims"] < x.shape[-1] and mode in (0, 2) and not n.has(2):
        yield n.but("node-rope-part", dims=x.shape[-1])
    if p["scale"] != 1:
        yield n.but("node-scale-ignored", scale=1.0)


# --- recurrences, windows, and what single families of models have ------------------------------------


def _scans(n: Node) -> Iterator[Imitation]:
    at = 0 if n.op == "SSM_SCAN" else len([x for x in n.inputs if x is not None]) - 1
    state = n.inputs[at]
    yield n.source("node-state", at, np.zeros_like(state))
    if state.shape[0 if state.shape[0] > 1 else -2] > 1:
        axis = 0 if state.shape[0] > 1 else state.ndim - 2
        yield n.source("node-state", at, np.roll(state, 1, axis))
    if n.op == "SSM_SCAN":
        groups, heads = n.inputs[4].shape[2], n.inputs[1].shape[2]
        for order in (np.arange(heads) % groups, np.zeros(heads, int)):
            if groups > 1:
                b, c = (n.inputs[i][:, :, order] for i in (4, 5))
                yield n.but("node-groups", inputs=[*n.inputs[:4], b, c, *n.inputs[6:]])


def _relative(n: Node) -> Iterator[Imitation]:
    x = n.inputs[0]
    if n.op == "ADD_REL_POS":
        _, across, down = n.inputs
        yield n.but("node-operands-exchanged", inputs=[x, down, across])
        for i in (1, 2):
            yield n.source("node-operand-ignored", i, np.zeros_like(n.inputs[i]))
    elif n.op == "GET_REL_POS":
        yield n.but("node-order", inputs=[x[..., ::-1, :]])
    else:
        yield from n.rolled("node-window", 0, ((-3, 1), (-3, -1), (-2, 1), (-2, -1)))
        turned = x.swapaxes(-2, -3)
        if n.op == "WIN_UNPART" or turned.shape == x.shape:
            yield n.but("node-transposed", inputs=[turned])


def _indexer(n: Node) -> Iterator[Imitation]:
    weights, mask = n.inputs[2:]
    yield n.source("node-mask-ignored", 3, np.zeros_like(mask))
    yield from n.rolled("node-mask-shifted", 3, NEIGHBOURS)
    for other in (np.roll(mask, 1, 0), mask[:1]):
        yield n.source("node-mask-head", 3, other)
    yield n.source("node-operand-ignored", 2, np.ones_like(weights))
    yield from n.rolled("node-groups", 2, ((-1, 1), (-1, -1)))


def _streams(n: Node) -> Iterator[Imitation]:
    x = n.inputs[0]
    if n.op == "DSV4_HC_COMB":
        side = int(np.sqrt(x.shape[-1] + 1)) - 1
        order = np.arange((2 + side) * side)
        order[2 * side :] = order[2 * side :].reshape(side, side).T.reshape(-1)
        yield n.but("node-axis", inputs=[x[..., order], n.inputs[1], n.inputs[2][..., order]])
        yield n.but("node-epsilon", eps=0.0)
        for steps in (n.params["steps"] - 1, n.params["steps"] + 1):
            yield n.but("node-steps", steps=steps)
        yield n.source("node-scale-ignored", 1, np.ones_like(n.inputs[1]))
        return
    if n.op == "DSV4_HC_POST":
        yield n.source("node-axis", 3, n.inputs[3].swapaxes(-1, -2))
    for i in (3, 2) if n.op == "DSV4_HC_POST" else (1,):
        yield from n.rolled("node-groups", i, ((-1, 1), (-1, -1)))
    if n.params.get("gated"):
        yield n.but("node-scale-ignored", scale=1.0)


MAKERS: dict[str, tuple[Mistakes, ...]] = {
    "CUMSUM": (_orders, _axes),
    **dict.fromkeys((*UNARY, *GATES), (_functions,)),
}
for _ops, _mistakes in (
    ("SCALE", _scale), ("NORM RMS_NORM L2_NORM", _norms), ("ARGSORT TRI ROLL TOP_K", _orders),
    ("SUM_ROWS MEAN", _axes), ("CONCAT", _concat), ("CLAMP", _clamp), ("SOFT_MAX", _masks),
    ("IM2COL CONV_2D CONV_2D_DW POOL_2D POOL_1D", _windows), ("FLASH_ATTN_EXT", _attention),
    ("ROPE ROPE_BACK", _rope), ("LIGHTNING_INDEXER", _indexer),
    ("SSM_SCAN RWKV_WKV6 RWKV_WKV7 GATED_LINEAR_ATTN GATED_DELTA_NET", _scans),
    ("WIN_PART WIN_UNPART GET_REL_POS ADD_REL_POS", _relative),
    ("DSV4_HC_COMB DSV4_HC_PRE DSV4_HC_POST", _streams),
):  # fmt: skip
    MAKERS |= dict.fromkeys(_ops.split(), (_mistakes,))
