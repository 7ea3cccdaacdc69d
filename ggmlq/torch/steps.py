"""A step of a whole model in torch: the arithmetic, tensors and keys that families of ``gq.model`` build on.

Families say which parts follow each other; here a product is a call of a module, so branches beside it, hooks
and gradients are those of torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from ..model.arithmetic.kernels import Angles, Kernels, Routing, Seen, rope_angles
from ..model.config import Config, Rope
from ..model.weights import Stack
from .mixtures import swiglu_oai
from .modules import Embedding
from .products import product

LEAST = 256  # positions of a table of RoPE's angles
FEWEST = 2.0**-14  # that weights of experts add up to before they are divided by their sum
Tables = dict[tuple[Rope, torch.device], tuple[torch.Tensor, torch.Tensor]]


class Vectors(torch.nn.Module):
    """Weights of norms, biases and factors by the names that a file has for them."""


class Tensors:
    """The tensors of a model by the file's names, as steps ask for them."""

    def __init__(self, model: torch.nn.Module, names: frozenset[str]) -> None:
        self._model, self._names = model, names

    def __contains__(self, name: str) -> bool:
        return f"{name}.weight" in self._names

    @property
    def head(self) -> Any:
        """The module that gives logits, which may be the embedding."""
        return self.matrix("output" if "output" in self else "token_embd")

    def matrix(self, name: str) -> Any:
        """The module of a matrix, or of the matrices of experts."""
        part: Any = self._model
        for each in name.split("."):
            part = part._modules[each]
        return part

    def stacks(self, *names: str) -> list[Stack]:
        """Matrices that multiply the same rows, one by one."""
        parts = {name: self.matrix(name) for name in names}
        return [Stack([name], q, None, [q.out_features]) for name, q in parts.items()]

    def optional(self, name: str) -> torch.Tensor | None:
        """A vector, or the rows of several; None where there is none, or a module adds its bias itself."""
        path, _, kind = name.rpartition(".")
        if name not in self._names:
            return None
        part = self.matrix(path)
        return getattr(part, kind) if isinstance(part, Vectors) or kind == "scale" else None

    def vector(self, name: str) -> torch.Tensor:
        """A vector that the model has."""
        value = self.optional(name)
        assert value is not None
        return value

    number = optional  # of one element, which multiplies rows as it is

    def ones(self, width: int) -> torch.Tensor:
        """The weights of a norm that has none."""
        return torch.ones(())


class Keys(NamedTuple):
    """Keys and values [B, HK, S, D] of all positions so far; values may be the first columns of keys."""

    k: torch.Tensor
    v: torch.Tensor


