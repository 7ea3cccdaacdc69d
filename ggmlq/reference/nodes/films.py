"""Convolutions of films and of sound that some models add: three axes, and columns added up into rows."""

from __future__ import annotations

import numpy as np

from .copies import converted
from .images import half_input
from .number import UNIT, Number, Wide, contract
from .registry import Call, oracle
from .result import Result, copied, settled

STRIDES = "s0:i s1:i s2:i p0:i p1:i p2:i d0:i d1:i d2:i"


def cut(c: Call, x: Wide, kernel: tuple[int, ...], out: tuple[int, ...]) -> Wide:
    """Windows [.., OD, OH, OW, KD, KH, KW] of the last three axes, with zeros outside."""
    places, inside = [], np.ones((1,) * 6, np.bool_)
    for axis, (size, count) in enumerate(zip(kernel, out, strict=True)):
        step, pad, apart = (c.params[f"{letter}{2 - axis}"] for letter in "spd")  # 0 runs along a row
        shape = [1] * 6
        shape[axis], shape[axis + 3] = count, size
        at = ((np.arange(count) * step - pad)[:, None] + np.arange(size) * apart).reshape(shape)
        n = x.shape[x.ndim - 3 + axis]
        inside = inside & (at >= 0) & (at < n)
        places.append(np.clip(at, 0, n - 1))
    return np.where(inside, x[..., places[0], places[1], places[2]], 0.0)


@oracle("IM2COL_3D", words=f"{STRIDES} channels:i", rowwise=False)
def im2col_3d(c: Call) -> Result:
    """The windows of each film, a row for each of its places: [N·OD, OH, OW, C·KD·KH·KW]."""
    kernel, x = c.array(0).shape, c.array(1).astype(np.float64)
    channels = c.params["channels"]
    x = x.reshape(-1, channels, *x.shape[-3:])
    depth, rows, width = c.shape[0] // len(x), c.shape[1], c.shape[2]
    parts = cut(c, x, kernel[-3:], (depth, rows, width))  # [N, C, OD, OH, OW, KD, KH, KW]
    moved = np.moveaxis(parts, 1, 4).reshape(c.shape)
    return copied(converted(moved, c.kind))


@oracle("CONV_3D", words=f"{STRIDES} channels:i films:i outer:i", rowwise=False)
def conv_3d(c: Call) -> Result:
    """Each window of a film times each kernel, summed over channels."""
    kernel, x = c.array(0).astype(np.float64), c.array(1).astype(np.float64)
    channels = c.params["channels"]
    kernel = kernel.reshape(-1, channels, *kernel.shape[-3:])
    x = x.reshape(-1, channels, *x.shape[-3:])
    parts = cut(c, x, kernel.shape[-3:], c.shape[-3:])
    near = Number(parts, half_input(c, parts).error)
    result = contract("nczyxhij,kchij->nkzyx", near, kernel, int(np.prod(kernel.shape[1:])))
    return settled(result.map(lambda v: v.reshape(c.shape)), c.kind)


@oracle("COL2IM_1D", sources=1, words="s0:i channels:i p0:i", rowwise=False)
def col2im_1d(c: Call) -> Result:
    """Columns [L, C·K], each added into a row of its channel at its place; the ends are cut off."""
    x, p = c.array(0).astype(np.float64), c.params
    x = x.reshape(x.shape[-2], p["channels"], -1)
    places, channels, size = x.shape
    whole = np.zeros((2, channels, (places - 1) * p["s0"] + size))
    for place in range(places):
        at = slice(place * p["s0"], place * p["s0"] + size)
        whole[0, :, at] += x[place]
        whole[1, :, at] += np.abs(x[place])
    value, sizes = (v[:, p["p0"] : v.shape[-1] - p["p0"]].reshape(c.shape) for v in whole)
    return settled(Number(value, -(-size // p["s0"]) * UNIT * sizes), c.kind)
