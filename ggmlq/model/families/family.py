"""``Family``: what distinguishes one kind of model from another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ...arrays.array import QuantArray
from ...gguf.metadata import Metadata
from ..arithmetic.kernels import Array
from ..config import Config, Facts, config_of
from ..step import Step
from ..weights import Frame


@dataclass(frozen=True)
class Family:
    """A kind of model: its layer, and settings that its files leave out.

    ``layer(step, x, i)`` computes layer i; ``tensors(frame)`` takes what it needs for that; ``embed`` changes
    the embedding; ``config`` completes the config.
    """

    layer: Callable[[Step, Array, int], Array]
    tensors: Callable[[Frame], None]
    neox: bool
    period: int = 0  # of so many layers the last one has no window
    window: int = 0
    steady: bool = True
    embed: Callable[[Step, Array], Array] = lambda _, x: x
    config: Callable[[Config, Facts], Config] = lambda config, _: config

    def read(
        self, metadata: Metadata, architecture: str, tensors: Mapping[str, QuantArray],
        context: int | None,
    ) -> Config:  # fmt: skip
        """The config of a file of this family, whose tensors have the sizes that it says."""
        layers = {name.split(".")[1] for name in tensors if name.startswith("blk.")}
        facts = Facts(metadata, architecture, len(layers))
        config = config_of(
            facts, neox=self.neox, period=self.period, window=self.window, steady=self.steady,
            context=context,
        )  # fmt: skip
        ahead = facts.get("nextn_predict_layers", 0)  # last layers, which guess further tokens
        if ahead >= facts.layers:
            raise facts.wrong("nextn_predict_layers", f"it is less than the {facts.layers} layers")
        layers = facts.layers - ahead
        there = {name: getattr(config, name)[:layers] for name in ("heads", "kv_heads", "windows")}
        config = self.config(replace(config, layers=layers, **there), facts)
        if not any(config.kv_heads) or not (config.state or all(config.kv_heads)):
            rule = "each layer of this family has keys"
            if config.state:
                rule = "some layer has keys, also where full_attention_interval or a list says which"
            raise facts.wrong("attention.head_count_kv", rule)
        frame = Frame(config, facts, tensors)
        frame.ends()
        for layer in range(config.layers):
            frame.enter(layer)
            self.tensors(frame)
        frame.finish()
        return config
