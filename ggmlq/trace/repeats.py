"""Races: the run is traced again, and a node whose result differs on the same inputs is wrong.

Results are compared by checksums of their elements. A node after it has other inputs: it is judged on these,
and is not accused.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ..llama.captured import DTYPES, Node
from .product import Product
from .verdicts import Judge

FAULT = "race"


class Repeats:
    """Checksums of a run's nodes, with which those of later runs are compared."""

    def __init__(self) -> None:
        self._first: list[tuple[str, int, int]] = []
        self._number, self._count = 0, 0
        self._accused: set[int] = set()

    def remember(self, node: Node) -> None:
        """Take down a node of the first run."""
        self._first.append(self._checksums(node))

    def begin(self) -> None:
        """Begin a further run."""
        self._number, self._count = 0, self._count + 1

    def compare(self, node: Node, judge: Judge) -> Iterator[Product]:
        """The records of a node of a further run that differs: one on the race, or one on its inputs."""
        at, self._number = self._number, self._number + 1
        name, inputs, result = self._checksums(node)
        if at >= len(self._first) or self._first[at][0] != name or self._first[at][2] == result:
            return
        record = judge.record(node)
        if self._first[at][1] != inputs:
            if record.verdict == "wrong":
                yield replace(record, again=True)
        elif at not in self._accused:
            self._accused.add(at)
            text = (
                f"The result differs between run 1 and run {self._count + 1}, and all that it reads is the "
                "same: a thread or a kernel does not wait for another, or memory is read that nobody wrote."
            )
            yield replace(
                record, verdict="wrong", fault=FAULT, text=f"{text}\n{record.text}".strip(), again=True
            )

    def note(self) -> str:
        """The outcome of all runs in a sentence."""
        runs = f"{self._count + 1} runs"
        if self._accused:
            return f"In {runs} {len(self._accused)} nodes gave different results on the same inputs: a race."
        return f"In {runs} every node gave the same result on the same inputs, to the bit."

    def _checksums(self, node: Node) -> tuple[str, int, int]:
        read = [name for name in sorted(node.arrays) if name[0] not in "yo"]
        written = [name for name in sorted(node.arrays) if name[0] in "yo"]
        return node.name, _checksum(node, read), _checksum(node, written)


def _checksum(node: Node, names: list[str]) -> int:
    """The checksum of the elements of some tensors; what lies between their rows is no part of them."""
    total = 0
    for name in names:
        if node.tensors[name]["type"] in DTYPES:
            total = zlib.crc32(np.ascontiguousarray(node.strided(name)).data, total)
        else:
            for matrix in node.matrices(name):
                total = zlib.crc32(np.ascontiguousarray(matrix.raw).data, total)
    return total
