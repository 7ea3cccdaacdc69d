"""Saving a safetensors file: checked and laid out in full, streamed to a temporary file, given its name.

The header lists tensors in the order in which they come; the data has those with wide elements first, so that
every tensor is aligned, as the package ``safetensors`` lays it out too.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ..arrays.array import QuantArray
from ..arrays.scaled import ScaledArray
from ..arrays.tensors import bits_of, is_tensor
from ..arrays.weights import Divided
from ..base.devices import is_host
from ..base.progress import Progress
from ..base.text import short
from ..errors import GGUFError, SafetensorsError, SafetensorsNotFoundError, SafetensorsOSError
from ..gguf import plan
from ..gguf.atomic import Chunk, Staging
from ..gguf.plan import SLAB_BYTES, Described, Streamed, slabs
from ..gguf.source import Extent, checked_path, place, release
from .file import SafetensorsFile
from .header import BY_CODE, BY_DTYPE, BY_FORMAT, METADATA, TYPES
from .scales import SUFFIXES, ZERO_POINT

ALIGNMENT = 8  # of the data, by spaces after the JSON
FOREIGN = {
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
}


class Item(NamedTuple):
    """A tensor as it will be written."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Any

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * TYPES[self.dtype].bits // 8


def save(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Any] | Iterable[tuple[str, Any]],
    metadata: Any = None,
) -> list[str]:
    """Write a safetensors file, so that it is there in full or not at all.

    Parameters
    ----------
    path : str or os.PathLike
        The file.
    tensors : mapping or pairs of name and array
        QuantArrays of floats and integers, ScaledArrays, NumPy and CuPy arrays, torch tensors, or an open
        file. A ScaledArray ``w`` becomes the two tensors ``w`` and ``w_scale_inv`` (``w_scale`` for
        integers).
    metadata : mapping of str to str, optional
        What ``__metadata__`` holds.

    >>> import os, tempfile, numpy as np, ggmlq as gq
    >>> path = os.path.join(tempfile.mkdtemp(), "m.safetensors")
    >>> _ = gq.save(path, {"w": np.ones((2, 4), np.float16)})
    >>> gq.open(path)["w"]
    <QuantArray f16 (2, 4), ne [4, 2], 16 bytes, cpu>
    """
    final = checked_path("save(path, tensors)", path, "the path comes first; pass a str or an os.PathLike")
    request = f"save({final!r})"
    try:
        if isinstance(tensors, SafetensorsFile):  # as it is, under the names that scales have there
            entries = map(tensors.info, tensors)
            items = [Item(e.name, e.dtype, e.shape, tensors.raw(e.name)) for e in entries]
        else:
            items = _items(tensors.items() if isinstance(tensors, Mapping) else tensors)
        header = _header(items, _texts({} if metadata is None else metadata))
        plan.check_target(final)
        plan.check_room([(final, len(header) + sum(item.nbytes for item in items))])
        _write(final, header, items)
    except SafetensorsError as error:
        raise type(error)(f"{request}: {error}") from error.__cause__
    except OSError as error:
        kind = SafetensorsNotFoundError if isinstance(error, FileNotFoundError) else SafetensorsOSError
        message = (
            str(error) if isinstance(error, GGUFError) else f"the system refused: {error.strerror or error}"
        )
        raise kind(f"{request}: {message}; nothing has changed under that name", error) from error
    except GGUFError as error:
        raise SafetensorsError(f"{request}: {error}") from error
    return [final]


def _items(pairs: Iterable[tuple[str, Any]]) -> list[Item]:
    items: dict[str, Item] = {}
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise SafetensorsError(
                f"{short(pair)} is no pair of a name (str) and an array; pass a dict of them"
            )
        for item in _parts(*pair):
            other = items.get(item.name)
            if other is not None and not (isinstance(pair[1], ScaledArray) or _same(other.data, item.data)):
                raise SafetensorsError(
                    f"the tensor {short(item.name)} is given twice; names must differ; rename one"
                )
            items[item.name] = item
    return list(items.values())


def _same(a: Any, b: Any) -> bool:
    """True for one array under two names: an open file gives scales with their weights and by themselves."""
    return isinstance(b, QuantArray) and getattr(a, "nbytes", None) == b.nbytes


def _parts(name: str, x: Any) -> Iterator[Item]:
    if not name or name == METADATA or any(0xD800 <= ord(c) < 0xE000 for c in name):
        raise SafetensorsError(
            f"the name {short(name)} is none for a tensor; it is text, not empty and not {METADATA}; rename "
            "it"
        )
    if not isinstance(x, ScaledArray):
        yield _item(name, x)
        return
    yield Item(name, BY_CODE[x.code.name], x.shape, x.codes)
    suffix = SUFFIXES[0] if x.code.kind == "float" else SUFFIXES[1]
    dtype = "F8_E8M0" if x.scale == "e8m0" else "F32"
    yield Item(name + suffix, dtype, tuple(x.scales.shape), x.scales)
    if x.zeros is not None:
        yield _item(name + ZERO_POINT, x.zeros)


