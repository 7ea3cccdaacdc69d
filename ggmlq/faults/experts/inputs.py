"""What ``diagnose`` is given with ids, checked and brought to the host: lines, one for each use."""

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
from ..inputs import result
from ..readings import Wide

ASKED = "diagnose(y, x, q, ids=…)"
Index = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Lines:
    """A result and its operands; line t·U + u is the use of the u-th expert of token t."""

    y: Wide  # [T·U, N]
    x: Any  # [R, K]: floats, or a ScaledArray
    q: Any  # [E, N, K]
    ids: NDArray[np.int64]  # [T, U]
    store: float  # what rounding the store of y itself cost, relatively

    @property
    def experts(self) -> Index:
        """Of each line."""
        return self.ids.reshape(-1).astype(np.intp)

    @property
    def rows(self) -> Index:
        """Of x, of each line."""
        count = self.ids.size
        return np.arange(count) // (count // max(len(self.x), 1) or 1)


def given(y: Any, x: Any, q: Any, ids: Any, arithmetic: str | None, repeats: Any) -> tuple[Lines, list[Wide]]:
    """Everything checked; errors say what does not fit."""
    scaled = isinstance(q, ScaledArray)
    if arithmetic is not None and (scaled or arithmetic not in reference.ARITHMETICS):
        known = "scaled weights have one arithmetic" if scaled else ", ".join(reference.ARITHMETICS)
        raise UnsupportedError(
            f"{ASKED} with arithmetic={arithmetic!r}: a kernel may not claim that here: {known}; leave it out"
        )
    found = experts(ASKED, to_host(x), to_host(q), to_host(ids), look=True, quantize=False)
    if arithmetic is not None:
        reference.rule(q.format, arithmetic)
    rows = found.x
    if not isinstance(rows, ScaledArray):
        rows = rows.astype(np.float32)
        if not np.isfinite(rows).all():
            raise NonFiniteError(
                f"{ASKED}: x has {int((~np.isfinite(rows)).sum())} values that are not finite; activations "
                "must be finite, a product with NaN shows nothing; dump x again"
            )
    want, m = found.shape, found.ids.size
    values, store, _ = result("y", y, want, m)
    others = [result(f"repeats[{i}]", one, want, m)[0] for i, one in enumerate(repeats)]
    return Lines(values, rows, found.q, found.ids, store), others
