"""Python's operators and NumPy's methods on arrays of weights: refused, with errors that say what to write.

Elements of blocks cannot be added or compared one by one, and no operator decodes silently. Only conversions
decode: ``np.asarray(q)``, ``np.array(q)`` and ``q.dequantize()``. The products are in weights.py.
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Number
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np

from ..base import text
from ..errors import ArrayAttributeError, DTypeError
from .members import Listed, public

BINARY = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**",
    "lshift": "<<", "rshift": ">>", "and": "&", "or": "|", "xor": "^",
}  # fmt: skip
COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}
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
for _name, _symbol in COMPARISONS.items():
    setattr(Operators, f"__{_name}__", _refused(f"q {_symbol} x"))
for _name, _expression in UNARY.items():
    setattr(Operators, f"__{_name}__", _refused(_expression))
