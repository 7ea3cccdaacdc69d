"""Cases that tests share: block formats, weights of them, assertions on decoded values and encoded blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlq.arrays.array import QuantArray
from ggmlq.arrays.blocks import random_blocks
from ggmlq.formats import FORMATS, BlockFormat, Format
from ggmlq.formats.format import Blocks

BLOCKS = [fmt for fmt in FORMATS.values() if isinstance(fmt, BlockFormat)]
# A few that stand for all where a test asks about data and not about a type: with an offset and
# without, high bits, sub-scales, minima, a table, a grid.
FEW = ("q4_0", "q5_1", "q8_0", "q3_K", "q4_K", "q6_K", "iq4_nl", "iq2_xs")


def weights(fmt: str | Format, n: int, k: int, seed: int = 0) -> QuantArray:
    """[n, k] weights of random bytes whose scales are of ordinary size, the same for the same seed."""
    fmt = FORMATS[fmt]
    return QuantArray.from_bytes(random_blocks(fmt, n, k // fmt.block_size, seed), fmt, (n, k))


def assert_same_values(got: NDArray[Any], want: NDArray[Any], fmt: Format, blocks: Blocks) -> None:
    """Decoded values must agree to the bit (a negative zero equals zero, NaN equals NaN)."""
    assert got.shape == want.shape, f"{fmt.name}: shape {got.shape}, expected {want.shape}"
    assert got.dtype == want.dtype, f"{fmt.name}: dtype {got.dtype}, expected {want.dtype}"
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    if same.all():
        return
    wrong = ~same.reshape(*blocks.shape, fmt.block_size)
    worst = int(wrong.sum(axis=-1).argmax())
    index = tuple(int(i) for i in np.unravel_index(worst, blocks.shape))
    element = int(wrong[index].argmax())
    at = (*index, element)
    shape = wrong.shape
    raise AssertionError(
        f"{fmt.name}: {int(wrong.sum())} of {wrong.size} values differ; worst block "
        f"{index} has {int(wrong[index].sum())}, the first at element {element}: "
        f"got {got.reshape(shape)[at]!r}, expected {want.reshape(shape)[at]!r}\n"
        f"{show(blocks[index])}"
    )


def assert_same_blocks(got: Blocks, want: Blocks, fmt: Format, x: NDArray[Any]) -> None:
    """Encoded blocks must agree to the byte."""
    assert got.shape == want.shape, f"{fmt.name}: shape {got.shape}, expected {want.shape}"
    assert got.dtype == want.dtype == fmt.dtype, f"{fmt.name}: dtype {got.dtype}"
    size = fmt.dtype.itemsize
    as_bytes = [np.ascontiguousarray(b).view(np.uint8).reshape(-1, size) for b in (got, want)]
    wrong = (as_bytes[0] != as_bytes[1]).any(axis=-1)
    if not wrong.any():
        return
    first = int(wrong.argmax())
    values = x.reshape(-1, fmt.block_size)[first]
    raise AssertionError(
        f"{fmt.name}: {int(wrong.sum())} of {wrong.size} blocks differ, the first is block {first}\n"
        f"got:\n{show(got.reshape(-1)[first])}\nexpected:\n{show(want.reshape(-1)[first])}\n"
        f"of the values {np.array2string(values, threshold=300)}"
    )


def show(block: Any) -> str:
    """One block, field by field."""
    if block.dtype.names is None:
        return f"  {block!r}"
    return "\n".join(f"  {name:8} {block[name]!r}" for name in block.dtype.names)
