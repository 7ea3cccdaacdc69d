"""How 16 rows of weights lie in a panel, run by run of 32 weights.

A run is: scales, offsets, then the codes in planes of bits, the highest bits first: so a tile, which
needs some of each plane before it can begin, reads almost in ascending order, and the memory's
prefetching follows it. Codes stand in groups of four neighbours, so that one vector of 64 bytes
holds group j (weights 4 j … 4 j + 3 of the run) of all 16 rows. A plane of 4 bits has group j in
the low nibbles of its vector j and group j + 4 in the high ones; one of 2 bits has group j at
bit 2 (j % 4) of vector j // 4; one of 1 bit at bit j.

Scales are stored as the format has them. In formats with scales of scales, a *super* of 256
weights opens with 16 halves d (and 16 halves dmin), and each of its eight runs has 16 integers a
group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...formats import BlockFormat
from ...formats._tables import FP4, IQ4
from ..machine.target import Target

RUN = 32  # weights
ROWS = 16  # of a panel
SUPER = 8  # runs
WIDTH = {"f32": 4, "f16": 2, "bf16": 2, "i8": 1, "i4": 1}  # bytes of a scale


@dataclass(frozen=True)
class Layout:
    """What a tile needs to know of a panel."""

    planes: tuple[int, ...] = (8,)  # bits of a code, lowest first
    zero: int = 0  # stored code = code + zero
    table: tuple[int, ...] = ()  # codes are indices into it
    scale: Literal["f32", "f16", "bf16", "i8", "i4"] = "f32"  # i4: scale and offset share a byte
    offset: bool = False
    group: Literal[16, 32] = 32  # weights that share a scale

    @property
    def halves(self) -> int:
        """Groups of a run."""
        return RUN // self.group

    @property
    def nested(self) -> bool:
        """Whether scales are integers under a scale of 256 weights."""
        return self.scale in ("i8", "i4")

    @property
    def head(self) -> int:
        """Bytes before the first run of a super."""
        return 2 * ROWS * (1 + self.offset) if self.nested else 0

    @property
    def scales(self) -> int:
        """Bytes of the scales of a run; as many offsets follow."""
        return WIDTH[self.scale] * ROWS * self.halves

    @property
    def codes_at(self) -> int:
        """Where in a run the codes begin."""
        return self.scales * (1 + (self.offset and self.scale != "i4"))

    @property
    def planes_at(self) -> tuple[int, ...]:
        """Where in a run each plane begins."""
        return tuple(self.codes_at + 64 * sum(self.planes[i + 1 :]) for i in range(len(self.planes)))

    @property
    def run_bytes(self) -> int:
        """Bytes of a run."""
        return self.codes_at + 64 * sum(self.planes)

    def panel_bytes(self, runs: int) -> int:
        """Bytes of 16 rows of so many runs."""
        return runs * self.run_bytes + (runs // SUPER * self.head if self.nested else 0)


def _levels(table: object) -> tuple[int, ...]:
    return tuple(int(level) for level in table)  # type: ignore[attr-defined]


# Formats that are kept as panels, with little more than the bytes of their blocks.
PREPARED = {
    "q4_0": Layout((4,), 8, scale="f16"),
    "q4_1": Layout((4,), scale="f16", offset=True),
    "q5_0": Layout((4, 1), 16, scale="f16"),
    "q5_1": Layout((4, 1), scale="f16", offset=True),
    "q8_0": Layout((8,), 128, scale="f16"),
    "q2_K": Layout((2,), scale="i4", offset=True, group=16),
    "q3_K": Layout((2, 1), 4, scale="i8", group=16),
    "q4_K": Layout((4,), scale="i8", offset=True),
    "q5_K": Layout((4, 1), scale="i8", offset=True),
    "q6_K": Layout((4, 2), 32, scale="i8", group=16),
    "iq4_nl": Layout((4,), table=_levels(IQ4), scale="f16"),
    "iq4_xs": Layout((4,), table=_levels(IQ4), scale="i8"),
    "mxfp4": Layout((4,), table=_levels(FP4), scale="bf16"),
    "nvfp4": Layout((4,), table=_levels(FP4), scale="f16", group=16),
    "q8_1": Layout((8,), 128, scale="f16"),
    "q8_K": Layout((8,), 128, scale="f32"),
    "q1_0": Layout((1,), table=(-1, 1) * 8, scale="f16"),
    "q2_0": Layout((2,), 1, scale="f16"),
    "tq1_0": Layout((2,), 1, scale="i8"),
    "tq2_0": Layout((2,), 1, scale="i8"),
}


def unpacked(fmt: BlockFormat, target: Target) -> Layout:
    """How a panel of any format lies while it is multiplied: bytes and float32."""
    zero = 128 if target.unsigned else 0
    return Layout(zero=zero, offset=fmt.has_offset, group=16 if fmt.group == 16 else 32)


def start(layout: Layout, target: Target) -> int:
    """What is taken from every code through the sum of the activations: a zero that the product keeps."""
    if not target.unsigned:
        return 0  # the tile itself takes it off
    return 128 if layout.table else layout.zero
