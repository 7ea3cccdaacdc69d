"""``gq.diff.compare``: compares two GGUF models, tensor by tensor and key by key, for `ggmlq diff`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import gguf, tasks
from ..arrays.array import QuantArray
from ..arrays.companion import same_scales
from ..base.progress import Progress
from ..errors import ConvertError, GGUFError
from ..gguf import GGUFFile, Metadata, ValueType
from ..gguf.metadata import Entry, Stored
from ..gguf.node import Node, raw
from ..tasks.rows import slices
from . import tensors
from .tensors import ONLY_A, ONLY_B, SAME, Tally, TensorDifference

# --- tensors compared by workers of an executor; a task is a part of one tensor --------------
# A worker compares bytes first, and values only if bytes differ. If some parts of a tensor differ and
# others do not, the equal ones are read again in a second round: their values count in the NMSE too.


class Part(NamedTuple):
    """A task: a range of elements in both tensors of a name."""

    name: str
    a: tasks.Rows
    b: tasks.Rows
    elements: tuple[int, int]
    by_bytes: bool  # whether equal bytes suffice

    @property
    def what(self) -> str:
        return f"tensor {self.name!r}, elements {self.elements[0]} to {self.elements[1] - 1}"


def examine(part: Part) -> Tally | None:
    """The tally of one part, None if all its bytes are the same; a worker calls it."""
    a, b = part.a.array(), part.b.array()
    assert isinstance(a, QuantArray)
    assert isinstance(b, QuantArray)
    same = tensors.same_slabs(a, b, part.elements, _nothing) if part.by_bytes else 0
    if same is None:
        return None
    tally = Tally()
    tally.walk(a, b, part.elements, _nothing, same)
    return tally


def _nothing(n: int) -> None:
    """Nobody looks at a worker's progress."""


def compare_by_tasks(
    executor: Executor, a: GGUFFile, b: GGUFFile, names: Iterable[str], advance: Callable[[int], None]
) -> dict[str, TensorDifference]:
    """The results of :func:`ggmlq.diff.tensors.compare`, by tensor."""
    results: dict[str, TensorDifference] = {}
    tallies: dict[str, dict[Part, Tally | None]] = {}

    def parts() -> Iterator[Part]:
        for name in names:
            result = tensors.at_once(name, a[name], b[name])
            if result is not None:
                results[name] = result
                advance(a[name].nbytes + b[name].nbytes)
                continue
            sides = tasks.rows_of(a[name]), tasks.rows_of(b[name])
            by_bytes = a[name].format is b[name].format and same_scales(a[name].scale, b[name].scale)
            tallies[name] = {
                Part(name, *sides, elements, by_bytes): None for elements in slices((prod(a[name].shape), 1))
            }
            yield from list(tallies[name])

    def take(part: Part, tally: Tally | None) -> None:
        tallies[part.name][part] = tally
        share = (part.elements[1] - part.elements[0]) / prod(part.a.shape)
        advance(round(share * (part.a.stretch.nbytes + part.b.stretch.nbytes)))

    tasks.run(executor, parts(), examine, take)
    mixed = [by_part for by_part in tallies.values() if any(by_part.values()) and not all(by_part.values())]
    again = [part for by_part in mixed for part, tally in by_part.items() if tally is None]
    old = {part._replace(by_bytes=False): part for part in again}
    tasks.run(executor, old, examine, lambda part, tally: tallies[part.name].update({old[part]: tally}))
    for name, by_part in tallies.items():
        results[name] = _joined(name, a[name], b[name], list(by_part.values()))
    return results


def _joined(name: str, a: QuantArray, b: QuantArray, parts: list[Tally | None]) -> TensorDifference:
    whole = Tally()
    for tally in parts:
        if tally is None:
            return tensors.equal_bytes(name, a, b)
        whole.take(tally)
    return tensors.differing(name, a, b, whole)


# --- keys that only one has, and keys with another value or type -----------------------------

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


def compare_metadata(a: Metadata, b: Metadata) -> list[KeyDifference]:
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


# --- two models ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """The differences between two models."""

    tensors: list[TensorDifference]  # all of them, in the order of A and then of B
    metadata: list[KeyDifference]  # those that differ
    tolerance: float

    @property
    def differing(self) -> list[TensorDifference]:
        """Tensors that count as different."""
        return [tensor for tensor in self.tensors if not tensor.within(self.tolerance)]

    @property
    def identical(self) -> int:
        """The number of tensors with the same blocks, in either byte order."""
        return sum(tensor.status in SAME for tensor in self.tensors)

    @property
    def equal(self) -> bool:
        """True where nothing counts as different."""
        return not self.differing and not self.metadata


def compare(
    a: str | os.PathLike[str] | GGUFFile,
    b: str | os.PathLike[str] | GGUFFile,
    *,
    tolerance: float = 0.0,
    ignore_metadata: bool = False,
    executor: Executor | None = None,
) -> Difference:
    """Compare two GGUF models, of whatever types.

    Parameters
    ----------
    a, b : str, os.PathLike or GGUFFile
        Paths, or open files. NMSE is relative to the values of ``a``.
    tolerance : float
        Tensors with at most this NMSE count as equal, also of different types. With 0 only tensors
        of one type with the same bytes do.
    ignore_metadata : bool
        Look at tensors alone.
    executor : concurrent.futures.Executor, optional
        Who compares, with the same result: a pool of processes, dask's, mpi4py's. Its workers must see both
        files under the same paths.

    >>> import os, tempfile, numpy as np, ggmlq as gq
    >>> folder = tempfile.mkdtemp()
    >>> one, two = os.path.join(folder, "one.gguf"), os.path.join(folder, "two.gguf")
    >>> w = np.random.default_rng(0).standard_normal((8, 64), np.float32)
    >>> _ = gq.save(one, {"w": w, "v": w}), gq.save(two, {"w": gq.quantize(w, "q8_0"), "v": w})
    >>> difference = gq.diff.compare(one, two, tolerance=1e-4)
    >>> difference.equal, [(t.name, t.status) for t in difference.tensors]
    (True, [('w', 'other values'), ('v', 'same bytes')])
    """
    if not tolerance >= 0:
        raise ConvertError(
            f"compare(a, b, tolerance={tolerance!r}): an NMSE is 0 or more; 0 asks for equal bytes"
        )
    with contextlib.ExitStack() as stack:
        first, second = (
            file if isinstance(file, GGUFFile) else stack.enter_context(gguf.open(file)) for file in (a, b)
        )
        differences = [] if ignore_metadata else compare_metadata(first.metadata, second.metadata)
        return Difference(_tensors(first, second, executor), differences, tolerance)


def _tensors(a: GGUFFile, b: GGUFFile, executor: Executor | None) -> list[TensorDifference]:
    shared = [name for name in a if name in b]
    with Progress(sum(file.info(name).nbytes for name in shared for file in (a, b)), "comparing") as progress:
        if executor is None:
            differences = {name: tensors.compare(name, a[name], b[name], progress.advance) for name in shared}
        else:
            differences = compare_by_tasks(executor, a, b, shared, progress.advance)
    entries = [differences[name] if name in differences else _alone(a, name, ONLY_A) for name in a]
    return entries + [_alone(b, name, ONLY_B) for name in b if name not in a]


def _alone(file: GGUFFile, name: str, status: str) -> TensorDifference:
    kind, shape = file.info(name).format.name, file.info(name).shape
    if status == ONLY_A:
        return TensorDifference(name, status, (kind, None), (shape, None))
    return TensorDifference(name, status, (None, kind), (None, shape))
