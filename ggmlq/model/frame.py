"""``Frame``: the tensors that a model of some sizes has, held against those of a file.

A family says which ones a layer has, with the same parts as its layer is built from. After that no product,
norm or cache can meet a wrong size: what is missing, has another shape or type, or belongs nowhere is refused
before anything is allocated.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..arrays.array import QuantArray
from ..base.text import short
from ..errors import GGUFError
from .config import Config
from .facts import Facts

TOKENS = "tokenizer.ggml.tokens"
SHAPES = (
    "embedding_length", "attention.head_count", "attention.head_count_kv", "attention.key_length",
    "attention.value_length", "attention.key_length_mla", "attention.value_length_mla",
    "attention.q_lora_rank", "attention.kv_lora_rank", "rope.dimension_count", "feed_forward_length",
    "expert_count", "expert_feed_forward_length", "expert_shared_count",
)  # fmt: skip
FLOATS = ("f32", "f16", "bf16")
CAUSE = "the file is damaged, a part of a model, or not of the architecture that it says: convert it anew"


class Frame:
    """The tensors of a file, of which families take those of a layer, by name and shape."""

    def __init__(self, config: Config, facts: Facts, tensors: Mapping[str, QuantArray]) -> None:
        self.config, self.facts, self._tensors = config, facts, tensors
        self._taken: set[str] = set()
        self.layer, self._stem = 0, ""

    def enter(self, layer: int) -> None:
        """Names are those of a layer from now on."""
        self.layer, self._stem = layer, f"blk.{layer}."

    def has(self, name: str) -> bool:
        """True where the file has a tensor."""
        return f"{self._stem}{name}" in self._tensors

    def vectors(self, length: int, *names: str) -> None:
        """Weights of norms, of so many columns each."""
        for name in names:
            self.tensor(f"{name}.weight", length)

    def matrix(self, name: str, *shape: int, bias: bool = True) -> None:
        """The weights of a product, or of one for each expert, and the bias of its rows if there is one."""
        self.tensor(f"{name}.weight", *shape)
        if bias and self.has(f"{name}.bias"):
            self.tensor(f"{name}.bias", *shape[:-1])

    def tensor(self, name: str, *shape: int) -> None:
        """A tensor of this shape; its scales may be a tensor of their own."""
        name = f"{self._stem}{name}"
        q = self._tensors.get(name)
        if q is None:
            raise GGUFError(
                f"model.load: there is no tensor {name} among {len(self._tensors)}; "
                f"{self.config.architecture} needs it, of shape {shape}; {CAUSE}"
            )
        if q.shape != shape or 0 in shape:
            raise GGUFError(
                f"model.load: {name} has shape {q.shape}; with {self._sizes()} it has {shape}; {CAUSE}"
            )
        if q.format.block_size == 1 and q.format.name not in FLOATS:
            raise GGUFError(
                f"model.load: {name} is {q.format.name}; weights are {', '.join(FLOATS)} or a block format; "
                f"{CAUSE}"
            )
        stem = name.removesuffix(".weight")
        scales = {f"{name}.scale", f"{stem}.scale"} if q.scale is not None else set()
        self._taken |= {name, f"{stem}.input_scale"} | scales

    def _sizes(self) -> str:
        """The metadata by which tensors have their shapes, as the file has it."""
        there = {key: self.facts.get(key) for key in SHAPES}
        return ", ".join(f"{key} {short(value)}" for key, value in there.items() if value is not None)

    def columns(self, name: str) -> int:
        """The columns of weights, 0 where there are none."""
        q = self._tensors.get(f"{self._stem}{name}.weight")
        return q.shape[-1] if q is not None and q.ndim else 0

    # --- parts ------------------------------------------------------------------------------

    def ends(self) -> None:
        """The embedding, the last norm, and the head, which may be the embedding."""
        width, first = self.config.width, self._tensors.get("token_embd.weight")
        tokens = first.shape[0] if first is not None and first.ndim else 0
        if TOKENS in self.facts.metadata:  # which may be hundreds of thousands: they are not decoded
            texts = self.facts.metadata.length(TOKENS)
            if first is not None and texts != tokens:
                raise GGUFError(
                    f"model.load: {TOKENS} is a list of {texts:,} texts, token_embd.weight has shape "
                    f"{first.shape}; each token has a row; {CAUSE}"
                )
        self.matrix("token_embd", tokens, width, bias=False)
        self.vectors(width, "output_norm")
        if self.has("output.weight"):
            self.matrix("output", tokens, width, bias=False)
        if self.has("output.bias"):
            self.tensor("output.bias", tokens)

    def factors(self) -> None:
        """Factors of the pairs that are turned, one for all contexts or for long and short ones."""
        stem, self._stem = self._stem, ""
        for name in ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"):
            if self.has(name):
                self.tensor(name, self.config.rope.dims // 2)
        self._stem = stem

    def attention(self) -> None:
        """Queries, keys and values by three matrices or by one, and the product behind attention."""
        c, i = self.config, self.layer
        q, k, v = c.heads[i] * c.key_width, c.kv_heads[i] * c.key_width, c.kv_heads[i] * c.value_width
        if self.has("attn_qkv.weight") and not self.has("attn_q.weight"):
            self.matrix("attn_qkv", q + k + v, c.width)
        else:
            for role, rows in {"q": q, "k": k, "v": v}.items():
                self.matrix(f"attn_{role}", rows, c.width)
        self.matrix("attn_output", c.width, c.heads[i] * c.value_width)

    def feed_forward(self, end: str = "", joined: bool = False, hidden: int = 0) -> None:
        """Gate, up and down, with ``end`` at their names; ``joined``: gate and up may be one matrix.

        ``hidden``: rows of gate and up, where it is not the layer's length by the metadata.
        """
        width = self.config.width
        hidden = hidden or self.facts.each("feed_forward_length", 0)[self.layer] * (not end)
        hidden = hidden or self.columns(f"ffn_down{end}")
        if joined and not self.has(f"ffn_gate{end}.weight"):
            self.matrix(f"ffn_up{end}", 2 * hidden, width)
        else:
            self.matrix(f"ffn_gate{end}", hidden, width)
            self.matrix(f"ffn_up{end}", hidden, width)
        self.matrix(f"ffn_down{end}", width, hidden)

    def experts(self, key: str = "expert_feed_forward_length") -> None:
        """The matrix that scores experts, and gate, up and down of each; ``key``: their length by it."""
        count, width = self.config.experts, self.config.width
        if not count:
            raise self.facts.wrong("expert_count", f"layer {self.layer} of this family has experts")
        hidden = self.facts.each(key, 0)[self.layer] or self.columns("ffn_down_exps")
        self.matrix("ffn_gate_inp", count, width)
        self.matrix("ffn_gate_exps", count, hidden, width)
        self.matrix("ffn_up_exps", count, hidden, width)
        self.matrix("ffn_down_exps", count, width, hidden)

    def finish(self) -> None:
        """Refuse tensors that no part has taken, as llama.cpp does: a run would leave them out."""
        if left := sorted(self._tensors.keys() - self._taken):
            raise GGUFError(
                f"model.load: {len(left)} of {len(self._tensors)} tensors belong to no part of "
                f"{self.config.architecture} with {self.config.layers} layers, the first is "
                f"{short(left[0])}; each has its place; {CAUSE}"
            )
