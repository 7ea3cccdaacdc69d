"""The families of this year: names of their tensors, what is made of them, and their keys.

Layers are of several kinds. Which one a layer is, and how long its parts are, the tensors say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ..errors import ConvertError
from .families import (
    ATTENTION,
    BLOCK,
    FEED_FORWARD,
    GLM4,
    GLM4_MOE,
    LFM2,
    LFM2_EXPERTS,
    LFM2_NORM,
    NORM,
    NORMS_OF_HEADS,
    QWEN_EXPERTS,
    ROUTER,
    SHARED,
    Family,
)
from .values import Values, constant, half

Named = Iterator[tuple[str, Values]]
Pairs = Iterator[tuple[str, Any, str]]
U32, F32, BOOL = "uint32", "float32", "bool"

# --- what is made of tensors: (config, tensor of the checkpoint) -> names behind the layer's ----------------


def as_it_is(name: str) -> Callable[[Any, Values], Named]:
    """The tensor under a name that has no ``weight`` at its end, or has none in the checkpoint."""
    return lambda config, x: iter([(name, x)])


def _conv(name: str, turned: bool = False) -> Callable[[Any, Values], Named]:
    """A convolution [C, 1, K] of each column by itself, [C, K]; ``turned``: of values' heads by turns."""

    def made(config: Any, x: Values) -> Named:
        rows = Values((x.shape[0], x.shape[-1]), x.read)
        yield name, _picked(rows, _value_rows(config, True)) if turned else rows

    return made


def _decay(columns: bool, turned: bool = False) -> Callable[[Any, Values], Named]:
    """The rate at which a state forgets, from its logarithm; ``columns``: as a column."""

    def made(config: Any, x: Values) -> Named:
        x = _picked(x, _turns(config)) if turned else x
        yield "ssm_a", Values((*x.shape, 1) if columns else x.shape, lambda rows: -np.exp(x.read(rows)))

    return made


def _column(name: str) -> Callable[[Any, Values], Named]:
    return lambda config, x: iter([(name, Values((*x.shape, 1), x.read))])


def _groups(config: Any, x: Values) -> Named:
    """The norm of Mamba 2, by groups."""
    groups = config.count("mamba_n_groups", "n_groups")
    if not groups or x.shape[0] % groups:
        raise ConvertError(
            f"{config.path}: {groups} groups for a norm of {x.shape[0]}; they divide it; mend the file"
        )
    width = x.shape[0] // groups
    columns = np.arange(width)
    yield (
        "ssm_norm.weight",
        Values(
            (groups, width), lambda rows: x.read((rows[:, None] * width + columns).ravel()).reshape(-1, width)
        ),
    )


def _halves(gate: str, up: str) -> Callable[[Any, Values], Named]:
    """Gate and up of one matrix, or of one for each expert."""

    def made(config: Any, x: Values) -> Named:
        for i, name in enumerate((gate, up)):
            if len(x.shape) == 3:
                yield f"{name}.weight", half(x, i)
            else:
                count = x.shape[0] // 2
                yield f"{name}.weight", _picked(x, np.arange(i * count, (i + 1) * count))

    return made


def _shared_or_dense(config: Any, x: Values) -> Named:
    """Granite's shared expert; in models without others it is the feed-forward part."""
    end = "_shexp" if config.maybe_count("num_local_experts") else ""
    yield from _halves(f"ffn_gate{end}", f"ffn_up{end}")(config, x)


def _shared_or_dense_down(config: Any, x: Values) -> Named:
    yield f"ffn_down{'_shexp' if config.maybe_count('num_local_experts') else ''}.weight", x


def _qkvz(config: Any, x: Values) -> Named:
    """Queries, keys, values and gates of Qwen3-Next, which lie by heads of keys there."""
    groups, key, value, run = _delta(config)
    rows = np.arange(x.shape[0]).reshape(groups, -1)
    ends = np.cumsum([key, key, run * value, run * value])
    q, k, v, z = (part.ravel() for part in np.split(rows, ends[:-1], axis=1))
    yield "attn_qkv.weight", _picked(x, np.concatenate([q, k, v]))
    yield "attn_gate.weight", _picked(x, z)


