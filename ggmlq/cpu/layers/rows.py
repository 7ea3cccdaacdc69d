"""The kernel of embeddings: rows by their numbers, decoded."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ...formats import Format
from ..machine.jit import inner, jit
from ..machine.memory import bytes_at, floats_at, reader, words_at
from ..unpack.decode import decoder
from .call import Embedding

arguments_of = reader(Embedding)


@inner
def _as_it_is(row: Any, values: Any) -> None:
    """The decoder of float32."""
    numbers = row.view(np.float32)
    for i in range(len(values)):
        values[i] = numbers[i]


@cache
def decoded(fmt: Format) -> Any:
    """Compiled: rows ``first`` … ``stop`` of ``Embedding``."""
    decode: Any = _as_it_is if fmt.name == "f32" else decoder(fmt)

    def work(arguments: int, first: int, stop: int) -> None:
        f = arguments_of(arguments)
        ids = words_at(f.ids, stop)
        for r in range(first, stop):
            out = floats_at(f.out + 4 * r * f.width, 1, f.width)[0]
            decode(bytes_at(f.raw + ids[r] * f.row_bytes, 1, f.row_bytes)[0], out)

    return jit(work)
