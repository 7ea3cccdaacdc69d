"""Every mistake as the same operation on other operands, with other parameters, or as another operation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...reference.nodes.elementwise import GATES, UNARY
from . import imitate_models
from .imitation import Imitation, Maker, changed, has, replaced
from .memory import misread


def imitations(op: str, inputs: Sequence[Any], params: Mapping[str, Any]) -> Iterator[Imitation]:
    """All mistakes that an operation may have with these operands."""
    node = op, list(inputs), dict(params)
    for maker in (*MAKERS.get(op, ()), _strides, _exchanged, _broadcast, _ignored):
        yield from maker(*node)


# --- of any operation -------------------------------------------------------------------------


def _strides(op: str, inputs: list[Any], params: dict[str, Any]) -> Iterator[Imitation]:
    for i, x in enumerate(inputs):
        for other in misread(x):
            yield Imitation("node-stride", op, replaced(inputs, i, other), params)


def _exchanged(op: str, inputs: list[Any], params: dict[str, Any]) -> Iterator[Imitation]:
    if op in ("SUB", "DIV", *GATES) and has(inputs, 1) and inputs[0].shape == inputs[1].shape:
        yield Imitation("node-operands-exchanged", op, [inputs[1], inputs[0]], params)
    if "swapped" in params and not has(inputs, 1):
        yield Imitation("node-operands-exchanged", op, inputs, changed(params, swapped=not params["swapped"]))


def _broadcast(op: str, inputs: list[Any], params: dict[str, Any]) -> Iterator[Imitation]:
    if op not in ("ADD", "SUB", "MUL", "DIV", "REPEAT", "SOFT_MAX"):
        return
    whole = params.get("shape") if op == "REPEAT" else inputs[0].shape
    i = 0 if op == "REPEAT" else 1
    if whole is None or not has(inputs, i) or inputs[i].shape == tuple(whole):
        return
    b = inputs[i]
    for axis, (n, m) in enumerate(zip(whole, b.shape, strict=True)):
        if 1 < m < n:
            yield Imitation("node-broadcast", op, replaced(inputs, i, b.repeat(n // m, axis=axis)), params)
        if m > 1:
            yield Imitation("node-broadcast", op, replaced(inputs, i, np.take(b, [0] * m, axis=axis)), params)


def _ignored(op: str, inputs: list[Any], params: dict[str, Any]) -> Iterator[Imitation]:
    neutral = {"ADD": 0.0, "SUB": 0.0, "MUL": 1.0, "DIV": 1.0, "ADD_ID": 0.0, "ACC": 0.0}
    if op in neutral:
        nothing = np.full_like(inputs[1], neutral[op])
        yield Imitation("node-operand-ignored", op, replaced(inputs, 1, nothing), params)
    if op == "GET_ROWS":
        for step in (-1, 1):
            yield Imitation("node-ids", op, replaced(inputs, 1, np.roll(inputs[1], step, axis=-1)), params)
        yield Imitation("node-ids", op, replaced(inputs, 1, np.maximum(inputs[1] - 1, 0)), params)
    if op == "SET_ROWS":
        for step in (-1, 1):
            yield Imitation("node-ids", op, replaced(inputs, 1, np.roll(inputs[1], step, axis=-1)), params)


# --- of some ----------------------------------------------------------------------------------


def _scale(op: str, inputs: list[Any], params: dict[str, Any]) -> Iterator[Imitation]:
    scale, bias = params["scale"], params.get("bias", 0.0)
    yield Imitation("node-bias", op, inputs, changed(params, bias=0.0))
    yield Imitation("node-bias", op, inputs, changed(params, bias=scale * bias))
    yield Imitation("node-bias", op, inputs, changed(params, scale=1.0, bias=scale * bias))
    yield Imitation("node-scale-ignored", op, inputs, changed(params, scale=1.0))


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
        yield Imitation("node-mean", "L2_NORM", [x], changed(params, eps=eps))
        yield Imitation("node-mean", "DIV", [x, np.sqrt(size**2 * n / max(n - 1, 1) + eps)], params)
    yield Imitation("node-epsilon", op, inputs, changed(params, eps=0.0))


def _orders(op: str, inputs: list[Any], params: dict[str, Any]) -> Iterator[Imitation]:
    if op == "ARGSORT":
        yield Imitation("node-order", op, inputs, changed(params, descending=1 - params["descending"]))
    if op == "TRI":
        for part in range(4):
            if part != params["part"]:
                yield Imitation("node-order", op, inputs, changed(params, part=part))
    if op == "ROLL":
        back = {f"shift{i}": -params[f"shift{i}"] for i in range(4)}
        yield Imitation("node-order", op, inputs, changed(params, **back))
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


def _windows(op: str, inputs: list[Any], params: dict[str, Any]) -> Iterator[Imitation]:
    for a, b in (("s0", "s1"), ("p0", "p1"), ("d0", "d1"), ("k0", "k1")):
        if a in params and b in params and params[a] != params[b]:
            yield Imitation("node-window", op, inputs, changed(params, **{a: params[b], b: params[a]}))
    for names, value in ((("p0", "p1"), 0), (("d0", "d1"), 1), (("s0", "s1"), 1)):
        if all(name in params for name in names):
            yield Imitation("node-window", op, inputs, changed(params, **dict.fromkeys(names, value)))
    if op.startswith("CONV"):
        yield Imitation("node-window", op, replaced(inputs, 0, inputs[0][..., ::-1]), params)
        yield Imitation("node-window", op, replaced(inputs, 0, inputs[0][..., ::-1, ::-1]), params)


def _concat(op: str, inputs: list[Any], params: dict[str, Any]) -> Iterator[Imitation]:
    if isinstance(inputs[0], np.ndarray) and inputs[0].shape == inputs[1].shape:
        yield Imitation("node-operands-exchanged", op, [inputs[1], inputs[0]], params)


def _clamp(op: str, inputs: list[Any], params: dict[str, Any]) -> Iterator[Imitation]:
    yield Imitation("node-operand-ignored", op, inputs, changed(params, low=-np.inf))
    yield Imitation("node-operand-ignored", op, inputs, changed(params, high=np.inf))


MAKERS: dict[str, tuple[Maker, ...]] = {
    "SCALE": (_scale,), "NORM": (_norms,), "RMS_NORM": (_norms,), "L2_NORM": (_norms,),
    "ARGSORT": (_orders,), "TRI": (_orders,), "ROLL": (_orders,), "TOP_K": (_orders,),
    "CUMSUM": (_orders, _axes), "SUM_ROWS": (_axes,), "MEAN": (_axes,), "CONCAT": (_concat,),
    "CLAMP": (_clamp,),
}  # fmt: skip
MAKERS |= dict.fromkeys((*UNARY, *GATES), (_functions,))
MAKERS |= dict.fromkeys(("IM2COL", "CONV_2D", "CONV_2D_DW", "POOL_2D", "POOL_1D"), (_windows,))
MAKERS |= imitate_models.MAKERS
