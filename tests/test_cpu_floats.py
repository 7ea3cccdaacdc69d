"""cpu:floats: weights that are floats, read as the file has them."""

from __future__ import annotations

import numpy as np
import pytest
from at_once import at_once

import ggmlq as gq
from ggmlq.cpu.linear import r8_floats
from ggmlq.dispatch.ladder import choose
from ggmlq.dispatch.problems import Linear

NAMES = ["f32", "f16", "bf16"]
NOT_FINITE = {"f32": (0x7FC00000, 0x7F800000), "f16": (0x7E00, 0x7C00), "bf16": (0x7FC0, 0x7F80)}
SHAPES = [(1, 1, 1), (2, 3, 15), (3, 16, 16), (5, 33, 17), (8, 5, 100), (13, 70, 129)]


@pytest.fixture(autouse=True, params=NAMES)
def name(request):
    given = Linear(gq.formats[request.param], 1, 16, 16, device="cpu")
    if (reason := r8_floats.refuses(given)) is not None:
        pytest.skip(reason)
    return request.param


def product(x, q, **more):
    return gq.linear(x, q, kernel="cpu:floats", **more)


def operands(name, fresh, m, n, k):
    q = gq.quantize(fresh.standard_normal((n, k), np.float32), name)
    return fresh.standard_normal((m, k), np.float32), q


@pytest.mark.parametrize("shape", [*SHAPES, "drawn"], ids=str)
def test_shapes(shape, name, fresh):
    shape = fresh.integers(1, (r8_floats.MOST[name], 70, 70)).tolist() if shape == "drawn" else shape
    x, q = operands(name, fresh, *shape)
    room = np.full((len(x) + 2, len(q)), 7, np.float32)
    product(x, q, out=room[1:-1])
    assert (room[[0, -1]] == 7).all()
    want = gq.reference.linear(x, q)
    scale = np.abs(x).astype(np.float64) @ np.abs(q.dequantize()).astype(np.float64).T
    assert (np.abs(room[1:-1] - want) <= 1e-6 * scale).all()


def test_rows_are_those_of_each_alone(name, fresh):
    """The same bits, whatever else is in a tile, however rows lie, and on any number of threads."""
    x, q = operands(name, fresh, 11, 45, 83)
    alone = np.concatenate([product(row[None], q) for row in x])
    assert np.array_equal(product(x, q), alone)
    assert np.array_equal(product(np.asfortranarray(x), q), alone)
    assert np.array_equal(product(x, q[::3]), alone[:, ::3])
    assert np.array_equal(product(x[::-1], q[::-1]), alone[::-1, ::-1])
    found = [np.empty_like(alone) for _ in range(4)]
    at_once(lambda i: product(x, q, out=found[i]), 4)
    assert all(np.array_equal(each, alone) for each in found)


def test_what_is_no_number_stays_in_its_row(name, fresh):
    x, q = operands(name, fresh, 3, 9, 37)
    words = q.raw.view(np.uint32 if name == "f32" else np.uint16).copy()
    words[4, 36], words[5, 0] = NOT_FINITE[name]
    y = product(x, gq.QuantArray.from_bytes(words.tobytes(), name, q.shape))
    assert np.isnan(y[:, 4]).all()
    assert np.isinf(y[:, 5]).all()
    assert np.isfinite(np.delete(y, [4, 5], axis=1)).all()


def test_who_is_taken(name):
    fmt = gq.formats[name]
    assert choose(Linear(fmt, 1, 16, 16, device="cpu")).name == "cpu:floats"
    assert choose(Linear(fmt, r8_floats.MOST[name] + 1, 16, 16, device="cpu")).name == "cpu:dequant"
    with pytest.raises(gq.GGMLQError, match="it reads floats: f32, f16, bf16"):
        product(np.ones((1, 32), np.float32), gq.quantize(np.ones((1, 32), np.float32), "q4_0"))
