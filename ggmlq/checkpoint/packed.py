"""Tensors of a GGUF file under the names of Hugging Face, blocks as they are, for modules that keep them so.

Rows of q and k go back to the order of the checkpoint, which moves whole rows of blocks; experts come one by
one; norms are floats again without the 1 that conversion added. Nothing else is decoded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..arrays.array import QuantArray
from ..errors import ConvertError
from ..gguf import GGUFFile
from .back import MADE, is_companion
from .families import LAYER, OF_ARCH, OUTER, Family

Place = tuple[str, str, Any]  # a name in the file, a name in the checkpoint, and the array


def packed(file: GGUFFile) -> Iterator[Place]:
    """Each tensor's name in the file, its name in the checkpoint, and its array, one after the other.

    >>> import os, tempfile, numpy as np, ggmlq as gq
    >>> path = os.path.join(tempfile.mkdtemp(), "tiny.gguf")
    >>> tensors = {"token_embd.weight": gq.quantize(np.ones((4, 32), np.float32), "q8_0")}
    >>> _ = gq.save(path, tensors, {"general.architecture": "qwen2"})
    >>> [(name, array.format.name) for _, name, array in gq.checkpoint.packed(gq.open(path))]
    [('model.embed_tokens.weight', 'q8_0')]
    """
    arch = file.metadata.get("general.architecture")
    family = OF_ARCH.get(arch) if isinstance(arch, str) else None
    if family is None:
        raise ConvertError(
            f"{file.path}: architecture {arch!r} has no names here; known are {', '.join(OF_ARCH)}; pass "
            "names, a mapping of this file's names to those of the model"
        )
    for name in file:
        if name not in MADE and not is_companion(file, name):
            yield from _renamed(file, family, name)


def _renamed(file: GGUFFile, family: Family, name: str) -> Iterator[Place]:
    q = file[name]
    stem, _, kind = name.rpartition(".")
    array: Any = q
    if family.norm_shift and name.endswith("norm.weight"):
        array = np.asarray(q) - np.float32(1)
    outer = {new: old for old, new in OUTER.items()}.get(stem)
    if outer:
        yield name, f"{outer}.{kind}", array
        return
    block = re.fullmatch(r"blk\.(\d{1,6})\.(.+)", stem)
    layer, inner = (LAYER.format(n=int(block[1])), block[2]) if block else ("", "")
    experts = {new: old for old, new in family.experts.items()}.get(inner)
    if experts and q.ndim == 3:
        for e in range(len(q)):
            yield name, f"{layer}{experts.format(e=e)}.{kind}", q[e]
        return
    old = {new: old for old, new in family.layer.items()}.get(inner)
    if not block or old is None:
        raise ConvertError(
            f"{file.path}: tensor {name!r} is unknown in {family.arch}; all must be known for names of "
            "Hugging Face; pass names, a mapping of this file's names to those of the model"
        )
    heads = _heads(file, family, inner)
    yield name, f"{layer}{old}.{kind}", array if heads is None else _separated(file, name, array, heads)


def _heads(file: GGUFFile, family: Family, inner: str) -> Any:
    """The number of heads whose rows lie in pairs; None where rows are in their order."""
    if not family.permuted or inner not in ("attn_q", "attn_k"):
        return None
    query = file.metadata.get(f"{family.arch}.attention.head_count")
    return file.metadata.get(f"{family.arch}.attention.head_count_kv", query) if inner == "attn_k" else query


def _separated(file: GGUFFile, name: str, q: QuantArray, heads: Any) -> QuantArray:
    """The rows of heads, pair after pair in the file, as the halves that the checkpoint has."""
    if type(heads) is not int or heads < 1 or q.shape[0] % (2 * heads):
        raise ConvertError(
            f"{file.path}: {name} has {q.shape[0]} rows, and the metadata {heads!r} heads; rows are heads of "
            "pairs; the metadata is of another model"
        )
    order = np.arange(q.shape[0]).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
    if q.ndim > 1:
        return q[order]
    return QuantArray.from_bytes(q.raw.view(q.format.dtype)[order], q.format, q.shape)
