"""Convolutions and what models of images and sound do beside them; and the outer product."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import UnsupportedError
from .copies import converted
from .number import LARGEST, TF32, UNIT, Number, Wide, contract, half_step, quick
from .registry import Call, Result, copied, oracle, settled

Steps = list[tuple[int, int, int]]  # stride, pad and dilation along each axis, the last one in a row


def windows(x: Wide, kernel: tuple[int, ...], out: tuple[int, ...], steps: Steps) -> Wide:
    """Windows [.., OH, OW, KH, KW] of the last axes, as many as the kernel has, with zeros outside."""
    count = len(kernel)
    places, inside = [], np.ones((1,) * 2 * count, np.bool_)
    for axis, (step, pad, apart) in enumerate(steps):
        shape = [1] * 2 * count
        shape[axis], shape[axis + count] = out[axis], kernel[axis]
        at = ((np.arange(out[axis]) * step - pad)[:, None] + np.arange(kernel[axis]) * apart).reshape(shape)
        n = x.shape[x.ndim - count + axis]
        inside = inside & (at >= 0) & (at < n)
        places.append(np.clip(at, 0, n - 1))
    return np.where(inside, x[(..., *places)], 0.0)


def _steps(c: Call, axes: int = 2) -> Steps:
    p = c.params
    return [(p[f"s{i}"], p[f"p{i}"], p[f"d{i}"]) for i in reversed(range(axes))]


STRIDES = "s0:i s1:i p0:i p1:i d0:i d1:i"


@oracle("IM2COL", words=f"{STRIDES} flat:i", rowwise=False)
def im2col(c: Call) -> Result:
    """The windows of each image, a row for each of its places: [N, OH, OW, IC·KH·KW]."""
    kernel, x = c.array(0).shape, c.array(1)
    if c.params["flat"]:  # two axes
        images, rows, columns = c.shape[0], c.shape[1], c.shape[2]
        size = (kernel[-2], kernel[-1])
    else:  # one: [N, OW, IC·K]
        x = x.reshape(-1, *x.shape[-2:])[:, :, None, :]
        images, rows, columns = x.shape[0], 1, c.shape[-2]
        size = (1, kernel[-1])
    steps = _steps(c) if c.params["flat"] else [(1, 0, 1), _steps(c)[1]]
    cut = windows(x.astype(np.float64), size, (rows, columns), steps)  # [N, IC, OH, OW, KH, KW]
    moved = np.moveaxis(cut, 1, 3).reshape(images, rows, columns, -1)
    return copied(converted(moved, c.kind).reshape(c.shape))


def half_input(c: Call, x: Wide) -> Number:
    """The images, which a kernel of halves may have rounded to halves."""
    return Number(x, half_step(x)) if c.array(0).dtype == np.float16 else Number(x)


@oracle("CONV_2D", words=STRIDES, rowwise=False)
def conv_2d(c: Call) -> Result:
    """Each window times each kernel, summed over channels."""
    kernel, x = c.array(0).astype(np.float64), c.array(1).astype(np.float64)
    cut = windows(x, kernel.shape[-2:], c.shape[-2:], _steps(c))
    near = Number(cut, half_input(c, cut).error)
    return settled(contract("ncyxij,kcij->nkyx", near, kernel, int(np.prod(kernel.shape[1:]))), c.kind)


@oracle("CONV_2D_DW", words=STRIDES, rowwise=False)
def conv_2d_dw(c: Call) -> Result:
    """Each window times its own channel's kernel."""
    kernel, x = c.array(0).astype(np.float64), c.array(1).astype(np.float64)
    kernel = kernel.reshape(-1, *kernel.shape[-2:])
    cut = windows(x, kernel.shape[-2:], c.shape[-2:], _steps(c))
    return settled(contract("ncyxij,cij->ncyx", cut, kernel, kernel[0].size), c.kind)


@oracle("CONV_TRANSPOSE_1D", words="s0:i p0:i d0:i", rowwise=False)
def conv_transpose_1d(c: Call) -> Result:
    """Each element of [IC, L] spreads the kernel [IC, OC, K] over its surroundings."""
    kernel, x = c.array(0).astype(np.float64), c.array(1).astype(np.float64)
    kernel, x = kernel.reshape(-1, *kernel.shape[-2:]), x.reshape(-1, x.shape[-1])
    near = half_input(c, x).map(lambda v: v[:, None, :])
    spread = contract("ial,iok->olk", near, kernel, len(kernel))
    value, error = np.zeros(c.shape[-2:]), np.zeros(c.shape[-2:])
    for place in range(x.shape[-1]):
        at = slice(place * c.params["s0"], place * c.params["s0"] + kernel.shape[-1])
        value[:, at] += spread.value[:, place]
        error[:, at] += spread.errors()[:, place] + 2 * UNIT * np.abs(spread.value[:, place])
    steps = 1 + kernel.shape[-1] // max(c.params["s0"], 1)
    error += steps * UNIT * np.abs(value)
    return settled(Number(value.reshape(c.shape), error.reshape(c.shape)), c.kind)


