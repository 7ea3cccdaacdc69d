"""Blocks to int8 codes and float32 scales on the CPU: what every product and decoder starts from.

A format that deserves better than its atoms has a file here named after it, with a compiled
``spread``; this folder's listing is the table of them.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache
from typing import Any

from ...formats import BlockFormat
from ..atoms import atoms
from ..jit import jit


@cache
def unpacker(fmt: BlockFormat) -> Callable[..., None]:
    """The compiled ``spread(row, codes, scales, offsets)`` of a format, with the bits of ``unpack``.

    ``row`` is uint8[::1], the bytes of n // block_size whole blocks. It fills int8 codes[n],
    float32 scales[n // group] and, where the format has an offset, float32 offsets[n // group];
    otherwise offsets are left alone and may be empty. All are contiguous. Compiled code does not
    check lengths: the caller owes them.
    """
    stem = fmt.name.lower()
    if stem in {module.name for module in pkgutil.iter_modules(__path__)}:
        own: Callable[..., None] = importlib.import_module(f"{__name__}.{stem}").spread
        return own
    return by_atoms(fmt)


def by_atoms(fmt: BlockFormat) -> Callable[..., None]:
    """``spread`` of any format, element by element."""
    code, scale, offset = atoms(fmt)
    size, group, nbytes, has_offset = fmt.block_size, fmt.group, fmt.dtype.itemsize, fmt.has_offset

    def spread(row: Any, codes: Any, scales: Any, offsets: Any) -> None:
        groups = size // group
        for b in range(len(row) // nbytes):
            block = row[b * nbytes : (b + 1) * nbytes]
            for i in range(size):
                codes[b * size + i] = code(block, i)
            for g in range(groups):
                scales[b * groups + g] = scale(block, g)
                if has_offset:
                    offsets[b * groups + g] = offset(block, g)

    compiled: Callable[..., None] = jit(spread)
    return compiled
