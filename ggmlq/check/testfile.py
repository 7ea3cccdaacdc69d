"""Cases of a file of ``test-backend-ops --test-file``, as llama.cpp's export of graphs writes it.

A line has numbers of an operation, its type, lengths, parameters and sources; data are drawn here. The file
may hold any operation of ggml, products too. The library gives numbers their names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DumpError
from ..formats import FORMATS
from ..llama import Bridge
from ..llama.graph import Recorded
from ..llama.program import DTYPES, Leaf, source_name
from .cases import weights
from .sketch import COPIES, data_of

AXES = 4
# Data that an operation wants of a source; of ids the tensor and axis whose length they are below ("y": the
# result), and whether those of a row differ.
KINDS = {
    ("SQRT", 0): "positive", ("LOG", 0): "positive", ("DIV", 1): "positive", ("SOFT_MAX", 1): "mask",
    ("FLASH_ATTN_EXT", 3): "mask", ("SSM_SCAN", 3): "decay", ("SOLVE_TRI", 0): "triangle",
    ("ROPE", 1): "positions:3000", ("ROPE_BACK", 1): "positions:3000", ("TIMESTEP_EMBEDDING", 0): "positive",
    ("GATED_LINEAR_ATTN", 3): "gate", ("RWKV_WKV6", 4): "gate", ("RWKV_WKV7", 1): "gate",
    ("GATED_DELTA_NET", 3): "decay", ("GATED_DELTA_NET", 4): "gate", ("SOFT_MAX_BACK", 1): "share",
    ("LIGHTNING_INDEXER", 3): "mask",
}  # fmt: skip
IDS: dict[tuple[str, int], tuple[int | str, int, str]] = {
    ("GET_ROWS", 1): (0, 1, "ids"), ("MUL_MAT_ID", 2): (0, 2, "places"), ("ADD_ID", 2): (1, 1, "ids"),
    ("SET_ROWS", 1): ("y", 1, "places"), ("SSM_SCAN", 6): (0, 3, "places"),
    ("GET_ROWS_BACK", 1): ("y", 1, "ids"),
}  # fmt: skip


@dataclass(frozen=True)
class FileCase:
    """A case of a line; it is used as a case of the table is."""

    op: str
    about: str
    program: Recorded
    kinds: tuple[str, ...]
    seed: int = 0
    pool: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.op}({self.about})"

    @property
    def needs(self) -> int:
        """Bytes that the case takes in both processes."""
        return COPIES * sum(_extent(facts) for facts in self.program.leaves.values())

    def arrays(self) -> list[NDArray[Any]]:
        """The memory of the sources, the same for the same line and seed."""
        rng = np.random.default_rng([self.seed, 53])
        leaves = self.program.leaves.values()
        return [_memory(rng, facts, kind, self.seed) for facts, kind in zip(leaves, self.kinds, strict=True)]


def read(path: Path, bridge: Bridge, device: str, seed: int) -> list[FileCase]:
    """The cases of a file; their operations are those of this library's numbers."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DumpError(f"--test-file {path}: cannot be read: {error}; to write one name --ops") from error
    return [
        _case(path, number, line, bridge, device, seed)
        for number, line in enumerate(lines, 1)
        if line.strip() and not line.startswith("#")
    ]


def _case(path: Path, number: int, line: str, bridge: Bridge, device: str, seed: int) -> FileCase:
    *fields, name = line.split()
    try:
        numbers = iter([int(field) for field in fields])
        y = {"number": next(numbers), "type": _type(next(numbers)), "ne": _some(numbers, AXES), "name": name}
        words = _some(numbers, next(numbers))
        sources: list[dict[str, Any]] = [
            {"type": _type(next(numbers)), "ne": _some(numbers, AXES), "nb": _some(numbers, AXES)}
            for _ in range(next(numbers))
        ]
        if next(numbers, None) is not None or any(min(s["ne"]) < 1 or min(s["nb"]) < 0 for s in sources):
            raise ValueError("lengths, or more numbers than a line has")
    except (ValueError, StopIteration, KeyError, RuntimeError) as error:
        raise DumpError(
            f"--test-file {path}: line {number} is none of test-backend-ops ({error!r}); write the file again"
        ) from error
    unnamed = _recorded("", y, words, sources)
    op = bridge.op_of(unnamed, device)
    kinds = tuple(_kind(op, i, y, sources) for i in range(len(sources)))
    about = f"line {number}{'' if name == '-' else f', {name}'}"
    return FileCase(op, about, _recorded(op, y, words, sources), kinds, seed)


def _some(numbers: Iterator[int], count: int) -> list[int]:
    some = list(islice(numbers, count))
    if len(some) < count:
        raise ValueError(f"{count} numbers are missing")
    return some


def _type(number: int) -> str:
    return FORMATS[number].name


def _recorded(op: str, y: dict[str, Any], words: Sequence[int], sources: list[dict[str, Any]]) -> Recorded:
    names = [source_name(op, i) for i in range(len(sources))]
    node = {"op": op, "facts": y, "words": list(words), "sources": names}
    return Recorded(dict(zip(names, sources, strict=True)), (node,))


def _kind(op: str, i: int, y: dict[str, Any], sources: list[dict[str, Any]]) -> str:
    if (op, i) in IDS:
        of, axis, kind = IDS[op, i]
        return f"{kind}:{(y if of == 'y' else sources[int(of)])['ne'][axis]}"
    integers = sources[i]["type"] in ("i8", "i16", "i32", "i64")
    return KINDS.get((op, i), "ids:9" if integers else "normal")


def _extent(facts: dict[str, Any]) -> int:
    """Bytes from the first element of a tensor to the end of its last."""
    fmt, ne, nb = FORMATS[facts["type"]], facts["ne"], facts["nb"]
    inner = (ne[0] // fmt.block_size - 1) * nb[0] + fmt.dtype.itemsize
    return int(inner + sum((ne[i] - 1) * nb[i] for i in range(1, AXES)))


def _memory(rng: np.random.Generator, facts: dict[str, Any], kind: str, seed: int) -> NDArray[np.uint8]:
    """The bytes of a tensor, its elements where its strides say."""
    fmt, ne = FORMATS[facts["type"]], facts["ne"]
    if fmt.block_size > 1:
        n = int(np.prod(ne[1:]))
        values = np.ascontiguousarray(weights(fmt, "normal", n, ne[0], seed).raw).view(fmt.dtype)
    else:
        values = data_of(rng, Leaf(facts["type"], tuple(ne)), kind).view(DTYPES[facts["type"]])
    memory = np.zeros(_extent(facts), np.uint8)
    shape = (*ne[:0:-1], ne[0] // fmt.block_size, fmt.dtype.itemsize)
    places = np.lib.stride_tricks.as_strided(memory, shape, (*facts["nb"][::-1], 1))
    places[...] = np.ascontiguousarray(values).view(np.uint8).reshape(shape)
    return memory
