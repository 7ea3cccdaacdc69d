"""NumPy's functions on arrays of weights: the right product, or an error that says what to write instead.

``np.matmul``, ``np.dot`` and ``np.inner`` run the kernels; functions that need only shape and dtype work. All
other ufuncs and functions (``np.mean``, ``np.save``) are refused: they would decode a model because of a
slip. ``np.asarray`` and ``np.array`` decode, since that is their purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from numbers import Number
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self, TypeVar

import numpy as np

from ..base import text
from ..base.hooks import Hook
from ..errors import ArrayAttributeError, DTypeError, ShapeError

# --- public members -----------------------------------------------------------------------------
# A member is public if its name has no underscore, a docstring describes it, and no class marks it
# ``@inner``. Inner members are for other rooms of the package.

Function = TypeVar("Function", bound=Callable[..., Any])


def inner(function: Function) -> Function:
    """Mark a method, or under ``@property`` the function of one, as a member for the package alone."""
    function.__dict__["inner"] = True
    return function


def public(kind: type) -> list[str]:
    """Names of the public members of a class, with inherited ones, without those of Python's own types."""
    return [name for name in dir(kind) if not name.startswith("_") and _is_public(kind, name)]


def _is_public(kind: type, name: str) -> bool:
    from inspect import getdoc  # where somebody asks

    bases = [base for base in kind.__mro__ if name in vars(base)]
    definitions = [vars(base)[name] for base in bases]
    if not bases or bases[0].__module__ == "builtins" or any(map(_is_inner, definitions)):
        return False
    is_value = not hasattr(definitions[0], "__get__")  # its docstring would be that of its type
    return not is_value and bool(getdoc(getattr(kind, name)))


def _is_inner(definition: Any) -> bool:
    function = getattr(definition, "fget", None) or getattr(definition, "__func__", definition)
    return bool(getattr(function, "__dict__", {}).get("inner"))


class Listed:
    """A class whose objects list their public members."""

    def __dir__(self) -> Iterable[str]:
        shown = {*public(type(self))}
        return [name for name in super().__dir__() if name.startswith("_") or name in shown]


# --- operations, and NumPy's functions ----------------------------------------------------------


_ROOM = Hook("operations on arrays")


class _Operations(dict[str, Callable[..., Any]]):
    """The operations that methods of arrays call, by name; the first look-up imports ``ops`` to add them."""

    def __missing__(self, name: str) -> Callable[..., Any]:
        _ROOM.room()
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
        self = object.__new__(cls)
        self.__array_ufunc__ = None  # type: ignore[misc]
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


# --- Python's operators and NumPy's methods: refused --------------------------------------------
# Elements of blocks cannot be added or compared one by one, and no operator decodes silently. Only
# conversions decode: ``np.asarray(q)``, ``np.array(q)`` and ``q.dequantize()``. The products are in
# weights.py.

BINARY = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**",
    "lshift": "<<", "rshift": ">>", "and": "&", "or": "|", "xor": "^",
}  # fmt: skip
ORDERINGS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}
UNARY = {"neg": "-q", "pos": "+q", "invert": "~q", "abs": "abs(q)"}
NO_ELEMENTS = "it is kept in blocks or codes, whose elements are not computed with"
ON_DEVICE = "or q.dequantize() for floats on its device"

# Methods and attributes of NumPy's, CuPy's and torch's arrays, and what to write in their place; for NumPy's
# other ones that is np.asarray(q).name.
INSTEAD = {
    "astype": 'q.dequantize(np.float16) for floats, gq.quantize(np.asarray(q), "q8_0") for another type',
    "numpy": "np.asarray(q)",
    "get": 'q.to("cpu")',
    "cpu": 'q.to("cpu")',
    "cuda": 'q.to("cuda")',
    "float": "q.dequantize()",
    "half": "q.dequantize(np.float16)",
    "data": "q.raw for the bytes",
    "view": "q.raw for the bytes, q.blocks for the fields",
    "tobytes": "q.raw.tobytes()",
    "transpose": "q.T",
    "dot": "x @ q.T, or q @ x",
    "take": "q[rows]",
}


class Operators(Listed):
    """Operators and methods that people know from arrays of floats, answered for arrays of weights."""

    stored: ClassVar[str]  # names of the plain arrays that it consists of

    __hash__ = object.__hash__  # by identity: keys of caches; arrays of the same bytes stay two

    def __eq__(self, other: object) -> bool:
        if other is self:  # so that weak references, lists and dicts find it
            return True
        if not (isinstance(other, Operators | list | tuple | Number) or hasattr(other, "__array__")):
            return NotImplemented
        raise DTypeError(
            f"comparison of {self!r} with an object of type {type(other).__name__}: blocks are not compared "
            f"element by element, and an array is equal to itself alone; gq.equal(a, b) tells whether two "
            f"arrays hold the same, np.asarray(q) == x compares values; or compare {self.stored}"
        )

    def __format__(self, spec: str) -> str:
        try:
            return format(str(self), spec)
        except ValueError as error:
            raise DTypeError(
                f"format of {self!r} with {spec!r}: {error}; it is formatted as the text that it prints; use "
                "a width such as '>60', or format values of np.asarray(q)"
            ) from None

    if not TYPE_CHECKING:  # or every name would be an attribute to type checkers

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):  # what Python and libraries ask any object for
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            request = f"q.{name} of {self!r}"
            if name in INSTEAD or hasattr(np.ndarray, name):
                way = INSTEAD.get(name, f"np.asarray(q).{name}, {ON_DEVICE}")
                raise ArrayAttributeError(f"{request}: {NO_ELEMENTS}; write {way}")
            names = public(type(self))
            way = text.meant(name, names, f"it has {', '.join(names)}")
            raise ArrayAttributeError(f"{request}: there is no such attribute; {way}")


def _refused(expression: str) -> Callable[..., NoReturn]:
    """The method of an operator that has no meaning here."""
    written = expression.replace("q", "np.asarray(q)")

    def method(self: Any, *operands: Any) -> NoReturn:
        raise DTypeError(
            f"{expression} with {self!r}: {NO_ELEMENTS}; write {written}, {ON_DEVICE}; x @ q.T and q @ x are "
            "the products"
        )

    return method


for _name, _symbol in BINARY.items():
    setattr(Operators, f"__{_name}__", _refused(f"q {_symbol} x"))
    setattr(Operators, f"__r{_name}__", _refused(f"x {_symbol} q"))
for _name, _symbol in ORDERINGS.items():
    setattr(Operators, f"__{_name}__", _refused(f"q {_symbol} x"))
for _name, _expression in UNARY.items():
    setattr(Operators, f"__{_name}__", _refused(_expression))
