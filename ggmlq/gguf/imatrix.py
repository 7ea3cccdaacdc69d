"""Importance matrices, as ``llama-imatrix`` writes them: read, collected, merged and written.

They say how much each column of a weight matters.

Both kinds of file hold sums of squared activations and the counts of these.

    *.dat   entries i32, then for each: name (length i32, bytes) · calls i32 · values i32 · float32 …
            and perhaps: chunks i32 · name of the data set (length i32, bytes); little-endian
    *.gguf  for each tensor NAME: NAME.in_sum2 [experts, K] and NAME.counts [experts, 1], float32

A ``.dat`` does not say how many experts a row of values is for: their tensor's shape does.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from struct import pack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.devices import namespace
from ..base.text import short
from ..errors import GGUFError, GGUFOSError
from .atomic import Staging
from .file import GGUFFile, open
from .header import MAGIC
from .metadata import Typed
from .source import Source, checked_path
from .writer import save

Floats = NDArray[np.float32]

SUMS, COUNTS = ".in_sum2", ".counts"
MOST_TOKENS = 2.0**63  # of a count, which is an integer
DATASETS, CHUNKS, CHUNK_SIZE = "imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size"


class Imatrix(Mapping[str, Floats]):
    """Importance by name of tensor: float32 [experts, K]; from a ``.dat`` [1, experts * K].

    ``unseen`` lists experts that no token reached; as in llama.cpp their columns count alike.
    """

    def __init__(
        self,
        path: str,
        rows: Mapping[str, Floats],
        *,
        chunks: int = 0,
        datasets: tuple[str, ...] = (),
        unseen: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        self.path, self.chunks = path, chunks
        self.datasets: Sequence[str] = datasets
        self.unseen = dict(unseen or {})
        self._rows = dict(rows)

    def of(self, rows: Mapping[str, Floats]) -> Imatrix:
        """The matrix with other rows: some of them, or under other names."""
        unseen = {name: experts for name, experts in self.unseen.items() if name in rows}
        return Imatrix(self.path, rows, chunks=self.chunks, datasets=tuple(self.datasets), unseen=unseen)

    def __getitem__(self, name: str) -> Floats:
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"<importance matrix {self.path!r}, {len(self)} tensors, {self.chunks} chunks>"


def read_imatrix(path: str | os.PathLike[str]) -> Imatrix:
    """Read an importance matrix, a ``.gguf`` or an older ``.dat``.

    Values are the mean squares that llama.cpp's own quantizer computes from the file. Not a number,
    infinite and negative ones are errors, as is a file that is cut short.

    >>> import os, tempfile, numpy as np, ggmlq as gq
    >>> path = os.path.join(tempfile.mkdtemp(), "imatrix.gguf")
    >>> sums = {"w.in_sum2": np.float32([[2, 4, 6]]), "w.counts": np.float32([[2]])}
    >>> _ = gq.save(path, sums, {"general.type": "imatrix"})
    >>> gq.gguf.read_imatrix(path)["w"]
    array([[1., 2., 3.]], dtype=float32)
    """
    text = checked_path("read_imatrix(path)", path, "pass the file that llama-imatrix wrote")
    source = Source(text)
    if source.map[:4] == MAGIC:
        with open(text) as file:
            return _from_gguf(text, file)
    return Legacy(source).read()


# --- GGUF -----------------------------------------------------------------------------------


def _from_gguf(path: str, file: GGUFFile) -> Imatrix:
    collector = _collected_gguf(path, file, None)
    rows = {name: entry.means().astype(np.float32) for name, entry in collector.entries.items()}
    settings: dict[str, Any] = {"chunks": number(file, CHUNKS), "datasets": tuple(collector.datasets)}
    return Imatrix(path, rows, unseen=collector.unseen, **settings)


def number(file: GGUFFile, key: str) -> int:
    """The whole number under a key of the file; 0 where it has none."""
    value = file.metadata.get(key, 0)
    return value if isinstance(value, int) else 0


def datasets_of(file: GGUFFile) -> list[str]:
    """Names of the texts on which the matrix was computed."""
    value = file.metadata.get(DATASETS, ())
    return [str(item) for item in value] if isinstance(value, Sequence) and not isinstance(value, str) else []


def names_in(path: str, file: GGUFFile) -> list[str]:
    """The tensors of the model that the file knows."""
    names = [name.removesuffix(SUMS) for name in file if name.endswith(SUMS)]
    if not names:
        raise GGUFError(
            f"imatrix: {path}: it has {len(file)} tensors and none is named *{SUMS}; an importance matrix "
            "has one for each tensor of its model; pass the file that llama-imatrix wrote"
        )
    return names


def sums_of(path: str, file: GGUFFile, name: str) -> tuple[Floats, Floats]:
    """The sums of squares of a tensor, and their counts, one for each expert."""
    sums, counts = _tensor(path, file, name + SUMS), _tensor(path, file, name + COUNTS).reshape(-1)
    if not counts.size or not sums.size or sums.size % counts.size:
        raise GGUFError(
            f"imatrix: {path}: {name!r} has {sums.size} sums and {counts.size} counts; there must be a "
            "count for each row of sums; the file is damaged, compute it anew"
        )
    if counts.max() >= MOST_TOKENS:
        raise GGUFError(
            f"imatrix: {path}: {name + COUNTS!r}: value {int(counts.argmax())} is {counts.max()}; counts of "
            "tokens are below 2^63; the file is damaged, compute it anew"
        )
    return sums, counts


def _tensor(path: str, file: GGUFFile, name: str) -> Floats:
    if name not in file:
        raise GGUFError(
            f"imatrix: {path}: there is no tensor {name!r}; every *{SUMS} has its *{COUNTS}; "
            "the file is damaged, compute it anew"
        )
    q = file[name]
    if q.format.name != "f32":
        raise GGUFError(
            f"imatrix: {path}: {name!r} is {q.format.name}; sums and counts are f32; the file is no "
            "importance matrix, or damaged"
        )
    values: Floats = q.dequantize()
    _check(f"imatrix: {path}: {name!r}", values)
    return values


def _check(what: str, values: Floats) -> None:
    """Refuse sums of squares, or counts, that are negative or not finite."""
    bad = ~(np.isfinite(values) & (values >= 0)).reshape(-1)
    if bad.any():
        first = int(bad.argmax())
        raise GGUFError(
            f"{what}: value {first} is {values.reshape(-1)[first]}; sums of squares are finite and not "
            "negative; compute the matrix anew, llama-imatrix warns where a model gives such values"
        )


# --- the older file -------------------------------------------------------------------------


class Legacy:
    """A ``.dat``, read from its start; every length is checked against the bytes left."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._at = 0

    def read(self) -> Imatrix:
        source = self._source
        rows = {
            name: (values / np.float32(calls) if calls else values)[None]
            for name, (values, calls) in self.entries().items()
        }
        chunks, datasets = self.end()
        return Imatrix(source.path, rows, chunks=chunks, datasets=datasets)

    def entries(self) -> dict[str, tuple[Floats, int]]:
        """The values (means times calls) and the calls of each tensor, by name."""
        entries: dict[str, tuple[Floats, int]] = {}
        for _ in range(self._number("the number of entries", 1)):
            start = self._at
            name, values, calls = self._entry()
            if name in entries:
                self._source.fail(start, f"{name!r} is there twice; names must differ; the file is damaged")
            entries[name] = values, calls
        return entries

    def _entry(self) -> tuple[str, Floats, int]:
        name = self._text("the name of an entry", 1)
        calls = self._number("the number of calls", 0)
        count = self._number("the number of values", 1)
        start = self._at
        self._source.need(start, 4 * count, f"the values of {name!r}")
        self._at += 4 * count
        values = self._source.data[start : self._at].view("<f4").astype(np.float32)
        _check(f"imatrix: {self._source.path}: {name!r}", values)
        return name, values, calls

    def end(self) -> tuple[int, tuple[str, ...]]:
        """Chunks and data set, which the oldest files lack."""
        source = self._source
        if self._at == source.size:
            return 0, ()
        chunks = self._number("the number of chunks", 0)
        datasets = (self._text("the name of the data set", 0),) if self._at < source.size else ()
        if self._at != source.size:
            source.fail(
                self._at, f"{source.size - self._at} bytes follow the end; this is no importance matrix"
            )
        return chunks, tuple(filter(None, datasets))

    def _number(self, what: str, least: int) -> int:
        value = self._source.u32(self._at, what)
        if not least <= value < 1 << 31:
            self._source.fail(
                self._at,
                f"{what} is {value}; an importance matrix has {least} or more there; pass the file that "
                "llama-imatrix wrote",
            )
        self._at += 4
        return value

    def _text(self, what: str, least: int) -> str:
        size = self._number(f"the length of {what}", least)
        start = self._at
        self._source.need(start, size, what)
        self._at += size
        raw = self._source.map[start : self._at]
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            self._source.fail(
                start + error.start, f"{what} {raw[:80]!r} is not UTF-8; the file is damaged, or no imatrix"
            )


