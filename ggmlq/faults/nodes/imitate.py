"""Every mistake as the same operation on other operands, with other parameters, or as another operation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...arrays.array import QuantArray
from ...reference.nodes.activations import GATES, UNARY
from .memory import misread

TILES = (16, 32, 64, 128, 256)  # positions that kernels take at a time


class Imitation(NamedTuple):
    """A node that is computed in place of the right one; its result is that of the mistake."""

    fault: str
    op: str
    inputs: list[Any]
    params: dict[str, Any]


Maker = Callable[[str, list[Any], dict[str, Any]], Iterator[Imitation]]


def imitations(op: str, inputs: Sequence[Any], params: Mapping[str, Any]) -> Iterator[Imitation]:
    """All mistakes that an operation may have with these operands."""
    node = op, list(inputs), dict(params)
    for maker in (*MAKERS.get(op, ()), _strides, _exchanged, _broadcast, _ignored):
        yield from maker(*node)


def _with(params: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**params, **more}


def _at(inputs: list[Any], i: int, value: Any) -> list[Any]:
    return [value if j == i else x for j, x in enumerate(inputs)]


def _there(inputs: list[Any], i: int) -> bool:
    return i < len(inputs) and inputs[i] is not None


# --- of any operation -------------------------------------------------------------------------


def _strides(op: str, inputs: list[Any], params: dict[str, Any]) -> Iterator[Imitation]:
    for i, x in enumerate(inputs):
        for other in misread(x):
            yield Imitation("node-stride", op, _at(inputs, i, other), params)


def _exchanged(op: str, inputs: list[Any], params: dict[str, Any]) -> Iterator[Imitation]:
    if op in ("SUB", "DIV", *GATES) and _there(inputs, 1) and inputs[0].shape == inputs[1].shape:
        yield Imitation("node-operands-exchanged", op, [inputs[1], inputs[0]], params)
    if "swapped" in params and not _there(inputs, 1):
        yield Imitation("node-operands-exchanged", op, inputs, _with(params, swapped=not params["swapped"]))


def _broadcast(op: str, inputs: list[Any], params: dict[str, Any]) -> Iterator[Imitation]:
    if op not in ("ADD", "SUB", "MUL", "DIV", "REPEAT", "SOFT_MAX"):
        return
    whole = params.get("shape") if op == "REPEAT" else inputs[0].shape
    i = 0 if op == "REPEAT" else 1
    if whole is None or not _there(inputs, i) or inputs[i].shape == tuple(whole):
        return
    b = inputs[i]
    for axis, (n, m) in enumerate(zip(whole, b.shape, strict=True)):
        if 1 < m < n:
            yield Imitation("node-broadcast", op, _at(inputs, i, b.repeat(n // m, axis=axis)), params)
        if m > 1:
            yield Imitation("node-broadcast", op, _at(inputs, i, np.take(b, [0] * m, axis=axis)), params)


def _ignored(op: str, inputs: list[Any], params: dict[str, Any]) -> Iterator[Imitation]:
    neutral = {"ADD": 0.0, "SUB": 0.0, "MUL": 1.0, "DIV": 1.0, "ADD_ID": 0.0, "ACC": 0.0}
    if op in neutral:
        nothing = np.full_like(inputs[1], neutral[op])
        yield Imitation("node-operand-ignored", op, _at(inputs, 1, nothing), params)
    if op == "GET_ROWS":
        for step in (-1, 1):
            yield Imitation("node-ids", op, _at(inputs, 1, np.roll(inputs[1], step, axis=-1)), params)
        yield Imitation("node-ids", op, _at(inputs, 1, np.maximum(inputs[1] - 1, 0)), params)
    if op == "SET_ROWS":
        for step in (-1, 1):
            yield Imitation("node-ids", op, _at(inputs, 1, np.roll(inputs[1], step, axis=-1)), params)


# --- of some ----------------------------------------------------------------------------------


def _scale(op: str, inputs: list[Any], params: dict[str, Any]) -> Iterator[Imitation]:
    scale, bias = params["scale"], params.get("bias", 0.0)
    yield Imitation("node-bias", op, inputs, _with(params, bias=0.0))
    yield Imitation("node-bias", op, inputs, _with(params, bias=scale * bias))
    yield Imitation("node-bias", op, inputs, _with(params, scale=1.0, bias=scale * bias))
    yield Imitation("node-scale-ignored", op, inputs, _with(params, scale=1.0))


def _functions(op: str, inputs: list[Any], params: dict[str, Any]) -> Iterator[Imitation]:
    for other in GATES if op in GATES else UNARY:
        if other != op:
            yield Imitation("node-function", other, inputs, params)


def _norms(op: str, inputs: list[Any], params: dict[str, Any]) -> Iterator[Imitation]:
    x, eps = np.asarray(inputs[0], np.float64), params["eps"]
    if op == "NORM":
        yield Imitation("node-mean", "RMS_NORM", inputs, params)
        x = x - x.mean(axis=-1, keepdims=True)
    if op != "L2_NORM":
        n = x.shape[-1]
        size = np.sqrt((x * x).mean(axis=-1, keepdims=True))
        yield Imitation("node-epsilon", "DIV", [x, size + eps], params)
        yield Imitation("node-mean", "L2_NORM", [x], _with(params, eps=eps))
        yield Imitation("node-mean", "DIV", [x, np.sqrt(size**2 * n / max(n - 1, 1) + eps)], params)
    yield Imitation("node-epsilon", op, inputs, _with(params, eps=0.0))


def _masks(op: str, inputs: list[Any], params: dict[str, Any]) -> Iterator[Imitation]:
    at, sinks = (1, 2) if op == "SOFT_MAX" else (3, 4)
    if _there(inputs, at):
        yield Imitation("node-mask-ignored", op, _at(inputs, at, None), params)
        for axis, step in ((-1, 1), (-1, -1), (-2, 1), (-2, -1)):
            yield Imitation("node-mask-shifted", op, _at(inputs, at, np.roll(inputs[at], step, axis)), params)
        for other in _other_masks(inputs[at], inputs[0].shape):
            yield Imitation("node-mask-head", op, _at(inputs, at, other), params)
    if _there(inputs, sinks):
        yield Imitation("node-sinks", op, _at(inputs, sinks, None), params)
    if params.get("bias"):
        yield Imitation("node-alibi", op, inputs, _with(params, bias=0.0))
        yield Imitation("node-alibi", op, inputs, _with(params, bias=2 * params["bias"]))
    yield Imitation("node-scale-ignored", op, inputs, _with(params, scale=1.0))


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


def _attention(op: str, inputs: list[Any], params: dict[str, Any]) -> Iterator[Imitation]:
    yield from _masks(op, inputs, params)
    cap, scale = params.get("cap", 0.0), params["scale"]
    if cap:
        yield Imitation("node-cap", op, inputs, _with(params, cap=0.0))
        yield Imitation("node-cap", op, inputs, _with(params, cap=cap * scale))
    q, k, v = inputs[:3]
    heads, ours = q.shape[-3], k.shape[-3]
    if 1 < ours < heads:
        for at in (np.arange(heads) % ours, *([one] for one in range(ours))):
            yield Imitation("node-gqa", op, [q, _picked(k, -3, at), _picked(v, -3, at), *inputs[3:]], params)
    yield from _positions(op, inputs, params)


def _positions(op: str, inputs: list[Any], params: dict[str, Any]) -> Iterator[Imitation]:
    """Attention to a part of the positions: without the end of a tile, the first, or a thread's share."""
    n, parts = inputs[1].shape[-2], params.get("parts", 1)
    ends = sorted({n - 1, *(n - n % tile for tile in TILES)} - {0, n}, reverse=True)
    spans = [slice(0, end) for end in ends] + [slice(1, n)] * (n > 1)
    spans += [slice(0, n // 2), slice(n // 2, n)] * (n > 1)
    for span in spans if parts == 1 else [*spans, slice(0, n - n // parts)]:
        at = np.arange(n)[span]
        some = [inputs[0], *(_picked(x, -2, at) for x in inputs[1:3]), *inputs[3:]]
        if _there(some, 3):
            some[3] = some[3][..., at]
        yield Imitation("node-positions", op, some, _with(params, parts=1))


def _picked(x: Any, axis: int, at: Any) -> Any:
    """Some heads or positions of keys or values, which may be blocks."""
    if isinstance(x, np.ndarray):
        return x.take(at, axis)
    raw = np.ascontiguousarray(np.asarray(x.raw).reshape(*x.shape[:-1], -1).take(at, axis))
    return QuantArray.from_bytes(raw, x.format, (*raw.shape[:-1], x.shape[-1]))


def _rope(op: str, inputs: list[Any], params: dict[str, Any]) -> Iterator[Imitation]:
    mode = params["mode"]
    if mode in (0, 2):
        yield Imitation("node-rope-pairs", op, inputs, _with(params, mode=2 - mode))
    yield Imitation("node-rope-direction", "ROPE_BACK" if op == "ROPE" else "ROPE", inputs, params)
    for step in (1, -1):
        yield Imitation("node-rope-position", op, _at(inputs, 1, inputs[1] + step), params)
        yield Imitation("node-rope-position", op, _at(inputs, 1, np.roll(inputs[1], step, -1)), params)
    if mode & 8:
        names = [f"section{i}" for i in range(4)]
        for order in ((1, 0, 2, 3), (0, 2, 1, 3), (2, 1, 0, 3)):
            moved = {name: params[names[i]] for name, i in zip(names, order, strict=True)}
            yield Imitation("node-rope-position", op, inputs, _with(params, **moved))
        tokens = np.asarray(inputs[1]).reshape(4, -1)
        for order in ((1, 0, 2, 3), (0, 2, 1, 3), (0, 0, 0, 0)):
            mixed = tokens[list(order)].reshape(inputs[1].shape)
            yield Imitation("node-rope-position", op, _at(inputs, 1, mixed), params)
        if mode == 40:
            yield Imitation("node-rope-position", op, inputs, _with(params, mode=8))
    if _there(inputs, 2):
        yield Imitation("node-rope-factors", op, _at(inputs, 2, None), params)
        yield Imitation("node-rope-factors", op, _at(inputs, 2, 1 / inputs[2]), params)
    if params["mix"]:
        yield Imitation("node-rope-factors", op, inputs, _with(params, mix=0.0))
    width = inputs[0].shape[-1]
    if params["dims"] < width and mode in (0, 2) and not _there(inputs, 2):
        yield Imitation("node-rope-part", op, inputs, _with(params, dims=width))
    if params["scale"] != 1:
        yield Imitation("node-scale-ignored", op, inputs, _with(params, scale=1.0))


def _orders(op: str, inputs: list[Any], params: dict[str, Any]) -> Iterator[Imitation]:
    if op == "ARGSORT":
        yield Imitation("node-order", op, inputs, _with(params, descending=1 - params["descending"]))
    if op == "TRI":
        for part in range(4):
            if part != params["part"]:
                yield Imitation("node-order", op, inputs, _with(params, part=part))
    if op == "ROLL":
        back = {f"shift{i}": -params[f"shift{i}"] for i in range(4)}
        yield Imitation("node-order", op, inputs, _with(params, **back))
    if op == "TOP_K":
        yield Imitation("node-order", op, [-inputs[0]], params)
    if op == "CUMSUM":
        before = np.concatenate([np.zeros_like(inputs[0][..., :1]), inputs[0][..., :-1]], axis=-1)
        yield Imitation("node-order", op, [before], params)
        yield Imitation("node-order", op, [inputs[0][..., ::-1]], params)


def _axes(op: str, inputs: list[Any], params: dict[str, Any]) -> Iterator[Imitation]:
    x = inputs[0]
    if op in ("SUM_ROWS", "MEAN", "CUMSUM", "ARGSORT") and x.shape[-1] == x.shape[-2]:
        yield Imitation("node-axis", op, [x.swapaxes(-1, -2)], params)
    if op == "MEAN":
        yield Imitation("node-mean", "SUM_ROWS", inputs, params)
    if op == "SUM_ROWS":
        yield Imitation("node-mean", "MEAN", inputs, params)


def _scans(op: str, inputs: list[Any], params: dict[str, Any]) -> Iterator[Imitation]:
    at = 0 if op == "SSM_SCAN" else len([x for x in inputs if x is not None]) - 1
    yield Imitation("node-state", op, _at(inputs, at, np.zeros_like(inputs[at])), params)
    if inputs[at].shape[0 if inputs[at].shape[0] > 1 else -2] > 1:
        axis = 0 if inputs[at].shape[0] > 1 else inputs[at].ndim - 2
        yield Imitation("node-state", op, _at(inputs, at, np.roll(inputs[at], 1, axis)), params)
    if op == "SSM_SCAN":
        groups, heads = inputs[4].shape[2], inputs[1].shape[2]
        for order in (np.arange(heads) % groups, np.zeros(heads, int)):
            if groups > 1:
                b, c = (inputs[i][:, :, order] for i in (4, 5))
                yield Imitation("node-groups", op, [*inputs[:4], b, c, *inputs[6:]], params)


def _windows(op: str, inputs: list[Any], params: dict[str, Any]) -> Iterator[Imitation]:
    for a, b in (("s0", "s1"), ("p0", "p1"), ("d0", "d1"), ("k0", "k1")):
        if a in params and b in params and params[a] != params[b]:
            yield Imitation("node-window", op, inputs, _with(params, **{a: params[b], b: params[a]}))
    for names, value in ((("p0", "p1"), 0), (("d0", "d1"), 1), (("s0", "s1"), 1)):
        if all(name in params for name in names):
            yield Imitation("node-window", op, inputs, _with(params, **dict.fromkeys(names, value)))
    if op.startswith("CONV"):
        yield Imitation("node-window", op, _at(inputs, 0, inputs[0][..., ::-1]), params)
        yield Imitation("node-window", op, _at(inputs, 0, inputs[0][..., ::-1, ::-1]), params)


def _concat(op: str, inputs: list[Any], params: dict[str, Any]) -> Iterator[Imitation]:
    if isinstance(inputs[0], np.ndarray) and inputs[0].shape == inputs[1].shape:
        yield Imitation("node-operands-exchanged", op, [inputs[1], inputs[0]], params)


def _relative(op: str, inputs: list[Any], params: dict[str, Any]) -> Iterator[Imitation]:
    if op == "ADD_REL_POS":
        x, across, down = inputs
        yield Imitation("node-operands-exchanged", op, [x, down, across], params)
        for i in (1, 2):
            yield Imitation("node-operand-ignored", op, _at(inputs, i, np.zeros_like(inputs[i])), params)
    elif op == "GET_REL_POS":
        yield Imitation("node-order", op, [inputs[0][..., ::-1, :]], params)
    else:
        for axis, step in ((-3, 1), (-3, -1), (-2, 1), (-2, -1)):
            yield Imitation("node-window", op, [np.roll(inputs[0], step, axis)], params)
        turned = inputs[0].swapaxes(-2, -3)
        if op == "WIN_UNPART" or turned.shape == inputs[0].shape:
            yield Imitation("node-transposed", op, [turned], params)


def _indexer(op: str, inputs: list[Any], params: dict[str, Any]) -> Iterator[Imitation]:
    weights, mask = inputs[2:]
    yield Imitation("node-mask-ignored", op, _at(inputs, 3, np.zeros_like(mask)), params)
    for axis, step in ((-1, 1), (-1, -1), (-2, 1), (-2, -1)):
        yield Imitation("node-mask-shifted", op, _at(inputs, 3, np.roll(mask, step, axis)), params)
    for other in (np.roll(mask, 1, 0), mask[:1]):
        yield Imitation("node-mask-head", op, _at(inputs, 3, other), params)
    yield Imitation("node-operand-ignored", op, _at(inputs, 2, np.ones_like(weights)), params)
    for step in (1, -1):
        yield Imitation("node-groups", op, _at(inputs, 2, np.roll(weights, step, -1)), params)


def _streams(op: str, inputs: list[Any], params: dict[str, Any]) -> Iterator[Imitation]:
    at = {"DSV4_HC_PRE": 1, "DSV4_HC_POST": 3}.get(op)
    if op == "DSV4_HC_COMB":
        n = int(np.sqrt(inputs[0].shape[-1] + 1)) - 1
        order = np.arange((2 + n) * n)
        order[2 * n :] = order[2 * n :].reshape(n, n).T.reshape(-1)
        moved = [inputs[0][..., order], inputs[1], inputs[2][..., order]]
        yield Imitation("node-axis", op, moved, params)
        yield Imitation("node-epsilon", op, inputs, _with(params, eps=0.0))
        for steps in (params["steps"] - 1, params["steps"] + 1):
            yield Imitation("node-steps", op, inputs, _with(params, steps=steps))
        yield Imitation("node-scale-ignored", op, _at(inputs, 1, np.ones_like(inputs[1])), params)
    elif at is not None:
        if op == "DSV4_HC_POST":
            yield Imitation("node-axis", op, _at(inputs, at, inputs[at].swapaxes(-1, -2)), params)
        for i in (at, 2) if op == "DSV4_HC_POST" else (at,):
            for step in (1, -1):
                yield Imitation("node-groups", op, _at(inputs, i, np.roll(inputs[i], step, -1)), params)
        if params.get("gated"):
            yield Imitation("node-scale-ignored", op, inputs, _with(params, scale=1.0))


def _clamp(op: str, inputs: list[Any], params: dict[str, Any]) -> Iterator[Imitation]:
    yield Imitation("node-operand-ignored", op, inputs, _with(params, low=-np.inf))
    yield Imitation("node-operand-ignored", op, inputs, _with(params, high=np.inf))


MAKERS: dict[str, tuple[Maker, ...]] = {
    "SCALE": (_scale,), "NORM": (_norms,), "RMS_NORM": (_norms,), "L2_NORM": (_norms,),
    "SOFT_MAX": (_masks,), "FLASH_ATTN_EXT": (_attention,), "ROPE": (_rope,), "ROPE_BACK": (_rope,),
    "ARGSORT": (_orders,), "TRI": (_orders,), "ROLL": (_orders,), "TOP_K": (_orders,),
    "CUMSUM": (_orders, _axes), "SUM_ROWS": (_axes,), "MEAN": (_axes,), "CONCAT": (_concat,),
    "CLAMP": (_clamp,),
}  # fmt: skip
MAKERS |= dict.fromkeys((*UNARY, *GATES), (_functions,))
MAKERS |= dict.fromkeys(
    ("SSM_SCAN", "RWKV_WKV6", "RWKV_WKV7", "GATED_LINEAR_ATTN", "GATED_DELTA_NET"), (_scans,)
)
MAKERS |= dict.fromkeys(("WIN_PART", "WIN_UNPART", "GET_REL_POS", "ADD_REL_POS"), (_relative,))
MAKERS |= dict.fromkeys(("DSV4_HC_COMB", "DSV4_HC_PRE", "DSV4_HC_POST"), (_streams,))
MAKERS["LIGHTNING_INDEXER"] = (_indexer,)
MAKERS |= dict.fromkeys(("IM2COL", "CONV_2D", "CONV_2D_DW", "POOL_2D", "POOL_1D"), (_windows,))
