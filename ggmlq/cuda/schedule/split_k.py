"""K split among blocks by the grid, where there are few tiles."""

from __future__ import annotations

from ..machine import device

SHORTEST = 6  # steps of a part of K


def split_of(tiles: int, blocks: int, steps: int) -> int:
    """The number of parts of K with which the blocks fill the card once.

    ``blocks``: how many a multiprocessor holds.
    """
    return max(1, min(device.multiprocessors() * blocks // tiles, steps // SHORTEST))
