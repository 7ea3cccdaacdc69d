"""A GPU as kernels see it: one object a device, which each problem carries; tests make others."""

from __future__ import annotations

from dataclasses import dataclass

# Of what a memory could move by its clock and width, the share that reading reaches; and MB a microsecond of
# an H200, for cards of which that is not known.
REACHED, UNKNOWN = 0.906, 4.456


@dataclass(frozen=True, eq=False, slots=True)
class Card:
    """The facts of a GPU that decide which kernels can run on it, and which of them are fast.

    A card equals only itself: there is one a device, and choices are cached by it.
    """

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    shared: int  # bytes of shared memory that a block may have
    bandwidth: float = 0.0  # GB/s that its memory could have by clock and width; 0: not known
    clock: float = 0.0  # GHz of its multiprocessors at most; 0: not known

    @property
    def memory(self) -> float:
        """MB a microsecond that its memory reaches."""
        return REACHED * self.bandwidth / 1e3 if self.bandwidth else UNKNOWN


def older_than(card: Card | None, least: tuple[int, int]) -> str | None:
    """The reason why a kernel for cards from ``least`` on cannot run here; None if it can, or is unknown."""
    if card is None or card.capability >= least:
        return None
    return "needs compute capability {}.{}, this GPU has {}.{}".format(*least, *card.capability)


def too_small_for(card: Card | None, shared: int) -> str | None:
    """The reason why a kernel with so much shared memory a block cannot run here; None as above."""
    if card is None or card.shared >= shared:
        return None
    return f"needs {shared >> 10} KB of shared memory for a block, this GPU has {card.shared >> 10}"


# The share of all multiprocessors that clusters of so many blocks reach on Hopper, with one block on each.
IN_CLUSTERS = {1: 1.0, 2: 1.0, 3: 0.88, 4: 0.9, 5: 0.83, 6: 0.77, 7: 0.79, 8: 0.9}


def clusters(multiprocessors: int, blocks: int) -> int:
    """The number of clusters of so many such blocks that run at one time; at least one."""
    return max(1, int(multiprocessors * IN_CLUSTERS[blocks]) // blocks)
