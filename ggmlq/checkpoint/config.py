"""Reader of a checkpoint's config.json: its family, and its numbers with the defaults of transformers.

Every number is checked before its use, because a configuration may be hostile.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..base.text import short
from ..errors import ConvertError
from ..gguf import Typed
from ..safetensors import SafetensorsFile, header
from . import newer
from .families import FAMILIES, MODEL_TYPES, Family
from .values import Values

MOST = 2**31 - 1
FLOAT32_MOST = (2 - 2**-23) * 2.0**127


class Config:
    """A checkpoint's configuration. Errors name its file."""

    def __init__(self, file: SafetensorsFile) -> None:
        self.folder = file.folder
        self.path = os.path.join(file.folder, "config.json")
        if not os.path.exists(self.path):
            raise ConvertError(
                f"{file.folder}: there is no config.json, which says what model this is; fetch it into that "
                "folder"
            )
        self.raw: Mapping[str, Any] = file.config
        self._beside: dict[str, dict[str, Any]] = {}
        inner = self.raw.get("text_config")
        self.inner: Mapping[str, Any] = inner if isinstance(inner, dict) else {}
        self.architecture, self.family = self._family()
        if self.family.arch == "nemotron_h" and any(".experts." in name for name in file):
            self.family = newer.NEMOTRON_MOE
        merged = {**self.raw, **self.inner}
        self.values = {**self.family.defaults, **merged}
        if self.values.get("num_key_value_heads") is None:
            self.values["num_key_value_heads"] = self.values.get("num_attention_heads")
        kinds = self.get(
            "layers_block_type", "hybrid_override_pattern"
        )  # of Nemotron, which may say no number
        listed = isinstance(kinds, list | str) and self.get("num_hidden_layers") is None
        self.layers = len(kinds) if listed else self.count("num_hidden_layers")

    def _family(self) -> tuple[str, Family]:
        names = self.inner.get("architectures") or self.raw.get("architectures")
        kind = self.raw.get("model_type")
        types, families = MODEL_TYPES | newer.MODEL_TYPES, FAMILIES | newer.NEWER
        name = names[0] if isinstance(names, list) and names else types.get(str(kind))
        family = families.get(name) if isinstance(name, str) else None
        if family is None or not isinstance(name, str):
            raise ConvertError(
                f"{self.path}: its architecture is {short(name or kind)}; known are {', '.join(families)}; "
                "for others there is llama.cpp's convert_hf_to_gguf.py"
            )
        return name, family

    def get(self, *keys: str) -> Any:
        """The value of the first of some keys that is there and not null."""
        return next((self.values[key] for key in keys if self.values.get(key) is not None), None)

    def count(self, *keys: str) -> int:
        """A count under the first of some keys; an error if there is none."""
        value = self.maybe_count(*keys)
        if value is None:
            raise ConvertError(
                f"{self.path}: it lacks {keys[0]!r}, a whole number; the file is incomplete; fetch it"
            )
        return value

    def maybe_count(self, *keys: str) -> int | None:
        """A count under the first of some keys, or None."""
        value = self.get(*keys)
        if value is not None and (type(value) is not int or not 0 <= value <= MOST):
            raise ConvertError(
                f"{self.path}: {keys[0]!r} is {short(value)}; it is a whole number from 0 to {MOST}; mend "
                "the file"
            )
        return value

    def number(self, *keys: str) -> float | None:
        """A real number under the first of some keys, or None."""
        value = self.get(*keys)
        return None if value is None else real(self.path, keys[0], value)

    @property
    def heads(self) -> int:
        """The number of attention heads."""
        value = self.count("num_attention_heads")
        if not value:
            raise ConvertError(
                f"{self.path}: 'num_attention_heads' is 0; a model has one at least; mend the file"
            )
        return value

    @property
    def heads_kv(self) -> int:
        """The number of heads of keys and values."""
        return self.maybe_count("num_key_value_heads") or self.heads

    @property
    def head_length(self) -> int:
        """The length of a head."""
        return self.maybe_count("head_dim") or self.count("hidden_size") // self.heads

    @property
    def rope(self) -> dict[str, Any]:
        """The parameters of rotation: one set, or one for full and one for sliding attention."""
        value = self.get("rope_parameters", "rope_scaling")
        rope = dict(value) if isinstance(value, dict) else {}
        if "full_attention" in rope or "sliding_attention" in rope:
            return rope
        local = self.get("rope_local_base_freq", "local_rope_theta", "rope_local_theta", "swa_rope_theta")
        if local is not None:
            rope["sliding_attention"] = {"rope_theta": local}
        for key, value in (
            ("rope_theta", self.get("rope_theta")),
            ("rope_type", rope.get("type")),
            ("partial_rotary_factor", self.get("partial_rotary_factor")),
            ("original_max_position_embeddings", self.get("original_max_position_embeddings")),
        ):
            if value is not None:
                rope.setdefault(key, value)
        return rope

    def beside(self, name: str) -> dict[str, Any]:
        """Another JSON file of the folder; empty where there is none."""
        if name not in self._beside:
            path = os.path.join(self.folder, name)
            self._beside[name] = header.load_object(path) if os.path.exists(path) else {}
        return self._beside[name]


