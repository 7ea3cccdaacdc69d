"""Collects importance matrices: adds up sums of squared activations, merges files of them, and writes them.

A weight is multiplied with an activation; the mean square of that says how much an error of the weight costs.
A model of experts counts for each expert the tokens that reached it. A ``.dat`` has one count for all experts
and stores means times calls: it is read as calls * ``chunk_size`` tokens, as llama-imatrix does.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from struct import pack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.text import short
from ..errors import GGUFError, GGUFOSError
from .atomic import Staging
from .file import open
from .header import MAGIC
from .imatrix import (
    CHUNK_SIZE,
    CHUNKS,
    COUNTS,
    DATASETS,
    SUMS,
    Imatrix,
    Legacy,
    datasets_of,
    names_in,
    sums_of,
)
from .imatrix import number as number_in
from .source import Source, checked_path
from .typed import Typed
from .writer import save

Wide = NDArray[np.float64]
Counts = NDArray[np.int64]

TOKENS = 512  # in a chunk, if it is not told otherwise: llama-imatrix's own


@dataclass
class Entry:
    """The entry of one tensor: sums of squares [experts, K], and how often each row was counted."""

    sums: Wide
    counts: Counts


class Collector:
    """Sums of squared activations by name of tensor.

    >>> import numpy as np, ggmlq as gq
    >>> collector = gq.gguf.Collector()
    >>> collector.add("blk.0.ffn_up.weight", np.float32([[1, 2], [3, 4]]))
    >>> collector.imatrix()["blk.0.ffn_up.weight"]
    array([[ 5., 10.]], dtype=float32)
    """

    def __init__(self, chunk_size: int = TOKENS) -> None:
        self.entries: dict[str, Entry] = {}
        self.datasets: list[str] = []
        self.chunk_size = chunk_size

    def add(self, name: str, x: Any, ids: Any = None, experts: int | None = None) -> None:
        """Add activations with which a tensor was multiplied.

        x [..., K]; for stacked experts also ``ids`` [T, U] and their number, with x [T, K], [T, 1, K] or
        [T, U, K].
        """
        values = np.asarray(x, np.float64)
        request = f"activations of {name!r}"
        if values.ndim < 1 or not values.shape[-1] or not np.isfinite(values).all():
            raise GGUFError(
                f"{request}: an array of shape {values.shape}; they are finite numbers [tokens, K]; a model "
                "that gives NaN has no importance matrix"
            )
        if ids is None:
            rows = values.reshape(-1, values.shape[-1])
            self._put(name, (rows**2).sum(axis=0)[None], np.array([len(rows)]))
            return
        chosen = np.asarray(ids)
        if values.ndim == 2:
            values = values[:, None]
        fits = chosen.ndim == 2 and values.ndim == 3 and values.shape[:2] in (chosen.shape, (len(chosen), 1))
        if not fits or experts is None or chosen.dtype.kind not in "iu" or chosen.min(initial=0) < 0:
            raise GGUFError(
                f"{request}: ids {chosen.shape} {chosen.dtype} with activations {values.shape} and "
                f"experts={experts}; ids are integers [T, U], activations [T, U or 1, K]; pass both so"
            )
        if chosen.max(initial=0) >= experts:
            raise GGUFError(f"{request}: expert {chosen.max()} of {experts}; ids count from 0; check both")
        squares = np.broadcast_to(values**2, (*chosen.shape, values.shape[-1]))
        sums = np.zeros((experts, values.shape[-1]))
        np.add.at(sums, chosen.reshape(-1), squares.reshape(-1, values.shape[-1]))
        self._put(name, sums, np.bincount(chosen.reshape(-1), minlength=experts))

    def merge(self, other: Collector) -> None:
        """Add all sums of another collector."""
        for name, entry in other.entries.items():
            self._put(name, entry.sums, entry.counts)
        self.datasets += other.datasets

    def _put(self, name: str, sums: Wide, counts: Counts) -> None:
        entry = self.entries.get(name)
        if entry is None:
            self.entries[name] = Entry(sums.copy(), counts.astype(np.int64))
            return
        one, two = _alike(name, entry, Entry(sums, counts))
        self.entries[name] = Entry(one.sums + two.sums, one.counts + two.counts)

    @property
    def chunks(self) -> int:
        """The number of chunks, of ``chunk_size`` tokens each, that were counted."""
        most = max((int(entry.counts.max()) for entry in self.entries.values()), default=0)
        return most // self.chunk_size

    def imatrix(self, path: str = "") -> Imatrix:
        """The means, as a quantizer takes them. Rows of experts that no token reached are 1."""
        rows = {
            name: np.where(entry.counts[:, None] > 0, entry.sums / np.maximum(entry.counts, 1)[:, None], 1)
            for name, entry in self.entries.items()
        }
        unseen = {
            name: tuple(np.flatnonzero(entry.counts == 0).tolist())
            for name, entry in self.entries.items()
            if (entry.counts == 0).any()
        }
        narrow = {name: row.astype(np.float32) for name, row in rows.items()}
        return Imatrix(path, narrow, chunks=self.chunks, datasets=tuple(self.datasets), unseen=unseen)

    def save(self, path: str | os.PathLike[str], legacy: bool | None = None) -> str:
        """Write a ``.gguf``, or the older ``.dat`` for ``legacy=True``; by default the name decides."""
        final = checked_path("save an importance matrix", path, "pass a str or an os.PathLike")
        if not self.entries:
            raise GGUFError(
                f"importance matrix {final}: nothing was collected; add activations, or merge files"
            )
        if final.endswith(".dat") if legacy is None else legacy:
            _write(final, self._as_dat())
            return final
        tensors: dict[str, Any] = {}
        for name in sorted(self.entries, key=str.encode):
            entry = self.entries[name]
            tensors[name + SUMS] = entry.sums.astype(np.float32)
            tensors[name + COUNTS] = entry.counts.astype(np.float32)[:, None]
        save(final, tensors, self._keys())
        return final

    def _keys(self) -> Mapping[str, Any]:
        return {
            "general.type": "imatrix",
            DATASETS: Typed(self.datasets, "string"),
            CHUNKS: Typed(self.chunks, "uint32"),
            CHUNK_SIZE: Typed(self.chunk_size, "uint32"),
        }

    def _as_dat(self) -> Iterable[bytes]:
        counted = {name: e for name, e in sorted(self.entries.items()) if e.counts.any()}
        yield pack("<i", len(counted))
        for name, entry in counted.items():
            raw = name.encode()
            calls = -(-int(entry.counts.max()) // self.chunk_size)
            means = entry.sums / np.maximum(entry.counts, 1)[:, None]
            values = np.where(entry.counts[:, None] > 0, means, 1.0) * calls
            yield pack("<i", len(raw)) + raw + pack("<ii", calls, values.size)
            yield values.astype("<f4").tobytes()
        text = self.datasets[-1].encode() if self.datasets else b""
        yield pack("<ii", self.chunks, len(text)) + text


def collected(path: str | os.PathLike[str], chunk_size: int | None = None) -> Collector:
    """A collector with the sums of a file of either kind, to add to, or to write as the other kind."""
    text = checked_path("collected(path)", path, "pass the file that llama-imatrix wrote")
    source = Source(text)
    if source.map[:4] == MAGIC:
        return _from_gguf(text, chunk_size)
    collector = Collector(chunk_size or TOKENS)
    reader = Legacy(source)
    for name, (values, calls) in reader.entries().items():
        count = max(calls, 1) * collector.chunk_size
        collector.entries[name] = Entry(
            values.astype(np.float64)[None] * collector.chunk_size, np.array([count])
        )
    collector.datasets = list(reader.end()[1])
    return collector


def _from_gguf(path: str, chunk_size: int | None) -> Collector:
    with open(path) as file:
        collector = Collector(chunk_size or number_in(file, CHUNK_SIZE) or TOKENS)
        collector.datasets = datasets_of(file)
        for name in names_in(path, file):
            sums, counts = sums_of(path, file, name)
            rounded = np.floor(counts.astype(np.float64) + 0.5).astype(np.int64)
            collector.entries[name] = Entry(sums.reshape(len(counts), -1).astype(np.float64), rounded)
        return collector


def _alike(name: str, a: Entry, b: Entry) -> tuple[Entry, Entry]:
    """Both entries with a count for each expert; a single count, from a ``.dat``, holds for all experts."""
    if a.sums.size != b.sums.size or (
        len(a.counts) != len(b.counts) and 1 not in (len(a.counts), len(b.counts))
    ):
        raise GGUFError(
            f"merge: {short(name)} has {a.sums.shape} and {b.sums.shape} sums (experts, columns); the files "
            "are of different models; merge those of one"
        )
    shape = a.sums.shape if len(a.counts) > 1 else b.sums.shape

    def spread(entry: Entry) -> Entry:
        return Entry(entry.sums.reshape(shape), np.broadcast_to(entry.counts, shape[0]))

    return spread(a), spread(b)


def _write(path: str, chunks: Iterable[bytes]) -> None:
    try:
        with Staging([path]) as staging:
            staging.write(chunks)
            staging.commit()
    except OSError as error:
        raise GGUFOSError(
            f"importance matrix {path}: the system refused: {error.strerror or error}; check the folder",
            error,
        ) from error
