"""Every rule of a GGUF file, as a list of findings: what ``ggmlq validate`` prints.

``open`` already refuses files that would give wrong results. Here are the further rules: values that
do not decode, blocks with NaN scales, and the demands of ggml's own reader.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ..arrays.array import QuantArray
from ..base.progress import Progress
from ..errors import GGUFError, GGUFOSError
from .file import GGUFFile, Part, open
from .header import aligned
from .metadata import Stored
from .plan import ALIGNMENTS, MAX_NAME
from .source import release
from .values import ValueType

ARCHITECTURE = "general.architecture"
SLAB = 1 << 16  # blocks looked at together


class Finding(NamedTuple):
    """One finding about a file. Errors make the file bad; notes do not."""

    severity: str  # "error" or "note"
    where: str
    text: str


def check(path: str) -> list[Finding]:
    """All findings about a model. Only the operating system's refusals are raised."""
    try:
        file = open(path)
    except GGUFOSError:
        raise
    except GGUFError as error:
        return [Finding("error", "structure", str(error))]
    with file:
        findings = structure(file)
        lacks = set(file.missing)
        for name in file.missing:
            try:
                file[name]
            except GGUFError as error:
                findings.append(Finding("error", "structure", str(error)))
        with Progress(sum(file.info(name).nbytes for name in file), "checking blocks") as progress:
            for name in file:
                findings += [] if name in lacks else _blocks(name, file[name])
                progress.advance(file.info(name).nbytes)
    return findings


def structure(file: GGUFFile) -> list[Finding]:
    """Findings about the layout and the metadata of an open file."""
    return [finding for part in file.parts for finding in _part(part)] + [*_metadata(file)]


def _part(part: Part) -> Iterator[Finding]:
    """Findings that ggml's reader would refuse, beyond those of ``open``."""
    source, header = part
    low, high = ALIGNMENTS
    if not low <= header.alignment <= high:
        yield Finding(
            "error", "general.alignment", f"is {header.alignment}; ggml and GGUF want {low} to {high}"
        )
    expected = 0
    for name, info in header.tensors.items():
        where = f"tensor {name!r}"
        if len(name.encode()) > MAX_NAME or "\0" in name:
            size = len(name.encode())
            yield Finding("error", where, f"the name has {size} bytes; ggml takes {MAX_NAME} without a NUL")
        if info.offset != expected:
            yield Finding(
                "error",
                where,
                f"lies at offset {info.offset}; ggml wants tensors without gaps, at {expected}",
            )
        if not info.nbytes:
            yield Finding("note", where, "has no elements; ggml may not load it")
        expected = aligned(info.offset + info.nbytes, header.alignment)
    end = min(header.data + expected, source.size) if header.tensors else header.end
    if source.size > aligned(end, header.alignment):
        yield Finding("note", source.path, f"{source.size - end} bytes follow the last tensor")
    if source.data[header.end : header.data].any():
        yield Finding("note", source.path, "the padding after the header is not zero")
    if header.version == 2:
        yield Finding("note", source.path, "is of GGUF version 2; a copy becomes version 3")


def _metadata(file: GGUFFile) -> Iterator[Finding]:
    metadata = file.metadata
    for key, entry in metadata.entries.items():
        try:
            metadata[key]
        except GGUFError as error:
            yield Finding("error", f"key {key!r}", str(error))
        if not key:
            yield Finding("error", "a key", "is empty; ggml aborts on it")
        if "\0" in key:
            yield Finding("error", f"key {key!r}", "has a NUL, where ggml ends a key")
        if isinstance(entry, Stored) and entry.words() == f"array of {ValueType.ARRAY.word}":
            yield Finding("note", f"key {key!r}", "is an array of arrays; ggml refuses such files")
    if ARCHITECTURE not in metadata:
        yield Finding("note", ARCHITECTURE, "is not there; llama.cpp cannot load the model")
    elif metadata.type(ARCHITECTURE) != ValueType.STRING.word:
        yield Finding("note", ARCHITECTURE, "is no string; llama.cpp cannot load the model")


def _blocks(name: str, q: QuantArray) -> Iterator[Finding]:
    """Findings about scales that are NaN, infinite or forbidden, which spoil every product."""
    blocks = np.atleast_1d(q.blocks)
    row = max(blocks.shape[-1], 1)
    flat, bad, first = blocks.reshape(-1), 0, -1
    for start in range(0, len(flat), SLAB):
        with np.errstate(invalid="ignore"):  # arm64 tells of a NaN that is converted
            wrong = q.format.invalid(flat[start : start + SLAB])
        if first < 0 and wrong.any():
            first = start + int(np.argmax(wrong))
        bad += int(np.count_nonzero(wrong))
        release(flat[start : start + SLAB])
    if bad:
        kind = (
            "blocks have a NaN, infinite or forbidden scale"
            if q.format.block_size > 1
            else "values are NaN or infinite"
        )
        yield Finding(
            "error",
            f"tensor {name!r}",
            f"{bad} of {len(flat)} {q.format.name} {kind}; the first is [{first // row}, {first % row}]",
        )
