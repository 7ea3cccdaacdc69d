"""``quantize_`` and ``load_``: layers of a model become packed ones, from their floats or from a GGUF file.

One tensor at a time: memory is never above what the packed model takes and one tensor of floats.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

import ggmlq as gq

from ..base.progress import Progress
from .blocks import file_bytes
from .modules import Embedding, Experts, Linear, Packed
from .names import Names, Patterns, check_model, check_names, matches


@dataclass
class Replaced:
    """The outcome: names of layers that are packed now, with their types, and of others, with reasons."""

    taken: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{len(self.taken)} layers packed, {len(self.left)} left"]
        lines += [f"  {name}: {kind}" for name, kind in self.taken.items()]
        return "\n".join(lines + [f"  {name}: left, {why}" for name, why in self.left.items()])


def quantize_(
    model: torch.nn.Module, type: Any, *, include: Patterns = None, exclude: Patterns = None,
    imatrix: Mapping[str, Any] | None = None, progress: bool | None = None,
) -> Replaced:  # fmt: skip
    """Quantize the layers of a model in place: ``torch.nn.Linear`` and ``torch.nn.Embedding`` become packed.

    Parameters
    ----------
    model : torch.nn.Module
        On any device; packed layers come to the device of the floats.
    type : str, int or Format
        As in :func:`ggmlq.quantize`, with the same bytes.
    include, exclude : str, list of str, or callable
        Names of layers: patterns with ``*``, ``?`` and ``[…]``, or a function of a name. All by default.
    imatrix : mapping, optional
        Importance of columns [K] by the name of a layer, with or without ``.weight``.
    progress : bool, optional
        True shows a bar, False none; otherwise there is one on a terminal if it takes long.

    Returns
    -------
    Replaced
        ``taken`` and ``left``, which also says why: rows that are no whole blocks, names that were excluded.
    """
    check_model(f"quantize_(model, {type!r:.40})", model)
    fmt, result = gq.formats[type], Replaced()
    layers = {name: _bytes_of(part) for name, part in model.named_modules() if _is_floats(part)}
    _check_imatrix(model, fmt, layers, imatrix)
    ties = {
        name.removesuffix(".weight"): other.removesuffix(".weight") for name, other in _ties(model).items()
    }
    bar = Progress(sum(layers.values()), f"quantizing to {fmt.name}", show=progress)
    try:
        for name, size in layers.items():
            part = model.get_submodule(name)
            if reason := _reason(name, part, fmt, include, exclude):
                result.left[name] = reason
            else:
                tied = model.get_submodule(ties[name]) if ties.get(name) in result.taken else None
                known = tied if isinstance(tied, Packed) else None
                blocks = known if known is not None else _quantized(name, part, fmt, imatrix)
                _put(model, name, _packed(part, blocks))
                result.taken[name] = fmt.name
            del part  # its floats go before the next layer's blocks come
            bar.advance(size)
    finally:
        bar.close()
    for name, part in model.named_modules():
        if isinstance(part, Packed) and name not in result.taken:
            result.left[name] = f"it is packed already, in {part.format.name}"
    for name, parameter in model.named_parameters():
        matrix = parameter.dim() > 1 and parameter.dtype.is_floating_point
        if matrix and name.rpartition(".")[0] not in layers:
            result.left[name] = "it is no weight of a torch.nn.Linear or torch.nn.Embedding"
    return result


def _bytes_of(part: Any) -> int:
    return int(part.weight.numel() * part.weight.element_size())


def _is_floats(part: torch.nn.Module) -> Any:
    return type(part) in (torch.nn.Linear, torch.nn.Embedding)


def _reason(name: str, part: Any, fmt: Any, include: Patterns, exclude: Patterns) -> str:
    """The reason why a layer stays as it is; empty where there is none."""
    if not matches(name, include, exclude):
        return "its name was not picked"
    if part.weight.device.type == "meta":
        raise gq.errors.DeviceError(
            f"quantize_(model, {fmt.name!r}): {name} is on the device meta, which has no numbers; load its "
            "weights first, or fill the model with ggmlq.torch.load_"
        )
    k = part.weight.shape[1]
    if k % fmt.block_size:
        return f"its rows have {k} numbers, blocks of {fmt.name} hold {fmt.block_size}"
    return "its max_norm changes rows that are read" if getattr(part, "max_norm", None) is not None else ""


def _check_imatrix(model: Any, fmt: Any, layers: Any, imatrix: Mapping[str, Any] | None) -> None:
    """Refuse importance that has no layer, or another number of columns than its layer."""
    for key, values in ({} if imatrix is None else imatrix).items():
        name, request = key.removesuffix(".weight"), f"quantize_(model, {fmt.name!r}, imatrix=)"
        if name not in layers:
            if name in dict(model.named_modules()):
                continue  # a layer that stays as it is, or is packed already
            raise gq.errors.ImportanceError(
                f"{request}: the model has no layer {name!r}; its layers are {', '.join(list(layers)[:5])}"
                f"{' …' * (len(layers) > 5)}; pass importance by their names"
            )
        shape, k = np.shape(values), model.get_submodule(name).weight.shape[1]
        if shape != (k,):
            raise gq.errors.ImportanceError(
                f"{request}: {name!r} has importance of shape {shape}; its rows have {k} numbers; pass ({k},)"
            )


def _quantized(name: str, part: Any, fmt: Any, imatrix: Mapping[str, Any] | None) -> gq.QuantArray:
    importance = None
    if imatrix is not None:
        importance = imatrix.get(name, imatrix.get(f"{name}.weight"))
    floats = part.weight.detach()
    return gq.quantize(floats.float() if floats.dtype == torch.bfloat16 else floats, fmt, importance)


def _packed(part: Any, source: gq.QuantArray | Packed) -> Packed:
    """The packed layer in place of one of floats; ``source``: its blocks, or a layer that has them too."""
    blocks = source if isinstance(source, gq.QuantArray) else _view(source)
    new: Packed
    if isinstance(part, torch.nn.Linear):
        bias = part.bias
        new = Linear(blocks, bias)
    else:
        dtype = part.weight.dtype if part.weight.dtype.is_floating_point else None
        new = Embedding(blocks, dtype)
    if isinstance(source, Packed):  # tied weights stay one, in the order that both read
        if not (new.strips and source.strips):
            source.weight.data = file_bytes(source.weight.data, source.blocks_type, source.blocks_shape)
            new.strips = source.strips = False
        new.weight = source.weight
    return new.train(part.training)


def _view(layer: Packed) -> gq.QuantArray:
    """The blocks of a layer as an array, for another layer with the same."""
    raw = file_bytes(layer.weight.detach(), layer.blocks_type, layer.blocks_shape)
    scale = None if layer.scale is None else layer.scale.cpu().numpy()
    host = raw.numpy() if raw.device.type == "cpu" else raw.cpu().numpy()
    return gq.QuantArray.from_bytes(host, layer.ggml_type, layer.blocks_shape, scale)


def _put(model: torch.nn.Module, name: str, part: torch.nn.Module) -> None:
    if not name:
        raise gq.errors.UnsupportedError(
            "quantize_(model, …): the model is a single layer, which cannot be replaced in itself; make one "
            "with ggmlq.torch.Linear(gq.quantize(layer.weight, …), layer.bias)"
        )
    model.set_submodule(name, part)


# --- from a file ----------------------------------------------------------------------------------


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
        ``taken``: parameters with their types; ``left``: tensors without a parameter, parameters without one.
    """
    check_model("load_(model, file)", model)
    check_names(names)
    opened = file if hasattr(file, "metadata") else gq.open(file)
    result, bar = Replaced(), Progress(sum(opened[name].nbytes for name in opened), "loading", show=progress)
    ties = _ties(model)
    try:
        for source, target, array in _places(opened, names):
            bar.advance(getattr(array, "nbytes", 0))
            if target is None:
                result.left[source] = "it has no parameter"
            elif _fill(model, target, array, ties):
                result.taken[target] = array.format.name if isinstance(array, gq.QuantArray) else "f32"
            else:
                result.left[source] = f"the model has no {target}"
    finally:
        bar.close()
    _tie(model, ties, result)
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


