"""The doctor's weights: codes, scales and offsets apart, so that a mistake can be made in each of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...formats import BlockFormat, Format
from ...formats.format import Blocks
from ...reference.operands import rounded
from ...reference.rules import Float
from ..numbers import Index, Wide, half


@dataclass(frozen=True, eq=False)
class Operand:
    """Weights [N, K]: ``scale * (stored - zero) - offset``, a kernel's constants kept apart."""

    stored: Wide  # [N, K]: codes as the bytes hold them, the zero not yet taken off
    scale: Wide  # [N, K // group]
    offset: Wide  # [N, K // group]
    zero: float  # taken off each code (in the code, or through the block sum)
    group: int
    summed: float = 0.0  # the part of the zero that goes through the sum where a kernel has one
    values: Wide | None = None  # instead of all that: weights without codes

    @property
    def grain(self) -> int:
        """The number of activations that share a block sum."""
        return 32 if self.group % 32 == 0 else self.group

    @cached_property
    def dense(self) -> Wide:
        """The decoded weights [N, K]: the factors of the activations, all terms together."""
        if self.values is not None:
            return self.values
        n, k = self.stored.shape
        with np.errstate(invalid="ignore", over="ignore"):
            runs = (self.stored - self.zero).reshape(n, -1, self.group) * self.scale[..., None]
            return (runs - self.offset[..., None]).reshape(n, k)

    @cached_property
    def scaled(self) -> Wide:
        """Scale times stored code: the larger terms of a kernel that takes the zero off the sum."""
        if self.values is not None:
            return self.values
        n, k = self.stored.shape
        with np.errstate(invalid="ignore", over="ignore"):
            return (self.stored.reshape(n, -1, self.group) * self.scale[..., None]).reshape(n, k)

    @cached_property
    def below_zero(self) -> Wide:
        """The parts with a negative code, without its sign: kernels turn signs to multiply unsigned codes."""
        if self.values is not None:
            return np.zeros_like(self.values)
        n, k = self.stored.shape
        runs = np.maximum(self.zero - self.stored, 0).reshape(n, -1, self.group) * self.scale[..., None]
        return runs.reshape(n, k)

    @cached_property
    def constant(self) -> Wide:
        """The factors [N, K // grain] of the block sums."""
        if self.values is not None:
            return np.zeros((len(self.values), self.values.shape[1] // self.grain))
        with np.errstate(invalid="ignore", over="ignore"):
            constant = self.summed * self.scale + self.offset
        return constant.repeat(self.group // self.grain, axis=1)

    def but(self, **changes: Any) -> Operand:
        """A copy with other parts."""
        return replace(self, **changes)

    def rows(self, at: Index) -> Operand:
        """Some rows of the operand."""
        values = None if self.values is None else self.values[at]
        return self.but(stored=self.stored[at], scale=self.scale[at], offset=self.offset[at], values=values)

    def kept_as(self, kind: str) -> Operand:
        """Decoded weights rounded to a float type."""
        name: Float = "f16" if kind == "f16" else "bf16" if kind == "bf16" else "f32"
        return self.but(values=rounded(self.dense, name))

    def with_half_scales(self) -> Operand:
        """Scales and offsets as halves, as llama.cpp's MMQ keeps those of K-quants."""
        return self.but(scale=half(self.scale), offset=half(self.offset))


def operand(fmt: Format, blocks: Blocks) -> Operand:
    """The operand of these rows of blocks."""
    if not isinstance(fmt, BlockFormat):
        values = fmt.decode(blocks, np.float64).reshape(len(blocks), -1)
        nothing = np.zeros((len(values), 1))
        return Operand(values, nothing, nothing, 0, values.shape[1] or 1, values=values)
    with np.errstate(invalid="ignore", over="ignore"):
        codes, scale, offset = fmt.unpack(blocks)
    return from_parts(fmt, codes, scale, offset)


def from_parts(
    fmt: BlockFormat, codes: NDArray[Any], scale: NDArray[Any], offset: NDArray[Any] | None
) -> Operand:
    """The operand of codes, scales and offsets [N, blocks, ...], which may hold mistakes."""
    n = len(codes)
    with np.errstate(invalid="ignore"):  # signalling NaNs are data too
        wide = scale.astype(np.float64).reshape(n, -1)
    off = np.zeros_like(wide) if offset is None else offset.astype(np.float64).reshape(n, -1)
    stored = codes.astype(np.float64).reshape(n, -1) + fmt.zero
    return Operand(stored, wide, off, fmt.zero, fmt.group, summed=fmt.zero)
