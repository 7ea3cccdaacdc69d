"""The tile of r3 and r4: a warp has 16 units of 8 rows, their weights in its registers for the whole call.

A warp multiplies the three rows of 16 units with the states of 8 rows of h by ``mma``, 64 columns at a time:
lane 4 g + t takes 16 neighbouring bytes from 16 t on, of a row of weights and of a row of h, as operands of
two instructions. An instruction does not care which columns these are, as long as both operands have the
same. So weights and states lie in plain rows, and every load has 16 bytes.

A lane then has the three sums of the same units and rows, and goes on to their gates without other lanes.
Where warps share the columns of h, their sums are added up in shared memory, and each warp takes its part of
units and rows from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...cuda.intrinsics import ptx, tensor_cores
from ...cuda.intrinsics.atoms import inlined
from ...cuda.intrinsics.language import cuda, int32, uint32, uint64

UNITS, ROWS, BYTES = 16, 8, 64  # units, rows of h and columns of a warp at a time
ENTRIES = 1024  # of a table, at most
CONSTANTS = 16  # of a unit: five for each gate's product, and a bias


@dataclass(frozen=True)
class StepTile:
    """The work of a block and of its warps."""

    pairs: int  # pieces of 64 columns that a warp multiplies
    splits: int  # warps that share the columns
    groups: int  # groups of 16 units
    tiles: int = 1  # tiles of 8 rows of a warp
    row_warps: int = 1  # warps with different rows

    def __str__(self) -> str:
        return (
            f"{self.columns} units, {UNITS * self.groups} of them by {self.rows} rows a block, "
            f"{self.threads // 32} warps"
        )

    @property
    def columns(self) -> int:
        """Columns of h: as many as units, padded."""
        return BYTES * self.pairs * self.splits

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.groups * self.splits * self.row_warps

    @property
    def rows(self) -> int:
        """Rows of h of a block."""
        return ROWS * self.tiles * self.row_warps

    @property
    def blocks(self) -> int:
        """Blocks that have all units."""
        return self.columns // (UNITS * self.groups)

    @property
    def lane_pairs(self) -> int:
        """Pairs of a unit and a row that a lane takes through the gates."""
        return 4 * self.tiles // self.splits

    @property
    def halves(self) -> int:
        """Units of a lane."""
        return 2 if self.lane_pairs >= 4 else 1

    @property
    def chains(self) -> int:
        """Independent sums, so that ``mma`` need not wait for the one before."""
        return 2 if self.tiles == 1 else 1

    @property
    def pitch(self) -> int:
        """Bytes between rows of h in shared memory: two rows lie in different banks."""
        return self.columns + 64 if self.columns % 128 == 0 else self.columns

    # Shared memory: tables, states to be sent to other blocks, sums of warps, two buffers of h.

    @property
    def stage_offset(self) -> int:
        return 12 * ENTRIES

    @property
    def sums_offset(self) -> int:
        return self.stage_offset + 16 * self.groups * self.rows

    @property
    def states_offset(self) -> int:
        sums = self.threads * 3 * 4 * self.tiles * 4 if self.splits > 1 else 0
        return self.sums_offset + sums

    @property
    def shared(self) -> int:
        """Bytes of shared memory, where states are in it."""
        return self.states_offset + 2 * self.rows * self.pitch


def weights_loader(shape: StepTile) -> Any:
    """The device function that loads weights [3, units, columns] from an address into an array."""
    pairs, load16 = shape.pairs, ptx.load16

    @inlined
    def load(a: Any, at: Any, columns: Any, units: Any) -> None:
        below = uint64(columns) * 8
        for gate in range(3):
            row = at + uint64(gate) * units * columns
            for q in range(pairs):
                o = (gate * pairs + q) * 8
                v = load16(row + uint64(q * BYTES))
                a[o], a[o + 1], a[o + 2], a[o + 3] = v[0], v[1], v[2], v[3]
                v = load16(row + below + uint64(q * BYTES))
                a[o + 4], a[o + 5], a[o + 6], a[o + 7] = v[0], v[1], v[2], v[3]

    return load


def warp_multiplier(shape: StepTile, fetch: Any) -> Any:
    """The device function that adds products to sums [chains, 3, tiles, 4].

    ``fetch`` loads 16 bytes; ``at``: the address of a lane's row and columns; ``pitch``: to the next row.
    """
    pairs, tiles, chains = shape.pairs, shape.tiles, shape.chains
    mma, second = tensor_cores.integer_mma("s8", "s8"), 12 * tiles * (chains - 1)

    @inlined
    def into(d: Any, j: Any, a: Any, o: Any, b: Any, c: Any) -> None:
        v = mma(a[o], a[o + 4], a[o + 1], a[o + 5], b, c, d[j], d[j + 1], d[j + 2], d[j + 3])
        d[j], d[j + 1], d[j + 2], d[j + 3] = v[0], v[1], v[2], v[3]

    @inlined
    def multiply(d: Any, a: Any, at: Any, pitch: Any) -> None:
        for q in range(pairs):
            for tile in range(tiles):
                v = fetch(at + pitch * (ROWS * tile) + BYTES * q)
                for gate in range(3):
                    o, j = (gate * pairs + q) * 8, (gate * tiles + tile) * 4
                    into(d, j, a, o, v[0], v[1])
                    into(d, j + second, a, o + 2, v[2], v[3])

    return multiply


def sum_gatherer(shape: StepTile) -> Any:
    """The device function for the complete sums [3, lane_pairs] of a lane, those of all warps added up."""
    splits, tiles, chains, lane_pairs = shape.splits, shape.tiles, shape.chains, shape.lane_pairs
    gate_sums, second = 4 * tiles, 12 * tiles
    put, take4 = ptx.put4, ptx.take4

    @inlined
    def gather(d: Any, whole: Any, at: Any, split: Any, lane: Any) -> None:
        if chains == 2:
            for i in range(3 * gate_sums):
                d[i] = int32(d[i] + d[i + second])
        if splits == 1:
            for i in range(3 * gate_sums):
                whole[i] = d[i]
        else:
            to = uint32(at + uint32(split * (3 * gate_sums * 128)) + uint32(lane << 2))
            for i in range(3 * gate_sums):
                put(uint32(to + uint32(128 * i)), d[i])
            cuda.syncthreads()
            source = uint32(at + uint32(split * (lane_pairs * 128)) + uint32(lane << 2))
            for gate in range(3):
                for i in range(lane_pairs):
                    total = int32(0)
                    for s in range(splits):
                        source_at = uint32(source + uint32(((s * 3 + gate) * gate_sums + i) * 128))
                        total = int32(total + int32(take4(source_at)))
                    whole[gate * lane_pairs + i] = total

    return gather


def constants_loader(shape: StepTile) -> Any:
    """The device function that loads a lane's constants [halves, 16], from its first unit on."""
    halves, load4 = shape.halves, ptx.load4_nc

    @inlined
    def read(constants: Any, rows: Any, biases: Any, unit: Any, padded: Any) -> None:
        row_bytes = uint64(padded) * 4
        for half in range(halves):
            at = uint64(uint32(unit + uint32(8 * half))) * 4
            for gate in range(3):
                for i in range(5):
                    constants[16 * half + 5 * gate + i] = load4(rows + at + row_bytes * uint64(3 * i + gate))
            constants[16 * half + 15] = load4(biases + at + row_bytes * 3)

    return read


def state_fetcher(cluster: bool) -> Any:
    """The function that loads 16 bytes of states: from shared memory, or from memory that others write."""
    return ptx.take16 if cluster else ptx.load16_l2
