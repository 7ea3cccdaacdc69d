"""``Weights``: a model's tensors by their names, each looked up once and checked."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..base.devices import namespace
from ..errors import GGUFError, ShapeError
from ..gguf import GGUFFile
from .arithmetic.kernels import Kernels


class Weights:
    """The tensors of a file, which may be closed since; prepared copies live with these arrays."""

    def __init__(self, file: GGUFFile, arithmetic: Kernels) -> None:
        self._tensors, self._a = {name: file[name] for name in file}, arithmetic
        self._matrices: dict[str, QuantArray] = {}
        self._floats: dict[str, NDArray[Any] | None] = {}

    def __contains__(self, name: str) -> bool:
        return f"{name}.weight" in self._tensors

    def matrix(self, name: str) -> QuantArray:
        """A matrix, or the matrices of experts."""
        if name not in self._matrices:
            self._matrices[name] = self._a.placed(self._tensor(f"{name}.weight"))
        return self._matrices[name]

    def vector(self, name: str) -> NDArray[Any]:
        """A vector of floats that the model needs, with .weight or .bias at its end."""
        value = self.optional(name)
        if value is None:
            self._tensor(name)  # which raises an error
            raise AssertionError
        return value

    def optional(self, name: str) -> NDArray[Any] | None:
        """A vector of floats, or the rows of several, None where the file has none."""
        if name not in self._floats:
            there = name in self._tensors
            self._floats[name] = self._a.real(self._tensors[name].dequantize()) if there else None
        return self._floats[name]

    def _tensor(self, name: str) -> QuantArray:
        if name not in self._tensors:
            raise GGUFError(
                f"model: there is no tensor {name} among {len(self._tensors)}; this family needs it; the "
                "file may be a part of a model, or of another architecture than it says"
            )
        return self._tensors[name]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors of the file."""
        return sum(self._tensors[name].nbytes for name in self._tensors)


def checked(name: str, x: NDArray[Any], q: QuantArray) -> None:
    """Refuse weights whose columns are not those of what they multiply."""
    if q.shape[-1] != x.shape[-1]:
        raise ShapeError(
            f"model: {name}.weight has shape {q.shape}, and multiplies rows of {x.shape[-1]} numbers; the "
            "last axes agree; the file's metadata and its tensors are not of one model"
        )


def columns(name: str, y: Any, widths: list[int]) -> list[Any]:
    """The parts of a product with the matrix of several, which has as many rows as they have columns."""
    if y.shape[-1] != sum(widths):
        raise ShapeError(
            f"model: {name}.weight has {y.shape[-1]} rows, its parts {widths}; they have as many together; "
            "the file is damaged"
        )
    ends = np.cumsum(widths).tolist()
    xp = namespace(y)
    return [xp.ascontiguousarray(y[..., end - width : end]) for end, width in zip(ends, widths, strict=True)]
