"""Every rule of a model in safetensors, as a list of findings: what ``ggmlq validate`` prints.

``open`` already refuses files that would give wrong results. The further findings are values that are NaN or
infinite, scales that do not fit their weights, and tensors that a partial download lacks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ..base.progress import Progress
from ..errors import GGMLQError, SafetensorsError, SafetensorsOSError
from ..gguf.check import Finding
from ..gguf.source import release
from .file import SafetensorsFile, open
from .header import Entry
from .scales import is_scaled, name_of_scale

SLAB = 1 << 20  # elements looked at together
EXPONENTS = {"F16": (np.uint16, 0x7C00), "BF16": (np.uint16, 0x7F80)}  # all ones: NaN or infinite


def check(path: str) -> list[Finding]:
    """All findings about a model. Only the operating system's refusals are raised."""
    try:
        file = open(path)
    except SafetensorsOSError:
        raise
    except SafetensorsError as error:
        return [Finding("error", "structure", str(error))]
    with file:
        findings = [
            Finding("error", name, "is not there: the download is incomplete") for name in file.absent_files
        ]
        findings += [
            Finding("error", f"tensor {name!r}", "is not there: the download is incomplete")
            for name in file.missing
        ]
        lacks = set(file.missing)
        names = [name for name in file if name not in lacks]
        entries = {name: file.info(name) for name in names}
        with Progress(sum(file.info(name).nbytes for name in names), "checking tensors") as progress:
            for name in names:
                findings += _tensor(file, entries, name)
                progress.advance(file.info(name).nbytes)
        listed = set(file)
        for part in file.parts:
            for name in part.header.tensors:
                if name not in listed:
                    findings.append(
                        Finding("note", part.source.path, f"has {name!r}, which the index does not list")
                    )
    return findings


def _tensor(file: SafetensorsFile, entries: Mapping[str, Entry], name: str) -> Iterator[Finding]:
    entry, where = entries[name], f"tensor {name!r}"
    try:
        if is_scaled(entry, entries):
            file[name]
    except GGMLQError as error:
        yield Finding("error", where, str(error))
    if entry.type.dtype is None:
        yield Finding("note", where, f"is {entry.dtype}, which ggmlq does not read")
        return
    bad = _bad(file, name)
    if bad:
        yield Finding("error", where, f"{bad} of its {entry.dtype} values are NaN or infinite")
    if entry.type.code is not None and name_of_scale(name, entries) is None:
        yield Finding("note", where, f"is {entry.dtype} without scales")


def _bad(file: SafetensorsFile, name: str) -> int:
    """The number of values that are NaN or infinite."""
    entry = file.info(name)
    values = file.stored(name).reshape(-1)
    if values.dtype.kind not in "fc" and entry.dtype not in EXPONENTS and entry.type.code is None:
        return 0
    count = 0
    for start in range(0, len(values), SLAB):
        part = values[start : start + SLAB]
        if entry.dtype in EXPONENTS:
            kind, ones = EXPONENTS[entry.dtype]
            wrong = part.view(kind) & ones == ones
        elif entry.type.code is not None:
            wrong = ~np.isfinite(entry.type.code.table[part])
        else:
            wrong = ~np.isfinite(part)
        count += int(np.count_nonzero(wrong))
        release(part)
    return count
