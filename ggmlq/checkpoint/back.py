"""Writes a GGUF file as safetensors: floats, under the names of Hugging Face if the architecture is known.

Blocks are decoded; norms lose the 1 that conversion added, q and k get their rows back in order, and stacked
experts are taken apart. Of other architectures tensors keep GGUF's names.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import gguf, safetensors
from ..arrays.array import QuantArray
from ..base.writing import write_whole
from ..errors import ConvertError
from ..formats import FORMATS, Format
from ..gguf import GGUFFile, Streamed
from ..gguf.companions import is_companion
from ..gguf.source import checked_path
from ..ops import quantize
from ..safetensors.file import ENDING
from . import backtokens, values
from .backconfig import AHEAD, class_of, config_of, family_of, layers_of
from .families import BARE, LAYER, OF_ARCH, OUTER, Family
from .togguf import STEP
from .values import FLOATS, Values

# --- blocks as they are, for modules that keep them packed -----------------------------------
# Rows of q and k go back to the order of the checkpoint, which moves whole rows of blocks; experts come one
# by one; norms are floats again without the 1 that conversion added. Nothing else is decoded.

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
    family = family_of(file, "pass names, a mapping of this file's names to those of the model")
    ahead = range(layers_of(file) - file.metadata.get(f"{family.arch}.{AHEAD}", 0), layers_of(file))
    beyond = tuple(f"blk.{i}." for i in ahead)
    for name in file:
        inner = name.split(".", 2)[-1]  # some have a place of their own beside their weights
        placed = inner in family.back or not is_companion(file, name)
        if name not in MADE and placed and not name.startswith(beyond):
            yield from _packed(file, family, name)


def _packed(file: GGUFFile, family: Family, name: str) -> Iterator[Place]:
    q = file[name]
    array: Any = q
    if family.norm_shift and name.endswith("norm.weight") and "ssm_" not in name:
        array = np.asarray(q) - np.float32(1)
    way = "pass names, a mapping of this file's names to those of the model"
    for new, expert, inner in names_of(file, family, name, q.shape, way):
        heads, change = heads_of(file, family, inner), family.back.get(inner, (new, None))[1]
        if expert is not None:
            yield name, new, q[expert]
        elif change is not None:
            yield name, new, change(file, q)
        else:
            yield name, new, array if heads is None else _separated(file, name, array, heads)


def names_of(
    file: GGUFFile, family: Family, name: str, shape: tuple[int, ...], way: str
) -> Iterator[tuple[str, int | None, str]]:
    """A tensor's names in the checkpoint, each with its expert (None: no stack) and its name in a layer."""
    stem, _, kind = name.rpartition(".")
    outer = {new: old for old, new in {**OUTER, **family.outer}.items()}.get(stem)
    if outer:
        yield f"{outer}.{kind}", None, ""
        return
    block = re.fullmatch(r"blk\.(\d{1,6})\.(.+)", name)
    layer, whole = (LAYER.format(n=int(block[1])), block[2]) if block else ("", "")
    if whole in family.back:
        yield f"{layer}{family.back[whole][0]}", None, whole
        return
    inner = whole.removesuffix(f".{kind}")
    for join in family.joined:
        if inner in join.names:
            yield f"{layer}{join.target}.{join.names.index(inner)}.{kind}", None, inner
            return
    experts = {new: old for old, new in family.experts.items()}.get(inner)
    if experts and len(shape) == (3 if kind == "weight" else 2):
        for expert in range(shape[0]):
            yield f"{layer}{experts.format(e=expert)}.{kind}", expert, inner
        return
    old = {new: old for old, new in family.layer.items()}.get(inner)
    if not block or old is None:
        raise ConvertError(
            f"{file.path}: tensor {name!r} is unknown in {family.arch}; all must be known for names of "
            f"Hugging Face; {way}"
        )
    yield f"{layer}{old}" if old in BARE else f"{layer}{old}.{kind}", None, inner


def heads_of(file: GGUFFile, family: Family, inner: str) -> Any:
    """The number of heads whose rows lie in pairs; None where rows are in their order."""
    if not family.permuted or inner not in ("attn_q", "attn_k"):
        return None
    query = file.metadata.get(f"{family.arch}.attention.head_count")
    keys = file.metadata.get(f"{family.arch}.attention.head_count_kv", query)
    if inner == "attn_k" and isinstance(keys, Sequence):  # of hybrids, 0 in layers without
        keys = max(keys, default=0)
    return keys if inner == "attn_k" else query


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


# --- whole files -----------------------------------------------------------------------------

# By conversion, from config.json.
MADE = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


@dataclass
class Back:
    """The checkpoint that a GGUF file becomes."""

    architecture: str | None
    tensors: dict[str, Any]  # arrays, and tensors that are made as they are written
    notes: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)


