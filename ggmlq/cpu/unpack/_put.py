"""The step that stores the codes of a walk as int8."""

from __future__ import annotations

from typing import Any

from numba import types

from ..lanes import recast, store
from ..machine.jit import inner

I8 = types.int8


@inner
def put_codes(out: Any, at: int, codes: Any) -> None:
    """The ``put`` of an unpacker."""
    store(out[0], at, recast(codes, I8))
