"""Memory of a graph between its nodes: a result must stay as it was until its last reader has read it.

Each tensor that has memory of its own, no view, is remembered by a checksum once a node has written it, and a
leaf once a node has read it. Before a node runs, the memory that it reads must still have that checksum: only
a node whose result is a view of a tensor may change it. What changed otherwise lies under the result of
another node, which is named: the allocator gave that memory away too early. Or it lies under none: then a
kernel wrote beside its result.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from ..llama.program import original
from ..llama.structs import Tensors

LARGEST_LEAF = 1 << 26  # bytes; longer caches would take longer to sum up than to judge
ALONE = ("MUL_MAT", "MUL_MAT_ID", "FLASH_ATTN_EXT")  # their result may lie over no source


@dataclass(frozen=True)
class Changed:
    """A tensor that a node reads and that is no longer what it was.

    ``by``: the node whose result lies over it, empty for none; ``since``: the first node that ran after the
    tensor was seen whole, ``until``: the last one.
    """

    name: str
    by: str
    computed: bool  # else a leaf
    since: str = ""
    until: str = ""

    def sentence(self, reader: str) -> str:
        """The change in words."""
        when = "after it was computed" if self.computed else "after it was last used"
        if self.by == reader:
            return f"{self.name} is read by {reader}, and the result of {reader} lies over it."
        if self.by:
            return f"{self.name} changed {when}: {self.by} lies over it."
        nodes = self.since if self.since == self.until else f"one of {self.since} … {self.until}"
        return f"{self.name} changed {when}, and no result lies over it: {nodes} wrote beside its own."


@dataclass(frozen=True)
class _Seen:
    """A tensor as it was last seen: its checksum, and how many nodes of the graph had run."""

    name: str
    ne: tuple[int, ...]
    checksum: int
    nodes: int
    computed: bool


class Lifetimes:
    """Watches the tensors of one graph after the other; ``unwatched``: names of leaves that are too large."""

    def __init__(self, tensors: Tensors, weights: Collection[str]) -> None:
        self._tensors, self._weights = tensors, weights
        self.unwatched: dict[str, None] = {}
        self.begin()

    def begin(self) -> None:
        """Forget everything: a new graph begins, whose tensors may have the addresses of others."""
        self._seen: dict[int, _Seen] = {}
        self._results: list[tuple[str, int, tuple[int, int]]] = []  # name, owner and span of each that ran

    def read(self, op: str, tensor: int) -> list[dict[str, Any]]:
        """The changes of all that a node is about to read, each told once."""
        changed = list(self._over_sources(op, tensor)) if op in ALONE else []
        for owner in dict.fromkeys(map(self._owner, self._tensors.sources(tensor))):
            before, now = self._seen.get(owner), self._look(owner, computed=False)
            if now is None:
                continue
            if before is None or (before.name, before.ne) != (now.name, now.ne):
                self._seen[owner] = now
            elif before.checksum != now.checksum:
                changed.append(self._change(owner, before))
                self._seen[owner] = replace(now, computed=before.computed)
        return [asdict(one) for one in changed]

    def wrote(self, tensor: int) -> None:
        """A node has run: its result is what it is from now on."""
        owner = self._owner(tensor)
        name = str(self._tensors.describe(tensor)["name"])
        self._results.append((name, owner, self._tensors.span(tensor)))
        seen = self._look(owner, computed=owner == tensor)
        if seen is not None:
            self._seen[owner] = seen

    def _owner(self, tensor: int) -> int:
        """The tensor whose memory this is: itself, or that of which it is a view."""
        return self._tensors.origin(tensor) or tensor

    def _look(self, owner: int, *, computed: bool) -> _Seen | None:
        """A tensor as it is now; None for weights, for copies of the scheduler and what cannot be read."""
        facts = self._tensors.describe(owner)
        name = str(facts["name"])
        if name in self._weights or original(name) != name or not self._tensors.readable(owner):
            return None
        if not computed and owner not in self._seen and self._tensors.nbytes(owner) > LARGEST_LEAF:
            self.unwatched[name] = None
            return None
        start, end = self._tensors.span(owner)
        if start == end:
            return None
        data = np.empty(end - start, np.uint8)
        self._tensors.read(owner, data)
        return _Seen(name, tuple(facts["ne"]), zlib.crc32(data.data), len(self._results), computed)

    def _change(self, owner: int, before: _Seen) -> Changed:
        start, end = self._tensors.span(owner)
        after = self._results[before.nodes :]
        over = [name for name, other, (a, b) in after if other != owner and a < end and start < b]
        names = [name for name, _, _ in after] or [""]
        return Changed(before.name, over[0] if over else "", before.computed, names[0], names[-1])

    def _over_sources(self, op: str, tensor: int) -> Iterator[Changed]:
        """Sources over which an operation writes that reads them to its end."""
        start, end = self._tensors.span(tensor)
        name = str(self._tensors.describe(tensor)["name"])
        for source in self._tensors.sources(tensor):
            a, b = self._tensors.span(source)
            if a < end and start < b:
                yield Changed(str(self._tensors.describe(source)["name"]), name, True)