def to_safetensors(
    source: str | os.PathLike[str] | GGUFFile, target: str | os.PathLike[str], type: str = "f32"
) -> Back:
    """Write a GGUF model as safetensors.

    Parameters
    ----------
    source : path or GGUFFile
        The model, any part of a split one.
    target : str or os.PathLike
        A file that ends in .safetensors, or a folder, which gets model.safetensors, the files of the
        tokenizer, and, for architectures that are known, a config.json.
    type : str
        Of what was blocks: ``"f32"`` loses nothing, ``"f16"`` and ``"bf16"`` round once more. Floats keep
        their type.
    """
    file = source if isinstance(source, GGUFFile) else gguf.open(source)
    final = checked_path("to_safetensors(source, target)", target, "pass a str or an os.PathLike")
    result = plan(file, type)
    if final.endswith(ENDING):
        result.files = safetensors.save(final, result.tensors, {"format": "pt"})
        return result
    try:
        os.makedirs(final, exist_ok=True)
    except OSError as error:
        raise ConvertError(f"{final}: no folder can be made there: {error.strerror}; name another") from error
    result.files = safetensors.save(os.path.join(final, "model" + ENDING), result.tensors, {"format": "pt"})
    if result.architecture:
        result.files.append(_write(os.path.join(final, "config.json"), config_of(file)))
    written = write_tokenizer(file, final)
    result.files += [os.path.join(final, name) for name in written.files]
    result.notes += written.notes
    return result


def write_tokenizer(file: GGUFFile, folder: str, pieces: bool = True) -> backtokens.Written:
    """Write the files of a tokenizer into a folder; their contents, and notes on what they cannot say.

    ``pieces``: sentencepiece's file, too, where tokenizer.json says all that transformers needs.
    """
    written = backtokens.tokenizer(file.metadata, pieces)
    for name, content in written.files.items():
        _write(os.path.join(folder, name), content)
    return written


def plan(file: GGUFFile, type: str = "f32") -> Back:
    """Names and arrays of the new file; nothing is decoded yet."""
    fmt = FORMATS[type]
    if fmt.name not in FLOATS:
        raise ConvertError(
            f"safetensors of {fmt.name}: what was blocks becomes {', '.join(FLOATS)}; take one of them"
        )
    arch = file.metadata.get("general.architecture")
    family = OF_ARCH.get(arch) if isinstance(arch, str) else None
    if family is None:
        names = [name for name in file if not is_companion(file, name)]
        tensors = {name: _written(values.array_values(file[name]), fmt) for name in names}
        return Back(None, tensors, [f"architecture {arch!r} is unknown: tensors keep the names of GGUF"])
    result = Back(class_of(file, family), {})
    for name in file:
        if name in MADE:
            result.notes.append(
                f"{name} is not written: it comes from rope_scaling in config.json, which add by hand"
            )
            continue
        if is_companion(file, name):
            continue
        for new, weights in _renamed(file, family, name):
            result.tensors[new] = _written(weights, fmt)
    return result


def _renamed(file: GGUFFile, family: Family, name: str) -> Iterator[tuple[str, Values]]:
    weights = values.array_values(file[name])
    if family.norm_shift and name.endswith("norm.weight"):
        weights = values.shifted(weights, -1.0)
    way = "`ggmlq dequantize` keeps the names of GGUF"
    for new, expert, inner in names_of(file, family, name, weights.shape, way):
        if expert is not None:
            yield new, values.matrix_of(weights, expert)
        else:
            yield new, _ordered(file, family, inner, weights)


def _ordered(file: GGUFFile, family: Family, inner: str, weights: Values) -> Values:
    if not family.permuted or inner not in ("attn_q", "attn_k"):
        return weights
    heads = heads_of(file, family, inner)
    if type(heads) is not int or heads < 1 or weights.shape[0] % (2 * heads):
        key = f"{family.arch}.attention.head_count" + "_kv" * (inner == "attn_k")
        raise ConvertError(
            f"{file.path}: {key} is {heads!r}, and {inner} has {weights.shape[0]} rows; "
            "rows are heads of pairs; the metadata is of another model"
        )
    return values.separated(weights, heads)


def _written(weights: Values, fmt: Format) -> Any:
    """The array itself, if it has floats that stay as they are; else a stream of computed rows.

    Floats that are only moved keep their type; ``fmt`` is that of what was blocks.
    """
    if weights.plain is not None and weights.plain.format.block_size == 1:
        return weights.plain
    shifted = weights.plain is None and len(weights.shape) < 2  # of a norm something was taken off
    written_format = weights.floats or (FORMATS["f32"] if shifted else fmt)
    return Streamed(written_format, weights.shape, lambda: _parts(weights, written_format))


def _parts(weights: Values, fmt: Format) -> Iterator[QuantArray]:
    step = max(1, STEP // max(weights.columns, 1))
    for start in range(0, weights.rows, step):
        rows = weights.read(np.arange(start, min(start + step, weights.rows)))
        yield quantize(np.ascontiguousarray(rows if len(weights.shape) > 1 else rows.reshape(-1)), fmt)


def _write(path: str, content: Any) -> str:
    # Only without indentation is json's encoder compiled code: a vocabulary would take ten seconds.
    indent = None if path.endswith(backtokens.FILES[0]) else 2
    write_whole(path, content if isinstance(content, bytes) else json.dumps(content, indent=indent))
    return path
