"""A call of a module with hooks: the input and the output of each part that has a tensor in the file."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..checkpoint.families import OF_ARCH, OUTER, Family
from ..checkpoint.newer import NEMOTRON_MOE, NEWER
from ..errors import ShapeError, UnsupportedError
from ..gguf import GGUFFile

Floats = NDArray[Any]

# Parts of architectures whose checkpoints `ggmlq convert` does not write, and fused ones.
DENSE = OF_ARCH["llama"].layer
FUSED = {"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"}
DELTA = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm",
    "linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.out_proj": "ssm_out", "linear_attn.norm": "ssm_norm", "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt",
    "linear_attn.in_proj_ba": "ssm_ba",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
}  # fmt: skip
DELTA_NETS = ("qwen3next", "qwen35", "qwen35moe")
MORE = {"phi3": FUSED, **dict.fromkeys(DELTA_NETS, DELTA)}
WORDS = ("embed_tokens", "embeddings")  # the second of Nemotron-H
KNOWN = {family.arch: family for family in (*NEWER.values(), NEMOTRON_MOE)} | OF_ARCH


class Call(NamedTuple):
    """What went through a part: its first input, its output, and another input of that shape."""

    path: str
    x: Floats
    y: Floats
    gate: Floats | None
    dtype: str


def family_of(file: GGUFFile) -> Family | None:
    """The facts about the file's architecture by which checkpoints are converted."""
    return KNOWN.get(str(file.metadata.get("general.architecture")))


def paths(file: GGUFFile, parts: Mapping[str, Any], names: Mapping[str, str] | None) -> dict[str, str]:
    """Paths in the module by the stems of tensors in the file, of those parts that the module has."""
    words = next((path for path in parts if path.rpartition(".")[2] in WORDS), None)
    head = next((path for path in parts if path.rpartition(".")[2] == "lm_head"), "lm_head")
    if words is None and not names:
        raise UnsupportedError(
            f"compare: the module has no embed_tokens among {len(parts)} parts; it is no language model with "
            "the names of Hugging Face; pass names, a mapping of stems of tensors to paths in the module"
        )
    front, _, last = (words or "embed_tokens").rpartition("embed")
    last_norm = "norm" if last == "_tokens" else "norm_f"
    architecture, family = str(file.metadata.get("general.architecture")), family_of(file)
    layer: dict[str, str] = {}
    for names_of_parts in (family.layer if family else DENSE, MORE.get(architecture, {})):
        layer |= {new: old for old, new in names_of_parts.items()}
    outer = {"token_embd": words or "embed_tokens", "output_norm": front + last_norm, "output": head}
    assert outer.keys() == {*OUTER.values()}
    result = {}
    for stem in dict.fromkeys(name.removesuffix(".weight").removesuffix(".bias") for name in file):
        _, _, rest = stem.partition("blk.")
        number, _, inner = rest.partition(".")
        path = (names or {}).get(stem) or outer.get(stem)
        path = path or (f"{front}layers.{number}.{layer[inner]}" if inner in layer else "")
        if path and (path in parts or path.rpartition(".")[0] in parts):
            result[stem] = path
    if "output" not in result and head in parts:
        result["output"] = head  # the file's head is its embedding
    return result


def watched(
    model: Any, places: Mapping[str, str], tokens: Sequence[int]
) -> tuple[dict[str, Call], Floats | None]:
    """The calls of parts by the stems of their tensors, and the logits of a module for some tokens."""
    calls: dict[str, Call] = {}
    torch, parts = sys.modules.get("torch"), dict(model.named_modules())
    hooks = [
        parts[path].register_forward_hook(_hook(calls, stem, path), with_kwargs=True)
        for stem, path in places.items()
        if path in parts
    ]
    ids = np.array([tokens]) if torch is None else torch.tensor([list(tokens)], device=_device(model))
    training = getattr(model, "training", False)
    try:
        if training:
            model.eval()  # dropout would be a difference
        with nullcontext() if torch is None else torch.no_grad():
            y = model(ids)
    except Exception as error:  # whatever somebody's module raises
        raise UnsupportedError(
            f"compare: the module raised {type(error).__name__} when it was called with {len(tokens)} "
            f"tokens: {error}; it takes a tensor [1, T] of them, and has the file's vocabulary"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
        if training:
            model.train()
    if not calls:
        raise ShapeError(
            f"compare: none of {len(places)} parts was called when the module was; they are not those that "
            "it computes with; pass names, a mapping of stems of tensors to paths in the module"
        )
    y = getattr(y, "logits", y[0] if isinstance(y, tuple) else y)
    return calls, numbers(y)[0] if hasattr(y, "detach") else None


def _device(model: Any) -> Any:
    return next((value.device for value in model.parameters()), "cpu")


def numbers(x: Any) -> Floats:
    """A tensor as an array on the host."""
    values: Floats = np.asarray(x.detach().float().cpu().numpy())
    return values


def _hook(calls: dict[str, Call], stem: str, path: str) -> Any:
    def hook(_: Any, args: tuple[Any, ...], more: dict[str, Any], y: Any) -> None:
        inputs = [x for x in (*args, *more.values()) if hasattr(x, "detach")]
        y = y[0] if isinstance(y, tuple) else y
        if stem in calls or not inputs or not hasattr(y, "detach"):
            return
        x, *others = inputs
        gate = next((numbers(each) for each in others if each.shape == x.shape), None)
        calls[stem] = Call(path, numbers(x), numbers(y), gate, str(y.dtype).rpartition(".")[2])

    return hook
