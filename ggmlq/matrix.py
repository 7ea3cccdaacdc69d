"""What arrays of weights have in common: products, the transpose, indices, the view in a notebook."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, NoReturn, Self, TypeVar, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from . import text
from .devices import is_host
from .errors import BlockIndexError, DTypeError, ShapeError
from .members import inner
from .operators import Operators
from .protocols import OPERATIONS, AskedByNumPy

Function = TypeVar("Function", bound=Callable[..., Any])
Host = NDArray[np.floating[Any]] | Sequence[float] | Sequence[Sequence[float]]  # NumPy in, NumPy out
Float = TypeVar("Float", bound=np.floating[Any])
Out = TypeVar("Out", bound=NDArray[Any])

CORNER = 4, 8  # rows and columns of values that a notebook shows


def operation(function: Function) -> Function:
    """Decorate an operation that arrays offer as a method or an operator; they do not know who it is."""
    OPERATIONS[function.__name__] = function
    return function


class Weights(Operators, AskedByNumPy):
    """An array [..., N, K] of weights whose last axis lies in blocks or tiles."""

    product: ClassVar[str]  # which operation x @ q.T is
    stored: ClassVar[str]  # what of it are plain arrays
    decoding: ClassVar[str]  # which operation makes floats of it
    shape: Any
    nbytes: Any
    device: Any
    unit: Any  # columns that can only be taken together

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def dtype(self) -> np.dtype[np.float32]:
        """What elements are when they are read: float32, as ``np.asarray`` gives them."""
        return np.dtype(np.float32)

    @property
    def T(self) -> Transposed:
        """The transpose, for ``x @ q.T``. Nothing is moved."""
        return Transposed(self)

    @property
    def mT(self) -> Transposed:
        """The transpose of each matrix: of two axes the same as ``T``. Nothing is moved."""
        if self.ndim < 2:
            raise ShapeError(
                f"mT of {self!r}: it has no matrix to transpose; mT needs two axes or more; use T"
            )
        return Transposed(self, matrices=True)

    @overload
    def dequantize(self, dtype: type[np.float32] = ..., out: None = ...) -> NDArray[np.float32]: ...
    @overload
    def dequantize(self, dtype: type[Float], out: None = ...) -> NDArray[Float]: ...
    @overload
    def dequantize(self, dtype: Any = ..., *, out: Out) -> Out: ...
    @overload
    def dequantize(self, dtype: Any = ..., out: Any = ...) -> Any: ...

    def dequantize(self, dtype: Any = np.float32, out: Any = None) -> Any:
        """The values as floats on the same device, or in ``out``; see :func:`ggmlq.dequantize`."""
        return OPERATIONS[self.decoding](self, dtype, out)

    def copy(self) -> Self:
        """A copy of its own."""
        raise NotImplementedError

    def __copy__(self) -> Self:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.copy()

    def __matmul__(self, x: Any) -> Any:
        """``q @ x`` of columns x, [K] or [K, M]: the product ``x.T @ q.T``, transposed."""
        return OPERATIONS["times_columns"](self, x)

    def __rmatmul__(self, x: object) -> Any:
        raise ShapeError(f"x @ q with {self!r}: rows of q lie along K, as in ggml; write x @ q.T")

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        raise DTypeError(
            f"{written(index)} = … of {self!r}: arrays of weights are read-only; join rows with "
            f"gq.concatenate, or write to {self.stored} of q.copy()"
        )

    @inner
    def facts(self) -> list[tuple[str, object]]:
        """What it is, in a few words each, for people."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        """For a notebook: what it is, and the first values where that costs nothing."""
        parts = [text.html_table((), self.facts(), type(self).__name__)]
        if self.device == "cpu" and self.size and self.ndim:
            parts.append(text.html_table((), self._corner(), "first values"))
        return "".join(parts)

    def _corner(self) -> list[list[str]]:
        rows, columns = CORNER
        whole: Any = self
        part = whole if self.ndim == 1 else whole[(0,) * (self.ndim - 2)][:rows]
        values = np.atleast_2d(part[..., : -(-columns // self.unit) * self.unit].dequantize())[:, :columns]
        more = ["…"] * (values.shape[1] < self.shape[-1])
        return [[f"{value:.6g}" for value in row] + more for row in values.tolist()]


class Transposed(Operators, AskedByNumPy):
    """The transpose of an array of weights: good for ``x @ q.T``, ``q.T.T`` and NumPy's ``asarray``."""

    __slots__ = {"T": "The array that this is the transpose of."}  # attributes with their docstrings

    stored: ClassVar[str] = "q.T.T, the arrays themselves"

    def __init__(self, q: Any, matrices: bool = False) -> None:
        self.T = q
        self._matrices = matrices

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of q with all axes reversed; of ``mT`` with the last two exchanged."""
        shape: tuple[int, ...] = self.T.shape
        return (*shape[:-2], shape[-1], shape[-2]) if self._matrices else shape[::-1]

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __rmatmul__(self, x: Any) -> NDArray[np.float32]:
        y: NDArray[np.float32] = OPERATIONS[self.T.product](x, self.T)
        return y

    def __matmul__(self, x: object) -> Any:
        raise ShapeError(
            f"q.T @ x with {self.T!r}: this sums over rows of q, which no kernel does; the product that sums "
            "along K is x @ q.T, or q @ x with columns x; write np.asarray(q).T @ x for this one"
        )

    def dequantize(self, dtype: DTypeLike = np.float32) -> Any:
        """The values as floats on the same device, transposed."""
        values = self.T.dequantize(dtype)
        return values.swapaxes(-1, -2) if self._matrices else values.T

    if not TYPE_CHECKING:  # or NumPy's stubs would take x @ q.T for a product of its own, of another type

        def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
            values = self.T.__array__(dtype, copy)
            return values.swapaxes(-1, -2) if self._matrices else values.T

    def __repr__(self) -> str:
        return f"{self.T!r}.{'mT' if self._matrices else 'T'}"


@operation
def times_columns(q: Weights, x: Any) -> Any:
    """``q @ x``: the columns of x are rows of activations."""
    rows = _rows_of(q, x)
    y = OPERATIONS[q.product](rows, q)
    return y if rows.ndim == 1 else y.T


def _rows_of(q: Weights, x: Any) -> Any:
    """The columns of ``q @ x`` as rows of activations; what else is wrong with them, the product says."""
    if isinstance(x, Operators):
        raise ShapeError(
            f"q @ x with {q!r} and {x!r}: x is an array of floats, [K] or [K, M]; pass x.dequantize()"
        )
    if not hasattr(x, "ndim"):
        try:
            x = np.asarray(x)
        except (ValueError, TypeError) as error:
            raise DTypeError(f"q @ x with {q!r}: x is no array ({error}); pass an array of floats") from None
    if q.ndim == 2 and (x.ndim not in (1, 2) or x.shape[0] != q.shape[1]):
        rows = x.ndim and x.shape[-1] == q.shape[1]
        way = "write x @ q.T, which takes rows [..., K]" if rows else f"pass {q.shape[1]} numbers a column"
        raise ShapeError(
            f"q @ x with {q!r}: x has shape {tuple(x.shape)}; q is [N, K] and x [K] or [K, M], with K "
            f"{q.shape[1]}; {way}"
        )
    return x.T if x.ndim == 2 else x


class Divided(Weights):
    """Weights in parts on several devices, which carry operations out themselves."""

    @inner
    def run(self, operation: str, x: Any, *rest: Any, **options: Any) -> Any:
        """The operation of that name, as whoever calls it for a single array means it."""
        raise NotImplementedError


# --- indices --------------------------------------------------------------------------------


def written(index: Any) -> str:
    """An index as it was written: ``q[:, 32:96]``."""
    steps = index if isinstance(index, tuple) else (index,)
    return f"q[{', '.join(map(_written_step, steps))}]"


def _written_step(step: Any) -> str:
    if step is Ellipsis:
        return "..."
    if not isinstance(step, slice):
        return text.short(step)
    ends = [step.start, step.stop] if step.step is None else [step.start, step.stop, step.step]
    return ":".join("" if end is None else text.short(end) for end in ends)


class Index(NamedTuple):
    """An index taken apart."""

    steps: tuple[Any, ...]  # along the axes before the last
    first: int  # of the columns
    end: int


def index_of(q: Any, index: Any, unit: int, short_end: bool, way: str) -> Index:
    """What an index picks: rows by steps along the axes before the last, columns by a slice.

    Columns are cut at multiples of ``unit``; ``short_end``: only their first one is.
    """
    asked = f"{written(index)} of {q!r}"
    steps = index if isinstance(index, tuple) else (index,)
    dots = [at for at, step in enumerate(steps) if step is Ellipsis]
    if len(dots) == 1 and len(steps) - 1 <= q.ndim:
        whole = (slice(None),) * (q.ndim - len(steps) + 1)
        steps = (*steps[: dots[0]], *whole, *steps[dots[0] + 1 :])
    columns = slice(None)
    if q.ndim and len(steps) == q.ndim and isinstance(steps[-1], slice):
        columns, steps = steps[-1], steps[:-1]
    if len(steps) >= max(q.ndim, 1):
        raise BlockIndexError(
            f"{asked}: the last axis lies in {'tiles' if short_end else 'blocks'} of {unit}; rows are picked "
            f"along the axes before it, columns by a slice; or {way}, or np.asarray(q) for values"
        )
    if not all(is_step(step) for step in steps):
        raise BlockIndexError(
            f"{asked}: rows are picked by integers, slices, '...', integer arrays and 1-D boolean arrays; "
            f"for anything else {way}, or np.asarray(q)"
        )
    return Index(steps, *_columns(asked, q, columns, unit, short_end, way))


def _columns(asked: str, q: Any, columns: slice, unit: int, short_end: bool, way: str) -> tuple[int, int]:
    length = q.shape[-1] if q.ndim else 1
    try:
        first, end, step = columns.indices(length)
    except (TypeError, ValueError) as error:
        raise BlockIndexError(f"{asked}: {error}; its shape is {q.shape}; pass integers") from None
    end = max(first, end)
    whole = first == end or (first % unit == 0 and (short_end or end % unit == 0 or end == length))
    if step != 1 or not whole:
        near = f"{first // unit * unit}:{min(-(-end // unit) * unit, length)}"
        raise BlockIndexError(
            f"{asked}: columns {first} to {end} in steps of {step}; they are cut between "
            f"{'tiles' if short_end else 'blocks'} of {unit}, in steps of 1, so that nothing is copied; take "
            f"{near}, {way}, or np.asarray(q) for values"
        )
    return first, end


def is_step(step: Any) -> bool:
    """Whether an index picks whole rows: a bool would add an axis, a 2-D mask reach into rows."""
    if isinstance(step, slice):
        return True
    if isinstance(step, bool | np.bool_ | str | bytes) or step is None or step is Ellipsis:
        return False
    picked = np.asarray(step) if is_host(step) else step
    return picked.dtype.kind in "iu" or (picked.dtype.kind == "b" and picked.ndim == 1) or not picked.size


def shape_of(asked: str, q: Any, shape: tuple[Any, ...]) -> tuple[int, ...]:
    """The arguments of ``reshape`` as lengths, one of which may be -1."""
    lengths = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
    if not all(isinstance(n, int | np.integer) and not isinstance(n, bool) for n in lengths):
        raise DTypeError(f"{asked}: a shape is integers, one of which may be -1; pass q.reshape(2, -1)")
    dims = [int(n) for n in lengths]
    rest = math.prod(n for n in dims if n != -1)
    if dims.count(-1) == 1 and rest > 0 and q.size % rest == 0:
        dims[dims.index(-1)] = q.size // rest
    if min(dims, default=0) < 0 or math.prod(dims) != q.size:
        raise ShapeError(
            f"{asked}: {q.size} elements do not fill {tuple(lengths)}; both shapes hold the same number; "
            "pass lengths whose product that is"
        )
    return tuple(dims)
