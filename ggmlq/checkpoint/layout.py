"""The tensors of the new GGUF file, each with the rows of the checkpoint that it comes from; planned first.

A tensor of the checkpoint that the family does not know is an error, and so is one that is missing: a model
that lacks a layer, or has one more, would load and be wrong.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from typing import NoReturn

import numpy as np

from ..base.scores import score_columns
from ..base.text import short
from ..errors import ConvertError
from ..safetensors import SafetensorsFile
from ..safetensors.scales import BESIDE, SUFFIXES, ZERO_POINT, name_of_scale
from . import newer, values
from .config import Config, check_heads, plain_name, real
from .families import ALWAYS_F32, BLOCK, GATE_AND_UP, OTHER_SENSES, OUTER, STACKED_DOWN, UNUSED
from .values import Values
from .vocabulary import TOKENS

# Scales of activations, and of keys and values that are kept in 8 bits: llama.cpp has no use for them.
OF_ACTIVATIONS = (".input_scale", "activation_scale", ".qscale_act", ".k_scale", ".v_scale")
MOST_LAYERS = 4096
PACKED = (".qweight", ".weight_packed", ".qzeros", ".g_idx", ".scales", ".absmax", ".quant_map")


def tensors(file: SafetensorsFile, config: Config, vocabulary: dict[str, object]) -> dict[str, Values]:
    """The tensors of the GGUF file by name, with their values, in the order of the checkpoint."""
    if config.layers > MOST_LAYERS:
        raise ConvertError(
            f"{config.path}: num_hidden_layers is {config.layers}; {MOST_LAYERS} are known; mend it"
        )
    named: dict[str, Values] = {}
    experts: dict[str, dict[int, str]] = defaultdict(dict)
    for name in file:
        renamed = _known(file, config, name, experts)
        for new, weights in renamed:
            if new in named:
                raise ConvertError(
                    f"{file.path}: {short(name)} is {new} of GGUF, which another tensor is too; drop one"
                )
            named[new] = _shaped(config, new, weights, vocabulary)
    _check_whole(file, config, named, experts)
    # Factors of as many pairs as a head has, which the tensors have borne out by now.
    if config.family.keys is not None:
        made = newer.factors(config, named)
    else:
        made = values.constant(factors) if (factors := _rope_factors(config)) else None
    return named if made is None else {"rope_freqs.weight": made} | named


def _known(
    file: SafetensorsFile, config: Config, name: str, experts: dict[str, dict[int, str]]
) -> Iterator[tuple[str, Values]]:
    """The GGUF tensors from one tensor of the checkpoint: one, two, or none until all experts have come."""
    _check_scaled(file, config, name)
    plain = plain_name(name)
    if _is_unused(file, config, plain, name):
        return
    stem, _, kind = plain.rpartition(".")
    outer = {**OUTER, **config.family.outer}
    if stem in outer and kind == "weight":
        yield f"{outer[stem]}.{kind}", values.stored(file, name)
        return
    layer = re.fullmatch(r"model\.layers\.(\d{1,6})\.(.+)", plain)
    if layer is None or int(layer[1]) >= config.layers:
        _refuse(file, config, name)
    n, inner = int(layer[1]), layer[2]
    block = BLOCK.format(n=n)
    if inner in config.family.made:
        yield from (
            (block + new, made) for new, made in config.family.made[inner](config, values.stored(file, name))
        )
        return
    bare = inner.removesuffix(".weight")
    if config.family.experts and bare in (GATE_AND_UP, STACKED_DOWN):
        yield from _of_stacked(file, config, block, bare, name)
        return
    stem, _, kind = inner.rpartition(".")
    if stem in config.family.layer and kind in ("weight", "bias"):
        yield f"{block}{config.family.layer[stem]}.{kind}", _turned(config, stem, values.stored(file, name))
        return
    number = re.search(r"\.experts\.(\d{1,6})\.", inner)
    target = (
        config.family.experts.get(stem.replace(f".experts.{number[1]}.", ".experts.{e}.")) if number else None
    )
    if number is None or target is None or kind != "weight":
        _refuse(file, config, name)
    numbers_of_experts = experts[f"{block}{target}.weight"]
    numbers_of_experts[int(number[1])] = name
    if len(numbers_of_experts) == _count(config):
        yield f"{block}{target}.weight", _stack(file, config, block + target, numbers_of_experts)


def _is_unused(file: SafetensorsFile, config: Config, plain: str, name: str) -> bool:
    if plain.endswith(UNUSED) or any(part in plain for part in OTHER_SENSES):
        return True
    if config.family.keys is not None and _is_ahead(config, plain):
        return True
    if config.family.drops_output and plain == "lm_head.weight":
        return True
    if plain.endswith(PACKED):
        raise ConvertError(
            f"{file.path}: {short(name)} is packed in fewer than 8 bits "
            f"({config.raw.get('quantization_config')!r:.200}); FP8 and int8 with scales are read; take the "
            "checkpoint that it was made from"
        )
    weights = [name.removesuffix(end) for end in SUFFIXES] + [name.removesuffix(ZERO_POINT)]
    weights += [name.removesuffix(end) + "weight" for end in BESIDE if name.endswith("." + end)]
    return plain.endswith(OF_ACTIVATIONS) or any(weight != name and weight in file for weight in weights)


def _is_ahead(config: Config, plain: str) -> bool:
    """True for a tensor of layers that guess further tokens."""
    layer = re.match(r"model\.layers\.(\d{1,6})\.", plain)
    ahead = config.maybe_count("num_nextn_predict_layers") or 0
    return plain.startswith("mtp.") or bool(layer and 0 <= int(layer[1]) - config.layers < ahead)


def _check_scaled(file: SafetensorsFile, config: Config, name: str) -> None:
    entry = file.info(name)
    entries = {other: file.info(other) for other in _near(name) if other in file}
    if entry.type.code is not None and file.quantization.method and not name_of_scale(name, entries):
        raise ConvertError(
            f"{file.path}: {short(name)} is {entry.dtype} without a scale, and {config.path} says that "
            "weights have some; without it all numbers would be wrong; fetch all files of the checkpoint"
        )


def _near(name: str) -> list[str]:
    stem = name.removesuffix("weight")
    return [name + end for end in SUFFIXES] + [stem + end for end in BESIDE]


def _refuse(file: SafetensorsFile, config: Config, name: str) -> NoReturn:
    raise ConvertError(
        f"{file.path}: the tensor {short(name, 200)} of shape {file.info(name).shape} is unknown in a "
        f"{config.architecture} of {config.layers} layers; every tensor must be known, or the model would be "
        "wrong; check config.json, or convert it with llama.cpp's convert_hf_to_gguf.py"
    )


def _turned(config: Config, stem: str, weights: Values) -> Values:
    """The values in GGUF's order: rope's order, norms plus 1."""
    checked = config.family.permuted or config.family.keys is None
    if checked and stem in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"):
        heads = check_heads(config, stem, weights.shape)
        if config.family.permuted and stem != "self_attn.v_proj":
            return values.permuted(weights, heads)
    return weights


def _shaped(config: Config, name: str, weights: Values, vocabulary: dict[str, object]) -> Values:
    factor = _score_factor(config, name)
    if config.family.norm_shift and name.endswith("norm.weight") and not name.endswith("ssm_norm.weight"):
        weights = values.shifted(weights, 1.0)
    if factor != 1:
        return values.scaled(weights, factor)
    if config.family.arch == "gemma3" and name == "token_embd.weight":
        return values.first_rows(weights, len(getattr(vocabulary[TOKENS], "value")))  # noqa: B009
    return weights


def _score_factor(config: Config, name: str) -> float:
    """The factor of the queries of a Gemma whose scores have another scale than llama.cpp gives them.

    It reads none from a file, so queries carry the rest: in their norm, or where there is none in their rows.
    """
    arch, scalar = config.family.arch, config.number("query_pre_attn_scalar")
    carrier = {"gemma2": ".attn_q.weight", "gemma3": ".attn_q_norm.weight"}.get(arch)
    if scalar is None or carrier is None or not name.endswith(carrier):
        return 1.0
    if scalar <= 0:
        raise ConvertError(
            f"{config.path}: 'query_pre_attn_scalar' is {scalar:g}; scores are divided by its root, so it is "
            "above 0; mend the file"
        )
    columns = score_columns(
        arch, config.layers, config.count("hidden_size"), config.heads, config.head_length
    )
    return math.sqrt(columns / scalar)


# --- experts ----------------------------------------------------------------------------------


def _count(config: Config) -> int:
    return config.count("num_local_experts", "num_experts", "n_routed_experts")


def _stack(file: SafetensorsFile, config: Config, target: str, names: dict[int, str]) -> Values:
    if sorted(names) != list(range(len(names))):
        raise ConvertError(
            f"{config.path}: {len(names)} experts, and {target} has the numbers {short(sorted(names))}; they "
            "run from 0 up; files of two models are mixed"
        )
    parts = [values.stored(file, names[i]) for i in range(len(names))]
    shapes = {part.shape for part in parts}
    if len(shapes) > 1 or len(parts[0].shape) != 2:
        raise ConvertError(
            f"{file.path}: the experts of {target} have shapes {shapes}; they share one of two axes"
        )
    return values.stacked(parts)


def _of_stacked(
    file: SafetensorsFile, config: Config, block: str, bare: str, name: str
) -> Iterator[tuple[str, Values]]:
    weights = values.stored(file, name)
    if (
        len(weights.shape) != 3
        or weights.shape[0] != _count(config)
        or (bare == GATE_AND_UP and weights.shape[1] % 2)
    ):
        raise ConvertError(
            f"{file.path}: {short(name)} has shape {weights.shape}; experts are [{_count(config)}, rows, "
            f"columns]{', gate and up rows after each other' if bare == GATE_AND_UP else ''}; check "
            "config.json"
        )
    if bare == STACKED_DOWN:
        yield f"{block}ffn_down_exps.weight", weights
        return
    yield f"{block}ffn_gate_exps.weight", values.half(weights, 0)
    yield f"{block}ffn_up_exps.weight", values.half(weights, 1)


# --- what must be there -------------------------------------------------------------------------


def _check_whole(
    file: SafetensorsFile, config: Config, named: dict[str, Values], experts: dict[str, dict[int, str]]
) -> None:
    for target, names in experts.items():
        if target not in named:
            lacking = [*islice((n for n in range(_count(config)) if n not in names), 3)]
            raise ConvertError(
                f"{file.path}: {target} has {len(names)} of {_count(config)} experts; the first that are "
                f"missing are {lacking}; fetch all files of the checkpoint"
            )
    last = "token_embd_norm" if "token_embd_norm" in config.family.outer.values() else "output_norm"
    needed, listed = ["token_embd", last], config.family.keys is None
    if not listed:
        needed += newer.lacking(config.layers, named, config.family.arch.startswith("nemotron"))
    for n in range(config.layers * listed):
        block = BLOCK.format(n=n)
        dense = f"{block}ffn_down.weight" in named or not config.family.experts
        forward = (
            ("ffn_down", "ffn_up", "ffn_gate") if dense else ("ffn_down_exps", "ffn_up_exps", "ffn_gate_exps")
        )
        needed += [
            block + part for part in ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm")
        ]
        needed += [block + part for part in forward]
    lacks = [name for name in needed if f"{name}.weight" not in named]
    if lacks:
        raise ConvertError(
            f"{file.path}: {len(lacks)} tensors are missing, {', '.join(lacks[:3])} of GGUF's names first; a "
            f"{config.architecture} of {config.layers} layers has them; fetch all files of the checkpoint"
        )


def always_f32(name: str, shape: tuple[int, ...]) -> bool:
    """True for a tensor that llama.cpp reads in float32, whatever the type of the rest."""
    return len(shape) < 2 or name.endswith(("_norm.weight", *ALWAYS_F32)) or not name.endswith(".weight")


def _rope_factors(config: Config) -> list[float]:
    """The factors of llama 3's slow rotations, one for each pair; empty for other models."""
    rope = config.rope.get("full_attention", config.rope)
    if config.family.arch != "llama" or str(rope.get("rope_type")).lower() != "llama3":
        return []
    length, base = config.head_length, real(config.path, "rope_theta", rope.get("rope_theta", 10000.0))
    factor, low, high, context = (
        real(config.path, key, rope.get(key, default))
        for key, default in (
            ("factor", 8.0), ("low_freq_factor", 1.0), ("high_freq_factor", 4.0),
            ("original_max_position_embeddings", 8192),
        )
    )  # fmt: skip
    if length < 2 or not (base > 0 and factor > 0 and low > 0 and high > 0 and high != low and context > 0):
        raise ConvertError(
            f"{config.path}: rope_scaling of llama3 is {short(rope)} for heads of {length}; its numbers are "
            "positive, high_freq_factor above low_freq_factor; mend the file"
        )
    # In float32 throughout, as the converter computes them; what overflows lies beyond both bounds.
    with np.errstate(all="ignore"):
        powers = np.float32(base) ** (np.arange(0, length, 2, dtype=np.float32) / np.float32(length))
        wave = np.float32(2 * math.pi) / (np.float32(1) / powers)
        smooth = (np.float32(context) / wave - np.float32(low)) / np.float32(high - low)
        between = np.float32(1) / ((np.float32(1) - smooth) / np.float32(factor) + smooth)
        factors: list[float] = np.where(
            wave < context / high, 1.0, np.where(wave > context / low, factor, between)
        ).tolist()
    return factors
