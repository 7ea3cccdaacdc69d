"""A LoRA adapter in a GGUF model: a view whose tensors have the products of the adapter's matrices added.

Adapters are folders of PEFT (adapter_config.json, adapter_model.safetensors) and GGUF files of llama.cpp.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import gguf, safetensors
from ..arrays.array import QuantArray
from ..base.text import short
from ..convert import Plan, plan_quantize
from ..convert.model import View
from ..errors import ConvertError
from ..formats import FORMATS
from ..gguf import GGUFFile
from ..gguf.header import TensorInfo
from ..ops import dequantize, quantize
from .back import heads_of, names_of
from .backconfig import family_of
from .config import plain_name
from .values import Values, permuted

CONFIG, WEIGHTS, OUTER = "adapter_config.json", "adapter_model.safetensors", "base_model.model."
Floats = NDArray[np.float32]
WAY = "merge it with the library that trained it, and convert the checkpoint"


class Branch(NamedTuple):
    """Matrices [rank, K] and [N, rank] whose product is added to a tensor, or to one expert of it."""

    a: Floats
    b: Floats
    expert: int | None = None


class Merged(View):
    """A view of a model whose tensors, where the adapter has matrices for them, are f32 with those added."""

    def __init__(self, file: GGUFFile, adapter: str) -> None:
        super().__init__(file)
        self._of = _from_peft(file, adapter) if os.path.isdir(adapter) else _from_gguf(file, adapter)

    def info(self, name: str) -> TensorInfo:
        info = self._file.info(name)
        return info._replace(format=FORMATS["f32"]) if name in self._of else info

    def __getitem__(self, name: str) -> QuantArray:
        q = self._file[name]
        if name not in self._of:
            return q
        floats = np.array(dequantize(q), np.float32)
        for a, b, expert in self._of[name]:
            part = floats if expert is None else floats[expert]
            part += b @ a
        return quantize(floats, "f32")

    def plan(self, **settings: Any) -> Plan:
        """A plan in which each tensor keeps the type that it has in the file."""
        types = {name: self._file.info(name).format for name in self}
        plan = plan_quantize(self, "f16", types=types, **settings)
        plan.metadata.pop("general.file_type")
        return plan


def _check(adapter: str, file: GGUFFile, name: str, a: Floats, b: Floats) -> None:
    """Refuse matrices that do not fit a tensor."""
    if a.ndim != 2 or b.ndim != 2 or not len(a) or (*b.shape, *a.shape) != _shapes(file, name, len(a)):
        raise _refused(adapter, f"matrices {b.shape} and {a.shape}", f"{name} of {file.path}")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise _refused(adapter, "NaN or an infinity", f"{name} of {file.path}")
    if any(f"{name.removesuffix(end)}.scale" in file for end in ("", ".weight")):
        raise _refused(adapter, "matrices", f"{name} of {file.path}, which has a scale beside it")


def _shapes(file: GGUFFile, name: str, rank: int) -> tuple[int, ...]:
    *_, rows, columns = (1, 1, *file.info(name).shape)
    return rows, rank, rank, columns


def _refused(adapter: str, has: str, tensor: str) -> ConvertError:
    return ConvertError(
        f"{adapter}: it has {has} for {tensor}; pairs A [rank, columns] and B [rows, rank] of tensors of the "
        f"model are merged; take the adapter of this model, or {WAY}"
    )


def _from_peft(file: GGUFFile, folder: str) -> dict[str, list[Branch]]:
    config = _config(os.path.join(folder, CONFIG))
    places: dict[str, tuple[str, int | None, Any]] = {}
    family = family_of(file, WAY)
    for name in file:
        shape = file.info(name).shape
        if name.endswith(".weight") and len(shape) > 1:
            for new, expert, inner in names_of(file, family, name, shape, WAY):
                places[new] = name, expert, heads_of(file, family, inner)
    made: dict[str, list[Branch]] = {}
    with safetensors.open(os.path.join(folder, WEIGHTS)) as weights:
        for module, pair in _pairs(folder, weights, r"(.+)\.lora_([AB])\.weight").items():
            name = module.removeprefix(OUTER)
            if f"{plain_name(name)}.weight" not in places:
                raise _refused(folder, "matrices", f"{short(module)}, which {file.path} lacks")
            target, expert, heads = places[f"{plain_name(name)}.weight"]
            a, b = (np.asarray(weights[key], np.float32) for key in pair)
            _check(folder, file, target, a, b)
            if heads is not None and (type(heads) is not int or heads < 1 or len(b) % (2 * heads)):
                raise _refused(
                    folder, f"{len(b)} rows in pairs of {heads!r} heads", f"{target} of {file.path}"
                )
            if heads is not None:
                b = permuted(Values(b.shape, b.__getitem__), heads).read(np.arange(len(b)))
            alpha = next((v for pattern, v in config["alphas"] if pattern.match(name)), config["alpha"])
            rank = math.sqrt(len(a)) if config.get("use_rslora") else len(a)
            made.setdefault(target, []).append(Branch(a, b * np.float32(alpha / rank), expert))
    return made


def _config(path: str) -> Mapping[str, Any]:
    """The configuration of an adapter of PEFT whose products can be added."""
    try:
        with open(path, encoding="utf-8") as stream:
            config: dict[str, Any] = json.load(stream)
        kind, patterns = config["peft_type"], config.get("alpha_pattern") or {}
        config["alpha"] = float(config.get("lora_alpha", 8))
        config["alphas"] = [(re.compile(rf"(.*\.)?({k})$"), float(v)) for k, v in patterns.items()]
    except (OSError, ValueError, TypeError, KeyError, AttributeError, re.error) as error:
        raise ConvertError(
            f"{path}: no configuration of an adapter ({type(error).__name__}: {error}); pass the folder "
            "that save_pretrained of PEFT wrote"
        ) from None
    more = [key for key in ("use_dora", "fan_in_fan_out", "modules_to_save") if config.get(key)]
    if kind != "LORA" or more:
        raise ConvertError(f"{path}: {', '.join(more) or short(kind)}: LoRA of two matrices is merged; {WAY}")
    return config


def _from_gguf(file: GGUFFile, path: str) -> dict[str, list[Branch]]:
    with gguf.open(path) as adapter:
        says = [adapter.metadata.get(key) for key in ("general.type", "adapter.type", "general.architecture")]
        if says != ["adapter", "lora", file.metadata.get("general.architecture")]:
            raise ConvertError(
                f"{path}: it says {says}, and is to be an adapter, lora, of the architecture of {file.path}; "
                "take the adapter of this model"
            )
        made = {}
        alpha = adapter.metadata.get("adapter.lora.alpha", 0.0)
        if not isinstance(alpha, float):
            raise _refused(path, f"alpha {short(alpha)}", "all tensors")
        for name, pair in _pairs(path, adapter, r"(.+)\.lora_([ab])").items():
            if name not in file:
                raise _refused(path, "matrices", f"{short(name)}, which {file.path} lacks")
            a, b = (np.asarray(dequantize(adapter[key]), np.float32) for key in pair)
            _check(path, file, name, a, b)
            made[name] = [Branch(a, b * np.float32(alpha / len(a) if alpha else 1))]
    return made


def _pairs(adapter: str, names: Iterable[str], pattern: str) -> dict[str, tuple[str, str]]:
    """The names of both matrices of each module."""
    halves: dict[str, dict[str, str]] = {}
    for name in names:
        match = re.fullmatch(pattern, name)
        if match is None:
            raise _refused(adapter, "more than pairs", short(name))
        halves.setdefault(match[1], {})[match[2].upper()] = name
    for module, half in halves.items():
        if len(half) < 2:
            raise _refused(adapter, f"{', '.join(half)} alone", short(module))
    if not halves:
        raise _refused(adapter, "no matrices", "any tensor")
    return {module: (half["A"], half["B"]) for module, half in halves.items()}
