"""The encoder of q4_1, compiled where it weighs; without weights NumPy is fast already."""

from ...formats.format import Bytes, Floats
from ...formats.q4_1 import FORMAT, PROGRAM
from ._tiles import encoder

weighted = encoder(PROGRAM, FORMAT.block_size)


def encode(values: Floats, imatrix: Floats | None, blocks: Bytes) -> None:
    if imatrix is None:
        blocks.view(FORMAT.dtype)[...] = FORMAT.encode(values)
    else:
        weighted(values, imatrix, blocks)
