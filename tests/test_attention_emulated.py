"""Attention's kernels on an emulated card beside float64: those whose code comes with the package."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")

from attention_cases import cache
from emulated_gpu import put_emulated
from fake_cupy import on_device

import ggmlq as gq
from ggmlq.arrays.array import QuantArray
from ggmlq.cuda.driver import device
from ggmlq.cuda.kernels.attention import operands
from ggmlq.cuda.kernels.attention.hopper import (
    MAX_EMPTY,
    MAX_SHARED_HOPPER,
    WIDTHS,
    HopperPlan,
    fits_hopper,
    hopper_plan_of,
    tiles_of_head,
)
from ggmlq.cuda.kernels.attention.parameters import Sizes
from ggmlq.cuda.kernels.attention.plan import DECODED_TYPES, MMA_ROWS, plan_of

HALF = 2.0**-11  # the most that rounding to a half changes a number, beside it
WIDTH = 64


@pytest.fixture
def card(monkeypatch):
    """A card with two multiprocessors, of a kind without wgmma."""
    state = put_emulated(monkeypatch)

    def asarray(x, dtype=None):
        array = on_device(np.asarray(x, dtype))
        state.memory.add(array)
        return array

    state.cupy.asarray, state.cupy.clip = asarray, np.clip
    state.cupy.arange, state.cupy.minimum = np.arange, np.minimum
    state.cupy.broadcast_to = lambda x, shape: asarray(np.broadcast_to(x, shape))
    monkeypatch.setattr(device, "capability", lambda: (8, 0))
    monkeypatch.setattr(device, "multiprocessors", lambda: 1)
    return state


def there(card, x):
    if isinstance(x, QuantArray):
        return QuantArray(x.format, x.shape, card.cupy.asarray(x.raw))
    return card.cupy.asarray(x) if isinstance(x, np.ndarray) else x


def agrees(card, q, k, v, **options):
    """The worst row within what rounding queries, keys, values and weights to halves allows."""
    device_options = {name: there(card, option) for name, option in options.items()}
    y = np.asarray(gq.attention(*(there(card, x) for x in (q, k, v)), **device_options))
    want = gq.reference.attention(q, k, v, **options)
    scores = np.abs(q) @ np.abs(k.dequantize().repeat(q.shape[1] // k.shape[1], 1)).swapaxes(2, 3)
    limit = HALF * (8 + 4 * scores.max() / WIDTH) * np.abs(v.dequantize()).max()
    assert np.abs(y - want).max() <= limit
    return y


@pytest.fixture(scope="module")
def types(request):
    """Keys' and values' type in this run: each pair has kernels of its own, which take long to compile."""
    pairs = ("f16", "f16"), ("q8_0", "q8_0"), ("q8_0", "q4_0"), ("q4_0", "q8_0")
    return pairs[request.config.option.seed % len(pairs)]


@pytest.mark.slow
def test_few_rows(types, card, fresh):
    """Warps of some positions each, in splits that a second kernel merges."""
    q = fresh.standard_normal((1, 8, 1, WIDTH)).astype(np.float32)
    agrees(card, q, *(cache(fresh, name, 1, 2, 140, WIDTH) for name in types), causal=True)


def test_lengths_windows_and_sinks(types, card, fresh):
    """Lengths on the device, positions that no query sees, a logit beside all scores."""
    q = fresh.standard_normal((2, 4, 2, WIDTH)).astype(np.float32)
    k, v = (cache(fresh, name, 2, 1, 90, WIDTH) for name in types)
    lengths, sinks = np.array([90, 0]), fresh.standard_normal(4).astype(np.float32)
    y = agrees(card, q, k, v, lengths=lengths, window=40, sinks=sinks)
    assert not y[1].any()


@pytest.mark.slow
def test_rows_that_lie_apart(card, fresh):
    """Some heads and positions of a cache, read where they are."""
    whole = [cache(fresh, "q8_0", 2, 3, 80, WIDTH) for _ in "kv"]
    q = fresh.standard_normal((1, 4, 1, WIDTH)).astype(np.float32)
    parts = [there(card, x)[1:, :2, 8:72] for x in whole]
    assert all(operands.placed(part).raw is part.strided for part in parts)
    y = np.asarray(gq.attention(there(card, q), *parts, causal=True))
    want = gq.reference.attention(q, *(x[1:, :2, 8:72] for x in whole), causal=True)
    assert gq.nmse(y, want) < 1e-5


@pytest.mark.slow
def test_scores_that_options_change(card, fresh):
    """A mask with hidden positions, a soft cap and ALiBi, for up to eight rows."""
    q = fresh.standard_normal((1, 4, 2, WIDTH)).astype(np.float32)
    k, v = (cache(fresh, "f16", 1, 1, 150, WIDTH) for _ in "kv")
    mask = np.where(fresh.random((1, 4, 2, 150)) < 0.3, -np.inf, fresh.standard_normal((1, 4, 2, 150)))
    agrees(card, q, k, v, mask=mask.astype(np.float32), softcap=5.0, alibi=8.0)
    agrees(card, q, k, v, lengths=np.array([9]), alibi=8.0)  # the first query has later positions, too


@pytest.mark.slow
def test_splits_of_a_cluster(types, card, monkeypatch, fresh):
    """Blocks that merge their partials in shared memory, some with no positions."""
    monkeypatch.setattr(device, "capability", lambda: (9, 0))
    monkeypatch.setattr(device, "multiprocessors", lambda: 16)
    q = fresh.standard_normal((1, 6, 1, WIDTH)).astype(np.float32)
    k, v = (cache(fresh, name, 1, 2, 400, WIDTH) for name in types)
    agrees(card, q, k, v, causal=True)
    agrees(card, q, k, v, lengths=np.array([130]))
    agrees(card, fresh.standard_normal((1, 4, 7, WIDTH)).astype(np.float32), k, v, causal=True)  # 14 rows


@pytest.mark.slow
def test_blocks_as_halves(card, fresh):
    """Keys and values of a cache whose heads lie apart, as many positions as there are."""
    k, v = cache(fresh, "q8_0", 2, 2, 80, WIDTH), cache(fresh, "q4_0", 2, 2, 80, 2 * WIDTH)
    assert operands.dequantizes(*(there(card, x)[:, :, :72] for x in (k, v)))
    rows = operands.dequantized(*(there(card, x)[:, :, :72] for x in (k, v)), np.array([70, 3]))
    for x, (name, raw, width) in zip((k, v), rows, strict=True):
        assert (name, width) == ("f16", x.shape[3])
        assert np.array_equal(np.asarray(raw).view(np.float16), x.dequantize()[:, :, :70].astype(np.float16))


MANY = [  # capability, heads, queries and their type, positions, heads and types of keys and values
    ((8, 0), 8, 5, np.float32, 40, 2, ("q8_0", "q4_0")),
    ((8, 0), 8, 5, np.float32, 40, 2, ("f16", "f16")),
    ((9, 0), 2, 45, np.float16, 300, 1, ("f16", "f16")),
    ((9, 0), 2, 9, np.float32, 140, 1, ("q8_0", "q8_0")),
    ((9, 0), 2, 40, np.float16, 140, 1, ("q8_0", "q8_0")),
    ((9, 0), 2, 120, np.float16, 130, 1, ("f16", "f16")),
]


@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.parametrize("case", MANY, ids=lambda case: f"{case[0][0]}.{case[0][1]}, {case[-1][0]}")
def test_many_rows(case, card, monkeypatch, fresh):
    """Warps of some rows each; or wgmma, rows of two heads, the last ones few: by two warpgroups with
    queries of 16 bits, over blocks, too, or by one.
    """
    capability, heads, queries, kind, positions, kv_heads, types = case
    monkeypatch.setattr(device, "capability", lambda: capability)
    q = fresh.standard_normal((1, heads, queries, WIDTH)).astype(kind)
    agrees(card, q, *(cache(fresh, name, 1, kv_heads, positions, WIDTH) for name in types), causal=True)


@pytest.mark.slow
def test_no_warp_decodes_values_over_the_keys_of_another(fresh):
    """Warps of their own positions do not wait for each other: each has the bytes of its rows alone."""
    for _ in range(300):
        (k, v), widths = fresh.choice(DECODED_TYPES, 2), 32 * fresh.integers(1, 9, 2)
        plan = plan_of(str(k), str(v), *map(int, widths), by_rows=False, options=bool(fresh.integers(2)))
        if plan.decodes(plan.k) and plan.decodes(plan.v):
            key, value = (MMA_ROWS * plan.pitch(width) for width in (plan.width, plan.width_v))
            for i in range(plan.warps):
                for other in {*range(plan.warps)} - {i}:
                    keys, values = plan.key_tile_at + i * key, plan.value_tile_at + other * value
                    assert keys + key <= values or values + value <= keys, (plan, i, other)


def test_host_and_kernel_count_work_tiles_alike(fresh):
    plan = hopper_plan_of("f16", "f16", 128, 128, 65)
    for queries in (1, 100, 128, *fresh.integers(1, 5000, 60).tolist()):
        group, causal = int(fresh.integers(1, 9)), bool(fresh.integers(2))
        sizes = Sizes(*[0] * len(Sizes._fields))._replace(queries=queries, group=group, causal=int(causal))
        of_head = int(tiles_of_head(plan).py_func(sizes))
        tiles = of_head * group if of_head else -(-queries * group // plan.rows)
        assert plan.tiles(queries, group, causal) == tiles
        assert tiles * plan.rows <= queries * group * (1 + 1 / MAX_EMPTY) + plan.rows


@pytest.mark.parametrize("name", ["q4_0", "q8_0"])
def test_two_warpgroups_take_no_widths_from_one(name):
    for width, width_v in product(WIDTHS, repeat=2):
        alone = HopperPlan(name, name, width, width_v, 1).shared_bytes <= MAX_SHARED_HOPPER
        assert fits_hopper(name, name, width, width_v) == alone
