"""``Family``: what distinguishes one kind of model from another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..config import Config, config_of
from ..step import Array, Step


@dataclass(frozen=True)
class Family:
    """A kind of model: its layer, and settings that its files leave out.

    ``layer(step, x, i)`` computes layer i; ``embed`` changes the embedding; ``config`` completes the config.
    """

    layer: Callable[[Step, Array, int], Array]
    neox: bool
    period: int = 0  # of so many layers the last one has no window
    window: int = 0
    steady: bool = True
    embed: Callable[[Step, Array], Array] = lambda _, x: x
    config: Callable[[Config, Mapping[str, Any]], Config] = lambda config, _: config

    def read(self, metadata: Mapping[str, Any], architecture: str, context: int | None) -> Config:
        """The config of a file of this family."""
        config = config_of(
            metadata, architecture, neox=self.neox, period=self.period, window=self.window,
            steady=self.steady, context=context,
        )  # fmt: skip
        return self.config(config, metadata)
