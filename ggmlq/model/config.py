"""``Config``: the sizes and settings of a model, from the metadata of its file."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from .facts import PATTERN, Facts


@dataclass(frozen=True)
class Rope:
    """The turning of queries and keys by their positions."""

    dims: int  # columns of a head that are turned
    neox: bool  # pairs are half of them apart; otherwise neighbours
    base: float
    scale: float = 1.0  # of positions: 1 / the factor by which the context was stretched
    mix: float = 0.0  # of YaRN: 1 where fast pairs keep their angle
    length: float = 1.0  # factor of cosine and sine
    fast: float = 32.0  # turns within the context, from which on YaRN keeps angles
    slow: float = 1.0
    context: int = 0  # of the training before it was stretched


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
    temperature: float = 0.0  # queries grow with the logarithm of their position, in steps of a context


def config_of(
    facts: Facts, *, neox: bool, period: int = 0, window: int = 0, steady: bool = True,
    context: int | None = None,
) -> Config:  # fmt: skip
    """The config from a file's metadata.

    ``period``: of so many layers the last one has no window, if the file does not say which have one; 0 for
    families without. ``window``: positions of a window by default. ``steady``: layers with a window turn by
    the base and scale of the others unless the file has a base for them. ``context``: instead of the file's.
    """
    width, trained = facts.number("embedding_length"), facts.number("context_length")
    heads = facts.each("attention.head_count", facts.number("attention.head_count"))
    kv_heads = facts.each("attention.head_count_kv", heads)
    if any(q % kv for q, kv in zip(heads, kv_heads, strict=True)):
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
        length /= 1 + 0.1 * math.log(stretch)  # which YaRN's turning multiplies by
    return Rope(
        dims=dims, neox=neox, base=float(facts.get("rope.freq_base", 10000.0)), scale=scale, mix=mix,
        length=length * float(facts.get("rope.scaling.attn_factor", 1.0)), fast=fast, slow=slow,
        context=facts.get("rope.scaling.original_context_length", 0) or facts.number("context_length"),
    )  # fmt: skip


def _longer(stretch: float, multiplier: float) -> float:
    """YaRN's length of turned pairs for a context that was stretched."""
    return 1.0 if stretch <= 1 else 0.1 * multiplier * math.log(stretch) + 1
