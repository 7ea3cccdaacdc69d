"""Blocks to int8 codes and float32 scales on the CPU: what every product and decoder starts from.

A format that deserves better than its atoms has a function in ``walks.py`` named after it, and its name in
``WALKED``: ``walk_<format>(row, put, out)`` goes through the blocks of a row, stores their scales in
``out[1]`` and their offsets in ``out[2]``, and hands codes to ``put(out, at, codes)`` as vectors, after the
scales that they need. What ``put`` does with the codes makes it an unpacker (here) or a decoder
(``decode.py``). Scalars may have one for decoding.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...formats import BlockFormat, Format
from ...formats.format import Bytes
from ..atoms import atoms
from ..machine.jit import jit
from ..machine.kernels import kernel
from ..machine.workers import alone

# Beside the functions, so that asking for one does not import Numba.
WALKED = frozenset((
    "f16", "bf16", "q1_0", "q2_0", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q8_1", "tq1_0", "tq2_0", "mxfp4",
    "nvfp4", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "q8_k", "iq4_nl", "iq4_xs", "iq1_s", "iq1_m", "iq2_xxs",
    "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s",
))  # fmt: skip


@cache
def unpacker(fmt: BlockFormat) -> Callable[..., None]:
    """The compiled ``unpack(row, codes, scales, offsets)`` of a format, with the bits of its own.

    ``row`` is uint8[::1], the bytes of n // block_size whole blocks. It fills int8 codes[n],
    float32 scales[n // group] and, where the format has an offset, float32 offsets[n // group];
    otherwise offsets are left alone and may be empty. All are contiguous. Compiled code does not
    check lengths: the caller owes them.
    """
    from .walks import put_codes  # Numba, a second: only where something is compiled

    walk = walker(fmt)
    if walk is None:
        return by_atoms(fmt)

    def unpack(row: Any, codes: Any, scales: Any, offsets: Any) -> None:
        walk(row, put_codes, (codes, scales, offsets))

    compiled: Callable[..., None] = jit(unpack)
    return compiled


@cache
def walker(fmt: Format) -> Callable[..., None] | None:
    """The ``walk`` of a format, or None where it has none.

    Looked up by its name, which no text has: so a kernel's digest has the walk of its own format alone
    (``store/reach.py``).
    """
    if not has_walk(fmt):
        return None
    walk: Callable[..., None] = getattr(import_module(".walks", __name__), f"walk_{fmt.name.lower()}")
    return walk


def has_walk(fmt: Format) -> bool:
    """True where a format has vector code in ``walks.py``."""
    return fmt.name.lower() in WALKED


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


class Stretch(NamedTuple):
    """Arguments of a decoder, whose code may have come with the package: ``decode.floats``."""

    raw: int  # address of whole blocks
    nbytes: int
    values: int  # address of float32
    length: int


def decode_into(fmt: Format, raw: Bytes, values: NDArray[np.float32]) -> bool:
    """Contiguous blocks to contiguous floats; False, and nothing done, where only NumPy decodes a format."""
    if not has_walk(fmt):
        return False
    arguments = Stretch(raw.ctypes.data, raw.size, values.ctypes.data, values.size)
    alone(kernel("unpack.decode.floats", fmt), arguments, values.size)
    return True
