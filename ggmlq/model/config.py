"""``Config``: the sizes and settings of a model, from the metadata of its file; each within its range."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ..base.text import short
from ..errors import GGUFError
from ..gguf.metadata import Metadata

# --- facts: the metadata of an architecture, each key of its type and within its range -------

MOST = 2**31 - 1  # ggml counts in 32 bits
KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "one of"}


class Rule(NamedTuple):
    """The type of a value, and its range, or the words that it may be."""

    kind: type
    low: float = 0
    high: float = MOST
    each: bool = False  # a list of one for each layer, too
    off: bool = False  # 0 stands for none
    words: tuple[str, ...] = ()

    def holds(self, value: Any) -> bool:
        """True for a value of this kind; a whole number is a number, true is none."""
        if self.kind is str:
            return isinstance(value, str) and value in self.words
        if self.kind is bool or isinstance(value, bool):
            return self.kind is bool and isinstance(value, bool)
        if not isinstance(value, int if self.kind is int else int | float):
            return False
        return self.low <= value <= self.high or (self.off and value == 0)

    def __str__(self) -> str:
        if self.kind is bool:
            return KINDS[bool]
        if self.kind is str:
            return f"{KINDS[str]} {', '.join(self.words)}"
        low, high = (f"{n:,}" if self.kind is int else f"{n:g}" for n in (self.low, self.high))
        return f"{KINDS[self.kind]} from {low} to {high}{', or 0 for none' * self.off}"


COUNT, SIZE, EACH = Rule(int, 0), Rule(int, 1), Rule(int, 1, each=True)
CAP = Rule(float, 1e-3, 1e6, off=True)
# Each number that a family reads, and its range: beyond it no model lies, and sums are no longer finite.
RULES: dict[str, Rule] = {
    "block_count": SIZE, "context_length": SIZE, "embedding_length": SIZE,
    "feed_forward_length": Rule(int, 0, each=True),
    "attention.head_count": EACH, "attention.head_count_kv": Rule(int, 0, each=True),
    "attention.key_length": SIZE, "attention.value_length": SIZE,
    "attention.key_length_swa": SIZE, "attention.value_length_swa": SIZE,
    "attention.shared_kv_layers": COUNT, "embedding_length_per_layer_input": COUNT,
    "attention.key_length_mla": COUNT, "attention.value_length_mla": COUNT,
    "attention.kv_lora_rank": SIZE, "attention.q_lora_rank": COUNT,
    "attention.layer_norm_rms_epsilon": Rule(float, 1e-30, 1),
    "full_attention_interval": SIZE, "shortconv.l_cache": Rule(int, 2, 64), "nextn_predict_layers": COUNT,
    "attention.recurrent_layers": Rule(bool, each=True),
    "ssm.conv_kernel": Rule(int, 2, 64), "ssm.inner_size": SIZE, "ssm.state_size": SIZE,
    "ssm.time_step_rank": SIZE, "ssm.group_count": SIZE,
    "attention.sliding_window": COUNT, "attention.temperature_scale": Rule(float, 0, 1e3),
    "attn_logit_softcapping": CAP, "final_logit_softcapping": CAP,
    "expert_count": COUNT, "expert_used_count": COUNT, "expert_feed_forward_length": COUNT,
    "expert_shared_count": COUNT, "expert_group_count": COUNT, "expert_group_used_count": COUNT,
    "expert_gating_func": COUNT, "expert_weights_norm": Rule(bool),
    "expert_weights_scale": Rule(float, 0, 1e6), "leading_dense_block_count": COUNT,
    "rope.dimension_count": Rule(int, 2), "rope.dimension_count_swa": Rule(int, 2),
    "rope.freq_base": Rule(float, 2, 1e15), "rope.freq_base_swa": Rule(float, 2, 1e15),
    "rope.scale_linear": CAP, "rope.scaling.factor": CAP,
    "rope.scaling.type": Rule(str, words=("none", "linear", "yarn", "longrope")),
    "rope.scaling.attn_factor": Rule(float, 1e-3, 1e3), "rope.scaling.original_context_length": COUNT,
    "rope.scaling.yarn_beta_fast": Rule(float, 1e-3, 1e6),
    "rope.scaling.yarn_beta_slow": Rule(float, 1e-3, 1e6),
    "rope.scaling.yarn_log_multiplier": Rule(float, 0, 100), "rope.scaling.finetuned": Rule(bool),
    "attention.scale": CAP, "embedding_scale": CAP, "residual_scale": CAP,
    "logit_scale": Rule(float, 1e-3, 1e6), "expert_shared_feed_forward_length": COUNT,
    "moe_latent_size": COUNT,
}  # fmt: skip
SECTIONS = "rope.dimension_sections"  # pairs with positions in time, in height, in width, and others
PATTERN = "attention.sliding_window_pattern"  # a period, or true and false for each layer


class Facts:
    """Metadata of an architecture: ``facts.get("block_count")`` is the key ``llama.block_count``.

    ``layers``: those that the file has tensors of. Every key that a model reads has been looked at, also
    where this one does not read it: of its type and in its range, a list with a number for each layer.
    """

    def __init__(self, metadata: Metadata, architecture: str, layers: int) -> None:
        self.metadata, self.architecture, self.layers = metadata, architecture, layers
        self._check("block_count", SIZE)
        if self.number("block_count") != layers:
            raise self.wrong("block_count", f"it counts the layers that the file has tensors of, {layers:,}")
        for key, rule in RULES.items():
            self._check(key, rule)
        pattern = self.get(PATTERN)
        self._check(PATTERN, COUNT if isinstance(pattern, int) else Rule(bool, each=True))

    def _check(self, key: str, rule: Rule) -> None:
        value = self.get(key)
        if value is None or rule.holds(value):
            return
        if not rule.each:
            raise self.wrong(key, f"it is {rule}")
        listed = isinstance(value, Sequence) and not isinstance(value, str) and len(value) == self.layers
        if not listed or not all(map(rule.holds, value)):
            raise self.wrong(key, f"it is {rule}, or a list of {self.layers}, one for each layer")

    def wrong(self, key: str, rule: str) -> GGUFError:
        """An error about a key, whose value breaks a rule."""
        value = self.get(key)
        if isinstance(value, Sequence) and not isinstance(value, str):
            value = list(value[:8])
        return GGUFError(
            f"model.load: {self.architecture}.{key} is {short(value)}; {rule}; the file is damaged, a "
            "vocabulary alone, or of another architecture: convert it anew, or change the key with "
            "`ggmlq metadata FILE --set`"
        )

    def get(self, key: str, default: Any = None) -> Any:
        """A value, or the default."""
        return self.metadata.get(f"{self.architecture}.{key}", default)

    def number(self, key: str) -> Any:
        """A number that a model has to have."""
        value = self.get(key)
        if value is None:
            raise self.wrong(key, f"a model needs {RULES[key]} there")
        return value

    def each(self, key: str, default: Any) -> tuple[int, ...]:
        """A number for each layer; one in the file stands for all of them."""
        value = self.get(key, default)
        return (value,) * self.layers if isinstance(value, int) else tuple(value)

    def sections(self, dims: int, turns: bool) -> bool:
        """True where pairs have sections, of which those of a text have its positions.

        ``turns``: pairs of time, height and width take turns; otherwise they follow each other.
        """
        value = self.get(SECTIONS, ())
        counts = [*value] if isinstance(value, Sequence) and not isinstance(value, str) else [value] * 4
        if len(counts) > 4 or not all(map(COUNT.holds, counts)):
            raise self.wrong(SECTIONS, "it is up to four numbers of pairs")
        counts += [0] * (4 - len(counts))
        if not any(counts):
            return False
        pairs = range(dims // 2)
        alike = not counts[3] or sum(counts[:3]) >= dims // 2
        if turns:
            alike = all(pair < 3 * counts[pair % 3] for pair in pairs)
        if not alike:
            raise self.wrong(SECTIONS, f"of {dims // 2} pairs each has time, height or width")
        return True


# --- the config ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rope:
    """RoPE: the rotation of queries and keys by their positions."""

    dims: int  # columns of a head that are rotated, 0 for none
    neox: bool  # pairs are half of them apart; otherwise neighbours
    base: float
    scale: float = 1.0  # of positions: 1 / the factor by which the context was stretched
    mix: float = 0.0  # of YaRN: 1 where fast pairs keep their angle
    length: float = 1.0  # factor of cosine and sine
    fast: float = 32.0  # rotations within the context, from which on YaRN keeps angles
    slow: float = 1.0
    context: int = 0  # of the training before it was stretched
    factors: bool = False  # of pairs, in layers of this kind alone


@dataclass(frozen=True)
class Config:
    """The sizes and settings of a model.

    Lists have an entry for each layer. ``windows``: positions that a query sees, 0 for all.
    """

    architecture: str
    name: str
    layers: int
    width: int
    heads: tuple[int, ...]
    kv_heads: tuple[int, ...]
    key_width: int
    value_width: int
    context: int
    epsilon: float
    rope: Rope
    window_rope: Rope  # of layers with a window
    windows: tuple[int, ...]
    scale: float  # of scores
    experts: int = 0
    used_experts: int = 0
    score_cap: float = 0.0
    logit_cap: float = 0.0
    share_of_chosen: bool = True  # weights of the chosen experts are made to add up to 1
    expert_scale: float = 0.0  # of these weights, 0 for none
    sigmoid: bool = False  # instead of the softmax of experts
    groups: int = 0  # of experts, of which some are chosen first
    used_groups: int = 0
    dense: int = 0  # first layers, which have no experts
    latent: int = 0  # columns of the vector from which keys and values are made
    shared: bool = False  # values are the first columns of the keys
    embed_scale: float = 0.0  # of the embedding, 0 for none
    residual_scale: float = 0.0  # of what a part adds, 0 for none
    logit_scale: float = 0.0  # by which logits are divided, 0 for none
    temperature: float = 0.0  # queries grow with the logarithm of their position, in steps of a context
    last_norm: str = "output_norm"
    seeds: bool = False  # what the last norm gives goes into layers that guess further tokens, too
    state: tuple[tuple[int, ...], ...] = ()  # shapes of the state of a layer without keys
    window_width: int = 0  # of keys and values in layers with a window, 0 for that of the others
    own: int = 0  # first layers with keys of their own, where later ones read those of their kind's last
    side: int = 0  # columns that each layer has of a token beside its rows
    bare: tuple[int, ...] = ()  # layers that have neither keys nor a state

    def widths(self, layer: int) -> tuple[int, int]:
        """Columns of a layer's keys and of its values."""
        if self.window_width and self.windows[layer]:
            return self.window_width, self.window_width
        return self.key_width, self.value_width

    @property
    def keys(self) -> list[int]:
        """The layers that have keys of their own."""
        return [i for i, heads in enumerate(self.kv_heads) if heads and not 0 < self.own <= i]

    def keyed(self, layer: int) -> int:
        """The number of the layer whose keys a layer reads among those that have keys."""
        if 0 < self.own <= layer:
            layer = self.own - (2 if self.windows[layer] else 1)
        return layer - self.kv_heads[:layer].count(0)

    def beginning(self, layer: int) -> int:
        """The last layer up to one from which on none reads keys of an earlier one."""
        return min(layer, max(self.own - 2, 0)) if self.own and layer < self.layers else layer

    def unkeyed(self, layer: int) -> int:
        """The number of a layer among those that have a state."""
        return self.kv_heads[:layer].count(0) - sum(one < layer for one in self.bare)


