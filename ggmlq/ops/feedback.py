"""Error feedback: later columns make good what a column loses by rounding (GPTQ over ggml's blocks).

Blocks of columns come one after the other. The format's own search chooses their scales. Then codes are
chosen column by column, each for the weights as the errors of all columns before have moved them. Where
weights share bits (grids) the codes of the search stay, and the error of a block moves what is behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.text import short
from ..errors import ImportanceError
from ..formats import Format
from ..formats._direct import Direct, direct
from ..formats.format import Bytes, Floats

DAMPING = 0.01  # of the mean of the diagonal, added to it: directions that no input had
Wide = NDArray[np.float64]
Encode = Callable[[Floats, slice], Bytes]  # values [N, block] of some columns -> their blocks


class Moments:
    """Second moments of a product's inputs: ``values[i, j]`` is the mean of ``x[i] * x[j]``.

    ``held_back``: those of other inputs, by which rows are judged that were encoded with feedback.
    """

    def __init__(self, values: NDArray[Any], held_back: NDArray[Any] | None = None) -> None:
        self.values, self.held_back = values, held_back

    @cached_property
    def root(self) -> Floats:
        """The upper root R of the moments, ``values = R @ R.T``, with some damping."""
        wide = self.values.astype(np.float64)
        wide += np.eye(len(wide)) * (DAMPING * wide.diagonal().mean())
        return np.linalg.cholesky(wide[::-1, ::-1])[::-1, ::-1].astype(np.float32)

    def better(self, x: Floats, fed: Floats, alone: Floats) -> NDArray[np.bool_]:
        """True for rows whose outputs are nearer with feedback, on the inputs held back."""
        if self.held_back is None:
            return np.ones(len(x), np.bool_)
        return _lost(x - fed, self.held_back) <= _lost(x - alone, self.held_back)


def _lost(errors: Floats, moments: NDArray[Any]) -> Wide:
    """The squares that outputs of rows are off by, on inputs of those moments."""
    lost: Wide = np.einsum("ij,ij->i", errors @ moments, errors, dtype=np.float64)
    return lost


def checked(request: str, moments: Any, columns: int) -> Moments:
    """Second moments that feedback can use, or the error that says why not."""
    if isinstance(moments, Moments):
        return moments
    try:
        values = np.asarray(moments, np.float64)
    except (TypeError, ValueError) as error:
        raise ImportanceError(
            f"{request}: moments={short(moments)} is no array of numbers ({error}); pass x.T @ x of inputs "
            f"x [tokens, {columns}]"
        ) from None
    fits = values.shape == (columns, columns) and np.isfinite(values).all()
    if not fits or not np.allclose(values, values.T, rtol=1e-3, atol=1e-6 * np.abs(values).max(initial=0)):
        raise ImportanceError(
            f"{request}: moments of shape {list(values.shape)}; they are a symmetric matrix of finite "
            f"numbers, [{columns}, {columns}]: x.T @ x of inputs x [tokens, {columns}]"
        )
    made = Moments(values)
    try:
        made.root  # noqa: B018
    except np.linalg.LinAlgError:
        raise ImportanceError(
            f"{request}: moments are not positive, or all 0; pass x.T @ x of inputs x [tokens, {columns}]"
        ) from None
    return made


def fed_back(fmt: Format, x: Floats, root: Floats, encode: Encode) -> Bytes:
    """Blocks [N, bytes a row] of x [N, K] by error feedback; ``root``: that of the moments.

    Outputs are off by ``errors @ root``, whose column j no later column changes. So each column is chosen
    to bring its own to 0, for the errors that columns before it have made.
    """
    size, places = fmt.block_size, direct(fmt)
    columns = x.T.astype(np.float32, order="C")  # a column lies in one run of memory
    off = np.zeros_like(columns)  # columns of errors @ root, so far
    raw = np.empty((len(x), fmt.row_bytes(x.shape[-1])), np.uint8)
    parts = np.split(raw, len(root) // size, axis=1)
    for start, part in zip(range(0, len(root), size), parts, strict=True):
        block, behind = slice(start, start + size), slice(start + size, None)
        corner = np.ascontiguousarray(root[block, block])
        moved = columns[block] + np.linalg.inv(corner).T @ off[block]  # where all of them would be 0
        blocks = encode(np.ascontiguousarray(moved.T), block)
        if places is None:
            errors = columns[block] - fmt.decode(blocks.view(fmt.dtype)).T
        else:
            errors = _rounded(fmt, places, blocks, columns[block], off[block], corner)
        off[behind] += root[block, behind].T @ errors
        part[...] = blocks
    return raw


def _rounded(fmt: Any, places: Direct, raw: Bytes, columns: Floats, off: Floats, root: Floats) -> Floats:
    """Choose codes of blocks [N, bytes] column by column, for the scales that stand there; the errors."""
    _, scale, offset = fmt.unpack(raw.view(fmt.dtype)[:, 0])
    codes, errors = np.empty((len(raw), len(columns)), np.intp), np.empty_like(columns)
    middles = (places.levels[1:] + places.levels[:-1]) / 2
    even = places.levels[-1] - places.levels[0] == len(middles)
    for j, column in enumerate(columns):
        d = scale[:, j // fmt.group]
        low = np.float32(0) if offset is None else offset[:, j // fmt.group]
        moved = column + off[j] / root[j, j]
        target = np.divide(moved + low, d, out=np.zeros_like(column), where=d != 0)
        if even:
            codes[:, j] = np.rint(target).clip(places.levels[0], places.levels[-1]) - places.levels[0]
        else:
            codes[:, j] = np.searchsorted(middles, target)
        errors[j] = column - (places.levels[codes[:, j]] * d - low)
        off[j + 1 :] += root[j, j + 1 :, None] * errors[j]
    places.write(raw, codes)
    return errors
