"""The decisions of llama.cpp's quantizer about a tensor when it uses one type (``--pure``).

These are its choices, not properties of the formats, so they stand together here. A test asks
libllama about every one of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ConvertError
from ..formats import FORMATS, Format

QUANTIZATION_VERSION = 2  # general.quantization_version: of the block formats

LAST_RESORT = "f16"  # where the fallback of a format does not fit either

# Types that are refused without an importance matrix, except for the tensors below.
WANT_IMATRIX = ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs")
EMBEDDINGS = ("token_embd.weight", "per_layer_token_embd.weight")
WANT_NO_IMATRIX = (*EMBEDDINGS, "output.weight")

# Parts of names, and why such tensors stay as they are.
PARTS = {
    "_norm.weight": "a norm",
    "ffn_gate_inp.weight": "it routes tokens to experts",
    "ffn_gate_tid2eid.weight": "a table of experts",
    "altup": "small",
    "laurel": "small",
    "per_layer_model_proj": "small",
    "ssm_conv1d": "a small convolution",
    "shortconv.conv.weight": "a small convolution",
    "indexer.k_proj.weight": "small",
    "indexer.q_proj.weight": "small",
    "time_mix_first.weight": "small",
    **{f"time_mix_{name}.weight": "small" for name in ("w0", "w1", "w2", "v0", "v1", "v2")},
    **{f"time_mix_{name}.weight": "small" for name in ("a0", "a1", "a2", "g1", "g2")},
    "time_mix_decay_w1.weight": "small",
    "time_mix_decay_w2.weight": "small",
    "time_mix_lerp_fused.weight": "small",
    "attn_rel_b.weight": "a bias by position",
    ".position_embd": "embeddings of positions",
    "sam.pos_embd": "embeddings of positions",
    "sam.neck.": "part of an image encoder",
    "sam.net_": "part of an image encoder",
    ".rel_pos": "embeddings of positions",
    ".patch_embd": "part of an image encoder",
    ".patch_merger": "part of an image encoder",
    "a.rvq.codebook": "a codebook",
    "mm.a.code_embd": "a codebook",
}
NAMES = {
    "position_embd.weight": "embeddings of positions",
    "token_types.weight": "embeddings of token types",
}


def axes(shape: tuple[int, ...]) -> int:
    """Axes as ggml counts them: leading ones of length 1 are none."""
    outer = [i for i, n in enumerate(reversed(shape)) if n != 1]
    return outer[-1] + 1 if outer else 1


def why_left(name: str, fmt: Format, shape: tuple[int, ...], any_name: bool = False) -> str | None:
    """The reason why a tensor is copied, or None for one that is quantized. ``any_name`` ignores names."""
    if fmt.dtype.kind == "i":
        return "integers"
    if axes(shape) < 2:
        return "one axis"
    if any_name:
        return None
    if not name.endswith("weight"):
        return "its name does not end in 'weight'"
    return NAMES.get(name) or next((why for part, why in PARTS.items() if part in name), None)


def fallback(request: str, fmt: Format, columns: int) -> Format:
    """The type that llama.cpp takes for rows of so many columns in place of one that does not fit."""
    if columns % fmt.block_size == 0:
        return fmt
    name = getattr(fmt, "fallback", None)
    if name is None:
        raise ConvertError(
            f"{request}: rows have {columns} elements, {fmt.name} blocks hold {fmt.block_size}, and "
            f"llama.cpp knows no type to fall back to from {fmt.name}; keep it as it is or choose a type, "
            "such as f16"
        )
    other = FORMATS[name]
    return other if columns % other.block_size == 0 else FORMATS[LAST_RESORT]


def wants_imatrix(name: str, fmt: Format, besides: Sequence[str] = ()) -> bool:
    """True for a type that is refused without an importance matrix."""
    wanting = fmt.name in WANT_IMATRIX or fmt.name in besides
    return fmt.needs_imatrix or (wanting and name not in WANT_NO_IMATRIX)