def real(path: str, key: str, value: Any) -> float:
    """A finite number that float32 holds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= FLOAT32_MOST:
        raise ConvertError(
            f"{path}: {key!r} is {short(value)}; it is a finite number within float32's range; mend the file"
        )
    return float(value)


# --- parameters for the metadata: layers, heads, rope, as llama.cpp's converter has them -----

U32, F32, TEXT = "uint32", "float32", "string"
GATING = {"softmax": 1, "sigmoid": 2, "sqrtsoftplus": 4}

Pairs = Iterator[tuple[str, Any, str]]


def parameters(config: Config, file_type: int, named: Mapping[str, Values]) -> dict[str, Any]:
    """All keys with parameters of a model, in the converter's order; ``named``: its tensors."""
    arch = config.family.arch
    first = _gemma(config) if arch in ("gemma", "gemma2") else _common(config)
    own = _family_keys(config) if config.family.keys is None else config.family.keys(config, named)
    pairs = {key: (value, kind) for key, value, kind in [*first, ("general.file_type", file_type, U32), *own]}
    return {
        (key if key.startswith("general.") else f"{arch}.{key}"): Typed(value, kind)
        for key, (value, kind) in pairs.items()
        if value is not None
    }


def _common(config: Config) -> Pairs:
    yield "block_count", config.layers, U32
    yield "context_length", config.maybe_count("max_position_embeddings", "n_ctx", "n_positions"), U32
    yield "embedding_length", config.count("hidden_size"), U32
    yield "feed_forward_length", config.maybe_count("intermediate_size"), U32
    yield "attention.head_count", config.heads, U32
    yield "attention.head_count_kv", config.maybe_count("num_key_value_heads"), U32
    if config.get("is_causal") is False:
        yield "attention.causal", False, "bool"
    yield from _rope(config)
    yield "attention.layer_norm_rms_epsilon", config.number("rms_norm_eps", "norm_eps"), F32
    yield "attention.layer_norm_epsilon", config.number("layer_norm_eps", "layer_norm_epsilon"), F32
    yield "expert_count", config.maybe_count("num_local_experts", "num_experts", "n_routed_experts"), U32
    yield "expert_used_count", config.maybe_count("num_experts_per_tok", "num_experts_per_token"), U32
    yield "expert_group_count", config.maybe_count("n_group"), U32
    yield "expert_group_used_count", config.maybe_count("topk_group"), U32
    gating = config.get("score_function", "scoring_func", "score_func")
    if gating is not None:
        if gating not in GATING:
            raise ConvertError(
                f"{config.path}: its scoring function is {short(gating)}; known are {', '.join(GATING)}"
            )
        yield "expert_gating_func", GATING[gating], U32
    length = config.maybe_count("head_dim")
    if length is None and config.architecture.lower().startswith("llama"):
        length = config.head_length  # transformers fills it in for these alone
    yield "attention.key_length", length, U32
    yield "attention.value_length", length, U32


def _rope(config: Config) -> Pairs:
    rope = config.rope
    full = rope.get("full_attention", rope)
    kind, path = full.get("rope_type"), config.path
    if kind in ("linear", "yarn") and full.get("factor") is not None:
        yield "rope.scaling.type", kind, TEXT
        yield "rope.scaling.factor", real(path, "factor", full["factor"]), F32
        if kind == "yarn":
            yield from _yarn(config, full)
    elif kind in ("su", "longrope"):
        raise ConvertError(
            f"{path}: rope_type {kind!r} has factors by position, which the converter writes for Phi models "
            "alone; convert this one with llama.cpp's convert_hf_to_gguf.py"
        )
    elif kind == "proportional" and config.family.arch == "gemma4":
        pass  # factors of pairs say it
    elif kind not in (None, "default", "linear", "yarn", "llama3", "dynamic"):
        raise ConvertError(
            f"{path}: rope_type {short(kind)} is unknown; known are linear, yarn, llama3 and default"
        )
    for key, value in (("", full), ("_swa", rope.get("sliding_attention", {}))):
        if value.get("rope_theta") is not None:
            yield f"rope.freq_base{key}", real(path, "rope_theta", value["rope_theta"]), F32


def _yarn(config: Config, rope: dict[str, Any]) -> Pairs:
    length = rope.get("original_max_position_embeddings")
    if type(length) is not int:
        raise ConvertError(
            f"{config.path}: yarn without original_max_position_embeddings (it is {short(length)}); it is "
            "needed; add it to rope_scaling"
        )
    yield "rope.scaling.original_context_length", length, U32
    for key, *names in (
        ("yarn_ext_factor", "extrapolation_factor"),
        ("yarn_attn_factor", "attention_factor", "attn_factor"),
        ("yarn_beta_fast", "beta_fast"),
        ("yarn_beta_slow", "beta_slow"),
    ):
        value = next((rope[name] for name in names if rope.get(name) is not None), None)
        yield f"rope.scaling.{key}", None if value is None else real(config.path, names[0], value), F32


