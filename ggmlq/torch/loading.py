"""``load_``: a model is filled from a GGUF file, and its layers become packed ones.

One tensor at a time: memory is never above what the packed model takes and one tensor of floats.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

import ggmlq as gq

from ..base.progress import Progress
from .mixtures import Mixtures
from .modules import Packed, is_scaled
from .replacing import Names, Replaced, check_model, check_names, packed_layer, put_module, ties_of

# --- buffers that no file has, for a model made on the device meta ------------------------------
# The frequencies of rotary embeddings are such: their modules compute them from the model's config.


def refill(model: torch.nn.Module) -> dict[str, str]:
    """Fill buffers on meta that are in no ``state_dict``; names of those that stay there, with reasons."""
    left = {}
    for path, part in model.named_modules():
        empty = [name for name in sorted(part._non_persistent_buffers_set) if _is_empty(part, name)]
        fresh = _twin(part) if empty else None
        for name in empty:
            old, value = part._buffers[name], None if fresh is None else fresh._buffers.get(name)
            if value is None or value.is_meta or value.shape != old.shape:  # type: ignore[union-attr]
                left[f"{path}.{name}".removeprefix(".")] = (
                    f"no file has this buffer, and a {type(part).__name__} is not made of a config alone; it "
                    "is still on the device meta: set it before a call"
                )
            else:
                part.register_buffer(name, value.to(old.dtype), persistent=False)  # type: ignore[union-attr]
    return left


def _is_empty(part: torch.nn.Module, name: str) -> bool:
    value = part._buffers.get(name)
    return value is not None and value.is_meta


def _twin(part: Any) -> torch.nn.Module | None:
    """Another module of this class and config, on the host; None where a config is not all that it takes."""
    kind, config = type(part), getattr(part, "config", None)
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    takes = inspect.signature(kind).parameters.values()
    needed = [each.name for each in takes if each.default is each.empty and each.kind not in optional]
    if config is None or needed != ["config"] or next(part.parameters(), None) is not None:
        return None
    with torch.device("cpu"), torch.no_grad():
        twin: torch.nn.Module = kind(config)
    return twin


# --- a model from a file ------------------------------------------------------------------------


def load_(
    model: torch.nn.Module,
    file: Any,
    names: Names = None,
    *,
    strict: bool = True,
    progress: bool | None = None,
) -> Replaced:
    """Fill a model with the tensors of a GGUF file; blocks stay packed, layers of floats become packed ones.

    Parameters
    ----------
    model : torch.nn.Module
        It may be on the device ``meta``, where it takes no memory before.
    file : str, os.PathLike or GGUFFile
        The model's weights.
    names : mapping or callable, optional
        Names of parameters, such as ``"layers.0.up.weight"``, by names of tensors in the file; a name without
        one, or None for it, is passed over. By default those of Hugging Face's models, for families that
        ``ggmlq convert`` knows.
    strict : bool
        Parameters that got no tensor are an error.
    progress : bool, optional
        As in :func:`quantize_`.

    Returns
    -------
    Replaced
        ``taken``: parameters with their types; ``left``: tensors without a parameter, parameters without one,
        and buffers on meta that nothing filled. No file has buffers such as the frequencies of rotary
        embeddings; modules that are made of a config alone, as those of transformers, compute them again.
    """
    check_model("load_(model, file)", model)
    check_names(names)
    opened = file if hasattr(file, "metadata") else gq.open(file)
    if callable(tie := getattr(model, "tie_weights", None)):
        tie()  # early versions of transformers 5 leave it out on the device meta
    result, ties, mixtures = Replaced(), ties_of(model), Mixtures(model)
    with Progress(sum(opened[name].nbytes for name in opened), "loading", show=progress) as bar:
        for source, target, array in _places(opened, names, mixtures):
            bar.advance(getattr(array, "nbytes", 0))
            if target is None:
                result.left[source] = "it has no parameter"
            elif mixtures.take(target, array):
                result.taken[target] = array.format.name
            elif kind := _fill(model, target, array):
                result.taken[target] = kind
            else:
                result.left[source] = f"the model has no {target}"
    _tie(model, ties, result)
    result.left |= refill(model)
    for name, value in model.state_dict().items():
        companion = name.rpartition(".")[2] == "scale"
        if name not in result.taken and not companion and (value.device.type == "meta" or strict):
            result.left[name] = "the file has no tensor for it"
    missing = [name for name in result.left if name in model.state_dict()]
    if strict and missing:
        raise gq.errors.GGMLQError(
            f"load_(model, {str(getattr(opened, 'path', file))!r}): the file has no tensors for "
            f"{', '.join(missing[:5])}{' …' * (len(missing) > 5)} ({len(missing)} parameters); pass names "
            "that lead to them, or strict=False"
        )
    return result


def _places(file: Any, names: Names, mixtures: Mixtures) -> Iterator[tuple[str, str | None, Any]]:
    if names is None:
        yield from _known_places(file, mixtures)
        return
    look_up = names if callable(names) else names.get
    companions = {f"{name.removesuffix('.weight')}.scale" for name in file if file[name].scale is not None}
    for name in file:
        if name not in companions:
            yield name, look_up(name), file[name]


def _known_places(file: Any, mixtures: Mixtures) -> Iterator[tuple[str, str, Any]]:
    """Places by the names of checkpoints; experts that the model has in one module come as a stack."""
    before = ""
    for source, target, array in gq.checkpoint.packed(file):
        if (whole := mixtures.place(source, target)) is None:
            yield source, mixtures.renamed(target), array
        elif source != before:
            yield source, whole, file[source]
        before = source


def _fill(model: torch.nn.Module, target: str, array: Any) -> str:
    """Put an array where a parameter was; the type that it has there, and nothing where there is none."""
    path, _, kind = target.rpartition(".")
    try:
        part: Any = model.get_submodule(path)
        old = getattr(part, kind)
    except AttributeError:
        return ""
    if not isinstance(old, torch.Tensor):
        return ""
    shape = tuple(part.blocks_shape) if isinstance(part, Packed) and kind == "weight" else tuple(old.shape)
    short, long = ([n for n in axes if n != 1] for axes in (array.shape, shape))
    bent = tuple(array.shape) != shape  # a file may leave out axes of length 1
    if bent and short != long:
        raise gq.errors.ShapeError(
            f"load_(model, file): {target} has shape {shape}, its tensor {tuple(array.shape)}; the file is "
            "of another model, or names lead astray"
        )
    name = array.format.name if isinstance(array, gq.QuantArray) else "f32"
    blocks = isinstance(array, gq.QuantArray) and array.format.block_size > 1
    if blocks and kind == "weight" and is_packable(part) and not bent:
        device, new = part.weight.device, packed_layer(part, array)
        put_module(model, path, new if device.type == "meta" else new.to(device))
        return name
    dtype = old.dtype if old.dtype.is_floating_point else torch.get_default_dtype()
    device = torch.device("cpu") if old.device.type == "meta" else old.device
    values = torch.from_numpy(np.array(array, np.float32)).reshape(shape).to(device, dtype)
    if isinstance(old, torch.nn.Parameter):
        setattr(part, kind, torch.nn.Parameter(values, requires_grad=old.requires_grad))
    else:
        part.register_buffer(kind, values)
    return f"{name}, decoded" if blocks else name


def is_packable(part: Any) -> bool:
    """True for a layer that a packed one may replace: what it computes is torch's own, or known here."""
    known = (torch.nn.Linear.forward, torch.nn.Embedding.forward)
    return isinstance(part, Packed) or type(part).forward in known or is_scaled(part)


def _tie(model: torch.nn.Module, ties: Mapping[str, str], result: Replaced) -> None:
    """Give tied weights that the file does not have their other's tensor."""
    for name, other in ties.items():
        if name in result.taken or other not in result.taken:
            continue
        path, _, kind = name.rpartition(".")
        part, source = model.get_submodule(path), model.get_submodule(other.rpartition(".")[0])
        if isinstance(source, Packed) and kind == "weight":
            put_module(model, path, packed_layer(part, source))
        else:
            setattr(part, kind, getattr(source, other.rpartition(".")[2]))
        result.taken[name] = result.taken[other]
