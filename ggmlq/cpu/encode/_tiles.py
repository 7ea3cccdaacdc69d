"""Sixteen blocks at a time through an encoder written in lanes: the transport in and out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...formats import _program as _in_numpy
from ...formats.atoms import recompiler
from ...formats.format import Bytes, Floats
from ..machine.jit import inner, jit
from . import _program
from ._program import LANES

WORDS = {
    name: getattr(_program, name) for name in vars(_in_numpy) if hasattr(_program, name) and name.islower()
}

# The atoms read bytes with u8; on a tile that is get.
compiled = recompiler(inner, WORDS | {"u8": _program.get})


def encoder(program: _in_numpy.Program, size: int) -> Callable[[Floats, Floats | None, Bytes], None]:
    """The ``encode`` of a program: it is compiled, fed and emptied."""
    run = _runner(compiled(program.encode))  # type: ignore[arg-type]

    def encode(values: Floats, imatrix: Floats | None, blocks: Bytes) -> None:
        rows, columns = values.shape
        n = columns // size
        out = np.empty((blocks.shape[1] // n, LANES), np.uint8)
        weights = importance = squares = mean_square = None
        if imatrix is not None:
            weights, importance = imatrix.reshape(n, size), tile(size)
            if program.needs_mean_square:
                squares, mean_square = _in_numpy.mean_squares(values), tile(1)
        run(
            values.reshape(-1, size), weights, squares, blocks.reshape(rows * n, -1),
            tile(size), importance, mean_square, out,
        )  # fmt: skip

    return encode


def tile(places: int) -> NDArray[np.float32]:
    """Room for so many vectors."""
    return np.empty((places, LANES), np.float32)


def _runner(program: Any) -> Any:
    @jit
    def run(values, weights, squares, blocks, x, importance, mean_square, out):  # type: ignore[no-untyped-def]
        count, size = values.shape
        for first in range(0, count, LANES):
            for lane in range(LANES):
                block = min(first + lane, count - 1)  # the last one fills the lanes left over
                for i in range(size):
                    x[i, lane] = values[block, i]
                if weights is not None:
                    for i in range(size):
                        importance[i, lane] = weights[block % len(weights), i]
                if squares is not None:
                    mean_square[0, lane] = squares[block // len(weights)]
            program(x, importance, mean_square, out)
            for lane in range(min(LANES, count - first)):
                for i in range(len(out)):
                    blocks[first + lane, i] = out[i, lane]

    return run
