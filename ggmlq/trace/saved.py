"""Products and nodes that ``--save`` writes, and their replay alone: on the same library, or on another one.

A file holds the operation with its parameters, the facts about each tensor, and their bytes: what the node
really read, and what it gave. Of rows that ids pick only those that were picked are written. A group of nodes
has all of its members, so that a kernel that fuses them can fuse them again.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.dumps import Dump
from ..check.report import saving
from ..errors import DumpError, GGMLQError, UnsupportedError
from ..formats import FORMATS
from ..llama.bridge import Bridge
from ..llama.graph import Recorded
from ..llama.program import Node, source_name
from ..reference.nodes import OPERATIONS
from .fusion import ROUTES, Group
from .product import Product
from .tracer import extent
from .verdicts import Judge, unjudged

FORM = "ggmlq node 1"
UNSAFE = str.maketrans(dict.fromkeys('/\\:*?"<>| +', "_"))


def save(folder: Path, p: Product) -> Product:
    """Write a product as an npz, which `ggmlq check --replay` and `ggmlq diagnose` read."""
    if p.operands is None:
        return p
    x, y, q = p.operands.x, p.operands.y, p.operands.q
    facts: dict[str, Any] = {
        "format": np.array(p.type), "shape": np.array(q.shape), "data": np.array("normal"),
        "seed": np.array(0), "arithmetic": np.array(p.arithmetic), "claim": np.array(""),
        "node": np.array(p.node), "weights": np.array(p.weights), "buffer": np.array(p.buffer),
    }  # fmt: skip
    if p.operands.rows is not None and p.operands.columns is not None:
        facts |= {"rows": p.operands.rows, "columns": p.operands.columns}
    with saving(folder, f"{p.step}-{p.node.translate(UNSAFE)}-{p.type}.npz") as path:
        np.savez_compressed(path, x=x, y=y, raw=np.ascontiguousarray(q.raw), **facts)
    return replace(p, saved=str(path))


def save_node(folder: Path, p: Product) -> Product:
    """Write a wrong node that is no product; the record names the file."""
    if p.captured is None:
        return p
    name = f"{p.step}-{p.node.translate(UNSAFE)}-{p.op.translate(UNSAFE)[:40]}.npz"
    return replace(p, saved=str(write_node(folder, name, p.captured, p.fault)))


def write_node(folder: Path, name: str, node: Node, fault: str) -> Path:
    """Write a node with all that it reads; the path of the file."""
    facts = {
        "form": FORM, "op": node.op, "step": node.step, "tensors": node.tensors, "words": list(node.words),
        "members": list(node.members) if isinstance(node, Group) else None, "fault": fault,
    }  # fmt: skip
    arrays: dict[str, Any] = {f"tensor_{name}": array for name, array in node.arrays.items()}
    with saving(folder, name) as path:
        unfinished = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        with unfinished.open("wb") as file:
            np.savez_compressed(file, node=np.array(json.dumps(facts)), **arrays)
        unfinished.replace(path)
    return path


def is_node(path: str | Path) -> bool:
    """True for a file that ``save_node`` wrote."""
    try:
        dump = Dump(path)
        return dump.is_archive and "node" in dump and "format" not in dump
    except DumpError:
        return False


def load_node(path: str | Path) -> Node:
    """The node of a file."""
    dump = Dump(path)
    try:
        facts = json.loads(str(dump.array("node")))
        form = facts["form"]
        tensors = {str(name): dict(one) for name, one in facts["tensors"].items()}
        names = [name for name in tensors if f"tensor_{name}" in dump]
        arrays = {name: np.asarray(dump.array(f"tensor_{name}"), np.uint8) for name in names}
        parts = str(facts["op"]), int(facts["step"]), tensors, arrays, tuple(facts["words"])
        node = Node(*parts) if facts["members"] is None else Group(*parts, members=tuple(facts["members"]))
        if form == FORM:
            _check(path, node)
    except DumpError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise DumpError(
            f"{path}: no node that `ggmlq trace --save` wrote ({error!r}); save it again"
        ) from error
    if form != FORM:
        raise DumpError(f"{path}: its form is {form!r}, this version reads {FORM!r}; save it again")
    return node


def _check(path: str | Path, node: Node) -> None:
    """Raise an error for facts that lead out of the bytes of their tensor."""
    for name, array in node.arrays.items():
        facts = node.tensors[name]
        fmt = FORMATS[facts["type"]]
        ne, nb = ([int(n) for n in facts[key]] for key in ("ne", "nb"))
        size, block = fmt.dtype.itemsize, fmt.block_size
        whole = [len(ne) == len(nb) == 4, min(ne) > 0, min(nb) >= 0, nb[0] == size, ne[0] % block == 0]
        if not all(whole) or extent({"ne": ne, "nb": nb, "block": block}) > array.size:
            raise DumpError(
                f"{path}: tensor {name} of {fmt.name}, lengths {ne} and strides {nb}, does not fit into its "
                f"{array.size} bytes; save it again"
            )


def judged(node: Node) -> Product:
    """The record of a node that holds all that it reads, as the library gave it."""
    return Judge({}, "all").record(node)


def replay(
    bridge: Bridge, node: Node, device: str = "CPU", *, threads: int = 1, repeats: int = 1
) -> list[Product]:
    """Compute a saved node alone on a device; the record of each different result, or of an error of ours."""
    try:
        return _replayed(bridge, node, device, threads, repeats)
    except GGMLQError:
        raise
    except Exception as error:
        return [unjudged(node, error)]


def _replayed(bridge: Bridge, node: Node, device: str, threads: int, repeats: int) -> list[Product]:
    if isinstance(node, Group):
        if any(member["op"] in ROUTES for member in node.members[:-1]):
            raise UnsupportedError(f"{node.name}: a group with two results is judged, and cannot be replayed")
        nodes = tuple(node.members)
    else:
        count = {"MUL_MAT": 2, "MUL_MAT_ID": 3}.get(node.op) or OPERATIONS[node.op].sources
        names = [source_name(node.op, i) for i in range(count)]
        sources = [name if name in node.tensors else None for name in names]
        nodes = ({"op": node.op, "facts": node.tensors["y"], "words": node.words, "sources": sources},)
    read = {source for one in nodes for source in one["sources"] if isinstance(source, str)}
    leaves = {name: node.tensors[name] for name in sorted(read)}
    if missing := [name for name in leaves if name not in node.arrays]:
        raise UnsupportedError(
            f"{node.name}: {node.tensors[missing[0]]['name']} is not in the file, so that it cannot be "
            "replayed; save it again"
        )
    arrays = [node.arrays[name] for name in leaves]
    ran = bridge.node(Recorded(leaves, nodes), arrays, device, threads=threads, repeats=repeats)
    facts = {**ran.node.tensors["y"], "name": node.name}
    results: list[NDArray[np.uint8]] = []
    for y in (ran.node.arrays["y"], *ran.repeats):
        if not any(np.array_equal(y, one) for one in results):
            results.append(y)
    every = {**node.tensors, "y": facts}
    return [judged(replace(node, tensors=every, arrays={**node.arrays, "y": y})) for y in results]
