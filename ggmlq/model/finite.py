"""Numbers of a model that are not finite, in words: with NaN it would say one token for ever."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..base.devices import namespace
from ..errors import NonFiniteError

CAUSE = (
    "a model's numbers are finite; either tensors of the file are not, which `ggmlq validate FILE` names, or "
    "they outgrow their types, where cache='f32' may help: m.nodes(tokens) shows the first; take another file"
)


@contextmanager
def walking(part: str) -> Iterator[None]:
    """The time in which a part is computed; what a cache refuses is an error about the file."""
    try:
        with np.errstate(all="ignore"):  # what comes of it shows in the logits, which are looked at once
            yield
    except NonFiniteError as error:
        raise NonFiniteError(f"model: {part} has numbers that are NaN or infinite; {CAUSE}") from error


def finite(logits: Any) -> Any:
    """Logits, if all are finite."""
    with np.errstate(all="ignore"):  # a sum is finite only if all of them are, and it is quick
        if not np.isfinite(float(logits.sum())) and not bool(namespace(logits).isfinite(logits).all()):
            raise NonFiniteError(f"model: there are logits that are NaN or infinite; {CAUSE}")
    return logits
