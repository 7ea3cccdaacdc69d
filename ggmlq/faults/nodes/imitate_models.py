"""Mistakes of attention, rope, recurrences and of what single families of models have, as other operands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...arrays.array import QuantArray
from .imitation import Imitation, Maker, changed, has, replaced

TILES = (16, 32, 64, 128, 256)  # positions that kernels take at a time


def _masks(op: str, inputs: list[Any], params: dict[str, Any]) -> Iterator[Imitation]:
    at, sinks = (1, 2) if op == "SOFT_MAX" else (3, 4)
    if has(inputs, at):
        yield Imitation("node-mask-ignored", op, replaced(inputs, at, None), params)
        for axis, step in ((-1, 1), (-1, -1), (-2, 1), (-2, -1)):
            yield Imitation(
                "node-mask-shifted", op, replaced(inputs, at, np.roll(inputs[at], step, axis)), params
            )
        for other in _other_masks(inputs[at], inputs[0].shape):
            yield Imitation("node-mask-head", op, replaced(inputs, at, other), params)
    if has(inputs, sinks):
        yield Imitation("node-sinks", op, replaced(inputs, sinks, None), params)
    if params.get("bias"):
        yield Imitation("node-alibi", op, inputs, changed(params, bias=0.0))
        yield Imitation("node-alibi", op, inputs, changed(params, bias=2 * params["bias"]))
    yield Imitation("node-scale-ignored", op, inputs, changed(params, scale=1.0))


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
        yield Imitation("node-cap", op, inputs, changed(params, cap=0.0))
        yield Imitation("node-cap", op, inputs, changed(params, cap=cap * scale))
    q, k, v = inputs[:3]
    heads, ours = q.shape[-3], k.shape[-3]
    if 1 < ours < heads:
        for at in (np.arange(heads) % ours, *([one] for one in range(ours))):
            yield Imitation("node-gqa", op, [q, _picked(k, -3, at), _picked(v, -3, at), *inputs[3:]], params)
    yield from _positions(op, inputs, params)
    yield from _padding(op, inputs, params)


def _positions(op: str, inputs: list[Any], params: dict[str, Any]) -> Iterator[Imitation]:
    """Attention to a part of the positions: without the end of a tile, the first, or a thread's share."""
    n, parts = inputs[1].shape[-2], params.get("parts", 1)
    ends = sorted({n - 1, *(n - n % tile for tile in TILES)} - {0, n}, reverse=True)
    spans = [slice(0, end) for end in ends] + [slice(1, n)] * (n > 1)
    spans += [slice(0, n // 2), slice(n // 2, n)] * (n > 1)
    for span in spans if parts == 1 else [*spans, slice(0, n - n // parts)]:
        at = np.arange(n)[span]
        some = [inputs[0], *(_picked(x, -2, at) for x in inputs[1:3]), *inputs[3:]]
        if has(some, 3):
            some[3] = some[3][..., at]
        yield Imitation("node-positions", op, some, changed(params, parts=1))


def _padding(op: str, inputs: list[Any], params: dict[str, Any]) -> Iterator[Imitation]:
    """Positions behind the last one that get a weight: their score is 0, or what a cap makes of -infinity.

    Their values are zeros, or what the tile before has left there.
    """
    q, k, v = inputs[:3]
    n, cap = k.shape[-2], params.get("cap", 0.0)
    if not isinstance(k, np.ndarray) or not isinstance(v, np.ndarray) or params.get("bias"):
        return
    mask = inputs[3] if has(inputs, 3) else np.zeros((1, 1, q.shape[-2], n), np.float32)
    for tile in TILES:
        count = -n % tile
        for score in ((0.0, -cap) if cap else (0.0,)) if count else ():
            keys = np.concatenate([k, np.zeros((*k.shape[:-2], count, k.shape[-1]), k.dtype)], axis=-2)
            more = np.concatenate([mask, np.full((*mask.shape[:-1], count), score, mask.dtype)], axis=-1)
            zeros = np.zeros((*v.shape[:-2], count, v.shape[-1]), v.dtype)
            for rest in (zeros, v[..., n - tile : n - tile + count, :]) if n >= tile else (zeros,):
                values = np.concatenate([v, rest], axis=-2)
                yield Imitation("node-padding", op, [q, keys, values, more, *inputs[4:]], params)


def _picked(x: Any, axis: int, at: Any) -> Any:
    """Some heads or positions of keys or values, which may be blocks."""
    if isinstance(x, np.ndarray):
        return x.take(at, axis)
    raw = np.ascontiguousarray(np.asarray(x.raw).reshape(*x.shape[:-1], -1).take(at, axis))
    return QuantArray.from_bytes(raw, x.format, (*raw.shape[:-1], x.shape[-1]))


def _rope(op: str, inputs: list[Any], params: dict[str, Any]) -> Iterator[Imitation]:
    mode = params["mode"]
    if mode in (0, 2):
        yield Imitation("node-rope-pairs", op, inputs, changed(params, mode=2 - mode))
    yield Imitation("node-rope-direction", "ROPE_BACK" if op == "ROPE" else "ROPE", inputs, params)
    for step in (1, -1):
        yield Imitation("node-rope-position", op, replaced(inputs, 1, inputs[1] + step), params)
        yield Imitation("node-rope-position", op, replaced(inputs, 1, np.roll(inputs[1], step, -1)), params)
    if mode & 8:
        names = [f"section{i}" for i in range(4)]
        for order in ((1, 0, 2, 3), (0, 2, 1, 3), (2, 1, 0, 3)):
            moved = {name: params[names[i]] for name, i in zip(names, order, strict=True)}
            yield Imitation("node-rope-position", op, inputs, changed(params, **moved))
        tokens = np.asarray(inputs[1]).reshape(4, -1)
        for order in ((1, 0, 2, 3), (0, 2, 1, 3), (0, 0, 0, 0)):
            mixed = tokens[list(order)].reshape(inputs[1].shape)
            yield Imitation("node-rope-position", op, replaced(inputs, 1, mixed), params)
        if mode == 40:
            yield Imitation("node-rope-position", op, inputs, changed(params, mode=8))
    if has(inputs, 2):
        yield Imitation("node-rope-factors", op, replaced(inputs, 2, None), params)
        yield Imitation("node-rope-factors", op, replaced(inputs, 2, 1 / inputs[2]), params)
    if params["mix"]:
        yield Imitation("node-rope-factors", op, inputs, changed(params, mix=0.0))
    width = inputs[0].shape[-1]
    if params["dims"] < width and mode in (0, 2) and not has(inputs, 2):
        yield Imitation("node-rope-part", op, inputs, changed(params, dims=width))
    if params["scale"] != 1:
        yield Imitation("node-scale-ignored", op, inputs, changed(params, scale=1.0))


def _scans(op: str, inputs: list[Any], params: dict[str, Any]) -> Iterator[Imitation]:
    at = 0 if op == "SSM_SCAN" else len([x for x in inputs if x is not None]) - 1
    yield Imitation("node-state", op, replaced(inputs, at, np.zeros_like(inputs[at])), params)
    if inputs[at].shape[0 if inputs[at].shape[0] > 1 else -2] > 1:
        axis = 0 if inputs[at].shape[0] > 1 else inputs[at].ndim - 2
        yield Imitation("node-state", op, replaced(inputs, at, np.roll(inputs[at], 1, axis)), params)
    if op == "SSM_SCAN":
        groups, heads = inputs[4].shape[2], inputs[1].shape[2]
        for order in (np.arange(heads) % groups, np.zeros(heads, int)):
            if groups > 1:
                b, c = (inputs[i][:, :, order] for i in (4, 5))
                yield Imitation("node-groups", op, [*inputs[:4], b, c, *inputs[6:]], params)


def _relative(op: str, inputs: list[Any], params: dict[str, Any]) -> Iterator[Imitation]:
    if op == "ADD_REL_POS":
        x, across, down = inputs
        yield Imitation("node-operands-exchanged", op, [x, down, across], params)
        for i in (1, 2):
            yield Imitation("node-operand-ignored", op, replaced(inputs, i, np.zeros_like(inputs[i])), params)
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
    yield Imitation("node-mask-ignored", op, replaced(inputs, 3, np.zeros_like(mask)), params)
    for axis, step in ((-1, 1), (-1, -1), (-2, 1), (-2, -1)):
        yield Imitation("node-mask-shifted", op, replaced(inputs, 3, np.roll(mask, step, axis)), params)
    for other in (np.roll(mask, 1, 0), mask[:1]):
        yield Imitation("node-mask-head", op, replaced(inputs, 3, other), params)
    yield Imitation("node-operand-ignored", op, replaced(inputs, 2, np.ones_like(weights)), params)
    for step in (1, -1):
        yield Imitation("node-groups", op, replaced(inputs, 2, np.roll(weights, step, -1)), params)


def _streams(op: str, inputs: list[Any], params: dict[str, Any]) -> Iterator[Imitation]:
    at = {"DSV4_HC_PRE": 1, "DSV4_HC_POST": 3}.get(op)
    if op == "DSV4_HC_COMB":
        n = int(np.sqrt(inputs[0].shape[-1] + 1)) - 1
        order = np.arange((2 + n) * n)
        order[2 * n :] = order[2 * n :].reshape(n, n).T.reshape(-1)
        moved = [inputs[0][..., order], inputs[1], inputs[2][..., order]]
        yield Imitation("node-axis", op, moved, params)
        yield Imitation("node-epsilon", op, inputs, changed(params, eps=0.0))
        for steps in (params["steps"] - 1, params["steps"] + 1):
            yield Imitation("node-steps", op, inputs, changed(params, steps=steps))
        yield Imitation("node-scale-ignored", op, replaced(inputs, 1, np.ones_like(inputs[1])), params)
    elif at is not None:
        if op == "DSV4_HC_POST":
            yield Imitation("node-axis", op, replaced(inputs, at, inputs[at].swapaxes(-1, -2)), params)
        for i in (at, 2) if op == "DSV4_HC_POST" else (at,):
            for step in (1, -1):
                yield Imitation("node-groups", op, replaced(inputs, i, np.roll(inputs[i], step, -1)), params)
        if params.get("gated"):
            yield Imitation("node-scale-ignored", op, inputs, changed(params, scale=1.0))


MAKERS: dict[str, tuple[Maker, ...]] = {
    "SOFT_MAX": (_masks,), "FLASH_ATTN_EXT": (_attention,), "ROPE": (_rope,), "ROPE_BACK": (_rope,),
    "LIGHTNING_INDEXER": (_indexer,),
}  # fmt: skip
MAKERS |= dict.fromkeys(
    ("SSM_SCAN", "RWKV_WKV6", "RWKV_WKV7", "GATED_LINEAR_ATTN", "GATED_DELTA_NET"), (_scans,)
)
MAKERS |= dict.fromkeys(("WIN_PART", "WIN_UNPART", "GET_REL_POS", "ADD_REL_POS"), (_relative,))
MAKERS |= dict.fromkeys(("DSV4_HC_COMB", "DSV4_HC_PRE", "DSV4_HC_POST"), (_streams,))
