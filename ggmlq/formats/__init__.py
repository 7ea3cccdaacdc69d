"""Types of blocks and what they mean: one file a type. This folder's listing is the table of types.

``FORMATS`` maps a name in any case, a ggml id or a Format to its Format. A new format is one new
module here with a ``FORMAT`` in it; nothing else needs to know.
"""

from __future__ import annotations

import importlib
import pkgutil
from operator import attrgetter

from ._table import REMOVED, Formats
from .format import CATALOGUE, BlockFormat, Format
from .scalars import SCALARS


def _discover() -> list[Format]:
    """The scalars, and the FORMAT of every module of this folder that describes a block."""
    formats: list[Format] = list(SCALARS)
    for module in pkgutil.iter_modules(__path__):
        if not module.name.startswith("_") and module.name not in ("format", "scalars", "atoms", "packing"):
            formats.append(importlib.import_module(f"{__name__}.{module.name}").FORMAT)
    return sorted(formats, key=attrgetter("id"))


FORMATS = Formats(_discover())
CATALOGUE.update(FORMATS)
BLOCK_FORMATS = tuple(fmt for fmt in FORMATS.values() if isinstance(fmt, BlockFormat))

__all__ = ["BLOCK_FORMATS", "FORMATS", "REMOVED", "BlockFormat", "Format", "Formats"]
