"""The reader of a kernel's arguments: a kernel gets the address of a table of words and reads them by name.

``workers.py`` calls every kernel as ``kernel(arguments, start, stop)``. A named tuple of integers is the
description of such a table, and both sides use it: Python fills it and passes it on as it is, and the
kernel begins with ``fields = reader(Kind)(arguments)`` and says ``fields.rows``. Only the words that a
kernel names are read; the rest costs nothing.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir
from numba import types

from .numba_names import cgutils, intrinsic

WORD = ir.IntType(64)


@cache
def reader(kind: type) -> Any:
    """Compiled: the table at an address, as the named tuple ``kind`` of its words."""
    fields = vars(kind)["_fields"]
    words: Any = types.NamedUniTuple(types.int64, len(fields), kind)  # type: ignore[no-untyped-call]

    @intrinsic
    def read(typing: Any, address: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            table = builder.inttoptr(args[0], WORD.as_pointer())
            at = [cgutils.gep_inbounds(builder, table, i) for i in range(len(fields))]
            return context.make_tuple(builder, words, [builder.load(place) for place in at])

        return words(types.int64), emit

    return read
