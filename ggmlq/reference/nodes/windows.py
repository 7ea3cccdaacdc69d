"""Windows of images and positions relative to each other, as SAM has them."""

from __future__ import annotations

import numpy as np

from .number import UNIT, Number
from .registry import Call, oracle
from .result import Result, copied, settled


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
