"""Converts a tensor a few rows at a time, and measures its error on the way."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..base.threads import num_threads, share
from ..errors import ConvertError
from ..gguf.header import piece
from ..gguf.source import release
from ..ops import dequantize, quantize
from ..ops.feedback import Moments
from .step import Step

SLAB = 1 << 18  # elements that a thread converts at a time: a few MiB, and a short wait for Ctrl-C
MOST = 1 << 22  # by all threads
LISTENING = threading.Lock()  # who hears warnings is a matter of the whole process


class Tally:
    """Sums of squares of a tensor's values and of its errors, the same for any slabs and threads.

    ``warnings`` holds the encoder's warnings, each text once.
    """

    def __init__(self, keep: bool = False) -> None:
        self._energy = self._error = 0.0
        self.warnings: dict[str, None] = {}
        self.fed_back = self.alone = 0  # rows with error feedback, and those nearer without
        self.rows: list[NDArray[np.float64]] | None = [] if keep else None  # sums, for another tally

    def add(self, values: NDArray[np.float32], encoded: NDArray[np.float32]) -> None:
        rows, others = np.atleast_2d(values, encoded)
        sums = np.empty((len(rows), 2))

        def work(start: int, stop: int) -> None:
            wide = rows[start:stop].astype(np.float64)
            sums[start:stop, 0] = np.einsum("ij,ij->i", wide, wide)  # no BLAS, which has threads of its own
            wide -= others[start:stop]
            sums[start:stop, 1] = np.einsum("ij,ij->i", wide, wide)

        share(work, len(rows))
        self.take(sums)

    def take(self, sums: NDArray[np.float64]) -> None:
        """Add the sums of the next rows: energy and error of each."""
        if self.rows is not None:
            self.rows.append(sums)
        for energy, error in sums.tolist():
            self._energy += energy
            self._error += error

    @property
    def nmse(self) -> float:
        if self._error == 0:
            return 0.0
        return self._error / self._energy if self._energy else float("inf")


def converted(
    q: QuantArray, step: Step, tally: Tally, part: tuple[int, int] | None = None, origin: int = 0,
    moments: Sequence[Moments | None] | None = None,
) -> Iterator[QuantArray]:  # fmt: skip
    """The rows of a tensor in its new type, a few at a time and in order.

    ``part``: rows from one to another only; ``origin``: the matrix that the weights begin with.
    ``moments``: of each matrix, for error feedback; a row keeps it where it is nearer on inputs held back.
    """
    count = max(len(one) for one in (step.weights, moments, ()) if one is not None)
    for first, rows in slabs(q, count, part, 0 if moments is None else MOST):
        at = 0 if step.weights is None else (_matrix(step, first) - origin) % len(step.weights)
        weights = None if step.weights is None else step.weights[at]
        before = dequantize(rows)
        release(rows.blocks)
        check_finite(step.name, step.shape, before, first, step.after.name)
        scale = np.float32(1) if step.scale is None else _of_rows(step, first, len(before))
        values = before if step.scale is None else before / scale
        encoded = _encoded(step, values, weights, first, tally.warnings)
        here = None if moments is None else moments[_matrix(step, first) % len(moments)]
        if here is not None:
            fed = _encoded(step, values, weights, first, tally.warnings, here)
            near = here.better(values, dequantize(fed), dequantize(encoded))
            tally.fed_back, tally.alone = tally.fed_back + int(near.sum()), tally.alone + int((~near).sum())
            raw = np.where(near[:, None], fed.raw, encoded.raw)
            encoded = QuantArray.from_bytes(raw, step.after, encoded.shape)
        after = dequantize(encoded)
        tally.add(before, after if step.scale is None else after * scale)
        yield encoded


def slabs(
    q: QuantArray, weights: int, part: tuple[int, int] | None = None, most: int = 0
) -> Iterator[tuple[int, QuantArray]]:
    """The rows of a tensor in slabs [N, K], each with its first row, counted through all leading axes.

    ``weights``: the number of matrices with importance or inputs of their own; a slab lies in one of several.
    Otherwise it may span many: there are as many as a file claims, small or empty ones. ``part``: only rows
    from one to another, whole matrices where they have weights. ``most``: elements of a slab.
    """
    if not prod(q.shape):
        return
    columns = q.shape[-1] if q.shape else 1
    first, last = part or (0, prod(q.shape[:-1]))
    whole = q.shape[-2] if weights > 1 else last - first
    count = max(1, (most or min(SLAB * num_threads(), MOST)) // columns)
    for start in range(first, last, whole):
        for row in range(start, start + whole, count):
            yield row, piece(q, row * columns, (min(count, start + whole - row), columns))


LARGEST = np.float32(
    6 * 240
)  # of nvfp4: its largest code times the last scale that ggml's encoder rounds finely


def scales_of(q: QuantArray, count: int) -> NDArray[np.float32]:
    """The scale of all values, or of each expert, with which the largest has nvfp4's largest; 1 for zeros."""
    largest = np.zeros(count, np.float32)
    for first, rows in slabs(q, count):
        at = first // q.shape[-2] if count > 1 else 0
        largest[at] = max(largest[at], np.abs(dequantize(rows)).max(initial=0))
        release(rows.blocks)
    scales = largest / LARGEST
    return np.where(np.isfinite(scales) & (scales > 0), scales, np.float32(1))


