"""The facts about a GPU on which the choice of a kernel depends: one object a device, in each problem."""

from __future__ import annotations

from dataclasses import dataclass

# The share of a memory's nominal speed (clock times width) that reading reaches; and MB a microsecond of an
# H200, for cards whose nominal speed is unknown.
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
    cache: int = 0  # bytes of its L2 cache; 0: not known
    here: bool = True  # False for a card of a table, whose driver and libraries cannot be asked

    @property
    def memory(self) -> float:
        """The speed of the card's memory, in MB a microsecond."""
        return REACHED * self.bandwidth / 1e3 if self.bandwidth else UNKNOWN


def older_than(card: Card | None, least: tuple[int, int]) -> str | None:
    """The reason why a kernel that needs a card of at least ``least`` cannot run; None if it can, or may."""
    if card is None or card.capability >= least:
        return None
    return "needs compute capability {}.{}, this GPU has {}.{}".format(*least, *card.capability)


def too_small_for(card: Card | None, shared: int) -> str | None:
    """The reason why a kernel with ``shared`` bytes of shared memory a block cannot run; None if it can."""
    if card is None or card.shared >= shared:
        return None
    return f"needs {shared >> 10} KB of shared memory for a block, this GPU has {card.shared >> 10}"


# The share of all multiprocessors that clusters of 1, 2, … blocks reach on Hopper, with one block on each.
IN_CLUSTERS = {1: 1.0, 2: 1.0, 3: 0.88, 4: 0.9, 5: 0.83, 6: 0.77, 7: 0.79, 8: 0.9}


def clusters(multiprocessors: int, blocks: int) -> int:
    """The number of clusters of so many blocks that run at one time; at least one."""
    return max(1, int(multiprocessors * IN_CLUSTERS[blocks]) // blocks)
