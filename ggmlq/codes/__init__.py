"""The codes of 8 and 16 bits and their meaning: minifloats.py (e4m3, e5m2), integers.py, e8m0.py.

``CODES`` maps a name in any case, the name that ml_dtypes and torch have for it, or a Code to its
Code. A new code stands in one of these files, or in one of its own, and in the list of ``CODES``.
"""

from __future__ import annotations

import difflib

from ..base.named import Catalogue
from ..errors import CodeAttributeError, CodeError
from .code import CATALOGUE, Code
from .e8m0 import E8M0
from .integers import INTEGERS, Integer
from .minifloats import E4M3, E5M2, MiniFloat


class Codes(Catalogue[Code]):
    """All codes by name or Code: ``gq.codes.e4m3`` is ``gq.codes["e4m3"]``."""

    _no_attribute = CodeAttributeError

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

    def __repr__(self) -> str:
        return f"<{len(self)} codes: {', '.join(self)}>"


CODES = Codes([E4M3, E5M2, *INTEGERS, E8M0])
CATALOGUE.update(CODES)

__all__ = ["CODES", "Code", "Codes", "Integer", "MiniFloat"]
