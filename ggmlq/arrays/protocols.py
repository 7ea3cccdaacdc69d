"""NumPy's functions on arrays of weights: the right product, or an error that says what to write instead.

``np.matmul``, ``np.dot`` and ``np.inner`` run the kernels; functions that need only shape and dtype work. All
other ufuncs and functions (``np.mean``, ``np.save``) are refused: they would decode a model because of a
slip. ``np.asarray`` and ``np.array`` decode, since that is their purpose.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, ClassVar, Self

import numpy as np

from ..errors import DTypeError, ShapeError


class _Operations(dict[str, Callable[..., Any]]):
    """The operations that methods of arrays call, by name; the first look-up imports ``ops`` to add them."""

    def __missing__(self, name: str) -> Callable[..., Any]:
        import_module(f"{__package__.partition('.')[0]}.ops")
        if name in self:
            return self[name]
        raise KeyError(name)


OPERATIONS = _Operations()
COMPARISONS = (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal)


class NumPyProtocol:
    """The base of arrays that answer NumPy's ufuncs and functions by ``__array_ufunc__``.

    ``__array_ufunc__`` is a method for NumPy, which looks it up on the type, and None on an instance. CuPy
    looks there, and None makes it leave ``x @ q.T`` to ``q.T`` at once, as NumPy used to. No Python code may
    run in NumPy's look-up: it drops exceptions there, even that of Ctrl-C, and multiplies decoded weights.
    """

    __array_ufunc__: ClassVar[Any]
    __array_priority__: ClassVar[float] = 1000.0  # what CuPy looks at

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        self = super().__new__(cls)
        self.__dict__["__array_ufunc__"] = None
        return self

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if (product := _PRODUCTS.get(function)) is not None:
            return product(*args, **kwargs)
        if function in _WITHOUT_VALUES:
            return function(*_stand_ins(args), **_stand_ins(kwargs))
        name = f"{function.__module__.replace('numpy', 'np', 1)}.{function.__name__}"
        way = f", or {_INSTEAD[function]}" if function in _INSTEAD else ""
        raise DTypeError(
            f"{name} with {self!r}: this would decode all of it, which only np.asarray(q), np.array(q) and "
            f"q.dequantize() do; pass np.asarray(q) in its place{way}"
        )


def _ufunc(array: Any, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
    """The result of a ufunc with an array of weights among its operands."""
    if ufunc is np.matmul and method == "__call__":
        return _matmul(*inputs, **options)
    ours = next((value for value in inputs if isinstance(value, NumPyProtocol)), array)
    if ufunc in COMPARISONS and method == "__call__":
        other = inputs[1] if inputs[0] is ours else inputs[0]
        ours.__eq__(other)  # raises, in words of its own
    name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
    raise DTypeError(
        f"np.{name} with {ours!r}: it is kept in blocks or codes, which ufuncs do not read; write "
        f"np.{name}(np.asarray(q), …), or q.dequantize() for floats on its device; x @ q.T is the product"
    )


NumPyProtocol.__array_ufunc__ = _ufunc


def _matmul(a: Any, b: Any, out: Any = None, **options: Any) -> Any:
    """``np.matmul(x, q.T)`` and, where both are NumPy's or ours, ``x @ q.T``."""
    if "axes" in options and out is not None:
        name, last = ("q", "K") if hasattr(b, "product") else ("q.T", "N")
        raise ShapeError(
            f"x @= … with {b!r}: the result is [..., {last}], not the shape of x; write x = x @ {name}"
        )
    if options:
        raise DTypeError(
            f"np.matmul(x, q.T, {', '.join(options)}=…): of NumPy's options there is only out; write "
            "gq.linear(x, q, dtype=…)"
        )
    out = out[0] if isinstance(out, tuple) else out
    return _product(a, b, out)


def _product(a: Any, b: Any, out: Any = None) -> Any:
    if not isinstance(b, NumPyProtocol):
        return _copied(a @ b, out)
    ours: Any = b
    product = getattr(ours.T, "product", None)
    if product is None:  # b is q
        product = ours.product
    return OPERATIONS[product](a, ours.T) if out is None else OPERATIONS[product](a, ours.T, out=out)


def _copied(y: Any, out: Any) -> Any:
    """A result of ``q @ x``, in ``out`` where there is one."""
    if out is None:
        return y
    if getattr(out, "shape", None) != y.shape:
        raise ShapeError(
            f"np.matmul(q, x, out=…): out has shape {getattr(out, 'shape', None)}; the result has {y.shape}; "
            f"both are the same; pass np.empty({y.shape}, np.float32)"
        )
    out[...] = y
    return out


def _inner(a: Any, b: Any) -> Any:
    """``np.inner(x, q)`` is ``x @ q.T`` by its definition, and ``np.inner(q, x)`` is ``q @ x.T``."""
    product = getattr(b, "product", None)
    if product is not None:
        return OPERATIONS[product](a, b)
    return a @ (b if hasattr(b, "T") else np.asarray(b)).T


_PRODUCTS: dict[Any, Callable[..., Any]] = {np.dot: _product, np.inner: _inner}

# Functions that need shape and dtype alone: they get an array with these and without memory.
_WITHOUT_VALUES = {
    np.shape, np.ndim, np.size, np.empty_like, np.zeros_like, np.ones_like, np.full_like, np.result_type,
    np.iscomplexobj, np.isrealobj,
}  # fmt: skip
_INSTEAD = {
    np.concatenate: "gq.concatenate([a, b]), which keeps blocks",
    np.stack: "gq.stack([a, b]), which keeps blocks",
    np.array_equal: "gq.equal(a, b), which compares blocks",
    np.save: 'gq.save("w.gguf", {"w": q}), which keeps blocks',
    np.savez: 'gq.save("w.gguf", {"w": q}), which keeps blocks',
    np.copyto: "q.dequantize(out=room)",
    np.copy: "q.copy()",
    np.take: "q[rows]",
    np.transpose: "q.T",
    np.reshape: "q.reshape(…)",
    np.einsum: "x @ q.T",
    np.shares_memory: "np.shares_memory(q.raw, …)",
    np.may_share_memory: "np.may_share_memory(q.raw, …)",
}


def _stand_ins(value: Any) -> Any:
    """The arguments with arrays of zeros, which take no memory, in place of weights, in lists too."""
    if isinstance(value, NumPyProtocol):
        shape: Any = value.shape  # type: ignore[attr-defined]
        return np.broadcast_to(np.float32(0), shape)
    if type(value) in (list, tuple):
        return type(value)(_stand_ins(part) for part in value)
    if type(value) is dict:
        return {name: _stand_ins(part) for name, part in value.items()}
    return value
