"""Test vectors for kernels in any language: files of blocks, values, bounds, products and named mutants.

Everything is raw and little-endian, beside an index in JSON. The same version writes the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import reference
from ..arrays.array import QuantArray
from ..arrays.blocks import random_blocks
from ..arrays.rows import rows
from ..base.writing import write_whole
from ..errors import DumpError, UnsupportedError
from ..faults.blocks.operand import operand
from ..faults.blocks.rounding import ROUNDINGS
from ..faults.blocks.weights import mistakes
from ..faults.catalogue import CATALOGUE
from ..formats import BLOCK_FORMATS, BlockFormat
from ..ops import quantize
from .cover import covers

VERSION = 1  # of the layout: a reader looks at it first
SEED = 20_260_101
KINDS = ("normal", "outliers", "zeros", "spikes", "ties", "powers_of_two")
PRODUCTS = ((1, 8), (5, 16))  # rows of activations and of weights
ARITHMETICS = ("f32", "f16", "q8", "ggml-cpu", "ggml-mmvq")
MUTANTS = 3  # of one fault
DTYPES = {
    "blocks": "u1",
    "bytes": "u1",
    "values": "<f4",
    "bounds": "<f4",
    "x": "<f4",
    "y": "<f8",
    "y_bounds": "<f8",
}


class Vector(NamedTuple):
    """One case: its entry in the index, and arrays by the role of their file."""

    entry: dict[str, Any]
    arrays: dict[str, NDArray[Any]]


def write(folder: str | Path, formats: Any = None) -> dict[str, Any]:
    """Write vectors of some types (by default of all) into a new or empty folder; returns the index."""
    place = Path(folder)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise DumpError(f"vectors {place}: it is there and not empty; name a new folder")
    place.mkdir(parents=True, exist_ok=True)
    index: dict[str, Any] = {
        "ggmlq vectors": VERSION, "byte order": "little", "dtypes": DTYPES,
        "rule": "decode: |value - values| <= bounds, and not finite where values is not; "
        "product: |y - y| <= y_bounds; encode: bytes equal",
        "faults": {}, "cases": [],
    }  # fmt: skip
    for fmt in formats or BLOCK_FORMATS:
        if not isinstance(fmt, BlockFormat):
            raise UnsupportedError(f"vectors of {fmt.name}: it has no blocks; name a block type")
        for vector in (*_decode(fmt), *_encode(fmt), *_products(fmt), *_mutants(fmt)):
            index["cases"].append(_written(place, fmt, vector))
    used = dict.fromkeys(case["fault"] for case in index["cases"] if "fault" in case)
    index["faults"] = {name: CATALOGUE[name].says for name in used}
    write_whole(place / "index.json", json.dumps(index, indent=1, ensure_ascii=False) + "\n")
    return index


def _written(place: Path, fmt: BlockFormat, vector: Vector) -> dict[str, Any]:
    """The entry of one case, with its files written: TYPE/CASE.ROLE."""
    (place / fmt.name).mkdir(exist_ok=True)
    files = {}
    for role, array in vector.arrays.items():
        data = np.ascontiguousarray(array, DTYPES[role]).tobytes()
        name = f"{fmt.name}/{vector.entry['name']}.{role}"
        (place / name).write_bytes(data)
        files[role] = {"file": name, "shape": list(array.shape), "sha256": hashlib.sha256(data).hexdigest()}
    facts = {
        "type": fmt.name,
        "id": fmt.id,
        "block elements": fmt.block_size,
        "block bytes": fmt.dtype.itemsize,
    }
    return facts | vector.entry | {"files": files}


def _decode(fmt: BlockFormat) -> Iterator[Vector]:
    """Blocks with every code and hostile scales; bounds are those of a decoder in float32."""
    for cover in covers(fmt, SEED):
        q = QuantArray.from_bytes(cover.raw, fmt, cover.shape)
        with np.errstate(all="ignore"):
            bounds = ROUNDINGS["float32"].limits(operand(fmt, q.blocks)).astype(np.float32)
        entry = {"kind": "decode", "name": cover.name.replace(" ", "_"), "shape": list(cover.shape)}
        yield Vector(entry, {"blocks": cover.raw, "values": q.dequantize(), "bounds": bounds})


def _encode(fmt: BlockFormat) -> Iterator[Vector]:
    """Floats, and the bytes that ggml's encoder makes of them; where it needs an importance, that is ones."""
    if not fmt.can_quantize:
        return
    k = 2 * max(fmt.block_size, 32)
    parts = [
        rows(kind, 2, k, SEED + i) for i, kind in enumerate(KINDS if fmt.imatrix == "ignored" else KINDS[:1])
    ]
    x = np.concatenate(parts)
    q = quantize(x, fmt, imatrix=np.ones(k, np.float32) if fmt.needs_imatrix else None)
    entry = {
        "kind": "encode",
        "name": "encoded",
        "shape": list(x.shape),
        "imatrix": "ones" if fmt.needs_imatrix else None,
    }
    yield Vector(entry, {"x": x, "bytes": np.asarray(q.raw)})


def _products(fmt: BlockFormat) -> Iterator[Vector]:
    """X @ weights.T in each arithmetic, with the largest distance that a right kernel may have."""
    k = (3 if fmt.block_size > 64 else 5) * max(fmt.block_size, 32)
    for m, n in PRODUCTS:
        x = rows("normal", m, k, SEED + m)
        raw = random_blocks(fmt, n, k // fmt.block_size, SEED + n).view(np.uint8).reshape(n, -1)
        q = QuantArray.from_bytes(raw, fmt, (n, k))
        for name in ARITHMETICS:
            try:
                y, bounds = reference.linear(x, q, name), reference.bound(x, q, name)
            except UnsupportedError:
                continue
            if np.isfinite(bounds).all():
                entry = {
                    "kind": "product",
                    "name": f"product_{m}_{name}",
                    "arithmetic": name,
                    "m": m,
                    "n": n,
                    "k": k,
                }
                yield Vector(entry, {"x": x, "blocks": raw, "y": y, "y_bounds": bounds})


def _mutants(fmt: BlockFormat) -> Iterator[Vector]:
    """Values that wrong decoders give: a harness that reads the vectors must refuse each of them."""
    n = max(512 // fmt.block_size, 1)
    blocks = random_blocks(fmt, 1, n, SEED)
    q = QuantArray.from_bytes(blocks.view(np.uint8).reshape(1, -1), fmt, (1, n * fmt.block_size))
    with np.errstate(all="ignore"):
        limit, right = ROUNDINGS["float32"].limits(operand(fmt, blocks)), q.dequantize()
    entry = {"kind": "decode", "name": "mutants", "shape": list(q.shape)}
    yield Vector(entry, {"blocks": np.asarray(q.raw), "values": right, "bounds": limit})
    seen: dict[str, int] = {}
    for m in mistakes(fmt, blocks, np.arange(1)):
        with np.errstate(all="ignore"):
            values = m.replay.dense.astype(np.float32)
            off = np.abs(values - right) > limit
        count = seen.get(m.fault, 0)
        if count >= MUTANTS or not off.any() or not np.isfinite(values).all():
            continue
        seen[m.fault] = count + 1
        entry = {
            "kind": "mutant",
            "name": f"mutant_{m.fault}_{count}",
            "fault": m.fault,
            "words": m.words,
            "of": "mutants",
        }
        yield Vector(entry, {"values": values})
