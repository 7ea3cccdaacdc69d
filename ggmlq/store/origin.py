"""The origin of a kernel: the function that makes it, and the arguments of that call, as text.

A kernel of a family has both at hand. Of another compiled function, such as an encoder, the origin is read
from the function itself: the definition that it stands in, and the values that it holds on to.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from ..codes import Code
from ..formats import Format
from . import reach


class Origin(NamedTuple):
    """The origin of a kernel: the name of the function that makes it, and the arguments of that call."""

    family: str
    case: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.family}({self.text})"

    @property
    def text(self) -> str:
        """The case, the same in every process."""
        return ", ".join(map(described, self.case))

    @property
    def formats(self) -> tuple[str, ...]:
        """Names of the formats that it is made for."""
        return tuple(value.name for value in self.case if isinstance(value, Format))

    @property
    def pack(self) -> str:
        """The name of its pack: its rung, or the room of its family."""
        room, _, file = self.family.rpartition(".")[0].removeprefix("ggmlq.").partition(".")
        rooms = [room, *file.split(".")]
        names = [name for name in rooms if name not in ("cpu", "cuda", "kernels", "ladder")]
        rung = names[-1].startswith("r") and names[-1][1:2].isdigit()
        return ".".join(names) if rung else names[0]


def described(value: Any, functions: dict[int, FunctionType] | None = None) -> str:
    """A constant of a kernel as text, the same in every process.

    ``functions`` gathers the functions among the values; their names and what they hold describe them.
    """
    function = getattr(value, "py_func", None) or getattr(value, "_defn", None) or value  # Numba's wrappers
    if isinstance(value, Format | Code):
        return value.name
    if isinstance(function, FunctionType):
        return _described_function(function, {} if functions is None else functions)
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{hashlib.blake2b(value.tobytes(), digest_size=10).hexdigest()}"
    if isinstance(value, frozenset):  # its own order differs between processes
        return f"{{{', '.join(sorted(described(item, functions) for item in value))}}}"
    if isinstance(value, tuple):
        name = type(value).__name__ if hasattr(value, "_fields") else ""
        return f"{name}({', '.join(described(item, functions) for item in value)})"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = (described(getattr(value, field.name), functions) for field in dataclasses.fields(value))
        return f"{type(value).__name__}({', '.join(parts)})"
    if isinstance(value, ModuleType | type) or (callable(value) and hasattr(value, "__name__")):
        return f"{getattr(value, '__module__', '')}.{value.__name__}"
    text = repr(value)
    assert " at 0x" not in text, f"{text} has an address, which is another one in each process"
    return text


def _described_function(function: FunctionType, functions: dict[int, FunctionType]) -> str:
    name = f"{function.__module__}.{function.__code__.co_qualname}"  # Numba's are renamed, not their code
    if id(function) in functions:
        return name
    functions[id(function)] = function
    held = [*(cell.cell_contents for cell in function.__closure__ or ()), *(function.__defaults__ or ())]
    return f"{name}[{', '.join(described(value, functions) for value in held)}]"


def origin_of(function: FunctionType, *facts: Any) -> Origin:
    """The origin of a compiled function: its definition, what it holds on to, and further facts.

    Definitions of other functions that it holds on to count as well.
    """
    functions: dict[int, FunctionType] = {}
    text = described(function, functions)
    formats = tuple(dict.fromkeys(_formats(functions.values())))
    definition, *others = dict.fromkeys(map(_definition, functions.values()))
    digests = (reach.digest(name) for name in sorted(others) if name.startswith("ggmlq."))
    return Origin(definition, (*formats, text, *digests, *facts))


def _definition(function: FunctionType) -> str:
    """The name of the definition of a module that a function stands in."""
    return f"{function.__module__}.{function.__code__.co_qualname.partition('.')[0]}"


def _formats(functions: Any) -> Iterator[Format]:
    for function in functions:
        for cell in function.__closure__ or ():
            if isinstance(cell.cell_contents, Format):
                yield cell.cell_contents
