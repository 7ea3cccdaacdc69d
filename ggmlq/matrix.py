"""What arrays of weights have in common: operations by name, the transpose, and which indices pick rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .devices import is_host
from .errors import ShapeError

Function = TypeVar("Function", bound=Callable[..., Any])


OPERATIONS: dict[str, Callable[..., Any]] = {}  # by name: what the methods of arrays call


def operation(function: Function) -> Function:
    """Decorate an operation that arrays offer as a method or an operator; they do not know who it is."""
    OPERATIONS[function.__name__] = function
    return function


class Transposed:
    """What ``q.T`` is: good for ``x @ q.T``, ``q.T.T`` and NumPy's ``asarray``."""

    __array_ufunc__: ClassVar[None] = None
    __array_priority__: ClassVar[float] = 1000.0

    def __init__(self, q: Any) -> None:
        self.T = q

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of q, reversed."""
        shape: tuple[int, ...] = self.T.shape[::-1]
        return shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __rmatmul__(self, x: Any) -> Any:
        return OPERATIONS[self.T.product](x, self.T)

    def __matmul__(self, x: object) -> Any:
        raise ShapeError(f"q.T @ x with {self.T!r}: activations come first; write x @ q.T")

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self.T.__array__(dtype, copy).T)

    def __repr__(self) -> str:
        return f"{self.T!r}.T"


def is_step(step: Any) -> bool:
    """Whether an index picks whole rows: a bool would add an axis, a 2-D mask reach into rows."""
    if isinstance(step, slice):
        return True
    if isinstance(step, bool | np.bool_ | str | bytes) or step is None or step is Ellipsis:
        return False
    picked = np.asarray(step) if is_host(step) else step
    return picked.dtype.kind in "iu" or (picked.dtype.kind == "b" and picked.ndim == 1) or not picked.size