def config_of(
    facts: Facts, *, neox: bool, period: int = 0, window: int = 0, steady: bool = True,
    context: int | None = None,
) -> Config:  # fmt: skip
    """The config from a file's metadata.

    ``period``: of so many layers the last one has no window, if the file does not say which have one; 0 for
    families without. ``window``: positions of a window by default. ``steady``: layers with a window have
    the base and scale of the others unless the file has a base for them. ``context``: instead of the file's.
    """
    width, trained = facts.number("embedding_length"), facts.number("context_length")
    heads = facts.each("attention.head_count", facts.number("attention.head_count"))
    kv_heads = facts.each("attention.head_count_kv", heads)
    if any(kv and q % kv for q, kv in zip(heads, kv_heads, strict=True)):
        raise facts.wrong("attention.head_count_kv", f"heads are a multiple of it, here of {heads[:8]}")
    key_width = facts.get("attention.key_length", width // heads[0])
    rope = _rope(facts, key_width, neox)
    base = float(facts.get("rope.freq_base_swa", rope.base if steady else 10000.0))
    experts, used = facts.get("expert_count", 0), facts.get("expert_used_count", 0)
    if experts and not 1 <= used <= experts:
        raise facts.wrong("expert_used_count", f"of {experts} experts a token uses from 1 to {experts}")
    name = facts.metadata.get("general.name", "")
    return Config(
        architecture=facts.architecture, name=name if isinstance(name, str) else "", layers=facts.layers,
        width=width, heads=heads, kv_heads=kv_heads, key_width=key_width,
        value_width=facts.get("attention.value_length", width // heads[0]), context=context or trained,
        epsilon=float(facts.number("attention.layer_norm_rms_epsilon")), rope=rope,
        window_rope=replace(rope, base=base, scale=rope.scale if steady else 1.0),
        windows=_windows(facts, period, window), scale=1 / math.sqrt(key_width), experts=experts,
        used_experts=used, temperature=float(facts.get("attention.temperature_scale", 0.0)),
    )  # fmt: skip


def _windows(facts: Facts, period: int, default: int) -> tuple[int, ...]:
    """Positions of the window of each layer: of ``period`` layers the last one has none."""
    layers, size = facts.layers, facts.get("attention.sliding_window", default)
    if not size or not period:
        return (0,) * layers
    pattern = facts.get(PATTERN, period)
    if isinstance(pattern, int):
        has = [not pattern or i % pattern < pattern - 1 for i in range(layers)]
    else:
        has = list(pattern)
    return tuple(size if one else 0 for one in has)


def _rope(facts: Facts, key_width: int, neox: bool) -> Rope:
    dims = facts.get("rope.dimension_count", key_width)
    if dims % 2 or not 0 < dims <= key_width:
        raise facts.wrong("rope.dimension_count", f"it is even, and at most a key's {key_width} columns")
    factor = float(facts.get("rope.scaling.factor", 0.0) or facts.get("rope.scale_linear", 0.0))
    kind = facts.get("rope.scaling.type", "linear")
    scale = 1.0 if not factor or kind == "none" else 1 / factor
    mix = float(kind == "yarn")
    length = 1.0
    fast, slow = 32.0, 1.0
    if facts.architecture == "mistral3":
        fast = float(facts.get("rope.scaling.yarn_beta_fast", fast))
        slow = float(facts.get("rope.scaling.yarn_beta_slow", slow))
    if mix:
        stretch = 1 / scale
        multiplier = float(facts.get("rope.scaling.yarn_log_multiplier", 0.0))
        length = _longer(stretch, 1.0)
        if multiplier and facts.architecture == "mistral3":
            length /= _longer(stretch, multiplier)
        length /= 1 + 0.1 * math.log(stretch)  # which YaRN multiplies by
    return Rope(
        dims=dims, neox=neox, base=float(facts.get("rope.freq_base", 10000.0)), scale=scale, mix=mix,
        length=length * float(facts.get("rope.scaling.attn_factor", 1.0)), fast=fast, slow=slow,
        context=facts.get("rope.scaling.original_context_length", 0) or facts.number("context_length"),
    )  # fmt: skip


def _longer(stretch: float, multiplier: float) -> float:
    """YaRN's length of rotated pairs for a context that was stretched."""
    return 1.0 if stretch <= 1 else 0.1 * multiplier * math.log(stretch) + 1