def _of_rows(step: Step, first: int, count: int) -> NDArray[np.float32]:
    """The scales of rows, [N, 1]."""
    assert step.scale is not None
    matrices = np.arange(first, first + count) // step.shape[-2]
    return step.scale[matrices % len(step.scale), None]


def _matrix(step: Step, row: int) -> int:
    return row // step.shape[-2] if len(step.shape) > 1 else 0


def check_finite(
    name: str, shape: tuple[int, ...], values: NDArray[np.float32], first: int, becomes: str = ""
) -> None:
    """Refuse NaN and infinities among the values of a tensor's rows from the row ``first`` on."""
    finite = np.isfinite(values)
    if not finite.all():
        row, column = np.argwhere(~finite)[0].tolist()
        raise ConvertError(
            f"{_row(name, shape, first + row, becomes)}, column {column} is {values[row, column]}; only "
            "finite values are converted; `ggmlq validate` lists such blocks; fetch the file again, or keep "
            "this tensor as it is"
        )


def _row(name: str, shape: tuple[int, ...], row: int, becomes: str) -> str:
    matrix, row = divmod(row, shape[-2]) if len(shape) > 2 else (None, row)
    where = f"row {row}" if matrix is None else f"matrix {matrix}, row {row}"
    return f"tensor {name!r}{f' to {becomes}' if becomes else ''}: {where}"


def _encoded(
    step: Step, values: NDArray[np.float32], weights: NDArray[np.float32] | None,
    first: int, said: dict[str, None], moments: Moments | None = None,
) -> QuantArray:  # fmt: skip
    with LISTENING, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        encoded = quantize(values, step.after, weights, moments=moments)
    if caught:
        _check_held(step, values, encoded, first)
        said.update(dict.fromkeys(str(warning.message) for warning in caught))
    return encoded


def _check_held(step: Step, values: NDArray[np.float32], encoded: QuantArray, first: int) -> None:
    """Refuse blocks with invalid scales, as llama.cpp does: some values are too large for any block."""
    size, name = step.after.block_size, step.after.name
    bad = step.after.invalid(encoded.blocks.reshape(-1, values.shape[-1] // size))
    if bad.any():
        row, block = np.argwhere(bad)[0].tolist()
        run = values[row, block * size : (block + 1) * size]
        where = _row(step.name, step.shape, first + row, name)
        raise ConvertError(
            f"{where}, columns {block * size} to {block * size + size - 1} have "
            f"values up to {np.abs(run).max():.3g}, and {name} cannot hold their scale; keep the tensor "
            "as it is, or make it bf16"
        )
