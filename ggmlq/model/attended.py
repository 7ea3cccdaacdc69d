"""Operands of attention in a model's layers: queries, keys and values as they are before they are stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from .arithmetic.kernels import Array, Kernels, Keys, Seen
from .model import Model


class Attended(NamedTuple):
    """The operands of a layer's attention."""

    q: Array  # [1, H, T, D], turned by their positions
    k: Array  # [1, HK, S, D], the same
    v: Array  # [1, HK, S, DV]
    options: dict[str, Any]  # of gq.attention


class Listener(Kernels):
    """The fastest arithmetic of the CPU, which hands out what attention is called with."""

    def __init__(self) -> None:
        self._calls: list[Attended] = []

    def attend(self, q: Array, cache: Keys, seen: Seen) -> Array:
        """Attention, noted before it is computed."""
        options = {
            "causal": True, "scale": seen.scale, "window": seen.window or None, "softcap": seen.cap,
            "sinks": seen.sinks,
        }  # fmt: skip
        keys = (rows.dequantize() for rows in (cache.k, cache.v))
        k, v = (rows.reshape(1, *rows.shape[-3:]) for rows in keys)
        self._calls.append(Attended(q[None], k, v, options))
        return super().attend(q, cache, seen)

    def taken(self) -> list[Attended]:
        """The calls since the last time."""
        calls, self._calls = self._calls, []
        return calls


def attention_operands(model: Model, tokens: Sequence[int]) -> Iterator[Attended]:
    """Yield the operands of each layer's attention with its options, in float32, computed on the CPU.

    They are what :func:`ggmlq.attention` and :func:`ggmlq.cache_error` take.

    >>> import ggmlq as gq, tempfile, pathlib
    >>> from ggmlq.testing.models import tiny_model
    >>> m = gq.model.load(tiny_model(pathlib.Path(tempfile.mkdtemp()) / "tiny.gguf"))
    >>> [(a.q.shape, a.k.shape) for a in gq.model.attention_operands(m, [1, 5])]
    [((1, 4, 2, 64), (1, 2, 2, 64)), ((1, 4, 2, 64), (1, 2, 2, 64))]
    """
    listening, listener = Model(model.file, None, ("f32", "f32"), model.config.context), Listener()
    listening._arithmetic = listener
    for _ in listening.nodes(tokens, flash=True):
        yield from listener.taken()
