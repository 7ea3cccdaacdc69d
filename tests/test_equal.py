"""Whether two arrays are the same: in words, never by the identity that Python would fall back to."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
from fake_cupy import on_device

import ggmlq as gq
from ggmlq.arrays.blocks import random_blocks
from ggmlq.formats import FORMATS


def array(name="q4_K", n=3, seed=0):
    fmt = FORMATS[name]
    return gq.QuantArray.from_bytes(random_blocks(fmt, n, 2, seed), fmt, (n, 2 * fmt.block_size))


def test_format_shape_and_bytes():
    q = array()
    assert gq.equal(q, q)
    assert gq.equal(q, q.copy())
    assert not gq.equal(q, array(seed=1))
    assert not gq.equal(q, q[:2])
    assert not gq.equal(q, gq.QuantArray.from_bytes(q.raw, "q4_K", (1, 3 * 512)))
    other = gq.QuantArray.from_bytes(array("f16").raw, "bf16", (3, 2))
    assert not gq.equal(array("f16"), other)
    changed = q.copy()
    changed.blocks["d"][2, 1] = 7
    assert not gq.equal(q, changed)


def test_bytes_count_not_values():
    q = gq.QuantArray.from_bytes(np.full(6, np.nan, np.float32), "f32", (2, 3))
    assert gq.equal(q, q.copy())
    zero = np.zeros(6, np.float32)
    assert not gq.equal(*(gq.QuantArray.from_bytes(z, "f32", (2, 3)) for z in (zero, -zero)))


def test_byte_order_does_not_count(tmp_path):
    q = array()
    gq.save(tmp_path / "big.gguf", {"q": q}, byteorder="big")
    assert gq.equal(gq.open(tmp_path / "big.gguf")["q"], q)


def test_empty_and_scalar():
    assert gq.equal(array()[:0], array()[:0])
    one = gq.QuantArray.from_bytes(np.float32(3), "f32", ())
    assert gq.equal(one, one.copy())


def test_elsewhere():
    q = array()
    d, e = (gq.QuantArray(q.format, q.shape, on_device(raw)) for raw in (q.raw, array(seed=1).raw))
    assert gq.equal(d, q)
    assert gq.equal(q, d)
    assert not gq.equal(d, e)


@pytest.mark.cuda
def test_on_a_gpu(cupy):
    q = array()
    assert gq.equal(q.to("cuda"), q.copy().to("cuda"))
    assert gq.equal(q.to("cuda"), q)
    assert not gq.equal(q.to("cuda"), array(seed=1).to("cuda"))


@pytest.mark.parametrize("other", [None, np.ones((3, 512)), b"", [1]], ids=str)
def test_what_is_no_array(other):
    with pytest.raises(gq.GGMLQError, match=r"equal\(a, b\): b is a \w+; both must be QuantArrays"):
        gq.equal(array(), other)


@pytest.mark.parametrize(
    "other",
    [array(), np.ones((3, 512), np.float32), [1, 2], 0, np.float32(1)],
    ids=["q", "x", "list", "0", "1"],
)
def test_operators_say_what_to_write(other):
    q = array()
    for compare in (lambda: q == other, lambda: other == q, lambda: q != other):
        with pytest.raises(gq.GGMLQError, match=r"comparison of .*gq\.equal\(a, b\)") as caught:
            compare()
        assert isinstance(caught.value, TypeError)


def test_still_a_key():
    """An array is equal to itself, so that caches, lists and weak references find it; ``==`` refuses other
    arrays and numbers, and what is neither is never equal.
    """
    q, r = array(), array()
    assert {q: 1, r: 2}[q] == 1
    assert len({q, r, q}) == 2
    assert q in weakref.WeakKeyDictionary({q: 1})
    assert q in [q]
    with pytest.raises(gq.GGMLQError, match=r"gq\.equal"):
        assert q.copy() in [q]
    assert q is not None
    assert q != None  # noqa: E711 - what people write
    assert q != "q4_K"