def _gemma(config: Config) -> Pairs:
    yield "context_length", config.count("max_position_embeddings"), U32
    yield "embedding_length", config.count("hidden_size"), U32
    yield "block_count", config.layers, U32
    yield "feed_forward_length", config.count("intermediate_size"), U32
    yield "attention.head_count", config.heads, U32
    yield "attention.head_count_kv", config.heads_kv, U32
    yield "attention.layer_norm_rms_epsilon", config.number("rms_norm_eps"), F32
    yield "attention.key_length", config.count("head_dim"), U32
    yield "attention.value_length", config.count("head_dim"), U32


def _family_keys(config: Config) -> Pairs:
    """The parameters that one family has beyond the others."""
    arch = config.family.arch
    if arch == "llama":
        yield "vocab_size", config.count("vocab_size"), U32
        yield "rope.dimension_count", config.head_length, U32
    if arch in ("qwen2moe", "qwen3moe"):
        yield "expert_feed_forward_length", config.maybe_count("moe_intermediate_size"), U32
        yield "expert_shared_feed_forward_length", config.maybe_count("shared_expert_intermediate_size"), U32
    if arch == "gemma2":
        yield "attn_logit_softcapping", config.number("attn_logit_softcapping"), F32
    if arch in ("gemma2", "gemma3"):
        yield "final_logit_softcapping", config.number("final_logit_softcapping") or None, F32
    if arch == "gemma2" or (arch == "gemma3" and config.get("sliding_window_pattern") != 1):
        yield "attention.sliding_window", config.count("sliding_window"), U32


# --- config.json held against the tensors ----------------------------------------------------
# Anybody can write a large number into a configuration, but the tensors are as large as they say. So a
# configuration with larger numbers than its tensors is refused before anything is built from it.

MOST_TOKENS = 1 << 21  # twice what the largest vocabularies have


BACKBONE = (  # of Nemotron
    ("backbone.embeddings.", "model.embed_tokens."), ("backbone.norm_f.", "model.norm."),
    ("backbone.", "model."),
)  # fmt: skip


def plain_name(name: str) -> str:
    """The name of a tensor without what models of several senses put before it."""
    plain = name.replace("language_model.", "")
    for there, here in (("model.model.", "model."), *BACKBONE):
        if plain.startswith(there):
            return here + plain.removeprefix(there)
    return plain


def check_embedding(file: SafetensorsFile, config: Config) -> None:
    """Refuse a hidden_size other than the token embedding's columns, or a vocab_size above its rows."""
    name = next((name for name in file if plain_name(name) == "model.embed_tokens.weight"), None)
    if name is None:
        raise ConvertError(
            f"{file.path}: 1 tensor is missing, token_embd of GGUF's names; a {config.architecture} has it; "
            "fetch all files of the checkpoint"
        )
    shape, hidden = file.info(name).shape, config.count("hidden_size")
    if len(shape) != 2 or not 0 < hidden == shape[1]:
        raise ConvertError(
            f"{config.path}: hidden_size is {hidden}, and {short(name)} has shape {shape}; it is a matrix of "
            "hidden_size columns; config.json or the tensors are of another model"
        )
    tokens = config.maybe_count("vocab_size")
    if tokens is not None and tokens > shape[0]:
        raise ConvertError(
            f"{config.path}: vocab_size is {tokens}, and {short(name)} has {shape[0]} rows; every token has "
            "one; config.json or the tensors are of another model"
        )


def check_tokens(config: Config, count: int) -> None:
    """Refuse a vocabulary beyond all that there are."""
    if count > MOST_TOKENS:
        raise ConvertError(
            f"{config.folder}: a vocabulary of {count} tokens; models have {MOST_TOKENS} at most; the file "
            "that says so is damaged; fetch it again"
        )


def check_merges(config: Config, merges: int, vocabulary: Iterable[str]) -> None:
    """Refuse more merges than a vocabulary has places to cut a token in two."""
    places = sum(len(token) - 1 for token in vocabulary if token)
    if merges > places:
        raise ConvertError(
            f"{config.folder}: its tokenizer has {merges} merges; each makes a token of two others, and its "
            f"tokens can be cut at {places} places; the file is damaged; fetch it again"
        )


def check_heads(config: Config, stem: str, shape: tuple[int, ...]) -> int:
    """The number of heads of a tensor of queries, keys or values, which has a row for each number of each."""
    heads, length = config.heads if stem.endswith("q_proj") else config.heads_kv, config.head_length
    if shape[:1] != (heads * length,) or (config.family.permuted and length % 2):
        raise ConvertError(
            f"{config.path}: {stem} has {shape[0] if shape else 'no'} rows, which are no {heads} heads of "
            f"{length}; num_attention_heads, num_key_value_heads or head_dim is of another model"
        )
    return heads