class Rows:
    """The rows [B · T, …] of sequences of one length, and the keys and values before and behind them."""

    repeats = False

    def __init__(self, config: Config, ids: torch.Tensor, past: tuple[Keys, ...]) -> None:
        self._config, self._past = config, past
        self.batch, self.count = ids.shape
        self.start = past[0].k.shape[2] if past else 0
        self._device = ids.device
        self.keys: list[Keys] = []

    def following(self, count: int) -> torch.Tensor:
        """The positions of all rows."""
        return torch.arange(self.start, self.start + self.count, device=self._device).repeat(self.batch)

    def last(self, count: int) -> Any:
        """The rows of the last tokens."""
        return slice(self.count - 1, None, self.count) if self.count > 1 else None

    def appended(
        self, layer: int, q: torch.Tensor, k: torch.Tensor | None, v: torch.Tensor | None
    ) -> tuple[torch.Tensor, Keys]:
        """Queries [B, H, T, D], and all keys and values with new ones; without keys an earlier layer's."""
        if k is None:
            return self._by_sequence(q), self.keys[layer]
        q, k, v = (self._by_sequence(x) for x in (q, k, k[..., :0] if v is None else v))
        if self._past:
            k, v = (torch.cat(pair, 2) for pair in zip(self._past[layer], (k, v), strict=True))
        self.keys.append(Keys(k, v))
        return q, Keys(k, k[..., : self._config.latent]) if not v.shape[-1] else self.keys[-1]

    def _by_sequence(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(self.batch, self.count, *x.shape[1:]).transpose(1, 2)

    def rope_append(self, layer: int, heads: Sequence[Any], angles: Angles) -> Any:
        """Queries and keys as :meth:`appended` gives them, with RoPE."""
        q, k, v = heads
        return self.appended(layer, rotated(q, *angles), None if k is None else rotated(k, *angles), v)

    def back(self, layer: int, y: torch.Tensor) -> torch.Tensor:
        """Results of attention as they are."""
        return y

    def advance(self, count: int) -> None:
        """Nothing: the next step counts its positions by the keys."""


class Arithmetic(Kernels):
    """Products are modules, all else is torch's; norms, angles and shares of experts in float32.

    ``tables``: of RoPE's angles, which grow with the positions; ``end``: behind the last one of the step.
    """

    joins = True

    def __init__(self, tables: Tables, end: int, dtype: torch.dtype, device: torch.device) -> None:
        self._tables, self._end, self._kind, self._place = tables, end, dtype, device

    xp = staticmethod(lambda x: torch)

    def rows(self, q: Any, ids: torch.Tensor) -> torch.Tensor:
        """Rows of the embedding."""
        rows: torch.Tensor = q(ids)
        return rows.to(self._kind)

    def real(self, x: Any) -> torch.Tensor:
        """Numbers in the type of rows."""
        return torch.as_tensor(x, dtype=self._kind, device=self._place)

    def linear(self, x: torch.Tensor, q: Any, bias: torch.Tensor | None = None) -> torch.Tensor:
        """The module's result; of words that are the head, too, the product with them."""
        if isinstance(q, Embedding):
            y = product(x, q.weight, q.blocks_type, q.num_embeddings)
            y = y if q.scale is None else (y * q.scale).to(y.dtype)
        elif isinstance(q, torch.nn.Embedding):
            y = torch.nn.functional.linear(x, q.weight)
        else:
            y = q(x)
        return y if bias is None else y + bias

    def expert_linear(self, x: torch.Tensor, q: Any, ids: torch.Tensor) -> torch.Tensor:
        """Rows times the experts that their tokens use, [T, U, N]."""
        y: torch.Tensor = q(x, ids)
        return y

    def by_head(self, x: torch.Tensor, q: Any) -> torch.Tensor:
        """Heads [T, H, D] times a matrix of each head, [T, H, N]."""
        return self.expert_linear(x, q, torch.arange(x.shape[1], device=x.device).expand(x.shape[:2]))

    def some_columns(self, x: torch.Tensor, first: int, count: int) -> torch.Tensor:
        """So many columns of rows from one on."""
        return x[..., first : first + count]

    def times(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        """Rows times a number."""
        return x * factor

    def capped(self, x: torch.Tensor, cap: float) -> torch.Tensor:
        """Numbers bent below a cap by a hyperbolic tangent."""
        return torch.tanh(x / cap) * cap

    def weighted_norm(self, x: torch.Tensor, epsilon: float, weights: torch.Tensor) -> torch.Tensor:
        """The norm of rows times its weights."""
        wide = x.float()
        y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
        return (y * weights.float()).to(x.dtype)

    def gated(self, activation: str, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """act(gate) · up, by the activation's name."""
        if activation == "swiglu_oai":
            return swiglu_oai(gate, up)
        return ACTIVATIONS[activation](gate) * up

    def angles(self, how: Rope, positions: torch.Tensor, factors: torch.Tensor | None) -> tuple[Any, Any]:
        """Cosine and sine of positions: rows of a table, which grows by itself."""
        cos, sin = self._tables.get((how, positions.device), (None, None))
        if cos is None or sin is None or len(cos) < self._end:
            cos, sin = self._grown(how, positions.device, factors)
        return cos[positions], sin[positions]

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _grown(self, how: Rope, device: torch.device, factors: torch.Tensor | None) -> Any:
        count = max(LEAST, 1 << (self._end - 1).bit_length())
        numbers = None if factors is None else factors.detach().float().cpu().numpy()
        table = rope_angles(how, np.arange(count), numbers)
        cos, sin = (torch.from_numpy(part.astype(np.float32)).to(device) for part in table)
        self._tables[how, device] = cos, sin
        return cos, sin

    def apply_rope(self, x: torch.Tensor, how: Rope, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Heads [T, H, D] rotated by their positions."""
        return rotated(x, how.neox, cos, sin)

    def attend(self, q: torch.Tensor, cache: Any, seen: Seen) -> torch.Tensor:
        """Attention of queries [B, H, T, D] over keys and values, [H, B · T, DV]."""
        k, v = cache
        y = by_torch(q, k, v, seen) if not seen.cap and seen.sinks is None else in_steps(q, k, v, seen)
        return y.transpose(0, 1).flatten(1, 2)

    def routed(
        self, logits: torch.Tensor, bias: torch.Tensor | None, how: Routing
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The experts [T, U] of the largest shares and their weights."""
        logits = logits.float()
        if how.after:
            best, ids = torch.topk(logits, how.used)
            return ids, torch.softmax(best, -1)
        shares = torch.sigmoid(logits) if how.sigmoid else torch.softmax(logits, -1)
        scores = shares if bias is None else shares + bias.float()
        if how.groups > 1:
            grouped = scores.reshape(len(scores), how.groups, -1)
            best = torch.topk(grouped, 2).values.sum(-1)
            inside = torch.zeros_like(best, dtype=torch.bool)
            inside = inside.scatter(1, torch.topk(best, how.used_groups).indices, True)
            scores = grouped.masked_fill(~inside[..., None], -math.inf).reshape(scores.shape)
        ids = torch.topk(scores, how.used).indices
        weights = shares.gather(-1, ids)
        if how.of_one:
            weights = weights / weights.sum(-1, keepdim=True).clamp(min=FEWEST)
        return ids, weights * how.scale

    def weighted_sum(self, y: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Results of experts [T, U, N] added up by weights [T, U]."""
        return (y * weights[..., None]).sum(1).to(y.dtype)


ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": torch.nn.functional.silu,
    "sigmoid": torch.sigmoid,
    "gelu": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
}


def rotated(x: torch.Tensor, neox: bool, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Heads [T, H, D] rotated by RoPE in float32; columns beyond those with angles stay."""
    pairs = cos.shape[-1]
    cos, sin = cos[:, None], sin[:, None]
    turning, rest = x[..., : 2 * pairs].float(), x[..., 2 * pairs :]
    a, b = turning.chunk(2, -1) if neox else (turning[..., ::2], turning[..., 1::2])
    first, second = a * cos - b * sin, a * sin + b * cos
    y = torch.cat([first, second], -1) if neox else torch.stack([first, second], -1).flatten(-2)
    y = y.to(x.dtype)
    return torch.cat([y, rest], -1) if rest.shape[-1] else y


# --- attention of queries at the end of all positions --------------------------------------------


def mask_of(queries: int, positions: int, window: int, device: torch.device) -> torch.Tensor | None:
    """The positions [T, S] that queries see; None for all."""
    if queries == 1 and not 0 < window < positions:
        return None
    at = torch.arange(positions, device=device)
    place = at[positions - queries :, None]
    mask = at <= place
    return mask & (at > place - window) if window else mask


def by_torch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: Seen) -> torch.Tensor:
    """Attention by torch's own kernel."""
    queries, positions = q.shape[2], k.shape[2]
    options: Any = {"scale": seen.scale, "enable_gqa": q.shape[1] != k.shape[1]}
    if queries == positions and not seen.window:
        options["is_causal"] = True
    else:
        options["attn_mask"] = mask_of(queries, positions, seen.window, q.device)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)


def in_steps(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: Seen) -> torch.Tensor:
    """Attention whose scores are bent below a cap, or with sinks, in float32."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    scores = (q.float() @ k.float().mT) * seen.scale
    if seen.cap:
        scores = torch.tanh(scores / seen.cap) * seen.cap
    mask = mask_of(q.shape[2], k.shape[2], seen.window, q.device)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    if seen.sinks is not None:
        sinks = seen.sinks.float()[:, None, None].expand(*scores.shape[:-1], 1)
        weights = torch.softmax(torch.cat([scores, sinks], -1), -1)[..., :-1]
    else:
        weights = torch.softmax(scores, -1)
    return (weights @ v.float()).to(q.dtype)