def _item(name: str, x: Any) -> Item:
    if isinstance(x, Divided):
        raise SafetensorsError(f'tensor {name!r} is {x!r}, and a file holds whole arrays; pass x.to("cpu")')
    if isinstance(x, QuantArray | Streamed):
        kind = BY_FORMAT.get(x.format.name)
        if kind is None:
            raise SafetensorsError(
                f"tensor {name!r} is {x.format.name}; safetensors has no blocks of ggml's; pass "
                "x.dequantize(), or run `ggmlq convert model.gguf FOLDER`"
            )
        if isinstance(x, QuantArray) and x.scale is not None:
            x = x.dequantize(np.float64 if x.format.name == "f64" else np.float32)
            return Item(name, _dtype(name, x), x.shape, x)
        return Item(name, kind, x.shape, x)
    if is_tensor(x):
        dtype = str(x.dtype).removeprefix("torch.")
        bits = x.view(_torch_bits(x)) if dtype in FOREIGN else x
        array = bits_of(f"tensor {name!r}", bits, "x")
        return Item(name, FOREIGN.get(dtype) or _dtype(name, array), tuple(x.shape), array)
    if not hasattr(x, "dtype") or not hasattr(x, "shape") or isinstance(x, np.ma.MaskedArray):
        raise SafetensorsError(
            f"tensor {name!r} is a {type(x).__name__}; QuantArrays, ScaledArrays, NumPy and CuPy arrays and "
            "tensors of torch are saved; convert it with np.asarray(x)"
        )
    return Item(name, FOREIGN.get(x.dtype.name) or _dtype(name, x), tuple(x.shape), x)


def _torch_bits(x: Any) -> Any:
    torch = sys.modules["torch"]  # who passes a tensor has it
    return torch.int16 if x.element_size() == 2 else torch.uint8


def _dtype(name: str, x: Any) -> str:
    kind = BY_DTYPE.get(x.dtype.newbyteorder("<"))
    if kind is None:
        raise SafetensorsError(
            f"tensor {name!r}: its dtype is {x.dtype}; safetensors holds "
            f"{', '.join(str(dtype) for dtype in BY_DTYPE)} and bfloat16; convert it with "
            "x.astype(np.float32)"
        )
    return kind


def _texts(metadata: Any) -> Mapping[str, str]:
    if not isinstance(metadata, Mapping) or not all(
        isinstance(text, str) for pair in metadata.items() for text in pair
    ):
        raise SafetensorsError(
            f"metadata is {short(metadata)}; safetensors maps texts to texts; pass str(value) for others"
        )
    return metadata


def _laid_out(items: list[Item]) -> list[Item]:
    return sorted(items, key=lambda item: -TYPES[item.dtype].bits)


def _header(items: list[Item], metadata: Mapping[str, str]) -> bytes:
    at, places = 0, {}
    for item in _laid_out(items):
        places[item.name] = [at, at + item.nbytes]
        at += item.nbytes
    header: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    for item in items:
        header[item.name] = {"dtype": item.dtype, "shape": item.shape, "data_offsets": places[item.name]}
    raw = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "strict")
    raw += b" " * (-len(raw) % ALIGNMENT)
    return len(raw).to_bytes(8, "little") + raw


def _write(final: str, header: bytes, items: list[Item]) -> None:
    total = sum(item.nbytes for item in items)
    with Progress(total, "writing safetensors") as progress, Staging([final]) as staging:
        staging.write(_chunks(header, items, progress))
        staging.commit()


def _chunks(header: bytes, items: list[Item], progress: Progress) -> Iterator[Chunk]:
    yield header
    for item in _laid_out(items):
        for slab in _slabs(item):
            yield slab
            progress.advance(len(slab.data if isinstance(slab, Extent) else slab))


def _slabs(item: Item) -> Iterator[memoryview | Extent]:
    if isinstance(item.data, QuantArray | Streamed):
        yield from slabs(item.data, Described(item.name, item.data.format, item.shape), "little")
        return
    host = item.data if is_host(item.data) else item.data.get()
    flat = np.ascontiguousarray(host, host.dtype.newbyteorder("<")).reshape(-1).view(np.uint8)
    for start in range(0, len(flat), SLAB_BYTES):
        part = flat[start : start + SLAB_BYTES]
        location = place(part)
        yield part.data if location is None else Extent(*location, part.data)
        release(part)
