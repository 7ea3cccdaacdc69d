"""``Cuda``: everything of a step on a GPU, products and attention by kernels, the rest by CuPy.

Nothing waits for the device. Tokens are copied there, and what a caller takes back is all that comes back.
Attention is ``gq.attention`` on the cache; keys and values that it refuses are decoded, some positions at a
time, and multiplied in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...arrays.array import QuantArray
from ...base.devices import cuda_device, cuda_module, is_host, namespace, place_of, to_host
from ...errors import UnsupportedError
from ...ops.attention import attention
from ...ops.expert_linear import expert_linear
from ...ops.linear import linear
from ...ops.rows import take
from ..config import Rope
from .kernels import Array, Kernels, Keys, Routing, Seen, rope_angles, visible

SCORES = 1 << 26  # numbers of scores that are in memory together
LEAST = 256  # positions that are decoded together, and of a table of RoPE's angles
FEW_WEIGHTS = 1 << 20  # weights, such as those that rank experts


class Cuda(Kernels):
    """The fastest arithmetic of a GPU, ``"cuda"`` or ``"cuda:1"``."""

    joins = True

    def __init__(self, device: str, invariant: bool = False) -> None:
        self.device, self.invariant = device, invariant
        self._tables: dict[Rope, tuple[Array, Array]] = {}
        self._refused: set[Any] = set()  # caches for which attention has no kernel
        self._side: Any = None  # a stream of copies

    @property
    def _xp(self) -> Any:
        return cuda_device().cupy()

    def placed(self, q: QuantArray) -> QuantArray:
        """Weights on the device, packed as they are."""
        return q.to(self.device)

    def stacked(self, parts: list[QuantArray]) -> QuantArray:
        """Matrices [..., N, K] of one type over each other, on the device; complete for all streams."""
        stack: QuantArray = cuda_device().once(
            "matrices are to be stacked", lambda: super(Cuda, self).stacked(parts)
        )
        return stack

    def real(self, x: Any) -> Array:
        """Numbers on the device, in float32; those of the host are complete for all streams."""
        if not is_host(x):
            return x.astype(self.dtype, copy=False)
        return cuda_device().once("numbers are to be copied", lambda: self._xp.asarray(x, self.dtype))

    def rows(self, q: QuantArray, ids: Any) -> Array:
        """Rows of the embedding."""
        return take(q, self._xp.asarray(ids))

    def linear(self, x: Array, q: QuantArray, bias: Array | None = None) -> Array:
        """``x @ q.T + bias``; of a few floats by a kernel, for a graph holds no product of cuBLAS."""
        if q.format.block_size > 1 or q.size > FEW_WEIGHTS:
            return linear(x, q, bias=bias, invariant=self.invariant)
        y = cuda_module("kernels.router").scored(x, q.dequantize())
        return y if bias is None else y + bias

    def expert_linear(self, x: Array, q: QuantArray, ids: Array) -> Array:
        """Rows times the experts that their tokens use, [T, U, N]."""
        return expert_linear(x, q, ids, invariant=self.invariant)

    def total(self, x: Array) -> Array:
        """The sums of rows [T, 1]; by halves where bits count, for CuPy's order depends on T."""
        while self.invariant and x.shape[-1] > 1:
            half = x.shape[-1] // 2
            pairs = x[..., :half] + x[..., half : 2 * half]
            x = self._xp.concatenate((pairs, x[..., 2 * half :]), axis=-1)
        return super().total(x)

    def angles(self, how: Rope, positions: NDArray[np.int64], factors: Array | None) -> tuple[Array, Array]:
        """Cosine and sine of positions in a row: rows of a table on the device, which grows by itself."""
        end = int(positions[-1]) + 1
        table = self._tables.get(how)
        if table is None or len(table[0]) < end:
            size = max(LEAST, 1 << (end - 1).bit_length())

            def make() -> tuple[Array, ...]:
                angles = rope_angles(how, np.arange(size), None if factors is None else to_host(factors))
                return tuple(map(self.real, angles))

            table = self._tables[how] = cuda_device().once("a table of RoPE's angles is to be made", make)
        start = int(positions[0])
        return table[0][start:end], table[1][start:end]

    def apply_rope(self, x: Array, how: Rope, cos: Array, sin: Array) -> Array:
        """Heads [T, H, D] rotated by their positions, in one launch."""
        return _layers().apply_rope(x, how.neox, cos, sin)

    def weighted_norm(self, x: Array, epsilon: float, weights: Array) -> Array:
        """The norm of rows times its weights, in one launch."""
        return _layers().normed(x, weights, epsilon)

    def best(self, logits: Array) -> tuple[Array, Callable[[], NDArray[np.int64]]]:
        """The best token of each row, and a function that waits for them alone, not for what follows."""
        ids, cuda = _layers().best(logits), self._xp.cuda
        there = cuda.get_current_stream().record()

        def arrived() -> NDArray[np.int64]:
            side = self._side or cuda.Stream(non_blocking=True)
            self._side = side
            side.wait_event(there)
            numbers: NDArray[np.int64] = ids.get(stream=side)
            side.synchronize()
            return numbers

        return ids, arrived

    def normed_sum(self, y: Array, x: Array, epsilon: float, weights: Array) -> tuple[Array, Array]:
        """The sum of rows, and its norm times the weights, in one launch."""
        total, y = cuda_module("kernels.layers").normed_sum(y, x, weights, epsilon)
        return total, y

    def gated(self, activation: str, gate: Array, up: Array) -> Array:
        """act(gate) · up, in one launch but for sigmoid's."""
        if activation == "sigmoid":
            return super().gated(activation, gate, up)
        return cuda_module("kernels.epilogue.gates").gate_product(activation, gate, up)

    def gated_product(self, activation: str, x: Array, q: QuantArray, bias: Array | None) -> Array:
        """act(gate) · up of rows times two matrices over each other; of one row in one launch."""
        y = None
        if not self.invariant:
            y = cuda_module("kernels.gated").of_stack(activation, x, q, bias, place_of(q.memory).card)
        return super().gated_product(activation, x, q, bias) if y is None else y

    def gated_experts(
        self, activation: str, x: Array, q: QuantArray, bias: Array | None, ids: Array
    ) -> Array:
        """act(gate) · up of the experts of tokens; of one token, without a bias, in one launch."""
        if bias is None and not self.invariant:
            kernels, card = cuda_module("kernels.gated"), place_of(q.memory).card
            if (y := kernels.of_expert_stack(activation, x, q, ids, card)) is not None:
                return y
        return super().gated_experts(activation, x, q, bias, ids)

    def gated_pair(self, activation: str, both: Array) -> Array:
        """act(gate) · up of rows that have both, in one launch."""
        return cuda_module("kernels.layers").gated_pair(activation, both)

    def routed(self, logits: Array, bias: Array | None, how: Routing) -> tuple[Array, Array] | None:
        """The experts of the largest logits and their weights, in one launch; None where others choose."""
        router, chosen = cuda_module("kernels.router"), None
        plain = how.groups <= 1 and not how.sigmoid and bias is None
        if plain and router.takes(logits.shape[1], how.used):
            chosen = router.routed(logits, how.used, how.after, how.of_one, how.scale)
        return chosen

    def weighted_sum(self, y: Array, weights: Array) -> Array:
        """Results of experts added up by their weights, in one launch."""
        return cuda_module("kernels.router").mixed(y, weights)

    def ranked(self, shares: Array) -> Array:
        """Experts from the largest share on: each one's place is the number of those before it."""
        xp, count = namespace(shares), shares.shape[-1]
        numbers = xp.arange(count)
        each, others = shares[:, :, None], shares[:, None, :]
        first = (others > each) | ((others == each) & (numbers[None, :] < numbers[:, None]))
        place = first.sum(axis=-1)
        return (place[:, None, :] == numbers[:, None]).argmax(axis=-1)

    def attend(self, q: Array, cache: Keys, seen: Seen) -> Array:
        """Attention by a kernel, or composed where there is none."""
        y = self.attended(q[None], cache, seen, None)
        return composed(q, cache, seen) if y is None else y[0]

    def attended(self, q: Array, cache: Keys, seen: Seen, lengths: Array | None) -> Array | None:
        """Attention of queries [B, H, T, D] by a kernel; None where there is none."""
        key = self._kind(cache, seen)
        if key not in self._refused:
            try:
                return attention(
                    q, cache.k, cache.v, lengths=lengths, causal=True, scale=seen.scale,
                    window=seen.window or None, softcap=seen.cap, sinks=seen.sinks, invariant=self.invariant,
                )  # fmt: skip
            except UnsupportedError as error:
                if self.invariant:
                    raise UnsupportedError(
                        f"model: invariant=True, and attention over keys of {cache.k.format.name} has no "
                        f"kernel here: {error}; load without invariant=True"
                    ) from error
                self._refused.add(key)
        return None

    @staticmethod
    def _kind(cache: Keys, seen: Seen) -> tuple[Any, ...]:
        """All that decides whether attention has a kernel."""
        types = cache.k.format.name, cache.v.format.name
        return (*types, cache.k.shape[-1], cache.v.shape[-1], seen.cap > 0, seen.sinks is not None)


