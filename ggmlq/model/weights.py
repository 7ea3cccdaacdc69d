"""``Weights``: a model's tensors by their names, each looked up once; frame.py has checked them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..base.devices import namespace
from ..gguf import GGUFFile
from .arithmetic.kernels import Kernels


class Stack(NamedTuple):
    """Matrices of one type over each other: a product with them has the columns of all."""

    names: list[str]
    q: QuantArray
    bias: Any
    widths: list[int]


class Weights:
    """The tensors of a file, which may be closed since; prepared copies live with these arrays."""

    def __init__(self, file: GGUFFile, arithmetic: Kernels) -> None:
        self.tensors, self._a = {name: file[name] for name in file}, arithmetic
        self._matrices: dict[str, QuantArray] = {}
        self._floats: dict[str, NDArray[Any] | None] = {}
        self._stacks: dict[tuple[str, ...], list[Stack]] = {}

    def __contains__(self, name: str) -> bool:
        return f"{name}.weight" in self.tensors

    def matrix(self, name: str) -> QuantArray:
        """A matrix, or the matrices of experts."""
        if name not in self._matrices:
            self._matrices[name] = self._a.placed(self.tensors[f"{name}.weight"])
        return self._matrices[name]

    def stacks(self, *names: str) -> list[Stack]:
        """Matrices, or matrices of experts, that multiply the same rows: those of one type are one array.

        On their device they are there once: a matrix alone is then a view of the rows that it has.
        """
        if names not in self._stacks:
            groups: dict[Any, list[str]] = {}
            for name in names:
                tensor = self.tensors[f"{name}.weight"]
                alone = tensor.format.block_size == 1 or tensor.scale is not None
                kind = tensor.format.name, tensor.shape[-1], f"{name}.bias" in self.tensors
                groups.setdefault(name if alone else kind, []).append(name)
            self._stacks[names] = [self._stack(group) for group in groups.values()]
        return self._stacks[names]

    def _stack(self, names: list[str]) -> Stack:
        if len(names) == 1:
            q, bias = self.matrix(names[0]), self.optional(f"{names[0]}.bias")
            return Stack(names, q, bias, [q.shape[-2]])
        tensors = [self.tensors[f"{name}.weight"] for name in names]
        biases = [self.optional(f"{name}.bias") for name in names]
        q, widths = self._a.stacked(tensors), [tensor.shape[-2] for tensor in tensors]
        if q.ndim == 2:
            ends = np.cumsum(widths).tolist()
            for name, end, width in zip(names, ends, widths, strict=True):
                self._matrices[name] = q[end - width : end]
        bias = None if biases[0] is None else namespace(biases[0]).concatenate(biases, axis=-1)
        return Stack(names, q, bias, widths)

    def vector(self, name: str) -> NDArray[Any]:
        """A vector of floats that the model has, with .weight or .bias at its end."""
        value = self.optional(name)
        assert value is not None
        return value

    def optional(self, name: str) -> NDArray[Any] | None:
        """A vector of floats, or the rows of several, None where the file has none."""
        if name not in self._floats:
            there = name in self.tensors
            self._floats[name] = self._a.real(self.tensors[name].dequantize()) if there else None
        return self._floats[name]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors of the file."""
        return sum(self.tensors[name].nbytes for name in self.tensors)


def columns(y: Any, widths: list[int], views: bool = False) -> list[Any]:
    """The parts of a product with the matrix of several; ``views``: they lie apart in the product."""
    ends = np.cumsum(widths).tolist()
    parts = [y[..., end - width : end] for end, width in zip(ends, widths, strict=True)]
    return parts if views else [namespace(y).ascontiguousarray(part) for part in parts]
