"""The probe's words for places along an axis: ranges, or a part that repeats."""

from __future__ import annotations

import numpy as np

from ..numbers import Index, Mask
from ..places import runs_of

SHOWN = 6  # ranges
PERIODS = (8, 16, 32, 64, 128, 256)


def ranges(places: Index, most: int = SHOWN) -> str:
    """Places as ranges in words: ``0 to 31, 64``."""
    runs = runs_of(places)
    words = [f"{a}" if b == a + 1 else f"{a} to {b - 1}" for a, b in runs[:most]]
    return ", ".join(words) + (" …" if len(runs) > most else "")


def along(name: str, places: Index, seen: Index) -> str:
    """Words for the wrong places along an axis, among the places ``seen``."""
    if len(places) == len(seen):
        return f"all {name}"
    wrong = np.isin(seen, places)
    for period in PERIODS:
        if period * 2 > seen.max() + 1:
            break
        rest = seen % period
        part = np.unique(rest[wrong])
        if len(part) < period and (np.isin(rest, part) == wrong).all():
            return f"{name} {ranges(part)} of every {period}"
    return f"{name} {ranges(places)}"


def groups(wrong: Mask) -> str:
    """Words for the wrong groups of a super-block."""
    places = np.flatnonzero(wrong)
    if len(places) > 2 and (places % 2 == places[0] % 2).all() and len(places) == (len(wrong) + 1) // 2:
        return "odd groups" if places[0] % 2 else "even groups"
    return f"group{'s' if len(places) > 1 else ''} {ranges(places)}"
