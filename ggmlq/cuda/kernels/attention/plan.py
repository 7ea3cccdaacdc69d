"""``Plan``: the tile of a block of mma.py or swap_ab.py, and the layout of its shared memory.

hopper.py has its own plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from ....formats import FORMATS, BlockFormat

MIN_CAPABILITY = (8, 0)
LANES, MMA_ROWS = 32, 16  # of a warp; rows or positions of a tile of ``mma``
ROW_PAD = 16  # bytes behind each row of a tile: rows of ldmatrix then lie in banks of their own
FLOAT16_TYPES = ("f16", "bf16")  # types that are copied as they are
DECODED_TYPES = ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl", "mxfp4", "f32")  # on the way to a tile
REGISTER_TYPES = ("q8_0", "q4_0")  # that are decoded in registers with few rows
MAX_V_COLUMNS = 256  # that a block sums; wider values take several launches
USUAL_TYPES = (("f16", "f16"), ("bf16", "bf16"), ("q8_0", "q8_0"), ("q4_0", "q4_0"), ("q8_0", "q4_0"))
LISTED_TYPES = (*USUAL_TYPES, ("f32", "f32"))
WIDTHS = (64, 128, 256)  # the usual ones
MLA_WIDTH = 576  # columns of MLA's keys
MAX_SWAP_AB_WARPS = 16  # on a multiprocessor, with 128 registers a thread
MAX_CLUSTER = 8  # blocks


def row_bytes(name: str, width: int) -> int:
    """Bytes of a row of a type."""
    fmt = FORMATS[name]
    size = fmt.block_size if isinstance(fmt, BlockFormat) else 1
    return width // size * fmt.dtype.itemsize


def aligned(size: int) -> int:
    """A number of bytes that the next operand may begin behind."""
    return -(-size // 128) * 128


#     rows by rows (mma.py)              few rows (mma.py)                   swap_ab (swap_ab.py)
#     queries                            queries                             queries
#     stages of keys                     stages of keys                      stages of keys
#     stages of values                   stages of values                    stages of values
#     decoded keys                       a warp's decoded keys, then values
#     decoded values                       (over each other)
#                                        over everything, at the end:        likewise, and behind it the inbox
#                                        partials of warps                   of the cluster's other blocks


@dataclass(frozen=True)
class Plan:
    """The block of threads for keys and values of two types.

    With ``by_rows`` warps share all positions of a step and each has sixteen query rows. Otherwise they share
    sixteen rows, and each has sixteen positions of a step: split-KV among warps, for few rows. ``swap_ab``:
    they share eight rows, and keys and values are A of ``mma``. ``v_in_k``: values are the first columns of
    the keys (MLA). ``options``: scores may be changed by a soft cap, ALiBi or a mask.
    """

    k: str
    v: str
    width: int  # columns of a key
    width_v: int  # columns of a value that a block sums
    warps: int
    by_rows: bool
    v_in_k: bool = False
    options: bool = False
    stages: int = 2
    swap_ab: bool = False

    def __str__(self) -> str:
        kind = "rows" if self.by_rows else "positions" + ", swap_ab" * self.swap_ab
        values = "in keys" if self.v_in_k else self.v
        changed = ", options" if self.options else ""
        return f"{self.k}, {values}, {self.width}/{self.width_v}, {self.warps} warps by {kind}{changed}"

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return LANES * self.warps

    @property
    def rows(self) -> int:
        """Rows of queries of a block."""
        return MMA_ROWS * self.warps if self.by_rows else MMA_ROWS // (1 + self.swap_ab)

    @property
    def positions(self) -> int:
        """Positions of a step."""
        if self.by_rows:
            return 64 if self.width <= 128 else 32
        return MMA_ROWS * self.warps

    @property
    def in_registers(self) -> bool:
        """True if blocks are decoded in registers, behind shared memory: they have no tile of halves."""
        alike = (
            self.k in REGISTER_TYPES
            and self.v in REGISTER_TYPES
            and not (self.width % 64 or self.width_v % 32)
        )
        return alike and not (self.by_rows or self.v_in_k)

    @property
    def team_threads(self) -> int:
        """Threads that copy and decode together: a block, or a warp of positions of its own."""
        return self.threads if self.by_rows else LANES

    @property
    def team_positions(self) -> int:
        """Positions of a step that a team copies, and that each of its warps scores."""
        return self.positions if self.by_rows else MMA_ROWS

    @property
    def score_quads(self) -> int:
        """Scores of a lane, four at a time: of two rows and two positions (softmax.py)."""
        return 1 if self.swap_ab else self.team_positions // 8

    @property
    def score_stride(self) -> int:
        """Positions from the first to the second score of a row in a lane's four.

        With swap-AB floats come by ``ldmatrix``, positions g and g + 8; blocks are decoded as 2 g, 2 g + 1.
        """
        return 8 if self.swap_ab and self.k in FLOAT16_TYPES else 1

    @property
    def o_count(self) -> int:
        """Sums of p times values of a lane."""
        return self.width_v // (4 if self.swap_ab else 2)

    @property
    def blocks(self) -> int:
        """Blocks that a multiprocessor shall hold: the compiler keeps to their registers."""
        if self.swap_ab:
            return max(
                1, (MAX_SWAP_AB_WARPS if self.width_v <= 128 else MAX_SWAP_AB_WARPS // 2) // self.warps
            )
        return 1 if self.by_rows or self.width_v > 128 else 4

    @property
    def resident(self) -> int:
        """Blocks that a multiprocessor holds, as far as registers and shared memory go."""
        by_registers = self.blocks if self.swap_ab else max(self.blocks, 2)
        return max(1, min(by_registers, SM_SHARED // (self.shared_bytes + 1024)))

    def pitch(self, width: int) -> int:
        """Bytes from row to row of a tile of 16-bit numbers."""
        return 2 * width + ROW_PAD

    def decodes(self, name: str) -> bool:
        """True if rows of a type are decoded into a tile."""
        return name not in FLOAT16_TYPES and not self.in_registers

    def length(self, name: str, width: int) -> int:
        """Bytes from row to row of a stage: floats are padded, blocks lie as they are stored."""
        return self.pitch(width) if name in FLOAT16_TYPES else row_bytes(name, width)

    def row_pitch(self, name: str, width: int) -> int:
        """Bytes from row to row where products read them."""
        return self.length(name, width) if self.in_registers else self.pitch(width)

    @property
    def ahead(self) -> int:
        """Steps that are copied ahead.

        Where both are decoded into tiles a stage is free before the products, and all stages may be in
        flight; where products read the stage itself, all but the one that they read. swap_ab.py refills a
        stage behind its own products, and so has all in flight, too.
        """
        both = self.decodes(self.k) and (self.v_in_k or self.decodes(self.v))
        return self.stages if both or self.swap_ab else self.stages - 1

    def tile(self, width: int) -> int:
        """Bytes of a tile of 16-bit numbers."""
        return aligned(self.positions * self.pitch(width))

    def stage(self, name: str, width: int) -> int:
        """Bytes of a stage of rows as they are copied."""
        if name not in FLOAT16_TYPES:  # words beyond the last byte are read
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
        return self.values_at + (0 if self.v_in_k else self.stages * self.stage(self.v, self.width_v))

    @property
    def value_tile_at(self) -> int:
        """Offset of decoded values; a warp of its own positions decodes them over its keys.

        That halves the tiles of few rows. The warp must have made its scores before (mma.py waits for that).
        """
        apart = self.decodes(self.k) and self.by_rows
        return self.key_tile_at + (self.tile(self.width) if apart else 0)

    @property
    def partials_pitch(self) -> int:
        """Floats from row to row of warps' partials; four more move neighbouring rows to other banks."""
        return self.width_v + 4

    @property
    def partial_stats_at(self) -> int:
        """Offset of stats (row_max, row_sum), behind the sums that warps exchange."""
        return 4 * self.warps * self.rows * self.partials_pitch

    @property
    def partials_bytes(self) -> int:
        """Bytes of partials that warps exchange at the end, over everything else."""
        return 0 if self.by_rows else self.partial_stats_at + 8 * self.warps * self.rows

    @property
    def inbox_at(self) -> int:
        """Offset of what other blocks of a cluster put here.

        It is behind all else: they may put it here while this block still reads its keys and values.
        """
        return aligned(max(self._behind_tiles, self.partials_bytes))

    @property
    def inbox_stats_at(self) -> int:
        """Offset of stats of other blocks."""
        return self.inbox_at + 4 * self.rows * self.width_v + 8 * MAX_CLUSTER

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory."""
        if self.swap_ab:
            return self.inbox_stats_at + 8 * MAX_CLUSTER * self.rows
        return max(self._behind_tiles, self.partials_bytes)

    @property
    def _behind_tiles(self) -> int:
        """Offset behind all keys and values."""
        keys = self.key_tile_at + (self.tile(self.width) if self.decodes(self.k) else 0)
        decoded = self.decodes(self.v) and not self.v_in_k
        values = self.value_tile_at + (self.tile(self.width_v) if decoded else 0)
        return max(keys, values)


def plans() -> Iterator[tuple[Plan]]:
    """Plans of the usual widths and types, and of MLA's values within keys; others are made alike."""
    for (k, v), width, by_rows, options in product(LISTED_TYPES, WIDTHS, (False, True), (False, True)):
        yield (plan_of(k, v, width, width, by_rows, options=options),)
    for name, by_rows in product(("f16", "q8_0"), (False, True)):
        yield (plan_of(name, name, MLA_WIDTH, MAX_V_COLUMNS, by_rows, v_in_k=True),)


