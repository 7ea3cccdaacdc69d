"""cuda:roles: how tiles are shared out, and its kernels on an emulated card."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test or cuda)")

from emulated_gpu import put_emulated
from fake_cupy import on_device

import ggmlq as gq
from ggmlq.cuda.linear import r16_roles
from ggmlq.cuda.machine import device, maps
from ggmlq.cuda.pipeline.pieces import end_of, length_of, next_piece, shares
from ggmlq.cuda.pipeline.roles import RoleTile, tile_for
from ggmlq.cuda.strips.layout import layout_of
from ggmlq.cuda.strips.make import Strips
from ggmlq.testing.cases import weights

RUNG = next(each for each in gq.kernels(device="cuda") if each.name == "cuda:roles")


def plain(function):
    return getattr(function, "py_func", function)


def pieces(tiles, stages, share):
    """Of each block: (tile, first stage, the one after the last)."""
    found = []
    for rank in range(share.blocks):
        left = int(plain(length_of)(np.uint32(rank), *map(np.uint32, share[2:])))
        end = int(plain(end_of)(np.uint32(rank), *map(np.uint32, share[3:])))
        whole, own = share.divided + rank, []
        while left > 0 or whole < tiles:
            given = map(np.uint32, (left, end, whole, stages, share.blocks))
            number, first, last, left, whole = map(int, plain(next_piece)(*given))
            own.append((number, first, last))
        found.append(own)
    return found


def test_every_stage_is_made_once(fresh):
    for _ in range(200):
        tiles, stages = int(fresh.integers(1, 400)), int(fresh.integers(1, 60))
        blocks, columns = int(fresh.integers(1, 270)), int(fresh.choice([16, 64, 128, 256]))
        share = shares(tiles, stages, blocks, columns)
        assert 0 < share.blocks <= blocks
        made = np.zeros((tiles, stages), int)
        for rank, own in enumerate(pieces(tiles, stages, share)):
            for i, (number, first, last) in enumerate(own):
                assert first < last
                assert not first or not i, "what others wait for comes first"
                if not first and last < stages:  # the blocks that it waits for have what it lacks
                    end = last + sum(
                        int(plain(length_of)(np.uint32(other), *map(np.uint32, share[2:])))
                        for other in range(rank + 1, share.sharing)
                    )
                    assert end >= stages
                made[number, first:last] += 1
        assert (made == 1).all()


def test_a_tile_holds_all_rows_or_fills_up_few():
    for m in range(1, 3000):
        tile = tile_for(m)
        assert -(-m // tile.columns) * tile.columns < m + max(128, m / 4)
    assert tile_for(4096).columns == 256


def strips_of(q):
    """Of q4_0, as the head of strips/make.py says."""
    n, k = q.shape
    layout, fmt = layout_of(q.format), q.format
    count, steps = 8 * -(-n // 128), 2 * -(-k // 128)
    codes = np.zeros((count * 16, steps * 64), np.uint32)
    scales = np.zeros((count * 16, steps * 2), np.float16)
    codes[:n, :k] = fmt.unpack(q.blocks).codes.reshape(n, k).astype(np.int64) + 8
    scales[:n, : k // 32] = q.blocks["d"].reshape(n, -1)
    # strip, half, g, record, step, t, pair, element -> a word of g, t and step
    codes = codes.reshape(count, 2, 8, steps, 4, 4, 2, 2).transpose(0, 3, 2, 5, 4, 6, 1, 7)
    places = 8 * np.arange(2)[:, None, None] + 4 * np.arange(2)[:, None] + 16 * np.arange(2)
    words = (codes << places.astype(np.uint32)).sum((-3, -2, -1), dtype=np.uint32)
    halves = scales.reshape(count, 2, 8, steps, 2).transpose(0, 3, 2, 4, 1)
    parts = (np.ascontiguousarray(part).reshape(count, steps, -1).view(np.uint8) for part in (words, halves))
    return np.concatenate([*parts], -1), layout


CASES = [  # M, N, K, tile
    (5, 140, 512, RoleTile(16, 2)),
    (40, 130, 384, RoleTile(32, 2)),
    (150, 70, 128, RoleTile(160)),
]


@pytest.mark.parametrize("case", [CASES[0], "drawn"], ids=["few", "drawn"])
def test_a_launch(case, monkeypatch, fresh):
    m, n, k, tile = CASES[1 + fresh.integers(len(CASES) - 1)] if case == "drawn" else case
    state, host = put_emulated(monkeypatch), weights("q4_0", n, k, int(fresh.integers(1 << 30)))
    records, layout = strips_of(host)
    records = on_device(records)
    state.memory.add(records)
    monkeypatch.setattr(r16_roles, "strips", lambda q: Strips(records, layout))
    monkeypatch.setattr(maps, "kept", state.memory.map)
    monkeypatch.setattr(device, "blocks_beside", lambda blocks, shared: blocks)
    q = gq.QuantArray(host.format, (n, k), on_device(host.raw))
    x = fresh.standard_normal((m, k), np.float32)
    y = on_device(np.full((m + 2, n), np.nan, np.float32))
    state.memory.add(y)
    given = on_device(x)
    state.memory.add(given)
    RUNG.launch(given, q, y[1:-1], tile=tile)
    assert np.isnan(y[[0, -1]]).all(), "written past its outputs"
    assert gq.nmse(np.asarray(y[1:-1]), gq.reference.linear(x, host, arithmetic="bf16s")) < 1e-10
