"""Kernels of scaled products as machine code for GPUs that nobody has at hand, and what is in it.

tests/test_cuda_assemble.py takes the extremes of every family; here are those that matter most, for 12.0 too.
"""

from __future__ import annotations

import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")
pytest.importorskip("cuda.core", reason="cuda-core is not installed (extra test-cuda)")

from ggmlq.cuda.driver import device
from ggmlq.cuda.kernels.codes8.mma_tiles import best_parts, fitting, span_of, with_every_step
from ggmlq.cuda.kernels.codes8.rows import CodeRows, ColumnGroups, OperandPair, ScaleView
from ggmlq.cuda.ladder.scaled_linear import r4_mma_int8, r5_widen, r6_mma_e4m3


@pytest.mark.parametrize(
    "waves", [r4_mma_int8.UNGROUPED_TILES, r4_mma_int8.GROUPED_TILES, r5_widen.TILES, r6_mma_e4m3.TILES]
)
def test_a_tile_adds_up(waves):
    for tile in with_every_step(waves):
        assert tile.sums * tile.threads == tile.rows * tile.columns
        assert tile.shared * tile.blocks <= 227 << 10
        assert tile.stage % 16 == 0
        assert tile.warp_rows % 16 == tile.warp_columns % 16 == 0


def test_tiles_shrink_to_a_small_card():
    """99 KB of shared memory, as on 8.9 and 12.0."""
    for waves in (r4_mma_int8.UNGROUPED_TILES, r5_widen.TILES, r6_mma_e4m3.TILES):
        assert any(fitting(wave.tile, step, 99 << 10) for wave in waves for step in (128, 64, 32))


def test_few_tiles_share_k_in_whole_groups(monkeypatch):
    """As many parts as fill the multiprocessors, none short; columns with one scale are in one part."""
    monkeypatch.setattr(device, "multiprocessors", lambda: 128)
    tile = r5_widen.TILES[-1].tile
    assert best_parts(tile, 16, 1024, 112) > 1
    assert best_parts(tile, 4096, 4096, 112) == best_parts(tile, 16, 1024, 7) == 1
    for steps, every, splits in ((112, 4, 8), (31, 3, 5), (9, 1, 4), (5, 8, 3)):
        rows = [CodeRows(None, 0, 0, ScaleView(None, 0, 0, 1, each)) for each in (every, 10**6)]
        span, parts = span_of(OperandPair(*rows, ColumnGroups(128, 128, 128)), steps, splits)
        assert 1 <= parts <= splits
        assert span * (parts - 1) < steps <= span * parts
        assert span % every == 0 or every >= steps