def _by_turns(name: str, each: bool = False, mixed: bool = False) -> Callable[[Any, Values], Named]:
    """Rows of heads of values as llama.cpp has them in Qwen3.5: those of one head of keys lie apart.

    ``each``: a head has a row for each of its columns; ``mixed``: behind those of queries and keys.
    """

    def made(config: Any, x: Values) -> Named:
        order = _value_rows(config, mixed) if each or mixed else _turns(config)
        yield name, _picked(x, order)

    return made


def _out_by_turns(config: Any, x: Values) -> Named:
    order = _value_rows(config, False)
    yield "ssm_out.weight", Values(x.shape, lambda rows: x.read(rows)[:, order])


def _delta(config: Any) -> tuple[int, int, int, int]:
    """Heads of keys, columns of one, columns of one of values, and heads of values for one of keys."""
    groups, heads = config.count("linear_num_key_heads"), config.count("linear_num_value_heads")
    if not groups or heads % groups:
        raise ConvertError(
            f"{config.path}: {heads} linear_num_value_heads for {groups} linear_num_key_heads; they are a "
            "multiple; mend the file"
        )
    return groups, config.count("linear_key_head_dim"), config.count("linear_value_head_dim"), heads // groups


def _turns(config: Any) -> Any:
    groups, _, _, run = _delta(config)
    return np.arange(groups * run).reshape(groups, run).T.ravel()


def _value_rows(config: Any, mixed: bool) -> Any:
    groups, key, value, _ = _delta(config)
    rows = (_turns(config)[:, None] * value + np.arange(value)).ravel()
    front = 2 * groups * key * mixed
    return np.concatenate([np.arange(front), front + rows])


def _picked(x: Values, order: Any) -> Values:
    """Rows in another order, or some of them."""
    return Values((len(order), *x.shape[1:]), lambda rows: x.read(order[rows]))


# --- the families ----------------------------------------------------------------------------------

GRANITE_MOE = ATTENTION | NORM | {
    "block_sparse_moe.output_linear": "ffn_down_exps", "block_sparse_moe.router.layer": "ffn_gate_inp",
}  # fmt: skip
GRANITE_HYBRID = GRANITE_MOE | FEED_FORWARD | {"mamba.in_proj": "ssm_in", "mamba.out_proj": "ssm_out"}
GRANITE_MADE = {
    "block_sparse_moe.input_linear.weight": _halves("ffn_gate_exps", "ffn_up_exps"),
    "shared_mlp.input_linear.weight": _shared_or_dense,
    "shared_mlp.output_linear.weight": _shared_or_dense_down,
}  # fmt: skip
MAMBA = {
    "conv1d.weight": _conv("ssm_conv1d.weight"), "conv1d.bias": as_it_is("ssm_conv1d.bias"),
    "A_log": _decay(True), "D": _column("ssm_d"), "dt_bias": as_it_is("ssm_dt.bias"), "norm.weight": _groups,
}  # fmt: skip
QWEN = ATTENTION | NORMS_OF_HEADS | {
    "post_attention_layernorm": "post_attention_norm", "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out", "linear_attn.in_proj_ba": "ssm_ba",
}  # fmt: skip
NEXT_MADE = {
    "linear_attn.in_proj_qkvz.weight": _qkvz, "linear_attn.conv1d.weight": _conv("ssm_conv1d.weight"),
    "linear_attn.A_log": _decay(False), "linear_attn.dt_bias": as_it_is("ssm_dt.bias"),
}  # fmt: skip
QWEN35_MADE = {
    "linear_attn.in_proj_qkv.weight": _by_turns("attn_qkv.weight", mixed=True),
    "linear_attn.in_proj_z.weight": _by_turns("attn_gate.weight", each=True),
    "linear_attn.in_proj_a.weight": _by_turns("ssm_alpha.weight"),
    "linear_attn.in_proj_b.weight": _by_turns("ssm_beta.weight"),
    "linear_attn.conv1d.weight": _conv("ssm_conv1d.weight", turned=True),
    "linear_attn.A_log": _decay(False, turned=True), "linear_attn.dt_bias": _by_turns("ssm_dt.bias"),
    "linear_attn.out_proj.weight": _out_by_turns,
}  # fmt: skip
GEMMA4 = ATTENTION | NORMS_OF_HEADS | FEED_FORWARD | {
    "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm", "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "post_feedforward_layernorm_1": "post_ffw_norm_1", "post_feedforward_layernorm_2": "post_ffw_norm_2",
    "per_layer_input_gate": "inp_gate", "per_layer_projection": "proj", "router.proj": "ffn_gate_inp",
    "post_per_layer_input_norm": "post_norm",
}  # fmt: skip
GEMMA4_MADE = {
    "layer_scalar": as_it_is("layer_output_scale.weight"), "router.scale": as_it_is("ffn_gate_inp.scale"),
    "router.per_expert_scale": as_it_is("ffn_down_exps.scale"),
    "experts.gate_up_proj": as_it_is("ffn_gate_up_exps.weight"),
    "experts.down_proj": as_it_is("ffn_down_exps.weight"),
}  # fmt: skip
SIDES = {
    "model.embed_tokens_per_layer": "per_layer_token_embd",
    "model.per_layer_model_projection": "per_layer_model_proj",
    "model.per_layer_projection_norm": "per_layer_proj_norm",
}
NEMOTRON = {
    "norm": "attn_norm", "mixer.in_proj": "ssm_in", "mixer.out_proj": "ssm_out", "mixer.q_proj": "attn_q",
    "mixer.k_proj": "attn_k", "mixer.v_proj": "attn_v", "mixer.o_proj": "attn_output",
    "mixer.up_proj": "ffn_up", "mixer.down_proj": "ffn_down", "mixer.gate": "ffn_gate_inp",
    "mixer.shared_experts.up_proj": "ffn_up_shexp", "mixer.shared_experts.down_proj": "ffn_down_shexp",
    "mixer.fc1_latent_proj": "ffn_latent_down", "mixer.fc2_latent_proj": "ffn_latent_up",
}  # fmt: skip
NEMOTRON_EXPERTS = {
    "mixer.experts.{e}.up_proj": "ffn_up_exps", "mixer.experts.{e}.down_proj": "ffn_down_exps",
}  # fmt: skip


