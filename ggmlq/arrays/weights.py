"""The common part of arrays of weights: products, the transpose, the view in a notebook."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, NoReturn, Self, TypeVar, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..base import text
from ..base.devices import is_host
from ..errors import BlockIndexError, DTypeError, ShapeError
from .protocols import OPERATIONS, NumPyProtocol, Operators, inner
from .tensors import Function, untraced

# --- indices and shapes -------------------------------------------------------------------------


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


def picking(index: Any, q: Any) -> text.Request:
    """The words ``q[3:7] of <QuantArray …>`` of an error."""
    return text.Request(lambda: f"{written(index)} of", q)


class Index(NamedTuple):
    """An index as steps along the leading axes and a range of columns."""

    steps: tuple[Any, ...]  # along the axes before the last
    first: int  # of the columns
    end: int


def index_of(q: Any, shape: tuple[int, ...], index: Any, unit: int, short_end: bool, way: str) -> Index:
    """The part that an index picks: rows by steps along the axes before the last, columns by a slice.

    The slice of columns begins and ends at multiples of ``unit``; with ``short_end`` only its start must.
    ``way`` is advice for the error about ``q``, an array of that shape.
    """
    ndim = len(shape)
    request: Any = picking(index, q)
    steps = index if isinstance(index, tuple) else (index,)
    dots = [at for at, step in enumerate(steps) if step is Ellipsis]
    if len(dots) == 1 and len(steps) - 1 <= ndim:
        whole = (slice(None),) * (ndim - len(steps) + 1)
        steps = (*steps[: dots[0]], *whole, *steps[dots[0] + 1 :])
    columns = slice(None)
    if ndim and len(steps) == ndim and isinstance(steps[-1], slice):
        columns, steps = steps[-1], steps[:-1]
    if len(steps) >= max(ndim, 1):
        raise BlockIndexError(
            f"{request}: the last axis lies in {'tiles' if short_end else 'blocks'} of {unit}; rows are "
            f"picked along the axes before it, columns by a slice; or {way}, or np.asarray(q) for values"
        )
    if not all(is_step(step) for step in steps):
        raise BlockIndexError(
            f"{request}: rows are picked by integers, slices, '...', integer arrays and 1-D boolean arrays; "
            f"for anything else {way}, or np.asarray(q)"
        )
    return Index(steps, *_columns(request, shape, columns, unit, short_end, way))


def _columns(
    request: str, shape: tuple[int, ...], columns: slice, unit: int, short_end: bool, way: str
) -> tuple[int, int]:
    length = shape[-1] if shape else 1
    try:
        first, end, step = columns.indices(length)
    except (TypeError, ValueError) as error:
        raise BlockIndexError(f"{request}: {error}; its shape is {shape}; pass integers") from None
    end = max(first, end)
    whole = first == end or (first % unit == 0 and (short_end or end % unit == 0 or end == length))
    if step != 1 or not whole:
        near = f"{first // unit * unit}:{min(-(-end // unit) * unit, length)}"
        raise BlockIndexError(
            f"{request}: columns {first} to {end} in steps of {step}; they are cut between "
            f"{'tiles' if short_end else 'blocks'} of {unit}, in steps of 1, so that nothing is copied; take "
            f"{near}, {way}, or np.asarray(q) for values"
        )
    return first, end


def is_step(step: Any) -> bool:
    """True for an index that picks whole rows; not for a bool (adds an axis) or a 2-D mask (cuts rows)."""
    if isinstance(step, slice):
        return True
    if isinstance(step, bool | np.bool_ | str | bytes) or step is None or step is Ellipsis:
        return False
    try:
        picked = np.asarray(step) if is_host(step) else step
    except ValueError:  # lists of several lengths
        return False
    return picked.dtype.kind in "iu" or (picked.dtype.kind == "b" and picked.ndim == 1) or not picked.size


def shape_of(request: str, q: Any, shape: tuple[Any, ...]) -> tuple[int, ...]:
    """The arguments of ``reshape`` as lengths, one of which may be -1."""
    lengths = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
    if not all(isinstance(n, int | np.integer) and not isinstance(n, bool) for n in lengths):
        raise DTypeError(f"{request}: a shape is integers, one of which may be -1; pass q.reshape(2, -1)")
    dims = [int(n) for n in lengths]
    rest = math.prod(n for n in dims if n != -1)
    if dims.count(-1) == 1 and rest > 0 and q.size % rest == 0:
        dims[dims.index(-1)] = q.size // rest
    if min(dims, default=0) < 0 or math.prod(dims) != q.size:
        raise ShapeError(
            f"{request}: {q.size} elements do not fill {tuple(lengths)}; both shapes hold the same number; "
            "pass lengths whose product that is"
        )
    return tuple(dims)


# --- arrays of weights --------------------------------------------------------------------------

Host = NDArray[np.floating[Any]] | Sequence[float] | Sequence[Sequence[float]]  # NumPy in, NumPy out
Float = TypeVar("Float", bound=np.floating[Any])
Out = TypeVar("Out", bound=NDArray[Any])

CORNER = 4, 8  # rows and columns of values that a notebook shows


def operation(function: Function) -> Function:
    """Decorate a function of ``ops`` so that arrays call it by name; this room does not import ``ops``."""
    OPERATIONS[function.__name__] = operation = untraced(function)
    return operation


class Weights(Operators, NumPyProtocol):
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
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def dtype(self) -> np.dtype[np.float32]:
        """The dtype of decoded elements: float32, as ``np.asarray`` gives them."""
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
        """A copy with memory of its own."""
        raise NotImplementedError

    def __copy__(self) -> Self:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.copy()

    def __matmul__(self, x: Any) -> Any:
        """``q @ x`` of columns x, [K] or [K, M]: the product ``x.T @ q.T``, transposed."""
        return OPERATIONS["times_columns"](self, x)

    def __rmatmul__(self, y: Any) -> Any:
        """``y @ q`` of rows y [..., N]: the product with q [N, K] as it lies, which sums over rows of q."""
        return OPERATIONS[self.product](y, self.T)

    def __setitem__(self, index: Any, value: Any) -> None:
        raise DTypeError(
            f"{written(index)} = … of {self!r}: arrays of weights are read-only; join rows with "
            f"gq.concatenate, or write to {self.stored} of q.copy()"
        )

    @inner
    def facts(self) -> list[tuple[str, object]]:
        """Facts about the array for people: a name and a value each."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        """For a notebook: a table of facts, and the first values if these cost nothing."""
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


class Transposed(Operators, NumPyProtocol):
    """The transpose of an array of weights: for ``x @ q.T``, ``gq.linear(y, q.T)`` and ``asarray``."""

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
        """The number of axes."""
        return len(self.shape)

    def __rmatmul__(self, x: Any) -> NDArray[np.float32]:
        y: NDArray[np.float32] = OPERATIONS[self.T.product](x, self.T)
        return y

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, arguments: tuple[Any, ...] = (), options: dict[str, Any] | None = None
    ) -> Any:
        """``tensor @ q.T`` and ``torch.matmul(tensor, q.T)``: torch asks here before it looks for tensors."""
        if getattr(function, "__name__", "") != "matmul" or options or len(arguments) != 2:
            return NotImplemented
        x, transposed = arguments
        if not isinstance(transposed, cls):
            return NotImplemented
        return OPERATIONS[transposed.T.product](x, transposed.T)

    @property
    def device(self) -> Any:
        """The device of the array."""
        return self.T.device

    def __matmul__(self, y: Any) -> Any:
        """``q.T @ y`` of columns y, [N] or [N, M]: the product ``y.T @ q``, transposed."""
        return OPERATIONS["times_columns"](self, y)

    def dequantize(self, dtype: DTypeLike = np.float32) -> Any:
        """The values as floats on the same device, transposed."""
        values = self.T.dequantize(dtype)
        return values.swapaxes(-1, -2) if self._matrices else values.T

    if not TYPE_CHECKING:  # or NumPy's stubs would take x @ q.T for a product of its own, of another type

        def __getitem__(self, index: Any) -> NoReturn:
            name, way = ("mT", "q[0].T") if self._matrices else ("T", "q[0]")
            raise DTypeError(
                f"{written(index).replace('q', f'q.{name}', 1)} of {self!r}: blocks lie along the rows of q, "
                f"which a transpose cuts; write {way} or the like, or np.asarray(q.{name}) for floats"
            )

        def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
            values = self.T.__array__(dtype, copy)
            return values.swapaxes(-1, -2) if self._matrices else values.T

    def __repr__(self) -> str:
        return f"{self.T!r}.{'mT' if self._matrices else 'T'}"


@operation
def times_columns(q: Weights | Transposed, x: Any) -> Any:
    """``q @ x`` or ``q.T @ x``: the columns of x are rows of activations."""
    rows = _rows_of(q, x)
    product = q.T.product if isinstance(q, Transposed) else q.product
    y = OPERATIONS[product](rows, q)
    return y if rows.ndim == 1 else y.T


def _rows_of(q: Weights | Transposed, x: Any) -> Any:
    """The columns x of ``q @ x`` as rows of activations; the product checks all but their axes."""
    request, n, k = ("q.T @ x", "K", "N") if isinstance(q, Transposed) else ("q @ x", "N", "K")
    if isinstance(x, Operators):
        raise ShapeError(
            f"{request} with {q!r} and {x!r}: x is an array of floats, [{k}] or [{k}, M]; pass x.dequantize()"
        )
    if not hasattr(x, "ndim"):
        try:
            x = np.asarray(x)
        except (ValueError, TypeError) as error:
            raise DTypeError(
                f"{request} with {q!r}: x is no array ({error}); pass an array of floats"
            ) from None
    if q.ndim == 2 and (x.ndim not in (1, 2) or x.shape[0] != q.shape[1]):
        way = f"pass {q.shape[1]} numbers a column"
        if x.ndim and x.shape[-1] == q.shape[1]:
            way = f"write x @ {'q' if isinstance(q, Transposed) else 'q.T'}, which takes rows [..., {k}]"
        raise ShapeError(
            f"{request} with {q!r}: x has shape {tuple(x.shape)}; {request[:-4]} is [{n}, {k}] and x [{k}] "
            f"or [{k}, M], with {k} {q.shape[1]}; {way}"
        )
    return x.T if x.ndim == 2 else x


class Divided(Weights):
    """The base of weights in parts on several devices, which carry out operations themselves."""

    @inner
    def run(self, operation: str, x: Any, *rest: Any, **options: Any) -> Any:
        """The result of the operation of that name, with the same arguments as for a single array."""
        raise NotImplementedError
