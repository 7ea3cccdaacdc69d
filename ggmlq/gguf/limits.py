"""Limits on the size of a header, so that a hostile file costs its reader at most seconds and a gigabyte.

They exceed the needs of any model. A file with repetitions or holes costs its writer next to nothing, and its
reader an object for each entry. The largest vocabularies have a million texts and 40 MiB; ggml reads no
arrays of arrays.
"""

from __future__ import annotations

import os

from ..errors import GGUFError

FACTOR = "GGMLQ_HEADER_LIMITS"

BYTES = "bytes of metadata"
KEYS = "keys"
TENSORS = "tensors"
TEXTS = "texts in arrays"
ARRAYS = "arrays in arrays"

LIMITS = {BYTES: 1 << 28, KEYS: 1 << 16, TENSORS: 1 << 18, TEXTS: 1 << 22, ARRAYS: 1 << 18}


class Allowance:
    """The counts of one file against their limits."""

    def __init__(self) -> None:
        self._most = {what: most(what) for what in LIMITS}
        self._counts = dict.fromkeys(LIMITS, 0)

    def excess(self, what: str, n: int) -> str | None:
        """Count n more entries; the reason, if these are too many."""
        self._counts[what] += n
        count, most = self._counts[what], self._most[what]
        if count <= most:
            return None
        return (
            f"the header has {count} {what} or more, {most} are read; no model has as many, so the file is "
            f"damaged or made to fill the memory; {FACTOR}={-(-count // LIMITS[what])} in the environment "
            "multiplies all limits"
        )


def most(what: str) -> int:
    """The most entries of a kind that are read."""
    return _factor() * LIMITS[what]


def _factor() -> int:
    factor = os.environ.get(FACTOR, "1")
    if not factor.isdecimal() or not int(factor):
        raise GGUFError(f"{FACTOR}={factor!r} in the environment: it is a whole number, 1 or more; unset it")
    return int(factor)
