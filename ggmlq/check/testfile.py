"""Lines for ``test-backend-ops --test-file``: nodes as llama.cpp's own test replays them, with random data.

A line has the numbers of the operation and its type, lengths, parameters, sources with their lengths and
strides, and a name. The number of an operation is that of the library which computed the node.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..base.writing import write_whole
from ..errors import GGMLQError
from ..formats import FORMATS
from ..llama.program import NAMES, Node, source_name

MOST_SOURCES = 10


def node_line(node: Node, name: str = "") -> str | None:
    """The line of a node; None where the format cannot say it.

    These are nodes with a source left out in the middle, and SET_ROWS, to whose result the test gives fresh
    memory with anything in its other rows.
    """
    if node.op == "SET_ROWS":
        return None
    named = NAMES.get(node.op)
    count = len(named) if named else MOST_SOURCES
    sources = [node.tensors.get(source_name(node.op, i)) for i in range(count)]
    while sources and sources[-1] is None:
        sources.pop()
    y = node.tensors["y"]
    if "number" not in y or any(source is None for source in sources):
        return None
    numbers = [y["number"], FORMATS[y["type"]].id, *y["ne"], len(node.words), *node.words, len(sources)]
    for source in sources:
        assert source is not None
        numbers += [FORMATS[source["type"]].id, *source["ne"], *source["nb"]]
    label = "".join(c if c.isalnum() or c in "_-." else "_" for c in name or node.name)
    return " ".join(map(str, [*numbers, label or "-"]))


def write_lines(path: Path, lines: Iterable[str | None]) -> int:
    """Write each line once, and return how many there are."""
    unique = list(dict.fromkeys(line for line in lines if line))
    try:
        write_whole(path, "".join(f"{line}\n" for line in unique))
    except OSError as error:
        raise GGMLQError(f"--test-file {path}: {error.strerror}; name another file") from error
    return len(unique)
