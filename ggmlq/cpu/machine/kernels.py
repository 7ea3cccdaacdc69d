"""Kernels by name: their machine code comes with the package or, if it is not of today's sources, from Numba.

``kernel("panels.product.direct", layout, rows, target)`` is the compiled ``work(arguments, start, stop)``
that the function ``direct`` of ``panels/product.py`` returns for this layout, rows and target. That file, and
Numba with it, are only imported where the code has to be compiled (``machine/served.py`` says when).
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from ...base.forks import KERNELS
from ...base.unwinding import until_imported
from ...store.origin import Origin
from . import served

ROOM = __package__.rpartition(".")[0]  # ggmlq.cpu


class Code(NamedTuple):
    """Machine code of a kernel in memory."""

    call: Any  # (address of arguments, start, stop); raises what the code does
    address: int  # of a function in Numba's convention


class _FirstCode:
    """The code of a kernel, loaded or compiled when it is first asked for; an attribute like others after."""

    def __get__(self, work: Kernel, kind: type) -> Code:
        with KERNELS:
            if "code" not in vars(work):
                vars(work)["code"] = work._load()
            code: Code = vars(work)["code"]
            return code


class Kernel:
    """A kernel, identified by the function that makes it and the arguments of that function."""

    code = _FirstCode()

    def __init__(self, name: str, case: tuple[Any, ...]) -> None:
        self.origin = Origin(f"{ROOM}.{name}", case)
        self._absent = False  # known not to be in the packs

    @property
    def at_hand(self) -> bool:
        """True if the kernel need not be compiled."""
        if "code" not in vars(self) and not self._absent:
            with KERNELS:
                code = vars(self).get("code") or self._served()
                self._absent = code is None
                if code is not None:
                    vars(self)["code"] = code
        return "code" in vars(self)

    def _served(self) -> Code | None:
        code = served.loaded(self.origin)
        return None if code is None else Code(code.call, code.address)

    def _load(self) -> Code:
        if (code := self._served()) is not None:
            return code
        file, _, name = self.origin.family.rpartition(".")
        with until_imported("numba"):
            function = getattr(import_module(file), name)(*self.origin.case)
        return Code(function, compiled(function))

    def __repr__(self) -> str:
        return str(self.origin)


@cache
def kernel(name: str, *case: Any) -> Kernel:
    """The kernel that ``file.function`` of this side makes for a case; the same object each time."""
    return Kernel(name, case)


@cache
def compiled(function: Any) -> int:
    """The address of the machine code that Numba compiles for a function."""
    from numba import types

    signature = (types.int64,) * 3
    function.compile(signature)
    result = function.overloads[signature]
    return int(result.library.get_pointer_to_function(result.fndesc.llvm_func_name))
