"""``Program``: a small graph of ggml's operations as a list of calls, which the library's process builds.

Tensors have numbers: leaves come first, then the results of the calls in their order. The result of the last
call is the node that is judged; calls before it look at leaves otherwise (views, permutations) or compute
what it gets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..formats import FORMATS
from .captured import Node
from .guards import Stray

Argument = tuple[str, Any]  # of a call: t tensor, n none, i int, l int64, f float, z size_t, b bool, I ints


@dataclass(frozen=True)
class Leaf:
    """A tensor that is filled before the graph runs: its type, and its lengths in ggml's order."""

    type: str
    ne: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Bytes of the tensor."""
        fmt = FORMATS[self.type]
        return math.prod(self.ne) // fmt.block_size * fmt.dtype.itemsize


@dataclass(frozen=True)
class Step:
    """A call of one of ggml's functions, without the context, which is always its first argument."""

    function: str  # without the prefix ggml_
    arguments: tuple[Argument, ...]
    attaches: bool = False  # it changes a node and returns nothing; its first argument is that node


@dataclass(frozen=True)
class Program:
    """Leaves and calls of one graph."""

    leaves: tuple[Leaf, ...]
    steps: tuple[Step, ...]
    over: int | None = None  # the source of the node in whose memory the result lies, as allocators do

    def message(self) -> dict[str, Any]:
        """The program as the library's process receives it."""
        leaves = [[leaf.type, list(leaf.ne)] for leaf in self.leaves]
        steps = [[s.function, [list(a) for a in s.arguments], s.attaches] for s in self.steps]
        return {"leaves": leaves, "steps": steps, "over": self.over}


@dataclass(frozen=True)
class Ran:
    """A node that a device computed, once or several times."""

    node: Node
    repeats: tuple[NDArray[np.uint8], ...] = ()  # the bytes of its result in the other runs
    strays: tuple[Stray, ...] = ()  # memory beside the result that was overwritten
    unwritten: int = 0  # words of the result that nobody wrote

    @classmethod
    def of(cls, facts: dict[str, Any], arrays: Sequence[NDArray[np.uint8]]) -> Ran:
        """The node of an answer: arrays of its sources, of its result, and of that in other runs."""
        names = facts["names"]
        y, *repeats = arrays[len(names) :]
        node = Node(facts["op"], 0, facts["parts"], {**dict(zip(names, arrays, strict=False)), "y": y},
                    tuple(facts["words"]))  # fmt: skip
        strays = tuple(Stray(**stray) for stray in facts["strays"])
        return cls(node, tuple(repeats), strays, facts["unwritten"])
