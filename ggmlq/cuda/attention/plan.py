"""``Plan``: what a block of the attention kernel computes, and where its operands lie in shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from ...formats import FORMATS, BlockFormat
from ..intrinsics.atoms import inlined
from ..intrinsics.language import uint32

LANES, EDGE = 32, 16  # of a warp; rows or positions of a tile of ``mma``
PAD = 16  # bytes behind each row of a tile: rows of ldmatrix then lie in banks of their own
SIXTEEN = ("f16", "bf16")  # types that are copied as they are
DECODED = ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl", "mxfp4", "f32")  # on the way to a tile
BLOCKS = ("q8_0", "q4_0")  # that may be decoded in registers
WIDE = 256  # columns of values that a block has sums for
USUAL = (("f16", "f16"), ("bf16", "bf16"), ("q8_0", "q8_0"), ("q4_0", "q4_0"), ("q8_0", "q4_0"))
LISTED = (*USUAL, ("f32", "f32"))
WIDTHS = (64, 128, 256)  # the usual ones
LATENT = 576  # columns of MLA's keys
MOST_WARPS = 16  # of a multiprocessor, with 128 registers a thread
MOST_BLOCKS = 8  # of a cluster


def row_bytes(name: str, width: int) -> int:
    """Bytes of a row of a type."""
    fmt = FORMATS[name]
    size = fmt.block_size if isinstance(fmt, BlockFormat) else 1
    return width // size * fmt.dtype.itemsize


def aligned(size: int) -> int:
    """A number of bytes that the next operand may begin behind."""
    return -(-size // 128) * 128


@dataclass(frozen=True)
class Plan:
    """The block of threads for keys and values of two types.

    With ``by_rows`` warps share all positions of a step and each has sixteen rows of queries. Otherwise they
    share sixteen rows, and each has sixteen positions: this is for few rows. ``turned``: they share eight,
    and keys and values are the wide operand of products. ``shared``: values are columns of the keys.
    ``options``: scores may be changed by a soft cap, ALiBi or a mask.
    """

    k: str
    v: str
    width: int  # columns of a key
    width_v: int  # columns of a value that a block sums
    warps: int
    by_rows: bool
    shared: bool = False
    options: bool = False
    stages: int = 2
    turned: bool = False

    def __str__(self) -> str:
        kind = "rows" if self.by_rows else "positions" + ", turned" * self.turned
        values = "in keys" if self.shared else self.v
        changed = ", options" if self.options else ""
        return f"{self.k}, {values}, {self.width}/{self.width_v}, {self.warps} warps by {kind}{changed}"

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return LANES * self.warps

    @property
    def rows(self) -> int:
        """Rows of queries of a block."""
        return EDGE * self.warps if self.by_rows else EDGE // (1 + self.turned)

    @property
    def positions(self) -> int:
        """Positions of a step."""
        if self.by_rows:
            return 64 if self.width <= 128 else 32
        return EDGE * self.warps

    @property
    def in_registers(self) -> bool:
        """True if blocks are decoded in registers (products.py)."""
        alike = self.k in BLOCKS and self.v in BLOCKS and not (self.width % 64 or self.width_v % 32)
        return alike and not (self.by_rows or self.shared)

    @property
    def team(self) -> int:
        """Threads that copy and decode together: a block, or a warp of its own positions."""
        return self.threads if self.by_rows else LANES

    @property
    def span(self) -> int:
        """Positions of a step that a warp has."""
        return self.positions if self.by_rows else EDGE

    @property
    def fours(self) -> int:
        """Scores of a lane, four at a time: of two rows and two positions."""
        return 1 if self.turned else self.span // 8

    @property
    def neighbours(self) -> int:
        """Positions from the first to the second score of a row in a lane's four."""
        return 8 if self.turned and self.k in SIXTEEN else 1

    @property
    def sums(self) -> int:
        """Sums of a lane."""
        return self.width_v // (4 if self.turned else 2)

    @property
    def blocks(self) -> int:
        """Blocks that a multiprocessor holds, as far as registers go."""
        if self.turned:
            return max(1, (MOST_WARPS if self.width_v <= 128 else MOST_WARPS // 2) // self.warps)
        return 1 if self.by_rows or self.width_v > 128 else 4

    @property
    def resident(self) -> int:
        """Blocks of which a multiprocessor's shared memory holds so many, too."""
        by_registers = self.blocks if self.turned else max(self.blocks, 2)
        return max(1, min(by_registers, ALL_SHARED // (self.shared_bytes + 1024)))

    def pitch(self, width: int) -> int:
        """Bytes from row to row of a tile of 16-bit numbers."""
        return 2 * width + PAD

    def decodes(self, name: str) -> bool:
        """True if rows of a type are decoded into a tile."""
        return name not in SIXTEEN and not self.in_registers

    def length(self, name: str, width: int) -> int:
        """Bytes from row to row of a stage."""
        return self.pitch(width) if name in SIXTEEN else row_bytes(name, width)

    def row_pitch(self, name: str, width: int) -> int:
        """Bytes from row to row where products read them."""
        return self.length(name, width) if self.in_registers else self.pitch(width)

    @property
    def ahead(self) -> int:
        """Steps that are copied ahead: a stage is free as soon as both its parts are decoded."""
        both = self.decodes(self.k) and (self.shared or self.decodes(self.v))
        return self.stages if both or self.turned else self.stages - 1

    def tile(self, width: int) -> int:
        """Bytes of a tile of 16-bit numbers."""
        return aligned(self.positions * self.pitch(width))

    def stage(self, name: str, width: int) -> int:
        """Bytes of a stage of rows as they are copied."""
        if name not in SIXTEEN:  # words beyond the last byte are read
            return aligned(self.positions * row_bytes(name, width) + 16)
        return self.tile(width)

    @property
    def keys_at(self) -> int:
        """Offset of the stages of keys, behind the queries."""
        return aligned(self.rows * self.pitch(self.width))

    @property
    def values_at(self) -> int:
        """Offset of the stages of values."""
        return self.keys_at + self.stages * self.stage(self.k, self.width)

    @property
    def key_tile_at(self) -> int:
        """Offset of decoded keys."""
        return self.values_at + (0 if self.shared else self.stages * self.stage(self.v, self.width_v))

    @property
    def value_tile_at(self) -> int:
        """Offset of decoded values; a warp of its own positions decodes them over its keys."""
        apart = self.decodes(self.k) and self.by_rows
        return self.key_tile_at + (self.tile(self.width) if apart else 0)

    @property
    def sums_pitch(self) -> int:
        """Floats from row to row of results that warps exchange."""
        return self.width_v + 4

    @property
    def exchanged_stats_at(self) -> int:
        """Offset of maxima and sums of weights, behind the results that warps exchange."""
        return 4 * self.warps * self.rows * self.sums_pitch

    @property
    def exchanged(self) -> int:
        """Bytes of results that warps exchange at the end, over everything else."""
        return 0 if self.by_rows else self.exchanged_stats_at + 8 * self.warps * self.rows

    @property
    def inbox_at(self) -> int:
        """Offset of what other blocks of a cluster put here, behind all else."""
        return aligned(max(self._behind_tiles, self.exchanged))

    @property
    def inbox_stats_at(self) -> int:
        """Offset of maxima and sums of weights of other blocks."""
        return self.inbox_at + 4 * self.rows * self.width_v + 8 * MOST_BLOCKS

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory."""
        if self.turned:
            return self.inbox_stats_at + 8 * MOST_BLOCKS * self.rows
        return max(self._behind_tiles, self.exchanged)

    @property
    def _behind_tiles(self) -> int:
        """Offset behind all keys and values."""
        keys = self.key_tile_at + (self.tile(self.width) if self.decodes(self.k) else 0)
        decoded = self.decodes(self.v) and not self.shared
        values = self.value_tile_at + (self.tile(self.width_v) if decoded else 0)
        return max(keys, values)


def plans() -> Iterator[tuple[Plan]]:
    """Plans of the usual widths and types, and of MLA's values within keys; others are made alike."""
    for (k, v), width, by_rows, options in product(LISTED, WIDTHS, (False, True), (False, True)):
        yield (plan_of(k, v, width, width, by_rows, options=options),)
    for name, by_rows in product(("f16", "q8_0"), (False, True)):
        yield (plan_of(name, name, LATENT, WIDE, by_rows, shared=True),)


def turned_plans() -> Iterator[tuple[Plan]]:
    """Plans for up to eight rows of the usual widths and types."""
    every = product(USUAL, WIDTHS, (False, True), ROOMS)
    plans = (turned_plan_of(k, v, width, width, options, room) for (k, v), width, options, room in every)
    yield from ((plan,) for plan in dict.fromkeys(plans))


# Bytes that a block may have on any card and on Hopper, that Hopper's blocks share.
SHARED, HOPPERS, ALL_SHARED = 99 << 10, 227 << 10, 228 << 10
ROOMS = SHARED, HOPPERS
TURNED = 8  # rows


def turns(k: str, v: str, width: int, width_v: int) -> bool:
    """True if there is a plan for up to eight rows."""
    if k in SIXTEEN:
        return k == v and not (width % 32 or width_v % 32)
    return k in BLOCKS and v in BLOCKS and not (width % 64 or width_v % 64)


def turned_plan_of(
    k: str, v: str, width: int, width_v: int, options: bool = False, room: int = SHARED
) -> Plan:
    """The plan for up to eight rows, of blocks that have ``room`` bytes of shared memory."""
    stages = 3 if k == v == "q4_0" else 2
    plan = Plan(k, v, width, width_v, 8, False, False, options, stages, True)
    while plan.shared_bytes > room and plan.warps > 1:
        plan = replace(plan, warps=plan.warps // 2)
    return plan


def plan_of(
    k: str, v: str, width: int, width_v: int, by_rows: bool, shared: bool = False, options: bool = False
) -> Plan:
    """The largest plan that fits."""
    plan = Plan(k, v, width, width_v, 4, by_rows, shared, options)
    if plan.in_registers:
        plan = replace(plan, stages=3)
    if not by_rows and width != width_v and plan.decodes(k) and plan.decodes(v):
        plan = replace(plan, warps=1)  # a warp decodes values over keys: rows of other lengths are another's
    while plan.shared_bytes > SHARED and plan.warps > 1:
        plan = replace(plan, warps=plan.warps // 2)
    return plan


# ``WidePlan``: what a block of wide.py computes, and where its operands lie in shared memory.

GROUP, PRODUCERS = 4, 4  # warps of a warpgroup that multiplies; that copy
GROUP_ROWS = GROUP * EDGE
STAGES, LINE = 2, 128  # of keys and of values; bytes of a swizzled row
COPIED = 3  # tiles of blocks that are copied ahead
# Offsets of the barriers of both stages of keys, and of values: it is full, or free.
KEYS_FULL, KEYS_FREE, VALUES_FULL, VALUES_FREE, BARRIERS = 0, 16, 32, 48, 64


@dataclass(frozen=True)
class WidePlan:
    """The block of 64 rows for each warpgroup that multiplies, and of one that copies and decodes."""

    k: str
    v: str
    width: int  # columns of a key, a multiple of 64
    width_v: int
    groups: int = 2
    by_rows, shared = True, False
    turned, neighbours = False, 1

    def __str__(self) -> str:
        return f"{self.k}, {self.v}, {self.width}/{self.width_v}, {self.groups} warpgroups by wgmma"

    @property
    def warps(self) -> int:
        """Warps of a block that multiply."""
        return GROUP * self.groups

    @property
    def threads(self) -> int:
        """Threads of a block, the producer's last."""
        return LANES * (self.warps + PRODUCERS)

    @property
    def rows(self) -> int:
        """Rows of queries of a block."""
        return EDGE * self.warps

    @property
    def positions(self) -> int:
        """Positions of a step."""
        return 128 if self.groups > 1 and self.width <= 192 and self.width_v <= 128 else 64

    @property
    def blocks(self) -> int:
        """Blocks that share a multiprocessor."""
        return 2 if self.groups == 1 and self.width <= 128 and self.width_v <= 128 else 1

    resident = blocks

    @property
    def registers(self) -> tuple[int, int]:
        """Registers of a thread that multiplies, and of one that copies; (0, 0): as many as at the start."""
        return (224, 56) if self.groups > 1 else (200, 56) if self.blocks > 1 else (0, 0)

    @property
    def team(self) -> int:
        """Threads that copy and decode together."""
        return LANES * PRODUCERS

    @property
    def span(self) -> int:
        """Positions of a step that a warp has: all."""
        return self.positions

    @property
    def fours(self) -> int:
        """Scores of a lane, four at a time."""
        return self.positions // 8

    @property
    def sums(self) -> int:
        """Sums of a lane."""
        return self.width_v // 2

    def kind(self, name: str) -> str:
        """The floats of a type's tiles."""
        return name if name in SIXTEEN else "f16"

    def tile(self, width: int) -> int:
        """Bytes of a tile of keys or values."""
        return 2 * self.positions * width

    @property
    def keys_at(self) -> int:
        """Offset of the stages of keys."""
        return 2 * self.rows * self.width

    @property
    def values_at(self) -> int:
        """Offset of the stages of values."""
        return self.keys_at + STAGES * self.tile(self.width)

    @property
    def copies_at(self) -> int:
        """Offset of tiles of blocks, as they are stored."""
        return self.values_at + STAGES * self.tile(self.width_v)

    @property
    def copy_bytes(self) -> int:
        """Bytes of a tile of blocks, of keys or values."""
        rows = ((self.k, self.width), (self.v, self.width_v))
        sizes = [self.positions * row_bytes(name, width) + 16 for name, width in rows if name not in SIXTEEN]
        return -(-max(sizes, default=0) // 128) * 128

    @property
    def barriers_at(self) -> int:
        """Offset of the barriers."""
        return self.copies_at + COPIED * self.copy_bytes

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory; tiles begin at a multiple of 1024."""
        return 1024 + self.barriers_at + BARRIERS


def wide_plan_of(k: str, v: str, width: int, width_v: int, rows: int) -> WidePlan:
    """The plan for so many rows of a head of keys; two warpgroups would wait for one that decodes blocks."""
    return WidePlan(k, v, width, width_v, 2 if k in SIXTEEN and rows > GROUP_ROWS else 1)


def takes(k: str, v: str, width: int, width_v: int) -> bool:
    """True if there is a plan for keys and values of these types and widths.

    Both are floats, or blocks of one type: decoders of two take more registers than a warp that copies has.
    """
    fits = width in WIDTHS and width_v in WIDTHS and (v in SIXTEEN if k in SIXTEEN else k == v in BLOCKS)
    return fits and wide_plan_of(k, v, width, width_v, GROUP_ROWS + 1).shared_bytes <= HOPPERS


def wide_plans() -> Iterator[tuple[WidePlan]]:
    """Plans of the usual widths and types, of one warpgroup and of two."""
    for (k, v), width in product(USUAL, WIDTHS):
        if takes(k, v, width, width):
            plans = (wide_plan_of(k, v, width, width, rows) for rows in (GROUP_ROWS, GROUP_ROWS + 1))
            yield from ((plan,) for plan in dict.fromkeys(plans))


@inlined
def swizzled(row: Any, chunk: Any, rows: Any) -> Any:
    """The offset of 16 bytes of a tile: parts of 64 columns, chunks of a row exchanged."""
    part, within = chunk >> uint32(3), chunk & uint32(7)
    return (part * uint32(rows) + row) * uint32(LINE) + ((within ^ (row & uint32(7))) << uint32(4))
