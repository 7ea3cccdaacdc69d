"""``Facts``: the metadata of an architecture, each key of its type and within its range."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..base.text import short
from ..errors import GGUFError
from ..gguf.metadata import Metadata

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
    "attention.head_count": EACH, "attention.head_count_kv": EACH,
    "attention.key_length": SIZE, "attention.value_length": SIZE,
    "attention.key_length_mla": COUNT, "attention.value_length_mla": COUNT,
    "attention.kv_lora_rank": SIZE, "attention.q_lora_rank": COUNT,
    "attention.layer_norm_rms_epsilon": Rule(float, 1e-30, 1),
    "attention.sliding_window": COUNT, "attention.temperature_scale": Rule(float, 0, 1e3),
    "attn_logit_softcapping": CAP, "final_logit_softcapping": CAP,
    "expert_count": COUNT, "expert_used_count": COUNT, "expert_feed_forward_length": COUNT,
    "expert_shared_count": COUNT, "expert_group_count": COUNT, "expert_group_used_count": COUNT,
    "expert_gating_func": COUNT, "expert_weights_norm": Rule(bool),
    "expert_weights_scale": Rule(float, 0, 1e6), "leading_dense_block_count": COUNT,
    "rope.dimension_count": Rule(int, 2), "rope.freq_base": Rule(float, 2, 1e15),
    "rope.freq_base_swa": Rule(float, 2, 1e15), "rope.scale_linear": CAP, "rope.scaling.factor": CAP,
    "rope.scaling.type": Rule(str, words=("none", "linear", "yarn", "longrope")),
    "rope.scaling.attn_factor": Rule(float, 1e-3, 1e3), "rope.scaling.original_context_length": COUNT,
    "rope.scaling.yarn_beta_fast": Rule(float, 1e-3, 1e6),
    "rope.scaling.yarn_beta_slow": Rule(float, 1e-3, 1e6),
    "rope.scaling.yarn_log_multiplier": Rule(float, 0, 100),
}  # fmt: skip
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
