"""The types that llama.cpp's quantizer gives to tensors: with one type (``--pure``), and in its mixes.

These are its choices, not properties of the formats, so they stand together here. A test asks
libllama about every one of them.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from ..base.mixes import ALIASES, BY_NAME, WORDS, At, Mix
from ..errors import ConvertError, FormatError, GGUFError
from ..formats import FORMATS, Format
from .model import Model

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


# --- mixes: the type that one of llama.cpp, such as q4_K_M, gives to each tensor -------------

# Parts of a model by a piece of the tensor's name; the first piece that is found counts.
MIXED_PARTS = {
    "attn_qkv.weight": "v", "attn_kv_b.weight": "v", "attn_v.weight": "v", "attn_k.weight": "k",
    "attn_q.weight": "q", "attn_output.weight": "attention", "ffn_up": "up", "ffn_gate": "gate",
    "ffn_down": "down",
}  # fmt: skip
LARGE = 80  # layers of a model whose attn_v gets more bits where heads share keys


def find(type: object, mixed: bool) -> Mix | None:
    """The mix that the caller names: by a name that no type has, or by the name of a type and ``mixed``."""
    low = type.lower() if isinstance(type, str) else FORMATS[type].name.lower()
    is_type = any(name.lower() == low for name in FORMATS)
    if is_type and not mixed:
        return None
    mix = BY_NAME.get(ALIASES.get(low, low))
    if mix is None and mixed:
        raise ConvertError(
            f"mix {type!r}: llama.cpp has none of this name, or ggmlq does not know it; the mixes are "
            f"{', '.join(mix.name for mix in BY_NAME.values())}"
        )
    if mix is None and isinstance(type, str):
        _refuse(type)
    return mix


def _refuse(type: str) -> None:
    """Raise an error with similar names of types and mixes; if there are none, the catalogue refuses."""
    if type.isdecimal():
        raise FormatError(
            f"type {type!r}: to ggml a number is another type than to llama.cpp's quantizer; write the name"
        )
    names = {name.lower(): name for name in FORMATS} | {name: mix.name for name, mix in BY_NAME.items()}
    near = difflib.get_close_matches(type.lower(), names, 4)
    if near and type.lower() not in WORDS:
        raise FormatError(
            f"type {type!r}: neither ggml's types nor llama.cpp's mixes have this name; did you mean "
            f"{', '.join(names[name] for name in near)}?"
        )


def part(name: str) -> str | None:
    """The part of a model to which a tensor belongs, as the rules name parts."""
    return next((part for text, part in MIXED_PARTS.items() if text in name), None)


def layer(name: str) -> int | None:
    match = re.match(r"blk\.(\d+)\.", name)
    return int(match[1]) if match else None


class Mixer:
    """Chooses the types of tensors by a mix. It counts the tensors of a part, so their order matters."""

    def __init__(self, mix: Mix, file: Model, imatrix: bool) -> None:
        self._mix = mix
        self._tied = "output.weight" not in file
        arch = _text(file, "general.architecture")
        heads, keys = (_number(file, f"{arch}.attention.{key}") for key in ("head_count", "head_count_kv"))
        keys = heads if keys is None else keys
        self._layers = _number(file, f"{arch}.block_count") or 0
        self._at = At(
            layer=0, layers=0, gqa=(heads or 0) // keys if keys else 0,
            experts=_number(file, f"{arch}.expert_count") or 0, imatrix=imatrix, falcon=arch == "falcon",
        )  # fmt: skip
        self._large = self._layers == LARGE and heads != keys
        self._values = sum(part(name) == "v" and name not in EMBEDDINGS for name in file)
        self._seen: Counter[str] = Counter()

    def choose(self, name: str, shape: tuple[int, ...]) -> Format:
        """The type of a tensor. Call it once for each tensor, in the order of :func:`in_order`."""
        mix = self._mix
        if name == "output.weight" or (self._tied and name in EMBEDDINGS):
            return FORMATS[self._output(shape[-1])]
        if name in EMBEDDINGS:
            return FORMATS[mix.embedding or mix.base]
        if mix.stacked and len(shape) > 2 and shape[-3] > 1:
            return FORMATS[mix.stacked]
        kind = part(name)
        if kind is None:
            return FORMATS[mix.base]
        at = self._place(kind, name)
        name = next((fmt for fmt, condition in getattr(mix, kind) if condition(at)), mix.base)
        return FORMATS[name if mix.small else self._raised(kind, name)]

    def _output(self, columns: int) -> str:
        fits = columns % FORMATS[self._mix.base].block_size == 0
        return self._mix.output if fits and not self._at.falcon else "q8_0"

    def _place(self, kind: str, name: str) -> At:
        """The place of a tensor among those of its part: by count, or by name if experts are spread out."""
        count = self._seen[kind]
        self._seen[kind] += 1
        if kind == "v":
            return self._at._replace(layer=count, layers=self._values)
        if self._at.experts > 1 and kind in ("up", "gate", "down") and not self._mix.small:
            number = layer(name)
            if number is None or number >= self._layers:
                raise ConvertError(
                    f"tensor {name!r} in mix {self._mix.name}: its layer decides, and its name has none of "
                    f"0 to {self._layers - 1}; choose a type for it by name"
                )
            count = number
        return self._at._replace(layer=count, layers=self._layers)

    def _raised(self, kind: str, value: str) -> str:
        """The type, raised for small tensors of large models."""
        if kind == "v" and self._large and value in ("q3_K", "q4_K"):
            value = "q5_K"
        return "q8_0" if kind in ("v", "k") and self._at.experts == 8 else value


def in_order(names: Iterable[str]) -> list[str]:
    """The names in the order in which llama.cpp chooses their types, and writes them."""
    return sorted(names, key=lambda name: (-1 if layer(name) is None else layer(name), name.encode()))


def _text(file: Model, key: str) -> str:
    value = file.metadata.get(key)
    if not isinstance(value, str):
        raise GGUFError(
            f"{file.path}: {key} is {value!r}; a mix depends on the architecture; set it, or choose one type"
        )
    return value


def _number(file: Model, key: str) -> int | None:
    """A count in the metadata; the first of a list with one for each layer."""
    value = file.metadata.get(key)
    if value is not None and not isinstance(value, int | str | float):
        value = value[0] if len(value) else None
    return value if isinstance(value, int) else None
