"""One direction of a GRU in integers: the format of every tensor, the codes of weights, and three tables.

Nothing else decides what is computed: a program that shares ``formats`` and ``codes`` finds the same codes.
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
    """Formats by the names in ``widths.NAMES``, and codes: W R bx br table_z table_r table_g.

    ``ranges``: what calibration saw of a tensor, the least and the largest value.
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
        self.made: dict[Any, Any] = {}  # what kernels keep, by who made it

    @property
    def inputs(self) -> int:
        """C."""
        return int(self.codes["W"].shape[1])

    @property
    def units(self) -> int:
        """H."""
        return int(self.codes["R"].shape[1])

    @cached_property
    def row_sums(self) -> dict[str, NDArray[np.int64]]:
        """Of W and R: what a zero point of the activations is multiplied with."""
        return {name: self.codes[name].sum(1, dtype=np.int64) for name in ("W", "R")}

    def prepared(self, key: Any, make: Any) -> Any:
        """``make(self)``, made once and kept; the codes can not change."""
        if key not in self.made:
            self.made[key] = make(self)
        return self.made[key]
