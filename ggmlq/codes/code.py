"""The interface of a code: its range, whole arrays both ways, and atoms.

A code is a number of 8 or 16 bits without a scale; an array of codes with scales beside it is a
:class:`ggmlq.ScaledArray`. Whole arrays are encoded and decoded in NumPy and CuPy alike. The atoms
``to_code`` and ``value`` say the same of one number in plain Python that Numba compiles for the CPU
and for the GPU; tests hold the two together, over all codes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..base.devices import is_host, namespace
from ..errors import DTypeError, UnsupportedError

ROUNDINGS = ("half_even", "half_away")
STEP = 1 << 16  # elements at a time: what lies between stays in the cache


@dataclass(frozen=True, eq=False, kw_only=True)
class Code(ABC):
    """One code: the meaning of its bit patterns as numbers."""

    name: str
    dtype: np.dtype[Any]  # of the codes
    min: float  # the lowest value
    max: float  # the largest finite value
    to_code: Callable[..., int]  # atom
    value: Callable[[int], Any]  # atom: a code to float32
    aliases: tuple[str, ...] = ()

    kind: ClassVar[str]  # "integer", "float" or "scale"
    roundings: ClassVar[tuple[str, ...]] = ("half_even",)

    @property
    def bits(self) -> int:
        """Number of bits of a code."""
        return 8 * self.dtype.itemsize

    def encode(self, x: Any, saturate: bool = True, rounding: str = "half_even") -> Any:
        """Floats to codes, one by one, without a scale; NumPy in gives NumPy out, CuPy gives CuPy.

        Parameters
        ----------
        x : array of floats
            Rounded to float32 first where it is wider, which is what is encoded.
        saturate : bool
            Numbers beyond the range become the largest of their sign. Without, they become NaN or an
            infinity, which integers do not have.
        rounding : str
            Of ties: ``"half_even"``, or for integers ``"half_away"`` from zero.

        NaN becomes NaN, or in integers 0.

        >>> import numpy as np, ggmlq as gq
        >>> gq.codes["e4m3"].encode(np.float32([17, 18, 19, 500]))
        array([ 88,  89,  90, 126], dtype=uint8)
        >>> gq.codes["int8"].encode(np.float32([0.5, 1.5, -2.5, 1000]))
        array([  0,   2,  -2, 127], dtype=int8)
        """
        call = f"codes[{self.name!r}].encode(x)"
        self.check_rounding(call, rounding)
        x = floats(call, x)
        self._check_saturate(call, saturate)
        xp, flat = namespace(x), x.reshape(-1)
        codes = xp.empty(flat.shape, self.dtype)
        step = STEP if xp is np else max(flat.size, 1)
        with np.errstate(all="ignore"):
            for start in range(0, flat.size, step):
                part = flat[start : start + step].astype(np.float32)
                codes[start : start + step] = self._encode(xp, part, saturate, rounding)
        return codes.reshape(x.shape)

    def decode(self, codes: Any) -> Any:
        """Codes to float32, exactly; NumPy in gives NumPy out, CuPy gives CuPy.

        >>> import numpy as np, ggmlq as gq
        >>> gq.codes["e4m3"].decode(np.uint8([0x01, 0x38, 0x7E, 0x7F]))
        array([1.953125e-03, 1.000000e+00, 4.480000e+02,          nan],
              dtype=float32)
        """
        codes = self.checked(f"codes[{self.name!r}].decode(codes)", codes)
        return self._decode(namespace(codes), codes)

    def checked(self, call: str, codes: Any, name: str = "codes") -> Any:
        """An array of this code's dtype, checked; 8-bit floats of other packages are viewed as bytes."""
        codes = np.asarray(codes) if is_host(codes) else codes
        if codes.dtype.name in self.aliases:
            codes = codes.view(self.dtype)
        if codes.dtype != self.dtype:
            others = "".join(f" or {alias}" for alias in self.aliases)
            raise DTypeError(
                f"{call}: {name} are {codes.dtype}, {self.name} has codes of {self.dtype}{others}; "
                f"pass {name}.view(np.{self.dtype}) if these are the bits, or encode floats with "
                f"gq.codes[{self.name!r}].encode(x)"
            )
        return codes

    def check_rounding(self, call: str, rounding: str) -> None:
        """Refuse a rounding that the code does not have."""
        if rounding not in ROUNDINGS:
            raise UnsupportedError(
                f"{call}: rounding={rounding!r}; ties go half_even (to the even neighbour) or half_away "
                "(from zero); pass one of these names"
            )
        if rounding not in self.roundings:
            raise UnsupportedError(
                f"{call}: rounding={rounding!r} with {self.name}; ties of floats go to the even "
                'neighbour; leave rounding out, or take an integer code such as "int8"'
            )

    @abstractmethod
    def _encode(self, xp: Any, x: Any, saturate: bool, rounding: str) -> Any:
        """Codes of a flat array of float32."""

    @abstractmethod
    def _decode(self, xp: Any, codes: Any) -> Any:
        """Floats of an array of codes."""

    def _check_saturate(self, call: str, saturate: bool) -> None:
        """Refuse ``saturate=False`` for integers, which have neither NaN nor infinity."""
        if not saturate and self.kind == "integer":
            raise UnsupportedError(
                f"{call}: saturate=False with {self.name}, which has neither NaN nor infinity for what "
                'does not fit; leave it out, or take "e4m3" or "e5m2"'
            )

    @cached_property
    def table(self) -> NDArray[np.float32]:
        """The value of every code, by its bits, for codes of 8 bits."""
        if self.bits != 8:
            raise UnsupportedError(f"codes[{self.name!r}].table: only codes of 8 bits have one; use decode")
        values: NDArray[np.float32] = self.decode(np.arange(256, dtype=np.uint8).view(self.dtype))
        values.flags.writeable = False
        return values

    def __repr__(self) -> str:
        return f"<{self.name}: {self.kind}, {self.bits} bits, {self.min:g} … {self.max:g}>"

    def __reduce__(self) -> tuple[Any, ...]:  # codes are unique: pickle by name
        return _by_name, (self.name,)


CATALOGUE: dict[str, Code] = {}  # filled by the package, once it has imported them all


def _by_name(name: str) -> Code:
    return CATALOGUE[name]


def floats(call: str, x: Any) -> Any:
    """An array of floats of any width, bfloat16 of ml_dtypes included."""
    x = np.asarray(x) if is_host(x) else x
    if x.dtype.kind != "f" and x.dtype.name != "bfloat16":
        raise DTypeError(f"{call}: x is {x.dtype}; floats are encoded; convert with x.astype(np.float32)")
    return x
