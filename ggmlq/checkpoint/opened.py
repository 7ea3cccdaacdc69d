"""Families whose files are opened as modules of transformers, though they are not converted back.

Where such a module has in one matrix what are two in the file, or columns in another order, it becomes a
:class:`Join` of products; what is changed of vectors, ``back`` says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..gguf import GGUFFile
from . import openedconfig
from .families import (
    BACK,
    FEED_FORWARD,
    GRANITE_EXPERTS,
    GRANITE_MOE,
    NORM,
    OF_ARCH,
    QWEN_EXPERTS,
    ROUTER,
    SHARED,
    SHARED_EXPERTS,
    Family,
)
from .newer import GEMMA4, NEMOTRON, NEMOTRON_EXPERTS, QWEN, SIDES
from .openedconfig import delta_sizes

# --- matrices ----------------------------------------------------------------------------------------------


class Join(NamedTuple):
    """A matrix of a checkpoint that is made of matrices of a file.

    ``rows``: the order in which it has the rows of all of them; ``columns``: that in which the file has its
    columns; ``heads``: the matrices are those of each head, the first one turned.
    """

    target: str
    names: tuple[str, ...]
    rows: Callable[[GGUFFile], Any] | None = None
    columns: Callable[[GGUFFile], Any] | None = None
    heads: bool = False


def _by_key(file: GGUFFile) -> Any:
    """Queries, keys, values and gates of each head of keys, of Qwen3-Next."""
    groups, run, width = delta_sizes(file)
    keys, values = groups * width, groups * run * width
    counts = ((0, keys), (keys, keys), (2 * keys, values), (2 * keys + values, values))
    parts = [np.arange(first, first + count).reshape(groups, -1) for first, count in counts]
    return np.concatenate(parts, axis=1).ravel()


def _turns(file: GGUFFile, width: int = 1, front: int = 0) -> Any:
    """Rows of heads of values, those of one head of keys side by side, behind so many that stay."""
    groups, run, _ = delta_sizes(file)
    rows = np.arange(groups * run * width).reshape(run, groups, width).swapaxes(0, 1).ravel()
    return np.concatenate([np.arange(front), front + rows])


def _value_columns(file: GGUFFile) -> Any:
    """The columns of ssm_out, as the file has them, among those of a checkpoint."""
    return np.argsort(_turns(file, delta_sizes(file)[2]))


# --- vectors -----------------------------------------------------------------------------------------------


def _logarithm(file: GGUFFile, q: Any) -> Any:
    return np.log(-np.asarray(q, np.float32)).ravel()


def _flat(file: GGUFFile, q: Any) -> Any:
    return np.asarray(q, np.float32).ravel()


def _ones(file: GGUFFile, q: Any) -> Any:
    return np.ones(q.shape, np.float32)


def _turned(file: GGUFFile, q: Any) -> Any:
    """Heads of values in their order, one row of each."""
    return (q if q.ndim > 1 else np.asarray(q, np.float32))[_turns(file)]


def _turned_columns(file: GGUFFile, q: Any) -> Any:
    """Heads of values in their order, a row of each of their columns."""
    return q[_turns(file, delta_sizes(file)[2])]


def _turned_behind(file: GGUFFile, q: Any) -> Any:
    """The same behind the rows of queries and keys."""
    groups, _, width = delta_sizes(file)
    return q[_turns(file, width, 2 * groups * width)]


def _turned_logarithm(file: GGUFFile, q: Any) -> Any:
    return _logarithm(file, q)[_turns(file)]


def _bare(stem: str) -> dict[str, Any]:
    return {"ssm_a": (f"{stem}.A_log", _logarithm), "ssm_dt.bias": (f"{stem}.dt_bias", None)}


def _mamba(stem: str) -> dict[str, Any]:
    names = {f"ssm_conv1d.{kind}": (f"{stem}.conv1d.{kind}", None) for kind in ("weight", "bias")}
    norm = {"ssm_d": (f"{stem}.D", _flat), "ssm_norm.weight": (f"{stem}.norm.weight", _flat)}
    return _bare(stem) | names | norm


# --- the families ------------------------------------------------------------------------------------------

SHARED_BACK = {"shared_mlp.output_linear": "ffn_down_shexp"}
DENSE_BACK = {"ffn_down.weight": ("shared_mlp.output_linear.weight", None)}
SHARED_JOIN = Join("shared_mlp.input_linear", ("ffn_gate_shexp", "ffn_up_shexp"))
DENSE_JOIN = Join("shared_mlp.input_linear", ("ffn_gate", "ffn_up"))
HYBRID = GRANITE_MOE | SHARED_BACK | {"mamba.in_proj": "ssm_in", "mamba.out_proj": "ssm_out"}
DELTA = {"ssm_norm.weight": ("linear_attn.norm.weight", None)}
CONV = "linear_attn.conv1d.weight"
NEXT_BACK = DELTA | _bare("linear_attn") | {"ssm_conv1d.weight": (CONV, None)}
QWEN35_BACK = DELTA | {
    "ssm_a": ("linear_attn.A_log", _turned_logarithm),
    "ssm_dt.bias": ("linear_attn.dt_bias", _turned), "ssm_conv1d.weight": (CONV, _turned_behind),
    "attn_qkv.weight": ("linear_attn.in_proj_qkv.weight", _turned_behind),
    "attn_gate.weight": ("linear_attn.in_proj_z.weight", _turned_columns),
    "ssm_alpha.weight": ("linear_attn.in_proj_a.weight", _turned),
    "ssm_beta.weight": ("linear_attn.in_proj_b.weight", _turned),
}  # fmt: skip
DEEPSEEK = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b", "self_attn.o_proj": "attn_output",
}  # fmt: skip
SCORES = ("mlp.gate.e_score_correction_bias", None)
NEMOTRON_BACK = _mamba("mixer") | {"exp_probs_b.bias": ("mixer.gate.e_score_correction_bias", None)}
NEMOTRON_OUTER = {"model.embeddings": "token_embd", "model.norm_f": "output_norm"}
GEMMA4_BACK = {
    "layer_output_scale.weight": ("layer_scalar", None), "ffn_gate_inp.scale": ("router.scale", None),
    "ffn_down_exps.scale": ("router.per_expert_scale", _ones),  # it is in the products of the experts
}  # fmt: skip
GEMMA4_EXPERTS = {
    "experts.{e}.gate_up_proj": "ffn_gate_up_exps",
    "experts.{e}.down_proj": "ffn_down_exps",
}


NEMOTRON_SAYS: dict[str, Any] = {
    "outer": NEMOTRON_OUTER, "back": NEMOTRON_BACK, "kind": "nemotron_h", "keys": openedconfig.nemotron,
}  # fmt: skip
QWEN35_SAYS: dict[str, Any] = {
    "norm_shift": True, "back": QWEN35_BACK, "keys": openedconfig.delta,
    "joined": (Join("linear_attn.out_proj", ("ssm_out",), columns=_value_columns),),
}  # fmt: skip
MADE_HERE = [
    Family(
        "granitemoe", GRANITE_MOE | SHARED_BACK, GRANITE_EXPERTS, permuted=True, joined=(SHARED_JOIN,),
        kind="granitemoeshared", keys=openedconfig.granite,
    ),
    Family(
        "granitehybrid", HYBRID, GRANITE_EXPERTS, permuted=True, back=_mamba("mamba") | DENSE_BACK,
        joined=(SHARED_JOIN, DENSE_JOIN), kind="granitemoehybrid", keys=openedconfig.granite,
    ),
    Family(
        "qwen3next", QWEN | ROUTER | SHARED, QWEN_EXPERTS, norm_shift=True, back=NEXT_BACK,
        joined=(Join("linear_attn.in_proj_qkvz", ("attn_qkv", "attn_gate"), _by_key),), kind="qwen3_next",
        keys=openedconfig.delta,
    ),
    Family("qwen35", QWEN | FEED_FORWARD, kind="qwen3_5_text", **QWEN35_SAYS),
    Family("qwen35moe", QWEN | ROUTER | SHARED, QWEN_EXPERTS, kind="qwen3_5_moe_text", **QWEN35_SAYS),
    *(Family(f"nemotron_h{end}", NEMOTRON, NEMOTRON_EXPERTS, **NEMOTRON_SAYS) for end in ("", "_moe")),
    Family(
        "deepseek2", DEEPSEEK | NORM | FEED_FORWARD | ROUTER | SHARED_EXPERTS, QWEN_EXPERTS,
        back={"exp_probs_b.bias": SCORES},
        joined=(Join("self_attn.kv_b_proj", ("attn_k_b", "attn_v_b"), heads=True),), kind="deepseek_v3",
        keys=openedconfig.deepseek,
    ),
    Family(
        "gemma4", GEMMA4, GEMMA4_EXPERTS, outer=SIDES, back=GEMMA4_BACK, kind="gemma4_text",
        keys=openedconfig.gemma4,
    ),
]  # fmt: skip
OPENED = OF_ARCH | {family.arch: family for family in (*BACK.values(), *MADE_HERE)}
