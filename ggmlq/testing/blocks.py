"""Random blocks, and assertions on decoded values and encoded blocks: a NaN equals only a NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.blocks import random_blocks, random_weights
from ..formats import Format
from ..formats.format import Blocks

__all__ = ["assert_same_blocks", "assert_same_values", "random_blocks", "random_weights"]


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