def swap_ab_plans() -> Iterator[tuple[Plan]]:
    """Plans of swap_ab.py for the usual widths and types."""
    every = product(USUAL_TYPES, WIDTHS, (False, True), SHARED_LIMITS)
    plans = (swap_ab_plan_of(k, v, width, width, options, room) for (k, v), width, options, room in every)
    yield from ((plan,) for plan in dict.fromkeys(plans))


# Bytes of shared memory that a block may have on any card and on Hopper; that a multiprocessor of Hopper has.
MAX_SHARED, MAX_SHARED_HOPPER, SM_SHARED = 99 << 10, 227 << 10, 228 << 10
SHARED_LIMITS = MAX_SHARED, MAX_SHARED_HOPPER
SWAP_AB_ROWS = 8  # columns of ``mma``'s B, which the queries are


def fits_swap_ab(k: str, v: str, width: int, width_v: int) -> bool:
    """True if swap_ab.py takes keys and values of these types and widths."""
    if k in FLOAT16_TYPES:
        return k == v and not (width % 32 or width_v % 32)
    return k in REGISTER_TYPES and v in REGISTER_TYPES and not (width % 64 or width_v % 64)


def swap_ab_plan_of(
    k: str, v: str, width: int, width_v: int, options: bool = False, room: int = MAX_SHARED
) -> Plan:
    """The plan of swap_ab.py for up to eight rows, of blocks that have ``room`` bytes of shared memory."""
    stages = 3 if k == v == "q4_0" else 2
    plan = Plan(k, v, width, width_v, 8, False, False, options, stages, True)
    while plan.shared_bytes > room and plan.warps > 1:
        plan = replace(plan, warps=plan.warps // 2)
    return plan


def plan_of(
    k: str, v: str, width: int, width_v: int, by_rows: bool, v_in_k: bool = False, options: bool = False
) -> Plan:
    """The largest plan that fits."""
    plan = Plan(k, v, width, width_v, 4, by_rows, v_in_k, options)
    if plan.in_registers:
        plan = replace(plan, stages=3)
    if not by_rows and width != width_v and plan.decodes(k) and plan.decodes(v):
        plan = replace(plan, warps=1)  # a warp decodes values over keys: rows of other lengths are another's
    while plan.shared_bytes > MAX_SHARED and plan.warps > 1:
        plan = replace(plan, warps=plan.warps // 2)
    return plan