# --- collectors ------------------------------------------------------------------------------
# A weight is multiplied with an activation; the mean square of that says how much an error of the weight
# costs. A model of experts counts for each expert the tokens that reached it. A ``.dat`` has one count for
# all experts and stores means times calls: it is read as calls * ``chunk_size`` tokens, as llama-imatrix
# does.

Wide = NDArray[np.float64]
Counts = NDArray[np.int64]

TOKENS = 512  # in a chunk, if it is not told otherwise: llama-imatrix's own


@dataclass
class Entry:
    """The entry of one tensor: sums of squares [experts, K], and how often each row was counted."""

    sums: Wide
    counts: Counts

    def means(self) -> Wide:
        """Mean squares [experts, K]; 1 for an expert that no token reached."""
        return np.where(self.counts[:, None] > 0, self.sums / np.maximum(self.counts, 1)[:, None], 1.0)


def squares(x: Any, ids: Any = None, experts: int = 1) -> tuple[Any, Any]:
    """The sums of squares [experts, K] of rows, and how many rows each expert has, on the rows' device.

    x [..., K]; with ``ids`` [T, U] x is [T, K], [T, 1, K] or [T, U, K].
    """
    xp, rows = namespace(x), x.reshape(-1, x.shape[-1])
    square = xp.square(rows)
    if ids is None:
        return square.sum(axis=0, keepdims=True), xp.full(1, len(rows))
    times = (ids.reshape(len(rows), -1) == xp.arange(experts)[:, None, None]).sum(axis=-1)  # [experts, rows]
    return times.astype(square.dtype) @ square, times.sum(axis=-1)