def _with(stem: str, made: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{stem}.{name}": one for name, one in made.items()}


def _family(arch: str, layer: Mapping[str, str], **more: Any) -> Family:
    return Family(arch, layer, keys=KEYS[arch], **more)


# --- keys ------------------------------------------------------------------------------------------


def _glm4(config: Any, named: Mapping[str, Values]) -> Pairs:
    full = config.rope.get("full_attention", config.rope)
    share = full.get("partial_rotary_factor", 0.5)
    yield "rope.dimension_count", int(config.head_length * share), U32


def _glm4moe(config: Any, named: Mapping[str, Values]) -> Pairs:
    yield from _glm4(config, named)
    yield "expert_feed_forward_length", config.count("moe_intermediate_size"), U32
    yield "expert_shared_count", config.count("n_shared_experts"), U32
    yield "leading_dense_block_count", config.count("first_k_dense_replace"), U32
    yield "expert_weights_scale", config.number("routed_scaling_factor"), F32
    yield "expert_weights_norm", config.get("norm_topk_prob") is not False, BOOL
    yield "expert_gating_func", 2, U32


def _granite(config: Any, named: Mapping[str, Values]) -> Pairs:
    yield "vocab_size", config.count("vocab_size"), U32
    yield "rope.dimension_count", config.head_length, U32
    yield "attention.scale", config.number("attention_multiplier"), F32
    yield "embedding_scale", config.number("embedding_multiplier"), F32
    yield "residual_scale", config.number("residual_multiplier"), F32
    yield "logit_scale", config.number("logits_scaling"), F32
    yield "expert_shared_feed_forward_length", config.maybe_count("shared_intermediate_size"), U32


def _granitehybrid(config: Any, named: Mapping[str, Values]) -> Pairs:
    yield from _granite(config, named)
    yield from _parts(config, named)
    yield from _ssm(named, config.count("mamba_n_heads"), config.count("mamba_n_groups"))
    yield "rope.scaling.finetuned", config.get("position_embedding_type") == "rope", BOOL


def _lfm2(config: Any, named: Mapping[str, Values]) -> Pairs:
    yield from _parts(config, named)
    yield "vocab_size", config.count("vocab_size"), U32
    yield "shortconv.l_cache", config.count("conv_L_cache"), U32
    yield "attention.layer_norm_rms_epsilon", config.number("norm_eps", "rms_norm_eps"), F32
    if config.family.arch == "lfm2moe":
        yield "expert_feed_forward_length", config.count("moe_intermediate_size"), U32
        yield "leading_dense_block_count", config.count("num_dense_layers"), U32
        yield "expert_gating_func", 2, U32


def _qwen(config: Any, named: Mapping[str, Values]) -> Pairs:
    groups, key, value, run = _delta(config)
    if key != value:
        raise ConvertError(
            f"{config.path}: linear_key_head_dim is {key}, linear_value_head_dim {value}; llama.cpp knows "
            "one length of both"
        )
    yield "ssm.conv_kernel", config.count("linear_conv_kernel_dim"), U32
    yield "ssm.state_size", key, U32
    yield "ssm.group_count", groups, U32
    yield "ssm.time_step_rank", groups * run, U32
    yield "ssm.inner_size", groups * run * value, U32
    attends = [i for i in range(config.layers) if f"{BLOCK.format(n=i)}attn_q.weight" in named]
    every = attends[0] + 1 if attends else 4
    if attends != [*range(every - 1, config.layers, every)]:
        yield "attention.recurrent_layers", [i not in attends for i in range(config.layers)], BOOL
    yield "full_attention_interval", every, U32
    full = config.rope.get("full_attention", config.rope)
    dims = int(config.head_length * full.get("partial_rotary_factor", 0.25))
    yield "rope.dimension_count", dims, U32
    yield "attention.value_length", config.head_length, U32
    yield "attention.key_length", config.head_length, U32
    if config.family.arch != "qwen3next":
        sections = full.get("mrope_section") or [dims // 2 - dims // 6 * 2, dims // 6, dims // 6]
        yield "rope.dimension_sections", [*sections, 0], U32
    if config.maybe_count("num_experts"):
        yield "expert_feed_forward_length", config.count("moe_intermediate_size"), U32
        yield "expert_shared_feed_forward_length", config.count("shared_expert_intermediate_size"), U32


def _gemma4(config: Any, named: Mapping[str, Values]) -> Pairs:
    kinds = config.get("layer_types")
    if not isinstance(kinds, list) or len(kinds) != config.layers:
        raise ConvertError(f"{config.path}: 'layer_types' has no kind for each layer; fetch the file anew")
    windows = [kind == "sliding_attention" for kind in kinds]
    widths = {
        window: next(
            (
                named[f"blk.{i}.attn_q_norm.weight"].shape[0]
                for i in range(len(windows))
                if windows[i] == window
            ),
            0,
        )
        for window in (False, True)
    }
    widths = {window: width or max(widths.values()) for window, width in widths.items()}
    keys = dict[bool, int]()
    counts = []
    for i, window in enumerate(windows):
        if rows := named.get(f"blk.{i}.attn_k.weight"):
            keys[window] = rows.shape[0] // widths[window]
        counts.append(keys.get(window, config.heads_kv))
    yield "attention.head_count_kv", _one(counts), U32
    yield from ((key, value, kind) for key, value, kind in _parts(config, named) if "kv" not in key)
    for end, window in (("", False), ("_swa", True)):
        yield f"attention.key_length{end}", widths[window], U32
        yield f"attention.value_length{end}", widths[window], U32
        yield f"rope.dimension_count{end}", widths[window], U32
    yield "attention.sliding_window", config.count("sliding_window"), U32
    yield "attention.sliding_window_pattern", windows, BOOL
    yield "attention.shared_kv_layers", config.maybe_count("num_kv_shared_layers") or 0, U32
    yield "embedding_length_per_layer_input", config.maybe_count("hidden_size_per_layer_input") or 0, U32
    yield "final_logit_softcapping", config.number("final_logit_softcapping"), F32
    if config.maybe_count("num_experts"):
        yield "expert_used_count", config.count("top_k_experts"), U32
        yield "expert_feed_forward_length", config.count("moe_intermediate_size"), U32


def _nemotron(config: Any, named: Mapping[str, Values]) -> Pairs:
    yield from _parts(config, named, experts="ffn_up_shexp")
    if config.family.arch == "nemotron_h":
        for key in ("count", "used_count", "group_count", "group_used_count"):
            yield f"expert_{key}", None, U32
    yield from _ssm(named, config.count("mamba_num_heads"), config.count("n_groups"))
    epsilon = config.number("layer_norm_epsilon", "rms_norm_eps")
    yield "attention.layer_norm_epsilon", epsilon, F32
    yield "attention.layer_norm_rms_epsilon", epsilon, F32
    yield "rope.dimension_count", config.head_length, U32
    yield "attention.key_length", config.head_length, U32
    yield "attention.value_length", config.head_length, U32
    if config.family.arch == "nemotron_h_moe":
        yield "expert_feed_forward_length", config.count("moe_intermediate_size"), U32
        yield "expert_shared_count", config.count("n_shared_experts"), U32
        yield "expert_shared_feed_forward_length", config.count("moe_shared_expert_intermediate_size"), U32
        yield "expert_weights_scale", config.number("routed_scaling_factor"), F32
        yield "expert_weights_norm", bool(config.get("norm_topk_prob")), BOOL
        yield "moe_latent_size", config.maybe_count("moe_latent_size"), U32


def _parts(config: Any, named: Mapping[str, Values], experts: str = "") -> Pairs:
    """Heads of keys and the length of the feed-forward part of each layer, 0 where it has none."""

    def rows(name: str) -> list[int]:
        weights = [named.get(f"{BLOCK.format(n=i)}{name}.weight") for i in range(config.layers)]
        return [0 if one is None else one.shape[0] for one in weights]

    yield "attention.head_count_kv", _one([n // config.head_length for n in rows("attn_k")]), U32
    lengths = [max(pair) for pair in zip(rows("ffn_up"), rows(experts or "ffn_up"), strict=True)]
    if any(lengths):
        some = max(lengths)
        yield "feed_forward_length", _one(lengths if experts else [n or some for n in lengths]), U32


def _ssm(named: Mapping[str, Values], heads: int, groups: int) -> Pairs:
    layer = next(
        (name.removesuffix("ssm_conv1d.weight") for name in named if "ssm_conv1d.weight" in name), None
    )
    if layer is None:
        return
    (whole, taps), (_, inner) = (named[f"{layer}{name}.weight"].shape for name in ("ssm_conv1d", "ssm_out"))
    yield "ssm.conv_kernel", taps, U32
    yield "ssm.inner_size", inner, U32
    yield "ssm.state_size", (whole - inner) // (2 * max(groups, 1)), U32
    yield "ssm.time_step_rank", heads, U32
    yield "ssm.group_count", groups, U32


def _one(counts: list[int]) -> Any:
    """A number of all layers, or a list with one for each."""
    return counts[0] if len({*counts}) == 1 else counts


KEYS: dict[str, Any] = {
    "glm4": _glm4, "glm4moe": _glm4moe, "granite": _granite, "granitemoe": _granite,
    "granitehybrid": _granitehybrid, "lfm2": _lfm2, "lfm2moe": _lfm2, "qwen3next": _qwen, "qwen35": _qwen,
    "qwen35moe": _qwen, "gemma4": _gemma4, "nemotron_h": _nemotron, "nemotron_h_moe": _nemotron,
}  # fmt: skip

_MOE = ROUTER | SHARED
_QWEN35 = {k: v for k, v in QWEN.items() if k not in ("linear_attn.out_proj", "linear_attn.in_proj_ba")}
_GEMMA4 = _family("gemma4", GEMMA4, made=GEMMA4_MADE, outer=SIDES, vocabulary="characters", drops_output=True)
_NEMOTRON_MADE = _with("mixer", MAMBA) | {"mixer.gate.e_score_correction_bias": as_it_is("exp_probs_b.bias")}
_HYBRID_MADE = GRANITE_MADE | _with("mamba", MAMBA)
NEWER = {
    "Glm4ForCausalLM": _family("glm4", GLM4),
    "Glm4MoeForCausalLM": _family(
        "glm4moe", GLM4_MOE, experts=QWEN_EXPERTS,
        made={"mlp.gate.e_score_correction_bias": as_it_is("exp_probs_b.bias")},
    ),
    "GraniteForCausalLM": _family("granite", ATTENTION | NORM | FEED_FORWARD, permuted=True),
    "GraniteMoeForCausalLM": _family("granitemoe", GRANITE_MOE, made=GRANITE_MADE, permuted=True),
    "GraniteMoeSharedForCausalLM": _family("granitemoe", GRANITE_MOE, made=GRANITE_MADE, permuted=True),
    "GraniteMoeHybridForCausalLM": _family("granitehybrid", GRANITE_HYBRID, made=_HYBRID_MADE, permuted=True),
    "Lfm2ForCausalLM": _family(
        "lfm2", LFM2, made={"conv.conv.weight": _conv("shortconv.conv.weight")}, outer=LFM2_NORM
    ),
    "Lfm2MoeForCausalLM": _family(
        "lfm2moe", LFM2, experts=LFM2_EXPERTS, outer=LFM2_NORM,
        made={
            "conv.conv.weight": _conv("shortconv.conv.weight"),
            "feed_forward.expert_bias": as_it_is("exp_probs_b.bias"),
        },
    ),
    "Qwen3NextForCausalLM": _family(
        "qwen3next", QWEN | _MOE, experts=QWEN_EXPERTS, made=NEXT_MADE, norm_shift=True
    ),
    "Qwen3_5ForCausalLM": _family("qwen35", _QWEN35 | FEED_FORWARD, made=QWEN35_MADE, norm_shift=True),
    "Qwen3_5MoeForCausalLM": _family(
        "qwen35moe", _QWEN35 | _MOE, experts=QWEN_EXPERTS, made=QWEN35_MADE, norm_shift=True
    ),
    "Gemma4ForCausalLM": _GEMMA4,
    "NemotronHForCausalLM": _family("nemotron_h", NEMOTRON, experts=NEMOTRON_EXPERTS, made=_NEMOTRON_MADE),
}  # fmt: skip
for _name in ("Qwen3_5", "Qwen3_5Moe", "Gemma4"):
    NEWER[f"{_name}ForConditionalGeneration"] = NEWER[f"{_name}ForCausalLM"]
NEMOTRON_MOE = _family("nemotron_h_moe", NEMOTRON, experts=NEMOTRON_EXPERTS, made=_NEMOTRON_MADE)

# Of each layer: a tensor, and those that it comes with. A layer has one of each of these lists.
MIXERS: dict[str, tuple[str, ...]] = {
    "attn_q": ("attn_output",), "ssm_in": ("ssm_conv1d", "ssm_norm", "ssm_out"),
    "attn_qkv": ("attn_gate", "ssm_conv1d", "ssm_norm", "ssm_out"),
    "shortconv.in_proj": ("shortconv.conv", "shortconv.out_proj"),
}  # fmt: skip
FORWARDS: dict[str, tuple[str, ...]] = {"ffn_down": ("ffn_up",), "ffn_down_exps": ("ffn_gate_inp",)}
MODEL_TYPES = {
    "glm4": "Glm4ForCausalLM", "glm4_moe": "Glm4MoeForCausalLM", "granite": "GraniteForCausalLM",
    "granitemoe": "GraniteMoeForCausalLM", "granitemoeshared": "GraniteMoeSharedForCausalLM",
    "granitemoehybrid": "GraniteMoeHybridForCausalLM", "lfm2": "Lfm2ForCausalLM",
    "lfm2_moe": "Lfm2MoeForCausalLM", "qwen3_next": "Qwen3NextForCausalLM", "qwen3_5": "Qwen3_5ForCausalLM",
    "qwen3_5_moe": "Qwen3_5MoeForCausalLM", "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
    "gemma4": "Gemma4ForCausalLM", "gemma4_text": "Gemma4ForCausalLM", "nemotron_h": "NemotronHForCausalLM",
}  # fmt: skip


def lacking(layers: int, named: Mapping[str, Values], one_part: bool) -> list[str]:
    """The tensors that are missing of layers; ``one_part``: a layer is a mixer or a feed-forward part."""
    lacks = []
    for i in range(layers):
        block = BLOCK.format(n=i)
        there = {name.removeprefix(block).removesuffix(".weight") for name in named if name.startswith(block)}
        lists = [MIXERS | FORWARDS] if one_part else [MIXERS, FORWARDS]
        for some in lists:
            marks = [mark for mark in some if mark in there]
            lacks += [] if marks else [block + next(iter(some))]
            lacks += [block + name for mark in marks for name in some[mark] if name not in there]
        lacks += [block + "attn_norm"] * ("attn_norm" not in there)
    return lacks


def factors(config: Any, named: Mapping[str, Values]) -> Values | None:
    """The factors of Gemma 4's pairs in layers without a window: those that do not rotate are 1e30."""
    full = config.rope.get("full_attention", {})
    kinds = config.get("layer_types") or ()
    if config.family.arch != "gemma4" or "full_attention" not in kinds:
        return None
    width = named[f"blk.{kinds.index('full_attention')}.attn_q_norm.weight"].shape[0]
    rotated = int(full.get("partial_rotary_factor", 1.0) * width // 2)
    return constant([1.0] * rotated + [1e30] * (width // 2 - rotated))
