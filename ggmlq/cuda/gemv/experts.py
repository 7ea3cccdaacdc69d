"""The parts of cuda:gemv for experts: stages, loads of activations and an epilogue for the rows of uses.

A list names the uses that a block serves (schedule/uses.py); the kernels' frame is expert_linear/_gemv.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from ..intrinsics import bf16x2, ptx
from ..intrinsics.address import address
from ..intrinsics.atoms import inlined
from ..intrinsics.lane import g_and_t, warp_and_lane
from ..intrinsics.language import cuda, float32, uint32
from ..packed.layout import ROWS, STEP
from .gated import block_adder, pair_fetcher, row_of_gate, sum_putter
from .stages import FOUR, RESERVED, ROOMY, TWO, GemvStage, fetchers

BESIDE = {TWO: 3, FOUR: 2}  # blocks that a multiprocessor has registers for, by fragment rows


@dataclass(frozen=True)
class ExpertGemvStage(GemvStage):
    """A stage of a block of eight warps, which shares its multiprocessor with other blocks."""

    @property
    def warps(self) -> int:
        return 8

    @property
    def count(self) -> int:
        return 3 if self.columns == 1 and self.fragment_rows == TWO else 2

    @property
    def uses(self) -> int:
        """Offset of a warp's uses in shared memory, behind all else."""
        return super().shared

    @property
    def shared(self) -> int:
        return self.uses + 4 * self.warps * self.columns

    @property
    def blocks(self) -> int:
        """Blocks that a multiprocessor has registers and shared memory for."""
        return max(1, min(BESIDE[self.fragment_rows], ROOMY // (self.shared + RESERVED)))


@cache
def gatherer(stage: GemvStage) -> Any:
    """The device function that starts the copies of a stage's activations, from the rows of the uses."""
    x_at, columns, pitch = stage.fragment_rows * stage.size, stage.columns, stage.pitch
    row_chunks, every = stage.row_bytes // 16, stage.span * STEP
    copy16_or_zeros, take4 = bf16x2.copy16_or_zeros, bf16x2.take4
    assert stage.floats, "an earlier kernel would have to make bfloat16"
    assert row_chunks % 32 == 0, "a row is whole copies of a warp"

    @inlined
    def fetch(
        at: Any, lane: Any, x: Any, span: Any, uses: Any, count: Any, uses_per_row: Any, k: Any
    ) -> None:  # fmt: skip
        for c in range(columns):
            for first in range(0, row_chunks, 32):
                chunk = lane + uint32(first)
                column = span * uint32(every) + chunk * uint32(4)
                source, length = x, uint32(0)
                if uint32(c) < count and column < k:
                    row = take4(uses + uint32(4 * c)) // uses_per_row
                    source, length = address(x, row, k, column, 4), uint32(16)
                copy16_or_zeros(at + uint32(x_at + c * pitch) + chunk * uint32(16), source, length)

    return fetch


@cache
def weight_fetcher(stage: GemvStage, of_two: bool) -> Any:
    """The device function that starts the copies of a stage's weights, of one matrix or of two in turn."""
    if of_two:
        return pair_fetcher(stage)
    fetch_weights, _ = fetchers(stage)

    @inlined
    def fetch(at: Any, lane: Any, w_at: Any, apart: Any, beside: Any, span: Any) -> None:
        fetch_weights(at, lane, w_at, apart, span)

    return fetch


@cache
def gated_epilogue(stage: GemvStage, act: Any) -> Any:
    """The device function that adds up the sums of the warps, and stores ``act(which, gate, up)``."""
    put, add_up, row_of, outputs = sum_putter(stage), block_adder(stage), row_of_gate, stage.rows // 2
    take4, store_float = bf16x2.take4, ptx.store_float

    @inlined
    def finish(sums: Any, y: Any, which: Any, first: Any, uses: Any, count: Any, n: Any) -> None:
        warp, lane = warp_and_lane()
        put(sums, warp, lane)
        cuda.syncthreads()
        row, at = first + lane, row_of(lane)
        if warp == uint32(0) and lane < uint32(outputs) and row < n:
            value = act(which, add_up(at), add_up(uint32(at + uint32(ROWS))))
            store_float(address(y, take4(uses), n, row, 4), value)

    assert stage.columns == 1
    return finish


@cache
def epilogue(stage: GemvStage) -> Any:
    """The device function that adds up the sums of the warps, in their order, and stores the results of uses.

    A warp stores the results of 32 rows of weights for one use.
    """
    columns, warps, stride, numbers = stage.columns, stage.warps, stage.sums, stage.numbers
    base, put_float, take_float, take4 = ptx.shared_base, bf16x2.put_float, bf16x2.take_float, bf16x2.take4
    store_float, groups = ptx.store_float, stage.rows // 32

    @inlined
    def finish(sums: Any, y: Any, which: Any, first: Any, uses: Any, count: Any, n: Any) -> None:
        warp, lane = warp_and_lane()
        g, t = g_and_t(lane)
        if t * uint32(2) < uint32(columns):
            for i in range(numbers):  # rows g, g + 8 of a fragment row, columns 2 t, 2 t + 1
                row = g + uint32(i // 4 * ROWS + i // 2 % 2 * 8)
                column = uint32(i % 2) + t * uint32(2)
                if column < uint32(columns):
                    at = (warp * uint32(columns) + column) * uint32(stride) + row
                    put_float(base() + at * uint32(4), sums[i])
        cuda.syncthreads()
        column, row_of_tile = warp // uint32(groups), warp % uint32(groups) * uint32(32) + lane
        row = first + row_of_tile
        if row < n and column < count:
            total = float32(0)
            for i in range(warps):
                at = (uint32(i * columns) + column) * uint32(stride) + row_of_tile
                total += take_float(base() + at * uint32(4))
            store_float(address(y, take4(uses + column * uint32(4)), n, row, 4), total)

    assert columns * groups <= warps
    return finish