class Collector(Imatrix):
    """Sums of squared activations by name of tensor; as a mapping their means, float32 [K] or [experts, K].

    An expert that no token reached has means of 1, as for llama.cpp's quantizer, unless ``mend`` was called.

    >>> import numpy as np, ggmlq as gq
    >>> collector = gq.gguf.Collector()
    >>> collector.add("blk.0.ffn_up.weight", np.float32([[1, 2], [3, 4]]))
    >>> collector["blk.0.ffn_up.weight"]
    array([ 5., 10.], dtype=float32)
    >>> collector.counts
    {'blk.0.ffn_up.weight': array([2])}
    """

    datasets: list[str]

    def __init__(self, chunk_size: int = TOKENS) -> None:
        self.entries: dict[str, Entry] = {}
        self.path, self.datasets, self.chunk_size = "", [], chunk_size
        self.interrupted = False  # by Ctrl-C: some of the text is not in it

    def __getitem__(self, name: str) -> Floats:
        means = self.entries[name].means().astype(np.float32)
        return means[0] if len(means) == 1 else means

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def counts(self) -> dict[str, Counts]:
        """The tokens of each tensor, one number an expert."""
        return {name: entry.counts for name, entry in self.entries.items()}

    @property
    def unseen(self) -> dict[str, tuple[int, ...]]:  # type: ignore[override]
        """The experts that no token reached, by tensor."""
        none = {name: np.flatnonzero(counts == 0) for name, counts in self.counts.items()}
        return {name: tuple(experts.tolist()) for name, experts in none.items() if len(experts)}

    def mend(self) -> None:
        """Give each expert that no token reached the mean of its tensor's tokens, as that of one token."""
        for name, experts in self.unseen.items():
            entry, rows = self.entries[name], list(experts)
            entry.sums[rows] = entry.sums.sum(axis=0) / max(entry.counts.sum(), 1)
            entry.counts[rows] = 1

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
            self.put(name, *squares(values))
            return
        chosen, tokens = np.asarray(ids), values.shape[:-1]
        fits = chosen.ndim == 2 and tokens in (chosen.shape, (len(chosen), 1), (len(chosen),))
        if not fits or experts is None or chosen.dtype.kind not in "iu" or chosen.min(initial=0) < 0:
            raise GGUFError(
                f"{request}: ids {chosen.shape} {chosen.dtype} with activations {values.shape} and "
                f"experts={experts}; ids are integers [T, U], activations [T, U or 1, K]; pass both so"
            )
        if chosen.max(initial=0) >= experts:
            raise GGUFError(f"{request}: expert {chosen.max()} of {experts}; ids count from 0; check both")
        self.put(name, *squares(values, chosen, experts))

    def merge(self, other: Collector) -> None:
        """Add all sums of another collector."""
        for name, entry in other.entries.items():
            self.put(name, entry.sums, entry.counts)
        self.datasets += other.datasets

    def put(self, name: str, sums: Any, counts: Any) -> None:
        """Add sums of squares [experts, K] and the tokens of each expert."""
        sums, counts = sums.astype(np.float64), counts.astype(np.int64)
        if not np.isfinite(sums).all():
            raise GGUFError(
                f"activations of {name!r}: NaN, or squares beyond any number; a model that gives them has no "
                "importance matrix"
            )
        entry = self.entries.get(name)
        if entry is None:
            self.entries[name] = Entry(sums, counts)
            return
        one, two = _alike(name, entry, Entry(sums, counts))
        self.entries[name] = Entry(one.sums + two.sums, one.counts + two.counts)

    @property
    def chunks(self) -> int:  # type: ignore[override]
        """The number of chunks, of ``chunk_size`` tokens each, that were counted."""
        most = max((int(entry.counts.max()) for entry in self.entries.values()), default=0)
        return most // self.chunk_size

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
            values = entry.means() * calls
            yield pack("<i", len(raw)) + raw + pack("<ii", calls, values.size)
            yield values.astype("<f4").tobytes()
        text = self.datasets[-1].encode() if self.datasets else b""
        yield pack("<ii", self.chunks, len(text)) + text


def collected(path: str | os.PathLike[str], chunk_size: int | None = None) -> Collector:
    """A collector with the sums of a file of either kind, to add to, or to write as the other kind."""
    text = checked_path("collected(path)", path, "pass the file that llama-imatrix wrote")
    source = Source(text)
    if source.map[:4] == MAGIC:
        with open(text) as file:
            return _collected_gguf(text, file, chunk_size)
    collector = Collector(chunk_size or TOKENS)
    reader = Legacy(source)
    for name, (values, calls) in reader.entries().items():
        count = max(calls, 1) * collector.chunk_size
        collector.entries[name] = Entry(
            values.astype(np.float64)[None] * collector.chunk_size, np.array([count])
        )
    collector.datasets = list(reader.end()[1])
    return collector


def _collected_gguf(path: str, file: GGUFFile, chunk_size: int | None) -> Collector:
    collector = Collector(chunk_size or number(file, CHUNK_SIZE) or TOKENS)
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