@oracle("CONV_TRANSPOSE_2D", words="stride:i", rowwise=False)
def conv_transpose_2d(c: Call) -> Result:
    """Each pixel of [N, IC, H, W] spreads the kernel [IC, OC, KH, KW] over its surroundings."""
    kernel, x = c.array(0).astype(np.float64), c.array(1).astype(np.float64)
    step = c.params["stride"]
    spread = contract("nihw,ioyx->nohwyx", half_input(c, x), kernel, len(kernel))
    value, error, size = np.zeros(c.shape), np.zeros(c.shape), np.zeros(c.shape)
    for h in range(x.shape[-2]):
        for w in range(x.shape[-1]):
            rows = slice(h * step, h * step + kernel.shape[-2])
            columns = slice(w * step, w * step + kernel.shape[-1])
            value[..., rows, columns] += spread.value[:, :, h, w]
            error[..., rows, columns] += spread.errors()[:, :, h, w]
            size[..., rows, columns] += np.abs(spread.value[:, :, h, w])
    overlaps = (1 + kernel.shape[-1] // step) * (1 + kernel.shape[-2] // step)
    return settled(Number(value, error + overlaps * UNIT * size), c.kind)


def _pooled(c: Call, cut: Wide, inside: NDArray[Any], counts: Any) -> Result:
    """Means or maxima of windows [.., KH, KW]; ``counts``: elements by which the sum of each is divided."""
    if c.params["how"] == 0:  # a window that lies outside has the least float32
        best = np.where(inside, cut, -LARGEST).max(axis=(-1, -2))
        return settled(Number(best), c.kind)
    sums = Number(cut.reshape(*cut.shape[:-2], -1)).sum(-1)[..., 0]
    return settled(sums / np.asarray(counts, np.float64), c.kind)


@oracle("POOL_2D", sources=1, words="how:i k0:i k1:i s0:i s1:i p0:i p1:i", rowwise=False)
def pool_2d(c: Call) -> Result:
    """The mean (1) or maximum (0) of each window; a mean counts what lies outside, as zeros."""
    p, x = c.params, c.array(0).astype(np.float64)
    how = [(p["s1"], p["p1"], 1), (p["s0"], p["p0"], 1)]
    size, out = (p["k1"], p["k0"]), c.shape[-2:]
    inside = windows(np.ones(x.shape), size, out, how) > 0
    return _pooled(c, windows(x, size, out, how), inside, p["k0"] * p["k1"])


@oracle("POOL_1D", sources=1, words="how:i k0:i s0:i p0:i", rowwise=False)
def pool_1d(c: Call) -> Result:
    """The mean (1) or maximum (0) of each window of a row; a mean counts what lies inside alone."""
    p, x = c.params, c.array(0).astype(np.float64)[..., None, :]
    how = [(1, 0, 1), (p["s0"], p["p0"], 1)]
    size, out = (1, p["k0"]), (1, c.shape[-1])
    inside = windows(np.ones(x.shape), size, out, how) > 0
    result = _pooled(c, windows(x, size, out, how), inside, np.maximum(inside.sum(axis=(-1, -2)), 1))
    return Result(result.value[..., 0, :], result.bound[..., 0, :])


NEAREST, BILINEAR, BICUBIC = 0, 1, 2
CORNERS, SMOOTH = 1 << 8, 1 << 9


@oracle("UPSCALE", sources=1, words="mode:i", rowwise=False)
def upscale(c: Call) -> Result:
    """An image of another size: the nearest pixels, or means of two, four or more along each axis."""
    x, mode = c.array(0).astype(np.float64), c.params["mode"]
    corners, how = bool(mode & CORNERS), mode & 0xFF
    if how == NEAREST:
        for axis in range(x.ndim):
            places = np.arange(c.shape[axis]) * x.shape[axis] // c.shape[axis]
            x = x.take(places, axis=axis)
        return copied(x)
    if how not in (BILINEAR, BICUBIC) or (mode & SMOOTH and (how == BICUBIC or corners)):
        raise UnsupportedError(f"node UPSCALE: mode {mode} has no oracle; choose another")
    for axis in (0, 1):
        x = x.take(np.arange(c.shape[axis]) * x.shape[axis] // c.shape[axis], axis=axis)
    result = Number(x)
    for axis in (-2, -1):
        n, m = c.shape[axis], x.shape[axis]
        if mode & SMOOTH:
            result = _smooth(result, axis, n)
        elif how == BICUBIC:
            result = _cubic(result, axis, n, places_of(n, m, corners))
        else:
            result = _between(result, axis, n, places_of(n, m, corners))
    return settled(result, c.kind)


def places_of(n: int, m: int, corners: bool) -> Wide:
    """The places in m pixels of n new ones: between centres, or between the outermost pixels."""
    if not corners:
        return (np.arange(n, dtype=np.float64) + 0.5) * (m / n) - 0.5
    return np.arange(n, dtype=np.float64) * ((m - 1) / (n - 1) if n > 1 and m > 1 else m / n)


def _along(values: Wide, axis: int, like: Number) -> Wide:
    shape = [1] * like.value.ndim
    shape[axis] = len(values)
    return values.reshape(shape)


CUBIC = -0.75  # the slope of the cubic, as in most programs


def _cubic(x: Number, axis: int, n: int, at: Wide) -> Number:
    """Four neighbours along an axis, weighted by a cubic of their distance."""
    m, low = x.shape[axis], np.floor(at).astype(int)
    share = Number(_along(at - low, axis, x), 4 * UNIT * np.maximum(np.abs(_along(at, axis, x)), 1))
    result = Number(0.0)
    for step, away in ((-1, share + 1.0), (0, share), (1, 1.0 - share), (2, 2.0 - share)):
        pixels = x.map(lambda v, p=low + step: v.take(np.clip(p, 0, m - 1), axis=axis))
        if step in (0, 1):
            weight = (away * (CUBIC + 2) - (CUBIC + 3)) * away * away + 1.0
        else:
            weight = ((away * CUBIC - 5 * CUBIC) * away + 8 * CUBIC) * away - 4 * CUBIC
        result = result + pixels * weight
    return result


def _smooth(x: Number, axis: int, n: int) -> Number:
    """Means of all pixels that a new one covers, weighted by a triangle."""
    m = x.shape[axis]
    reach = max(1.0, m / n)
    centre, pixel = (np.arange(n) + 0.5) * (m / n), np.arange(m) + 0.5
    weight = np.maximum(1 - np.abs(pixel - centre[:, None]) / reach, 0)
    error = np.where(weight > 0, 8 * UNIT * (1 + centre[:, None] / reach), 8 * UNIT)
    share = Number(weight, error)
    share = share / share.sum(-1)
    share = Number(share.value, np.where(np.abs(pixel - centre[:, None]) < reach + 1, share.errors(), 0.0))
    moved = x.map(lambda v: np.moveaxis(v, axis, -1))
    result = contract("...m,nm->...n", moved, share, int(2 * reach) + 2)
    return result.map(lambda v: np.moveaxis(v, -1, axis))


def _between(x: Number, axis: int, n: int, at: Wide) -> Number:
    """Means of neighbours along an axis, weighted by how near they are."""
    m, low = x.shape[axis], np.floor(at).astype(int)
    share = np.clip(at - np.clip(low, 0, m - 1), 0, 1)
    weight = Number(_along(share, axis, x), 4 * UNIT * np.maximum(np.abs(_along(at, axis, x)), 1))
    first, second = (x.map(lambda v, p=p: v.take(np.clip(p, 0, m - 1), axis=axis)) for p in (low, low + 1))
    return first * (1.0 - weight) + second * weight


@oracle("TIMESTEP_EMBEDDING", sources=1, words="dim:i period:i", rowwise=False)
def timestep_embedding(c: Call) -> Result:
    """Cosines, then sines, of each time at falling frequencies."""
    times, dim = c.array(0).astype(np.float64).reshape(-1, 1), c.params["dim"]
    half = dim // 2
    powers = -math.log(c.params["period"]) * np.arange(half) / half
    frequency = Number(powers, 4 * UNIT * np.abs(powers)).exp()
    angle = Number(times) * frequency
    shape = c.params.get("shape", (len(times), dim))  # libraries before autumn 2025 make odd rows even
    value, error = np.zeros((len(times), shape[-1])), np.zeros((len(times), shape[-1]))
    for start, part in ((0, angle.cos()), (half, angle.sin())):
        value[:, start : start + half], error[:, start : start + half] = part.value, part.errors()
    return settled(Number(value.reshape(shape), error.reshape(shape)), c.kind)


@oracle("OUT_PROD", rowwise=False)
def out_prod(c: Call) -> Result:
    """Sums over n of a [.., n, M] times b [.., n, P]: [.., P, M]. GPUs may multiply in TF32."""
    a, b = c.array(0).astype(np.float64), c.array(1).astype(np.float64)
    for axis in (0, 1):
        a = a.repeat(b.shape[axis] // a.shape[axis], axis=axis)
    rounded_a, rounded_b = Number(a), Number(b)
    if quick():
        rounded_a.error, rounded_b.error = TF32 * np.abs(a), TF32 * np.abs(b)
    return settled(contract("zsnm,zsnp->zspm", rounded_a, rounded_b, a.shape[-2]), c.kind)


# --- films and sound: convolutions along three axes, columns added up into rows -------------------

STRIDES_3D = "s0:i s1:i s2:i p0:i p1:i p2:i d0:i d1:i d2:i"


@oracle("IM2COL_3D", words=f"{STRIDES_3D} channels:i", rowwise=False)
def im2col_3d(c: Call) -> Result:
    """The windows of each film, a row for each of its places: [N·OD, OH, OW, C·KD·KH·KW]."""
    kernel, x = c.array(0).shape, c.array(1).astype(np.float64)
    channels = c.params["channels"]
    x = x.reshape(-1, channels, *x.shape[-3:])
    depth, rows, width = c.shape[0] // len(x), c.shape[1], c.shape[2]
    parts = windows(x, kernel[-3:], (depth, rows, width), _steps(c, 3))  # [N, C, OD, OH, OW, KD, KH, KW]
    moved = np.moveaxis(parts, 1, 4).reshape(c.shape)
    return copied(converted(moved, c.kind))


@oracle("CONV_3D", words=f"{STRIDES_3D} channels:i films:i outer:i", rowwise=False)
def conv_3d(c: Call) -> Result:
    """Each window of a film times each kernel, summed over channels."""
    kernel, x = c.array(0).astype(np.float64), c.array(1).astype(np.float64)
    channels = c.params["channels"]
    kernel = kernel.reshape(-1, channels, *kernel.shape[-3:])
    x = x.reshape(-1, channels, *x.shape[-3:])
    parts = windows(x, kernel.shape[-3:], c.shape[-3:], _steps(c, 3))
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


# --- windows of images and positions relative to each other, as SAM has them ----------------------


@oracle("WIN_PART", sources=1, words="columns:i rows:i width:i", rowwise=False)
def win_part(c: Call) -> Result:
    """An image [1, H, W, C] as square windows [n, width, width, C], row by row; zeros beyond its edges."""
    x, width = c.array(0), c.params["width"]
    across, down = c.params["columns"], c.params["rows"]
    whole = np.zeros((down * width, across * width, x.shape[-1]), x.dtype)
    whole[: x.shape[-3], : x.shape[-2]] = x.reshape(x.shape[-3:])
    tiles = whole.reshape(down, width, across, width, -1).swapaxes(1, 2)
    return copied(tiles.reshape(-1, width, width, x.shape[-1]))


@oracle("WIN_UNPART", sources=1, words="width:i", rowwise=False)
def win_unpart(c: Call) -> Result:
    """Windows put together to an image; what lies beyond its edges is left out."""
    x, width = c.array(0), c.params["width"]
    high, wide, channels = c.shape[-3:]
    across, down = -(-wide // width), -(-high // width)
    tiles = x.reshape(-1, width, width, channels)[: across * down]
    whole = tiles.reshape(down, across, width, width, channels).swapaxes(1, 2)
    return copied(whole.reshape(down * width, across * width, channels)[None, :high, :wide])


@oracle("GET_REL_POS", sources=1, rowwise=False)
def get_rel_pos(c: Call) -> Result:
    """Rows of a table by the distance of a query i from a key j: row n - 1 - j + i."""
    x = c.array(0)
    queries, keys = c.shape[-3:-1]
    at = keys - 1 - np.arange(keys) + np.arange(queries)[:, None]
    return copied(x.reshape(x.shape[-2:])[at][None])


@oracle("ADD_REL_POS", sources=3, words="in_place:i", rowwise=False)
def add_rel_pos(c: Call) -> Result:
    """Scores of pixels with all others, and the biases of their columns and of their rows, in any order."""
    across, down = c.number(1), c.number(2)
    n = across.shape[-1]
    x = c.number(0).map(lambda v: v.reshape(*across.shape, n))
    across, down = across.map(lambda v: v[..., None, :]), down.map(lambda v: v[..., :, None])
    first = np.maximum(np.abs(x.value + across.value), np.abs(x.value + down.value))
    value = x.value + across.value + down.value
    error = x.errors() + across.errors() + down.errors() + UNIT * (first + np.abs(value))
    error = np.maximum(error, UNIT * (np.abs(across.value + down.value) + np.abs(value)))
    shape = c.array(0).shape
    return settled(Number(value, error).map(lambda v: v.reshape(shape)), c.kind)
