"""The doctor's operands of a product with experts, checked: lines of y, one for each use of an expert."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import reference
from ...arrays.scaled import ScaledArray
from ...base.devices import to_host
from ...errors import NonFiniteError, UnsupportedError
from ...ops.operands import experts
from ..inputs import Results, results
from ..numbers import Index, Wide

CALL = "diagnose(y, x, q, ids=…)"


@dataclass(frozen=True, eq=False)
class Lines:
    """A result and its operands; line t·U + u is the use of the u-th expert of token t."""

    y: Wide  # [T·U, N]
    x: Any  # [R, K]: floats, or a ScaledArray
    q: Any  # [E, N, K]
    ids: Index  # [T, U]
    store: float  # relative rounding of the type that y is stored in

    @property
    def experts(self) -> NDArray[np.intp]:
        """The expert of each line."""
        return self.ids.reshape(-1).astype(np.intp)

    @property
    def rows(self) -> NDArray[np.intp]:
        """The row of x of each line."""
        count = self.ids.size
        return np.arange(count) // (count // max(len(self.x), 1) or 1)


def checked(y: Any, x: Any, q: Any, ids: Any, arithmetic: str | None, repeats: Any) -> tuple[Lines, Results]:
    """The lines and all results; errors say what does not fit."""
    scaled = isinstance(q, ScaledArray)
    if arithmetic is not None and (scaled or arithmetic not in reference.ARITHMETICS):
        known = "scaled weights have one arithmetic" if scaled else ", ".join(reference.ARITHMETICS)
        raise UnsupportedError(
            f"{CALL} with arithmetic={arithmetic!r}: a kernel may not claim that here: {known}; leave it out"
        )
    uses = experts(CALL, to_host(x), to_host(q), to_host(ids), look=True, quantize=False)
    if arithmetic is not None:
        reference.rule(q.format, arithmetic)
    rows = uses.x
    if not isinstance(rows, ScaledArray):
        rows = rows.astype(np.float32)
        if not np.isfinite(rows).all():
            raise NonFiniteError(
                f"{CALL}: x has {int((~np.isfinite(rows)).sum())} values that are not finite; activations "
                "must be finite, a product with NaN shows nothing; dump x again"
            )
    r = results(y, repeats, uses.shape, uses.ids.size)
    return Lines(r.y, rows, uses.q, uses.ids, r.store), r
