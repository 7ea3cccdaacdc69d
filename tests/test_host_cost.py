"""Python calls beside kernels: of indices, of launches, of recorded products."""

from __future__ import annotations

import numpy as np
import pytest
from host_calls import python_calls

import ggmlq as gq
from ggmlq.arrays.buffers import address_of
from ggmlq.arrays.rows import rows
from ggmlq.cpu.machine.recorded import recorded_product
from ggmlq.dispatch.ladder import choose, rungs
from ggmlq.dispatch.problems import Linear

BLOCKS = gq.quantize(rows("normal", 48, 64), "q4_0")
EXPERTS = gq.quantize(rows("normal", 48, 64).reshape(3, 16, 64), "q4_0")
ROWS = gq.quantize_scaled(rows("normal", 48, 256), "e4m3", (1, 128))
TILES = gq.quantize_scaled(rows("normal", 48, 256), "int8", (16, 128))


@pytest.mark.parametrize("index", [slice(3, 10), slice(None), slice(-5, None), 3, -1], ids=str)
@pytest.mark.parametrize(("w", "most"), [(BLOCKS, 4), (EXPERTS, 6), (ROWS, 7), (TILES, 7)], ids=str)
def test_whole_rows_are_taken_in_a_few_steps(w, most, index):
    index = index if index != 3 or len(w) > 3 else 2
    assert python_calls(lambda: w[index]).total() <= most
    assert np.array_equal(np.asarray(w[index]), np.asarray(w)[index])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "first", "again"), [("tiles", 21, 21), ("lines", 21, 21), ("panels", 63, 24)]
)
def test_a_small_product_is_launched_in_a_few_steps(name, first, again):
    """In one thread; two of the calls are kernels, and two more where weights are laid out."""
    rung = next(rung for rung in rungs("linear", "cpu") if rung.name == f"cpu:{name}")
    known, fresh, x = BLOCKS.copy(), BLOCKS.copy(), rows("normal", 2, 64)
    if rung.refuses(Linear(BLOCKS.format, 2, len(BLOCKS), 64, device="cpu")):
        pytest.skip("this CPU lacks its instructions")
    for q in (known, fresh):
        q.raw.flags.writeable = False
    y = np.empty((2, len(BLOCKS)), np.float32)
    rung.launch(x, known, y)
    assert python_calls(lambda: rung.launch(x, fresh, y)).total() <= first
    assert python_calls(lambda: rung.launch(x, known, y)).total() <= again


def test_a_recorded_product_runs_its_kernels_and_little_else():
    q, x, y = (
        gq.quantize(rows("normal", 48, 64), "q4_0"),
        rows("normal", 2, 64),
        np.empty((2, 48), np.float32),
    )
    rung = choose(Linear(q.format, 2, 48, 64, device="cpu"))
    plan = recorded_product(
        lambda x, y: rung.launch(x, q, y), (x,), y, lambda: (q.parts(), q.prepared_copies()), y.size * 64
    )
    addresses = address_of(x), address_of(y)
    plan(*addresses)
    assert python_calls(lambda: plan(*addresses)).total() <= 1 + 2  # its kernels, of which two are called


Q = rows("normal", 4, 64).reshape(1, 4, 1, 64)
HEADS = gq.quantize(rows("normal", 16, 64).reshape(1, 2, 8, 64), "q8_0")
POOL, IDS = gq.empty((8, 64), "q8_0"), np.array([1, 3])


@pytest.mark.parametrize(
    ("work", "arrays"),
    [
        (lambda: gq.attention(Q, HEADS, HEADS, causal=True), 1),
        (lambda: gq.put(POOL, IDS, Q[0, :2, 0]), 2),
        (lambda: gq.take(POOL, IDS), 1),
        (lambda: gq.quantize(Q, "q8_0"), 1),
        (lambda: gq.quantize_scaled(Q, "e4m3", (1, 64)), 1),
        (POOL.dequantize, 0),
    ],
    ids=["attention", "put", "take", "quantize", "quantize_scaled", "dequantize"],
)
def test_an_array_is_looked_at_once(work, arrays):
    calls = python_calls(work)
    seen = calls["operand"] + calls["integers"]
    assert (seen, calls["Request.__str__"]) == (arrays, 0), "and words of errors are not made"
    assert calls["as_array"] <= seen + 1, "an alibi is a number or an array"
