"""The importance of a model's columns: sums of squares of what products read, chunk by chunk of a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..arrays.array import QuantArray
from ..base.devices import to_host
from ..base.progress import Progress, quiet
from ..errors import ShapeError
from ..gguf.imatrix import Collector, squares
from .arithmetic.kernels import Array
from .batch import BATCH, cut, is_batch
from .tokenizer import Tokenizer

Hear = Callable[[str, Array, QuantArray, Any], None]
LAYERS = "blk."  # llama-imatrix counts tensors of layers, and the head where it is asked for


class Squares:
    """Sums of squares by tensor, on the device of the rows, until a collector takes them."""

    def __init__(self, output: bool) -> None:
        self._output = output
        self._sums: dict[str, list[tuple[Any, Any]]] = {}
        self._last: tuple[Any, Any, Any] = None, None, None  # several matrices read the same rows

    def hear(self, name: str, x: Array, q: QuantArray, ids: Any) -> None:
        """Add the rows that a product reads."""
        if not (self._output or name.startswith(LAYERS)):
            return
        if x is not self._last[0] or ids is not self._last[1]:
            self._last = x, ids, squares(x, ids, q.shape[0] if q.ndim > 2 else 1)
        self._sums.setdefault(name, []).append(self._last[2])

    def give(self, collector: Collector) -> None:
        """Add all sums to a collector."""
        for name, parts in self._sums.items():
            for sums, counts in parts:
                collector.put(name, to_host(sums), to_host(counts))
        self._sums.clear()
        self._last = None, None, None


def collect(
    listen: Callable[[list[list[int]], Hear, bool], None], chunks: list[list[int]], together: int,
    collector: Collector, output: bool, bar: bool | None,
) -> None:  # fmt: skip
    """Add what products read of chunks, so many of which go through the layers together."""
    squares, done = Squares(output), 0
    with Progress(len(chunks), "importance", " chunks", bar) as progress, quiet():
        try:
            while done < len(chunks):
                some = chunks[done : done + together]
                listen(some, squares.hear, output)
                squares.give(collector)
                done += len(some)
                progress.advance(len(some))
        except KeyboardInterrupt:
            if not done:
                raise
            collector.interrupted = True


def chunks_of(tokenizer: Callable[[], Tokenizer], texts: Any, size: int, most: int | None) -> list[list[int]]:
    """The chunks of texts, or of tokens."""
    if size < 2 or (most is not None and most < 1):
        raise ShapeError(
            f"importance: chunk_size={size}, chunks={most}; a chunk has 2 tokens or more, and one at least "
            "is run; 512 is usual"
        )
    several = [texts] if isinstance(texts, str) or not (_are_texts(texts) or is_batch(texts)) else texts
    chunks: list[list[int]] = []
    for one in several:
        begin: list[int] = []
        if isinstance(one, str):
            tokens, begin = tokenizer().encode(one, special=False), tokenizer().beginning
        else:
            tokens = list(one)
        chunks += cut(tokens, begin, size)
    if not any(chunks):
        raise ShapeError("importance: there are no tokens; pass a text, several, or their tokens")
    return chunks[:most]


def _are_texts(texts: Any) -> bool:
    return isinstance(texts, Sequence) and bool(texts) and all(isinstance(one, str) for one in texts)


def together(size: int, on_gpu: bool) -> int:
    """Chunks that go through the layers together: on a GPU some of them, to fill it."""
    return max(1, BATCH // size) if on_gpu else 1
