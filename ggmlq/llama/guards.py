"""Finds writes of ggml's kernels beside their result: operands in one buffer, with guard words around each.

The guard words are a NaN of our own. So a result that a kernel computed from memory outside of the operands
shows as well.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DeviceError
from .library import address

UNWRITTEN = 0x7FC0BEEF  # bits of a NaN that no arithmetic makes: what a result holds before the kernel runs
GUARD = 0x7FC0FEED  # bits of another one, of guard words
F32 = 0  # ggml's number of the type
LEAST = 1 << 16  # bytes of a guard
BEHIND, MOST = 3, 1 << 26  # behind a result so many times its size: a stride in bytes taken for one in floats


@dataclass(frozen=True)
class Stray:
    """Bytes that a kernel wrote beside its result: where, how many, and how far away."""

    place: str  # "behind y", "before y", "in x" …
    bytes: int
    first: int  # the nearest of them: bytes away from the operand, or from its beginning where it is in one
    last: int  # the furthest

    def __str__(self) -> str:
        away = "of it" if self.place.startswith("in ") else "away from it"
        return (
            f"{self.bytes} bytes {self.place} were overwritten, from {self.first} to {self.last} bytes {away}"
        )


@dataclass(frozen=True)
class _Guard:
    """Words between two operands, as a tensor."""

    tensor: int
    start: int  # offset in the buffer
    words: NDArray[np.uint32]


class Arena:
    """A buffer that holds tensors in this order, with guards before each and behind the last.

    Strays are reported by their distance from the last tensor.
    """

    def __init__(
        self, stack: ExitStack, symbols: Any, context: int, kind: int, usage: int, tensors: dict[str, int],
        what: str,
    ) -> None:  # fmt: skip
        self._symbols, self._context, self._kind = symbols, context, kind
        self._tensors = tensors
        self._main = list(tensors)[-1]
        self._strays: dict[str, Stray] = {}
        spans, gaps, size = self._layout()
        buffer = symbols.ggml_backend_buft_alloc_buffer(kind, size)
        if not buffer:
            raise DeviceError(f"{what}: the device could not allocate {size} bytes; try a smaller shape")
        stack.callback(symbols.ggml_backend_buffer_free, buffer)
        symbols.ggml_backend_buffer_set_usage(buffer, usage)
        self._base = symbols.ggml_backend_buffer_get_base(buffer)
        for name, (start, _) in spans.items():
            symbols.ggml_backend_tensor_alloc(buffer, tensors[name], self._base + start)
        self._span = spans[self._main]
        self._guards = [self._guard(buffer, start, end) for start, end in gaps]

    def _layout(self) -> tuple[dict[str, tuple[int, int]], list[tuple[int, int]], int]:
        """Start and end of each operand and of each guard, and the end of all."""
        s, spans, gaps = self._symbols, dict[str, tuple[int, int]](), list[tuple[int, int]]()
        align, at, size = s.ggml_backend_buft_get_alignment(self._kind), 0, 0
        for name, tensor in self._tensors.items():
            start = -(-(at + LEAST) // align) * align
            size = s.ggml_backend_buft_get_alloc_size(self._kind, tensor)  # with padding that kernels may use
            gaps.append((at, start))
            spans[name] = start, start + size
            at = -(-(start + size) // 4) * 4
        end = at + LEAST + (min(BEHIND * size, MOST) // 4 * 4 if self._main == "y" else 0)
        return spans, [*gaps, (at, end)], end

    def _guard(self, buffer: int, start: int, end: int) -> _Guard:
        count = (end - start) // 4
        tensor = self._symbols.ggml_new_tensor_4d(self._context, F32, count, 1, 1, 1)
        self._symbols.ggml_backend_tensor_alloc(buffer, tensor, self._base + start)
        return _Guard(tensor, start, np.full(count, GUARD, np.uint32))

    def fill(self, operands: dict[str, NDArray[Any]]) -> None:
        """Set the operands, and the guards around them."""
        pairs = [(self._tensors[name], array) for name, array in operands.items()]
        for tensor, array in [*pairs, *((guard.tensor, guard.words) for guard in self._guards)]:
            self._symbols.ggml_backend_tensor_set(tensor, address(array), 0, array.nbytes)

    def look(self, inputs: dict[str, NDArray[Any]]) -> None:
        """Note the bytes that have changed in the guards, and in the inputs, which a kernel only reads."""
        start, end = self._span
        for guard in self._guards:
            at = guard.start + 4 * np.flatnonzero(self._read(guard.tensor, guard.words) != guard.words)
            behind = at[at >= end]
            self._note(f"behind {self._main}", behind - end)
            self._note(f"before {self._main}", start - at[at < start])
        for name, array in inputs.items():
            words = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            changed = np.flatnonzero(self._read(self._tensors[name], words) != words)
            self._note(f"in {name}", changed, width=1)

    def _read(self, tensor: int, like: NDArray[Any]) -> NDArray[Any]:
        values = np.empty_like(like)
        self._symbols.ggml_backend_tensor_get(tensor, address(values), 0, values.nbytes)
        return values

    def _note(self, place: str, away: NDArray[np.intp], width: int = 4) -> None:
        if not away.size:
            return
        count, first, last = width * len(away), int(away.min()), int(away.max())
        earlier = self._strays.get(place)
        if earlier is not None:
            count, first, last = max(count, earlier.bytes), min(first, earlier.first), max(last, earlier.last)
        self._strays[place] = Stray(place, count, first, last)

    @property
    def strays(self) -> list[Stray]:
        """All strays that were noted so far."""
        return list(self._strays.values())
