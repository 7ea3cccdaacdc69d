"""Rings of stages that ``cp.async`` fills, and tiles of 8-bit codes: outputs, stages, the raster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...intrinsics.atoms import inlined
from ...intrinsics.language import cuda, uint32

MAX_STAGES = 8


def offset_advancer(count: int, length: int) -> Any:
    """The device function for the next of ``count`` stages, as its offset in a ring of them."""
    end = (count - 1) * length

    @inlined
    def after(stage: Any) -> Any:
        return 0 if stage == end else uint32(stage + length)

    return after


@dataclass(frozen=True)
class ByteTile:
    """A tile of outputs, whose codes pass through shared memory ``step`` columns at a time."""

    rows: int = 128  # of x
    columns: int = 128  # rows of w: columns of outputs
    warp_rows: int = 64
    warp_columns: int = 32
    step: int = 128
    stages: int = 4
    blocks: int = 1  # blocks that fit on a multiprocessor together

    def __str__(self) -> str:
        return (
            f"{self.rows}x{self.columns}x{self.step}, warps {self.warp_rows}x{self.warp_columns}, "
            f"{self.stages} stages"
        )

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * (self.rows // self.warp_rows) * (self.columns // self.warp_columns)

    @property
    def stage(self) -> int:
        """Bytes of a stage: codes of x, codes of w, a scale for each of their rows."""
        return (self.rows + self.columns) * (self.step + 4)

    @property
    def scales(self) -> int:
        """Offset of a stage's scales."""
        return (self.rows + self.columns) * self.step

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        return self.stages * self.stage

    @property
    def sums(self) -> int:
        """Outputs of a thread."""
        return self.warp_rows * self.warp_columns // 32

    @property
    def grid(self) -> tuple[int, int]:
        """Tiles of ``mma`` in a warp's outputs."""
        return self.warp_rows // 16, self.warp_columns // 8

    @property
    def fragments(self) -> tuple[int, int]:
        """Registers of a lane for 32 columns of x, and of w."""
        return self.warp_rows // 4, self.warp_columns // 4

    def tiles(self, m: int, n: int) -> tuple[int, int]:
        """Tiles down and across an output of m rows and n columns."""
        return -(-m // self.rows), -(-n // self.columns)


def raster(tile: ByteTile) -> Any:
    """The device function for a block's first row and column.

    Blocks go down ``group`` tiles of rows before they take the next tile of columns, so that blocks that
    run at the same time share rows of both operands in the L2.
    """
    rows, columns = tile.rows, tile.columns

    @inlined
    def locate(down: Any, across: Any, group: Any) -> Any:
        # The last group may have fewer tiles of rows: ``height``.
        block = uint32(cuda.blockIdx.x)
        group_size = group * across
        first = block // group_size * group
        height = min(down - first, group)
        rest = block % group_size
        return (first + rest % height) * rows, rest // height * columns

    return locate
