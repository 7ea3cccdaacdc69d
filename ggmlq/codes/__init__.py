"""The codes of 8 and 16 bits (e4m3, int8 …) and their meaning: one file a code, found by a folder listing.

``CODES`` maps a name in any case, the name that ml_dtypes and torch have for it, or a Code to its
Code. A new code is one new module here with a ``CODE`` in it.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Iterator, Mapping

from ..errors import CodeAttributeError, CodeError
from ._integer import Integer
from ._minifloat import MiniFloat
from .code import CATALOGUE, Code

ORDER = ("e4m3", "e5m2", "int8", "int8_full", "uint8", "int16", "uint16", "e8m0")
APART = ("code", "scaling", "numbers", "tiling")  # modules of this folder that are no code


def _discover() -> list[Code]:
    codes = [
        importlib.import_module(f"{__name__}.{module.name}").CODE
        for module in pkgutil.iter_modules(__path__)
        if not module.name.startswith("_") and module.name not in APART
    ]
    return sorted(codes, key=lambda code: ORDER.index(code.name) if code.name in ORDER else len(ORDER))


class Codes(Mapping[str, Code]):
    """All codes by name or Code."""

    def __init__(self, codes: list[Code]) -> None:
        self._canonical = {code.name: code for code in codes}
        self._names = {name: code for code in codes for name in (code.name, *code.aliases)}

    def __getitem__(self, key: object) -> Code:
        if isinstance(key, Code):
            return key
        code = self._names.get(key.lower()) if isinstance(key, str) else None
        if code is None:
            near = difflib.get_close_matches(str(key).lower(), self._names, n=2, cutoff=0.5)
            way = f"did you mean {' or '.join(near)}?" if near else f"the codes are {', '.join(self)}"
            raise CodeError(f"codes[{key!r}]: there is no such code; {way}")
        return code

    def __getattr__(self, name: str) -> Code:
        """The code of a name: ``gq.codes.e4m3`` is ``gq.codes["e4m3"]``."""
        if name.startswith("_"):  # what Python asks any object for
            raise AttributeError(name)
        try:
            return self[name]
        except CodeError as error:
            raise CodeAttributeError(str(error)) from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self]

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)

    def __iter__(self) -> Iterator[str]:
        return iter(self._canonical)

    def __len__(self) -> int:
        return len(self._canonical)

    def __repr__(self) -> str:
        return f"<{len(self)} codes: {', '.join(self)}>"


CODES = Codes(_discover())
CATALOGUE.update(CODES)

__all__ = ["CODES", "Code", "Codes", "Integer", "MiniFloat"]
