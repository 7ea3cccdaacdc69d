"""Blocks to int8 codes and float32 scales on the CPU: what every product and decoder starts from.

A format that deserves better than its atoms has a file here named after it; the folder's listing
is the table of them. Such a file states one function, ``walk(row, put, out)``: it goes through the
blocks of a row, stores their scales in ``out[1]`` and their offsets in ``out[2]``, and hands codes
to ``put(out, at, codes)`` as vectors, after the scales that they need. What ``put`` does with the
codes makes it an unpacker (here) or a decoder (``_decode.py``). Scalars may have a file for decoding.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache
from typing import Any

from ...formats import BlockFormat, Format
from ..atoms import atoms
from ..machine.jit import jit


@cache
def unpacker(fmt: BlockFormat) -> Callable[..., None]:
    """The compiled ``unpack(row, codes, scales, offsets)`` of a format, with the bits of its own.

    ``row`` is uint8[::1], the bytes of n // block_size whole blocks. It fills int8 codes[n],
    float32 scales[n // group] and, where the format has an offset, float32 offsets[n // group];
    otherwise offsets are left alone and may be empty. All are contiguous. Compiled code does not
    check lengths: the caller owes them.
    """
    from ._put import put_codes  # Numba, a second: only where something is compiled

    walk = walker(fmt)
    if walk is None:
        return by_atoms(fmt)

    def unpack(row: Any, codes: Any, scales: Any, offsets: Any) -> None:
        walk(row, put_codes, (codes, scales, offsets))

    compiled: Callable[..., None] = jit(unpack)
    return compiled


@cache
def walker(fmt: Format) -> Callable[..., None] | None:
    """The ``walk`` in a format's file, or None where it has none."""
    if not has_file(fmt):
        return None
    walk: Callable[..., None] = importlib.import_module(f"{__name__}.{fmt.name.lower()}").walk
    return walk


@cache
def has_file(fmt: Format) -> bool:
    """True where a format has a file here."""
    return fmt.name.lower() in {module.name for module in pkgutil.iter_modules(__path__)}


def by_atoms(fmt: BlockFormat) -> Callable[..., None]:
    """``unpack`` of any format, element by element."""
    code, scale, offset = atoms(fmt)
    size, group, nbytes, has_offset = fmt.block_size, fmt.group, fmt.dtype.itemsize, fmt.has_offset

    def unpack(row: Any, codes: Any, scales: Any, offsets: Any) -> None:
        groups = size // group
        for b in range(len(row) // nbytes):
            block = row[b * nbytes : (b + 1) * nbytes]
            for i in range(size):
                codes[b * size + i] = code(block, i)
            for g in range(groups):
                scales[b * groups + g] = scale(block, g)
                if has_offset:
                    offsets[b * groups + g] = offset(block, g)

    compiled: Callable[..., None] = jit(unpack)
    return compiled
