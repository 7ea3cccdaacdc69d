"""Strips of weights and panels of activations in a ring that one thread fills: cuda:roles.

    stage    panels [records][columns, 64]      swizzled, as activations/panels.py made them
             strips [8][records]                as strips/make.py made them; large ones [records][8]
    barriers full [stages] · empty [stages]
    notes    of shared_tiles.py

A stage is one record of each strip, or two: as much as is multiplied in a thousand clocks. Panels are pieces
of memory, strips a box of a map with elements of eight bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from ...card import UNKNOWN, Card
from ..strips.layout import ROWS, STEP, StripLayout
from ..tiles8.shape import MOST_SHARED
from ..words import barrier as barriers
from ..words import boxes, early_start
from ..words.atoms import inlined
from ..words.language import cuda, uint32, uint64
from .bands import bands
from .boxed import follower
from .making import PANEL_US, awaiter, waiting_us
from .pieces import Turn, next_piece, shares
from .product import STRIPS
from .stage_pace import PLAIN, SHARE, at_one_time, stage_us

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
        warps fetches, the others order activations (making.py).
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


TILES = (
    RoleTile(16, 2), RoleTile(32, 2),
    *map(RoleTile, (16, 32, 48, 64, 80, 96, 112, 128, 160, 176, 208, 240, 256)),
)  # fmt: skip
CACHED = 71  # MB of an operand of which an L2 cache of 50 MB holds nothing for those who want it later
NARROW, MOST_NARROW = 64, 4  # columns of a tile, up to which there are no more than so many across
POWER = 5.98e6  # operations a microsecond, of a multiprocessor, that a card's power allows


class Best(NamedTuple):
    """The tile that is thought to be the fastest, and how long blocks work then and wait for panels."""

    us: float
    tile: RoleTile


class Shape(NamedTuple):
    """Of a product, and what it is made on."""

    m: int
    down: int  # tiles of weights
    stages: int
    layout: StripLayout
    multiprocessors: int
    memory: float = UNKNOWN  # MB a microsecond

    @classmethod
    def on(cls, card: Card, m: int, n: int, stages: int, layout: StripLayout) -> Shape:
        """On this card."""
        down = -(-n // (STRIPS * ROWS))
        return cls(m, down, stages, layout, card.multiprocessors, card.memory)

    @property
    def columns(self) -> int:
        """Of K, filled up."""
        return self.stages * PIECE * STEP

    @property
    def weights(self) -> float:
        """MB of the weights of a row of tiles."""
        return self.columns * STRIPS * self.layout.record / STEP / 1e6

    def across(self, tile: RoleTile) -> int:
        """Tiles of activations."""
        return -(-self.m // tile.columns)

    def turn(self, tile: RoleTile, blocks: int) -> Turn:
        """What so many blocks of a multiprocessor do."""
        across, activations = self.across(tile), self.columns * 2 * tile.columns / 1e6
        again = anew(self.weights, self.down, across) + anew(activations, across, self.down)
        pace, memory = stage_us(self.layout, tile.columns, tile.blocks), SHARE * self.memory
        read = self.weights / self.stages / across
        return Turn(self.multiprocessors * blocks, blocks, tile.columns, pace, read / memory, again / memory)


def anew(size: float, count: int, times: int) -> float:
    """Of so many MB, one of ``count`` that so many tiles read one after the other: what comes from memory."""
    missed = min(1, size * count / CACHED)
    return size * (missed + (1 - missed) / times)


@lru_cache(4096)
def best(shape: Shape) -> Best:
    """For a shape.

    Of the tiles that rows fill up: a wide one may be thought faster for a row where there are few tiles, but
    most of what it moves would be for nothing. And more than four narrow ones are never faster than half as
    many that unpack half as often.
    """
    m, down, stages = shape.m, shape.down, shape.stages

    def us(tile: RoleTile) -> float:
        across, of_tile = shape.across(tile), tile.columns * shape.columns  # numbers of x
        turn = shape.turn(tile, tile.blocks)
        share, working = shares(down * across, stages, turn)
        allowed = 2 * down * STRIPS * ROWS * across * of_tile / (POWER * shape.multiprocessors)
        working = at_one_time(working, allowed)
        if tile.wide and share.divided < down * across:
            order = bands(across, down, turn.blocks, tile.panel, STRIPS * PLAIN)
            return working + waiting_us(order.band * of_tile, stages * turn.pace(turn.blocks))
        return working + across * of_tile * PANEL_US

    filled = (tile for tile in TILES if tile.columns < 2 * m + TILES[0].columns)
    able = (tile for tile in filled if tile.columns > NARROW or m <= MOST_NARROW * tile.columns)
    return min((Best(us(tile), tile) for tile in able), key=lambda each: each.us)


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
    (making.py).
    """
    stages, panel, records_each = tile.stages(layout), tile.panel, tile.records
    (ask_w, ask_x), after, until_there = asker(layout, tile), follower(stages), awaiter(makes)
    pieces_each, wait, prefetch = PIECE // tile.records, barriers.wait, boxes.prefetch
    wait_for_predecessor = early_start.wait_for_predecessor

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
