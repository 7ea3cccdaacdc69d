"""How much a header may hold: more than any model does, and little enough for seconds and a gigabyte.

A file costs its writer next to nothing where it repeats itself or has holes, and a reader an object for
each thing in it. The largest vocabularies have a million texts and 40 MiB; ggml reads no arrays of arrays.
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
    """What one file may still hold."""

    def __init__(self) -> None:
        self._most = {what: most(what) for what in LIMITS}
        self._found = dict.fromkeys(LIMITS, 0)

    def excess(self, what: str, n: int) -> str | None:
        """Count so many more; where that is too much, the reason."""
        self._found[what] += n
        found, most = self._found[what], self._most[what]
        if found <= most:
            return None
        return (
            f"the header has {found} {what} or more, {most} are read; no model has as many, so the file is "
            f"damaged or made to fill the memory; {FACTOR}={-(-found // LIMITS[what])} in the environment "
            "multiplies all limits"
        )


def most(what: str) -> int:
    """How many of something are read."""
    return _factor() * LIMITS[what]


def _factor() -> int:
    said = os.environ.get(FACTOR, "1")
    if not said.isdecimal() or not int(said):
        raise GGUFError(f"{FACTOR}={said!r} in the environment: it is a whole number, 1 or more; unset it")
    return int(said)
