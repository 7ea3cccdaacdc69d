"""Products with experts on an emulated card: rungs' own launches against the oracle.

Nearly each case has a kernel of its own, which takes Numba 8 to 30 s: each run draws some.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")

from block_cases import weights
from emulated_gpu import put_emulated
from emulated_packed import pack_q4_0
from fake_cupy import on_device

import ggmlq as gq
from ggmlq.cuda.driver import device, tensor_maps
from ggmlq.cuda.driver.launch import Kernel
from ggmlq.cuda.kernels import gated
from ggmlq.cuda.kernels.gemv import launch as _gemv
from ggmlq.cuda.kernels.hopper import kernel as hopper_kernel
from ggmlq.cuda.kernels.hopper.tiles import WarpSpecializedTile, split_last_wave
from ggmlq.cuda.kernels.mma.kernel import TILES
from ggmlq.cuda.ladder.expert_linear import r5_grouped, r9_grouped_mma
from ggmlq.cuda.layouts import groups
from ggmlq.cuda.layouts.layout import layout_of
from ggmlq.cuda.layouts.pack import PackedWeights
from ggmlq.dispatch.card import card_named
from ggmlq.dispatch.ladder import explain
from ggmlq.dispatch.problems import ExpertLinear
from ggmlq.formats import FORMATS

RUNGS = {rung.name: rung for rung in gq.kernels("expert_linear", device="cuda")}


def experts_of(e, n, k, rng):
    """Weights of experts on the host."""
    raw = np.stack([weights("q4_0", n, k, int(rng.integers(1 << 30))).raw for _ in range(e)])
    return gq.QuantArray(gq.formats["q4_0"], (e, n, k), raw)


def run(monkeypatch, name, module, x, host, ids, together=False, **more):
    """The result [uses, N] of a rung; memory around it must stay as it was.

    ``together``: blocks of products run at one time.
    """
    state, given = put_emulated(monkeypatch), on_device(x)
    if together:
        put_together(monkeypatch)
    packed = [pack_q4_0(weights) for weights in host]
    fragments = on_device(np.concatenate([fragments for fragments, _ in packed]))
    for place in (module, hopper_kernel):
        monkeypatch.setattr(place, "packed_weights", lambda q: PackedWeights(fragments, packed[0][1]))
    monkeypatch.setattr(device, "resident_blocks", lambda blocks, shared: blocks)
    monkeypatch.setattr(tensor_maps, "map_array", state.memory.map)
    q = gq.QuantArray(host.format, host.shape, on_device(host.raw))
    y = on_device(np.full((ids.size + 2, host.shape[1]), 7, np.float32))
    on_card = on_device(ids.astype(np.int64))
    for array in (fragments, given, y, on_card):
        state.memory.add(array)
    RUNGS[name].launch(given, q, on_card, y[1:-1].reshape(*ids.shape, -1), **more)
    assert (y[[0, -1]] == 7).all(), "written past its outputs"
    return np.asarray(y[1:-1]).reshape(*ids.shape, -1)


def put_together(monkeypatch):
    call = Kernel.__call__

    def launched(kernel, grid, block, *arguments, cluster=1):
        whole = kernel.name.startswith("warp_specialized")
        call(kernel, grid, block, *arguments, cluster=cluster, together=whole)

    monkeypatch.setattr(Kernel, "__call__", launched)


FEW = [  # T, U, E, N, K, rows of x for each use, ids
    ("one token", 1, 3, 5, 70, 256, False, "spread"),
    ("a row a use", 2, 3, 7, 40, 128, True, "spread"),
    ("all to one", 9, 2, 4, 33, 320, False, "one"),
    ("some are none", 5, 7, 9, 32, 128, False, "none"),
    ("many uses", 41, 6, 40, 16, 128, False, "none"),
]


def ids_of(kind, t, u, e, rng):
    if kind == "one":
        return np.full((t, u), e - 1)
    ids = rng.integers(0, e, (t, u))
    if kind == "in order":
        return np.sort(ids, axis=None).reshape(t, u)
    ids[-1, -1] = ids[0, 0]  # twice
    if kind == "none":
        ids[0, 0], ids[-1, 0], ids[t // 2, -1] = -1, e, 1 << 40
    return ids


@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.parametrize("fragment_rows", [2, 4])
@pytest.mark.parametrize("case", FEW, ids=lambda case: case[0])
def test_few_tokens(case, fragment_rows, monkeypatch, fresh):
    _, t, u, e, n, k, apart, kind = case
    host, ids = experts_of(e, n, k, fresh), ids_of(kind, t, u, e, fresh)
    x = fresh.standard_normal((t * u if apart else t, k)).astype(np.float32)
    y = run(monkeypatch, "cuda:gemv", _gemv, x, host, ids, fragment_rows=fragment_rows)
    given = x.reshape(t, u, k) if apart else x
    lost = (ids < 0) | (ids >= e)
    want = gq.reference.expert_linear(given, host, np.where(lost, 0, ids), "bf16x")
    assert np.isnan(y[lost]).all()
    assert gq.nmse(y[~lost], want[~lost]) < 1e-10


ONE = [  # a token
    ("a row for all", 1, 3, 5, 70, 256, False, "spread"),
    ("a row a use, one is none", 1, 4, 7, 40, 448, True, "none"),
]


@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.parametrize("fragment_rows", [2, 4])
@pytest.mark.parametrize("case", ONE, ids=lambda case: case[0])
def test_one_token_by_bytes(case, fragment_rows, monkeypatch, fresh):
    _, t, u, e, n, k, apart, kind = case
    host, ids = experts_of(e, n, k, fresh), ids_of(kind, t, u, e, fresh)
    x = fresh.standard_normal((u if apart else t, k)).astype(np.float32)
    y = run(monkeypatch, "cuda:gemv_int16", _gemv, x, host, ids, fragment_rows=fragment_rows)
    lost = (ids < 0) | (ids >= e)
    assert np.isnan(y[lost]).all()
    for row, use in zip(y[~lost], np.flatnonzero(~lost), strict=True):
        given, q = x[use if apart else 0][None], host[ids.reshape(-1)[use]]
        wrong = np.abs(row - gq.reference.linear(given, q, "int16x"))
        assert (wrong <= gq.reference.bound(given, q, "int16x")).all()


@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.parametrize("fragment_rows", [2, 4])
def test_one_token_with_its_gate(fragment_rows, monkeypatch, fresh):
    """Gates over what they let through, in each expert."""
    e, n, k, state = 3, 48, 320, put_emulated(monkeypatch)
    host, ids = experts_of(e, 2 * n, k, fresh), np.array([[1, 2, 1, e]])
    packed = [pack_q4_0(q) for q in host]
    fragments = on_device(np.concatenate([part for part, _ in packed]))
    x, there = on_device(fresh.standard_normal((1, k)).astype(np.float32)), on_device(ids)
    monkeypatch.setattr(_gemv, "packed_weights", lambda q: PackedWeights(fragments, packed[0][1]))
    for array in (fragments, x, there):
        state.memory.add(array)
    q = gq.QuantArray(host.format, host.shape, on_device(host.raw))
    card = SimpleNamespace(capability=(9, 0))
    y = np.asarray(gated.of_expert_stack("silu", x, q, there, card, fragment_rows))[0]
    assert np.isnan(y[3]).all()
    for row, expert in zip(y[:3], ids[0, :3], strict=True):
        both = gq.reference.linear(np.asarray(x), host[int(expert)], "int16x")[0]
        want = both[:n] / (1 + np.exp(-both[:n])) * both[n:]
        assert np.allclose(row, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("case", FEW, ids=lambda case: case[0])
def test_many_tokens_without_wgmma(case, alone, monkeypatch, fresh):
    """Rows are read where they lie, by a plan of one block or of a cluster."""
    _, t, u, e, n, k, apart, kind = case
    host, ids = experts_of(e, n, k, fresh), ids_of(kind, t, u, e, fresh)
    x = fresh.standard_normal((t * u if apart else t, k)).astype(np.float32)
    card, tile = card_named("test", "sm_89" if alone else "sm_90"), TILES[int(fresh.integers(2))]
    monkeypatch.setattr(device, "card_of", lambda index: card)
    y = run(monkeypatch, "cuda:grouped_mma", r9_grouped_mma, x, host, ids, tile=tile)
    lost = (ids < 0) | (ids >= e)
    given = x.reshape(t, u, k) if apart else x
    want = gq.reference.expert_linear(given, host, np.where(lost, 0, ids), "bf16x")
    assert np.isnan(y[lost]).all()
    assert gq.nmse(y[~lost], want[~lost]) < 1e-10


def test_cards_without_wgmma_take_one_launch():
    """From 8.0 on, for blocks; the tile has room for an expert's uses, not much more."""
    assert (
        r9_grouped_mma.tile_for(card_named("test", "sm_89"), layout_of(FORMATS["q4_K"]), 8, 2, 8).columns
        == 16
    )
    for name, kernel in (
        ("sm_80", "cuda:grouped_mma"),
        ("sm_89", "cuda:grouped_mma"),
        ("sm_90", "cuda:grouped"),
    ):
        problem = ExpertLinear.shown("q4_K", "cuda", card_named("test", name), (256, 1024))[0].with_rows(64)
        assert explain(problem).rung.name == kernel


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["spread", "one", "none", "in order"])
@pytest.mark.parametrize("blocks", [1, 8, "more uses than threads hold"])
def test_groups(blocks, kind, monkeypatch, fresh):
    """Each use has a column of its own in a tile of its expert, and the plan says so."""
    t, u, e, columns = int(fresh.integers(1, 400)), 3, int(fresh.integers(4, 70)), 16
    put_emulated(monkeypatch)
    if blocks == 8:
        monkeypatch.setattr(groups, "LEAST_USES", int(fresh.integers(10, 200)))
    elif blocks != 1:
        t, _ = 2800, monkeypatch.setattr(groups, "MOST_BLOCKS", 1)
    ids = ids_of(kind, t, u, e, fresh)
    of, given = groups.UsePlan(ids.size, e, columns), on_device(ids.astype(np.int64))
    plan, places = groups.sorted_uses(given, of)
    flat, counts = ids.reshape(-1), np.bincount(ids[(ids >= 0) & (ids < e)], minlength=e)
    table = np.asarray(plan[groups.HEAD : groups.HEAD + 4 * of.slots]).reshape(-1, 4)
    uses, places = np.asarray(plan[groups.HEAD + 4 * of.slots : of.places]), np.asarray(places[: ids.size])
    there = np.repeat(np.arange(e), -(-counts // columns))
    assert plan[0] == len(there) <= of.slots
    in_order = (np.diff(flat) >= 0).all() and ((flat >= 0) & (flat < e)).all()
    assert plan[1] == in_order
    first = np.searchsorted(there, there)
    tiles = np.bincount(there, minlength=e)
    assert np.array_equal(table[: len(there)], np.stack([there, first, tiles[there], counts[there]], 1))
    lost = (flat < 0) | (flat >= e)
    assert (places[lost] == groups.NOWHERE).all()
    kept, use = places[~lost], np.flatnonzero(~lost)
    assert len(np.unique(kept)) == len(kept)
    assert not in_order or (np.diff(kept) > 0).all()
    assert np.array_equal(uses[kept], use)
    assert np.array_equal(there[kept // columns], flat[use])
    assert (kept - columns * first[kept // columns] < counts[flat[use]]).all()


MANY = [  # T, U, E, N, K, rows of x for each use, ids, tile
    ("spread", 9, 2, 3, 140, 256, False, "spread", WarpSpecializedTile(16, 2)),
    ("two tiles of one", 20, 1, 5, 40, 128, True, "one", WarpSpecializedTile(16, 4)),
    ("some are none", 11, 2, 9, 128, 128, False, "none", WarpSpecializedTile(160)),
    ("many experts", 30, 3, 70, 16, 128, False, "none", WarpSpecializedTile(32, 2)),
    ("a row of many blocks", 3, 2, 4, 16, 4224, False, "spread", WarpSpecializedTile(16, 2)),
    ("sweeps of slots", 100, 1, 2, 140, 128, False, "one", WarpSpecializedTile(16, 2)),
]


LAST = [  # the same; on two multiprocessors
    ("one for two blocks", 5, 1, 2, 100, 640, False, "one", WarpSpecializedTile(16)),
    ("one for four", 9, 1, 3, 40, 1152, False, "one", WarpSpecializedTile(16, 2)),
    ("a whole one each, then one", 33, 1, 2, 100, 384, True, "one", WarpSpecializedTile(16)),
    ("wide", 30, 2, 3, 70, 640, False, "none", WarpSpecializedTile(144)),
]


@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.parametrize("together", [False, True], ids=["one by one", "at one time"])
@pytest.mark.parametrize("own_plan", [True, False], ids=["own plan", "sorted"])
@pytest.mark.parametrize("case", [*MANY, *LAST], ids=lambda case: case[0])
def test_many_tokens(case, own_plan, together, monkeypatch, fresh):
    """The last tiles are shared along the columns, as in test_cuda_warp_specialized.py."""
    if not own_plan:
        monkeypatch.setattr(r5_grouped, "MOST_USES", 0)
    if case in MANY:
        check_many(case, monkeypatch, fresh, together)
        return
    monkeypatch.setattr(r5_grouped, "least_saved", lambda columns, stage_us: 1)
    ids = check_many(case, monkeypatch, fresh, together)
    *_, e, n, k, _, _, tile = case
    uses = np.bincount(ids[(ids >= 0) & (ids < e)], minlength=e)
    sizes = (-(-uses // tile.columns)).sum() * -(-n // 128), -(-k // 128), 2 * tile.blocks, 1
    assert split_last_wave.py_func(*map(np.uint32, sizes))[1] > 0, "nothing was shared"


def check_many(case, monkeypatch, fresh, together=False):
    _, t, u, e, n, k, apart, kind, tile = case
    host, ids = experts_of(e, n, k, fresh), ids_of(kind, t, u, e, fresh)
    x = fresh.standard_normal((t * u if apart else t, k)).astype(np.float32)
    others = []

    def launch(x, q, ids, out, tile):
        """The array with itself, as gate and up: rows are gathered once for both."""
        others.append(device.cupy().empty(out.shape, np.float32))
        r5_grouped.multiply(x, (q, q), ids, (out, others[0]), tile)

    monkeypatch.setitem(RUNGS, "both", SimpleNamespace(launch=launch))
    y = run(monkeypatch, "both", r5_grouped, x, host, ids, together, tile=tile)
    lost = (ids < 0) | (ids >= e)
    assert np.array_equal(np.asarray(others[0])[~lost], y[~lost])
    given = x.reshape(t, u, k) if apart else x
    want = gq.reference.expert_linear(given, host, np.where(lost, 0, ids), "bf16s")
    assert np.isnan(y[lost]).all()
    assert gq.nmse(y[~lost], want[~lost]) < 1e-10
    return ids
