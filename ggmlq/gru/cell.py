"""One direction of a GRU in integers: the format of every tensor, the codes of weights, and three tables.

Nothing else decides the results: a program that shares ``formats`` and ``codes`` computes the same codes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..fixed.qformat import QFormat

Codes = NDArray[Any]
TABLE_OF = {"table_z": ("z_pre", "z_out"), "table_r": ("r_pre", "r_out"), "table_g": ("g_pre", "g_out")}


class Cell:
    """One direction: formats by the names in ``widths.NAMES``; codes of W R bx br table_z table_r table_g.

    ``ranges``: the least and the largest value of a tensor in the calibration.
    """

    def __init__(
        self,
        formats: Mapping[str, QFormat],
        codes: Mapping[str, Codes],
        ranges: Mapping[str, tuple[float, float]],
    ) -> None:
        for array in (*codes.values(), *(formats[name].exponent for name in ("W", "R", "bx", "br"))):
            array.flags.writeable = False
        self.formats: Mapping[str, QFormat] = MappingProxyType(dict(formats))
        self.codes: Mapping[str, Codes] = MappingProxyType(dict(codes))
        self.ranges: Mapping[str, tuple[float, float]] = MappingProxyType(dict(ranges))
        self.cache: dict[Any, Any] = {}  # what kernels have prepared, by their keys

    @property
    def inputs(self) -> int:
        """The number of inputs, C."""
        return int(self.codes["W"].shape[1])

    @property
    def units(self) -> int:
        """The number of units, H."""
        return int(self.codes["R"].shape[1])

    @cached_property
    def row_sums(self) -> dict[str, NDArray[np.int64]]:
        """Sums of the rows of W and R; times the activations' zero point they correct a product."""
        return {name: self.codes[name].sum(1, dtype=np.int64) for name in ("W", "R")}

    def prepared(self, key: Any, make: Any) -> Any:
        """The result of ``make(self)``, made once for a key: the codes cannot change."""
        if key not in self.cache:
            self.cache[key] = make(self)
        return self.cache[key]