def _places(file: Any, names: Names) -> Iterator[tuple[str, str | None, Any]]:
    if names is None:
        yield from gq.checkpoint.packed(file)
        return
    look_up = names if callable(names) else names.get
    companions = {f"{name.removesuffix('.weight')}.scale" for name in file if file[name].scale is not None}
    for name in file:
        if name not in companions:
            yield name, look_up(name), file[name]


def _ties(model: torch.nn.Module) -> dict[str, str]:
    """Names of parameters that are another one, by that one's name: tied weights."""
    first: dict[int, str] = {}
    ties = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        other = first.setdefault(id(parameter), name)
        if other != name:
            ties[name] = other
    return ties


def _fill(model: torch.nn.Module, target: str, array: Any, ties: Mapping[str, str]) -> bool:
    """Put an array where a parameter was; False where there is none."""
    path, _, kind = target.rpartition(".")
    try:
        part: Any = model.get_submodule(path)
        old = getattr(part, kind)
    except AttributeError:
        return False
    if not isinstance(old, torch.Tensor):
        return False
    shape = tuple(part.blocks_shape) if isinstance(part, Packed) and kind == "weight" else tuple(old.shape)
    if tuple(array.shape) != shape:
        raise gq.errors.ShapeError(
            f"load_(model, file): {target} has shape {shape}, its tensor {tuple(array.shape)}; the file is "
            "of another model, or names lead astray"
        )
    is_layer = isinstance(part, torch.nn.Linear | torch.nn.Embedding | Packed) and kind == "weight"
    if is_layer and isinstance(array, gq.QuantArray) and array.format.block_size > 1:
        _replace(model, path, part, array)
        return True
    dtype = old.dtype if old.dtype.is_floating_point else torch.get_default_dtype()
    device = torch.device("cpu") if old.device.type == "meta" else old.device
    values = torch.from_numpy(np.array(array, np.float32)).to(device, dtype)
    if isinstance(old, torch.nn.Parameter):
        setattr(part, kind, torch.nn.Parameter(values, requires_grad=old.requires_grad))
    else:
        part.register_buffer(kind, values)
    return True


def _replace(model: torch.nn.Module, path: str, part: Any, array: gq.QuantArray) -> None:
    """A packed layer in place of one of floats, or of a packed one of any type; its bias stays."""
    device = part.weight.device
    if isinstance(part, torch.nn.Linear):
        new: Packed = Linear(array, part.bias)
    elif isinstance(part, Experts):
        new = Experts(array)
    else:
        like = part._like if isinstance(part, Embedding) else part.weight
        new = Embedding(array, like.dtype)
    if device.type != "meta":
        new.to(device)
    _put(model, path, new.train(part.training))


def _tie(model: torch.nn.Module, ties: Mapping[str, str], result: Replaced) -> None:
    """Give tied weights that the file does not have their other's tensor."""
    for name, other in ties.items():
        if name in result.taken or other not in result.taken:
            continue
        path, _, kind = name.rpartition(".")
        part, source = model.get_submodule(path), model.get_submodule(other.rpartition(".")[0])
        if isinstance(source, Packed) and kind == "weight":
            _put(model, path, _packed(part, source))
        else:
            setattr(part, kind, getattr(source, other.rpartition(".")[2]))
        result.taken[name] = result.taken[other]
