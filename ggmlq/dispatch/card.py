"""The facts about a GPU on which the choice of a kernel depends: one object a device, in each problem."""

from __future__ import annotations

from dataclasses import dataclass

from ..base import text
from ..errors import UnsupportedError

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


# --- cards that need not be here, by NVIDIA's names ---------------------------------------------
# Facts are those of NVIDIA's data sheets and architecture papers; clocks are boost clocks. ``sm_NN``
# stands for the first card of that capability.

KB, MB = 1 << 10, 1 << 20

# Name, capability, multiprocessors, shared memory of a block in KB, GB/s, GHz, L2 cache in MB.
CARDS = tuple(
    Card(name, capability, multiprocessors, shared * KB, bandwidth, clock, int(cache * MB), here=False)
    for name, capability, multiprocessors, shared, bandwidth, clock, cache in (
        ("Tesla T4", (7, 5), 40, 64, 320, 1.59, 4),
        ("NVIDIA GeForce RTX 2080 Ti", (7, 5), 68, 64, 616, 1.545, 5.5),
        ("NVIDIA A100 80GB PCIe", (8, 0), 108, 163, 1935, 1.41, 40),
        ("NVIDIA A100-SXM4-80GB", (8, 0), 108, 163, 2039, 1.41, 40),
        ("NVIDIA A100-SXM4-40GB", (8, 0), 108, 163, 1555, 1.41, 40),
        ("NVIDIA GeForce RTX 3090", (8, 6), 82, 99, 936, 1.7, 6),
        ("NVIDIA GeForce RTX 3080", (8, 6), 68, 99, 760, 1.71, 5),
        ("NVIDIA GeForce RTX 3060", (8, 6), 28, 99, 360, 1.777, 3),
        ("NVIDIA RTX A6000", (8, 6), 84, 99, 768, 1.8, 6),
        ("NVIDIA A10", (8, 6), 72, 99, 600, 1.695, 6),
        ("NVIDIA GeForce RTX 4090", (8, 9), 128, 99, 1008, 2.52, 72),
        ("NVIDIA GeForce RTX 4080", (8, 9), 76, 99, 717, 2.505, 64),
        ("NVIDIA GeForce RTX 4070", (8, 9), 46, 99, 504, 2.475, 36),
        ("NVIDIA GeForce RTX 4060 Ti", (8, 9), 34, 99, 288, 2.535, 32),
        ("NVIDIA RTX 6000 Ada Generation", (8, 9), 142, 99, 960, 2.505, 96),
        ("NVIDIA L40S", (8, 9), 142, 99, 864, 2.52, 96),
        ("NVIDIA L4", (8, 9), 58, 99, 300, 2.04, 48),
        ("NVIDIA H200", (9, 0), 132, 227, 4916, 1.98, 50),
        ("NVIDIA H100 80GB HBM3", (9, 0), 132, 227, 3352, 1.98, 50),
        ("NVIDIA H100 PCIe", (9, 0), 114, 227, 2039, 1.75, 50),
        ("NVIDIA B200", (10, 0), 148, 227, 8000, 1.97, 126),
        ("NVIDIA GeForce RTX 5090", (12, 0), 170, 99, 1792, 2.41, 96),
        ("NVIDIA GeForce RTX 5080", (12, 0), 84, 99, 960, 2.617, 64),
        ("NVIDIA GeForce RTX 5070 Ti", (12, 0), 70, 99, 896, 2.452, 48),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", (12, 0), 188, 99, 1792, 2.617, 128),
        ("NVIDIA GB10", (12, 1), 48, 99, 273, 2.4, 24),
    )
)  # fmt: skip


def target(card: Card) -> str:
    """The name of a card's capability for compilers, such as ``sm_89``."""
    return "sm_{}{}".format(*card.capability)


def card_named(request: str, name: str) -> Card:
    """The card of the table with a name, a unique part of one, or a capability such as ``sm_89``."""
    words = str(name).casefold()
    if words.startswith("sm_"):
        same = [card for card in CARDS if target(card) == words.removesuffix("a")][:1]
    else:
        same = [card for card in CARDS if card.name.casefold() == words]
        same = same or [card for card in CARDS if f" {words} " in f" {card.name.casefold()} "]
    if len(same) == 1:
        return same[0]
    known = ", ".join(dict.fromkeys(map(target, CARDS)))
    names = [card.name for card in CARDS]
    raise UnsupportedError(
        f"{request}: {'several cards are' if same else 'no card of the table is'} called so; it has "
        f"{', '.join(card.name for card in same or CARDS)}, and {known}; "
        + text.meant(str(name), names, "pass one of these")
    )
