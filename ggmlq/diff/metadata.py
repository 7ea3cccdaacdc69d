"""Compares the metadata of two models: keys that only one has, and keys with another value or type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import GGUFError
from ..gguf import Metadata, ValueType
from ..gguf.metadata import Entry, Stored
from ..gguf.node import Node, raw
from .tensors import ONLY_A, ONLY_B

CHANGED = "changed"

Items = Sequence[Any] | NDArray[Any]


@dataclass(frozen=True)
class KeyDifference:
    """A key that only one file has, or whose type or value differ. Text that is not UTF-8 comes as bytes."""

    key: str
    status: str
    types: tuple[str | None, str | None]
    values: tuple[Any, Any]
    elements: int | None = None  # of two arrays: how many differ, counting those that only one has
    first: int | None = None  # the first of them; of two texts the first byte that differs


def compare(a: Metadata, b: Metadata) -> list[KeyDifference]:
    """All differences, in the order of the keys of A and then of B."""
    differences = [difference for key in a if (difference := _compare_key(key, a, b)) is not None]
    return differences + [
        KeyDifference(key, ONLY_B, (None, b.type(key)), (None, _value(b, key))) for key in b if key not in a
    ]


def _compare_key(key: str, a: Metadata, b: Metadata) -> KeyDifference | None:
    if key not in b:
        return KeyDifference(key, ONLY_A, (a.type(key), None), (_value(a, key), None))
    left, right = a.entries[key], b.entries[key]
    if _same_bytes(left, right):
        return None
    ours, theirs = left.node(), right.node()
    if ours.words == theirs.words and raw(ours) == raw(theirs):
        return None
    types, values = (ours.words, theirs.words), (_value(a, key), _value(b, key))
    if ours.type is theirs.type is ValueType.STRING:
        return KeyDifference(key, CHANGED, types, values, None, _unlike(ours.data, theirs.data)[1])
    if ours.of is None or ours.of is not theirs.of:
        return KeyDifference(key, CHANGED, types, values)
    return KeyDifference(key, CHANGED, types, values, *_unlike(_items(ours), _items(theirs)))


def _same_bytes(a: Entry, b: Entry) -> bool:
    """True for two values that are equal as a whole: a vocabulary is long."""
    if not isinstance(a, Stored) or not isinstance(b, Stored):
        return False
    return a.source.byteorder == b.source.byteorder and a.equals(b)


def _value(metadata: Metadata, key: str) -> Any:
    try:
        return metadata[key]
    except GGUFError:
        return metadata.raw(key)


def _items(node: Node) -> Items:
    """Elements of an array that compare by their bits."""
    if isinstance(node.data, np.ndarray):
        return node.data.view(f"u{node.data.dtype.itemsize}")
    return [raw(item) if isinstance(item, Node) else item for item in node.data]


def _unlike(a: Items, b: Items) -> tuple[int, int]:
    """The number of places that differ, with those that only one array has; and the first of them."""
    shared = min(len(a), len(b))
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        places = np.flatnonzero(a[:shared] != b[:shared])
    else:
        places = np.array([i for i in range(shared) if a[i] != b[i]], np.int64)
    return len(places) + abs(len(a) - len(b)), int(places[0]) if len(places) else shared