def _layers() -> Any:
    return cuda_module("kernels.layers")


def composed(q: Array, cache: Keys, seen: Seen) -> Array:
    """Attention of queries [H, T, D], [H, T, DV], in float32.

    Positions come in runs: the maxima and sums of the softmax grow from run to run.
    """
    xp = namespace(q)
    (heads, queries, width), (keys, values) = q.shape, cache.of_heads()
    kv_heads, positions = keys.shape[:2]
    q = (q * np.float32(seen.scale)).reshape(kv_heads, -1, width)
    run = max(LEAST, SCORES // (heads * queries))
    top: Any = None
    total: Any = None
    result: Any = None
    if seen.sinks is not None:
        sinks = xp.repeat(seen.sinks.reshape(kv_heads, -1), queries, axis=1)[..., None]
        top, total = sinks, xp.ones_like(sinks)
    for start in range(0, positions, run):
        stop = min(start + run, positions)
        whole = stop - start == positions
        k, v = (rows if whole else rows[:, start:stop] for rows in (keys, values))
        scores = xp.matmul(q, k.dequantize().transpose(0, 2, 1))
        if seen.cap:
            scores = xp.tanh(scores * np.float32(1 / seen.cap)) * np.float32(seen.cap)
        mask = visible(queries, positions, seen.window, xp, start, stop)
        grid = scores.reshape(kv_heads, -1, queries, stop - start)
        scores = xp.where(mask, grid, np.float32(-np.inf)).reshape(scores.shape)
        most = scores.max(axis=-1, keepdims=True)
        new = xp.maximum(most if top is None else xp.maximum(top, most), np.float32(-3e38))
        weights = xp.exp(scores - new)
        here = weights.sum(axis=-1, keepdims=True)
        part = xp.matmul(weights, v.dequantize())
        if top is not None:
            shrink = xp.exp(top - new)
            here = here + total * shrink
            part = part if result is None else part + result * shrink
        top, total, result = new, here, part
    return (result / total).reshape(heads, queries, -1)
