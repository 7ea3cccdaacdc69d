"""Reader of importance matrices, which ``llama-imatrix`` writes: they say how much each column matters.

Both kinds of file hold sums of squared activations and the counts of these.

    *.dat   entries i32, then for each: name (length i32, bytes) · calls i32 · values i32 · float32 …
            and perhaps: chunks i32 · name of the data set (length i32, bytes); little-endian
    *.gguf  for each tensor NAME: NAME.in_sum2 [experts, K] and NAME.counts [experts, 1], float32

A ``.dat`` does not say how many experts a row of values is for: their tensor's shape does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ..errors import GGUFError
from .file import GGUFFile, open
from .header import MAGIC
from .source import Source, checked_path

Floats = NDArray[np.float32]

SUMS, COUNTS = ".in_sum2", ".counts"
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
        self.path, self.chunks, self.datasets = path, chunks, datasets
        self.unseen = dict(unseen or {})
        self._rows = dict(rows)

    def of(self, rows: Mapping[str, Floats]) -> Imatrix:
        """The matrix with other rows: some of them, or under other names."""
        unseen = {name: experts for name, experts in self.unseen.items() if name in rows}
        return Imatrix(self.path, rows, chunks=self.chunks, datasets=self.datasets, unseen=unseen)

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
    names = names_in(path, file)
    rows: dict[str, Floats] = {}
    unseen: dict[str, tuple[int, ...]] = {}
    for name in names:
        sums, counts = sums_of(path, file, name)
        rounded = np.floor(counts.astype(np.float64) + 0.5).astype(np.float32)
        missing = rounded == 0
        with np.errstate(invalid="ignore", divide="ignore"):
            means = sums.reshape(len(counts), -1) / rounded[:, None]
        means[missing] = 1
        rows[name] = means
        if missing.any():
            unseen[name] = tuple(np.flatnonzero(missing).tolist())
    return Imatrix(path, rows, chunks=number(file, CHUNKS), datasets=tuple(datasets_of(file)), unseen=unseen)


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
