"""Strips of weights and panels of activations in a ring that one thread fills: cuda:warp_specialized.

    stage    panels [records][columns, 64]      swizzled, as activations/x_tiles.py made them
             strips [8][records]                as packed/pack.py made them; large ones [records][8]
    barriers full [stages] · empty [stages]
    notes    of stream_k.py

A stage is one record of each strip, or two: as much as is multiplied in a thousand clocks. Panels are pieces
of memory, strips a box of a map with elements of eight bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..intrinsics import barrier as barriers
from ..intrinsics import boxes, dependent_launch
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, uint32, uint64
from ..packed.layout import STEP, STRIPS, StripLayout
from ..rings.boxed import stage_advancer
from ..rings.shape import MOST_SHARED
from ..schedule.work_units import next_piece
from .late_activations import awaiter

MULTIPLY = 32 * STRIPS  # threads, a warp for each strip
LINE = 2 * STEP  # bytes of a row of a panel
WIDE = 8  # bytes that are one element to a map of weights
WIDEST = 256  # elements in a row of a box
OF_NOTES = 32  # bytes
PIECE = 2  # records of a strip that are multiplied one after the other: the least that a block takes


@dataclass(frozen=True)
class RoleTile:
    """Of a block: rows of activations, and how many blocks a multiprocessor holds."""

    columns: int
    blocks: int = 1

    def __str__(self) -> str:
        return f"{self.columns} columns" + f", {self.blocks} blocks" * (self.blocks > 1)

    @property
    def wide(self) -> bool:
        """Whether there is a warpgroup beside those that multiply, which gives them registers: one of its
        warps fetches, the others order activations (late_activations.py).
        """
        return self.columns > 160

    @property
    def records(self) -> int:
        """Of a strip in a stage."""
        return 1 if self.columns > 128 else PIECE

    @property
    def threads(self) -> int:
        """Of a block."""
        return MULTIPLY + (128 if self.wide else 32)

    @property
    def panel(self) -> int:
        """Bytes of a step's activations."""
        return self.columns * LINE

    def boxes(self, layout: StripLayout) -> int:
        """That bring the weights of a stage: one, or one a record where a box cannot be as wide as two."""
        return 1 if self.records * layout.record // WIDE <= WIDEST else self.records

    def line(self, layout: StripLayout) -> int:
        """Bytes of a strip that a box brings."""
        return self.records // self.boxes(layout) * layout.record

    def next_record(self, layout: StripLayout) -> int:
        """Bytes from a strip's first record of a stage to its second."""
        return layout.record if self.boxes(layout) == 1 else STRIPS * layout.record

    def size(self, layout: StripLayout) -> int:
        """Bytes of a stage that are fetched."""
        return self.records * (self.panel + STRIPS * layout.record)

    def stage(self, layout: StripLayout) -> int:
        """Bytes of a stage, whole kilobytes, as the swizzle asks."""
        return -(-self.size(layout) // 1024) * 1024

    def stages(self, layout: StripLayout) -> int:
        """In shared memory at once."""
        return max(2, min(8, (MOST_SHARED // self.blocks - 2048) // self.stage(layout)))

    def shared(self, layout: StripLayout) -> int:
        """Bytes of shared memory."""
        return 1024 + self.stages(layout) * (self.stage(layout) + 16) + OF_NOTES


def asker(layout: StripLayout, tile: RoleTile) -> Any:
    """The device functions that ask for a stage: for weights, announcing all of its bytes; for panels."""
    length, panel, size, count = tile.stage(layout), tile.panel, tile.size(layout), tile.boxes(layout)
    line, wide, records_each = tile.line(layout), tile.line(layout) // WIDE, tile.records
    of_weights = tile.records * panel
    expect, fetch, fetch_line = barriers.expect, boxes.fetch, boxes.fetch_line

    @inlined
    def ask_w(ring: Any, full: Any, stage: Any, records: Any, i: Any, row: Any) -> None:
        done, to = uint32(full + stage * uint32(8)), uint32(ring + stage * uint32(length))
        expect(done, uint32(size))
        for box in range(count):
            column = uint32(uint32(uint32(i * uint32(count)) + uint32(box)) * uint32(wide))
            fetch(uint32(to + uint32(of_weights + box * STRIPS * line)), records, column, row, done)

    @inlined
    def ask_x(ring: Any, full: Any, stage: Any, source: Any, apart: Any) -> None:
        done, to = uint32(full + stage * uint32(8)), uint32(ring + stage * uint32(length))
        for record in range(records_each):
            at, of_x = uint32(to + uint32(record * panel)), source + uint64(record) * apart
            fetch_line(at, of_x, uint32(panel), done)

    return ask_w, ask_x


def filler(layout: StripLayout, tile: RoleTile, locate: Any, makes: bool) -> Any:
    """The device function of the one thread that fetches; weights of the first stages before the predecessor
    ends.

    ``locate``: the device function (where, number of a tile) for the first of its strips, the panels' part
    that it takes, and the band of these. ``makes``: whether others of this kernel order panels meanwhile
    (late_activations.py).
    """
    stages, panel, records_each = tile.stages(layout), tile.panel, tile.records
    (ask_w, ask_x), after, until_there = asker(layout, tile), stage_advancer(stages), awaiter(makes)
    pieces_each, wait, prefetch = PIECE // tile.records, barriers.wait, boxes.prefetch
    wait_for_predecessor = dependent_launch.wait_for_predecessor

    @inlined
    def fill(
        ring: Any, full: Any, given: Any, where: Any, make: Any, rank: Any, end: Any, left: Any, wholes: Any
    ) -> None:  # fmt: skip
        (records, panels, flags, steps, height), whole = given, rank
        stage, phase, begun, known = uint32(0), uint32(0), uint32(0), make[1]
        stages_of, blocks = uint32(steps >> uint32(1)), uint32(cuda.gridDim.x)
        apart = uint64(height) * uint64(LINE)
        prefetch(records)
        while left > uint32(0) or whole < wholes:
            number, i, last, left, whole = next_piece(left, end, whole, stages_of, blocks, wholes)
            row, column, band = locate(where, number)
            i, last = uint32(i * uint32(pieces_each)), uint32(last * uint32(pieces_each))
            if number >= wholes:
                known = make[1]  # a piece may begin in the middle of K: parts before that are not known
            of_x = panels + uint64(uint32(i * uint32(records_each))) * apart + uint64(column) * uint64(panel)
            if begun == uint32(0):
                begun, ahead, at = uint32(1), min(uint32(last - i), uint32(stages)), uint32(0)
                while at < ahead:
                    ask_w(ring, full, at, records, uint32(i + at), row)
                    at = uint32(at + uint32(1))
                wait_for_predecessor()  # it makes x
                at = uint32(0)
                while at < ahead:
                    step = uint32(uint32(i + at) * uint32(records_each))
                    known = until_there(flags, make, band, step, known)
                    ask_x(ring, full, at, of_x, apart)
                    of_x, at = of_x + uint64(records_each) * apart, uint32(at + uint32(1))
                i, stage = uint32(i + ahead), ahead
                if ahead == uint32(stages):
                    stage, phase = uint32(0), uint32(1)
            while i < last:
                wait(uint32(full + uint32(8 * stages) + stage * uint32(8)), uint32(phase ^ uint32(1)))
                ask_w(ring, full, stage, records, i, row)
                known = until_there(flags, make, band, uint32(i * uint32(records_each)), known)
                ask_x(ring, full, stage, of_x, apart)
                of_x, i = of_x + uint64(records_each) * apart, uint32(i + uint32(1))
                stage, phase = after(stage, phase)
        if begun == uint32(0):
            wait_for_predecessor()

    return fill
