"""Products follow the bytes, whoever may write to them; what is kept beside them never goes stale."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.arrays.rows import rows
from ggmlq.cpu.machine.digest import LANES, PART, digest

FULL = gq.quantize(rows("normal", 32, 256), "q4_K")
X = rows("normal", 5, 256, seed=3)


def writable(kind):
    """Memory with the bytes of FULL, what to make an array of, and what to write through."""
    if kind == "array":
        raw = np.array(FULL.raw)
        return raw, raw
    if kind == "read-only view":
        raw = np.array(FULL.raw)
        view = raw.view()
        view.flags.writeable = False
        return view, raw
    if kind == "bytearray":
        raw = bytearray(FULL.raw.tobytes())
        return raw, np.frombuffer(raw, np.uint8)
    if kind == "read-only memoryview":
        raw = bytearray(FULL.raw.tobytes())
        return memoryview(raw).toreadonly(), np.frombuffer(raw, np.uint8)
    raw = mmap.mmap(-1, FULL.nbytes)
    raw.write(FULL.raw.tobytes())
    return raw, np.frombuffer(raw, np.uint8)


@pytest.mark.parametrize("kind", ["array", "read-only view", "bytearray", "read-only memoryview", "mmap"])
def test_products_follow_the_bytes(kind):
    raw, target = writable(kind)
    q = gq.QuantArray.from_bytes(raw, "q4_K", FULL.shape)
    assert not q.immutable
    assert not q[:4].immutable
    before = X @ q.T
    other = gq.quantize(rows("normal", 32, 256, seed=9), "q4_K")
    target.reshape(-1)[...] = other.raw.reshape(-1)
    assert np.array_equal(X @ q.T, X @ gq.QuantArray.from_bytes(other.raw.copy(), "q4_K", FULL.shape).T)
    assert not np.array_equal(X @ q.T, before)
    assert np.array_equal(np.asarray(q), np.asarray(other))


def test_what_kernels_keep_stays_while_the_bytes_do():
    raw, made = np.array(FULL.raw), []

    def make(q):
        made.append(q.raw.copy())
        return made[-1]

    q = gq.QuantArray.from_bytes(raw, "q4_K", FULL.shape)
    assert q.prepared(make) is q.prepared(make)
    assert len(made) == 1
    raw[7, 20] ^= 1
    assert np.array_equal(q.prepared(make), raw)
    assert q.prepared(make) is made[1]
    q.drop_prepared()
    assert q.prepared(make) is made[2]


def test_each_bit_counts(fresh):
    """Of rows of any length, wherever they lie, also of more than a thread takes at a time."""
    for size in (1, 3, 4, 144, 1000, PART + 4 * LANES + 13):
        raw = fresh.integers(0, 256, size + 1, np.uint8)[1:]
        before = digest(raw)
        assert digest(raw.copy()) == before
        for bit in fresh.integers(0, 8 * size, 50):
            raw[bit // 8] ^= np.uint8(1 << bit % 8)
            assert digest(raw) != before
            raw[bit // 8] ^= np.uint8(1 << bit % 8)
        swapped = raw.copy()
        swapped[[0, -1]] = swapped[[-1, 0]]
        assert (digest(swapped) == before) == (raw[0] == raw[-1])


def test_what_nobody_can_write_to(tmp_path):
    raw = np.array(FULL.raw)
    raw.flags.writeable = False
    assert gq.QuantArray.from_bytes(raw, "q4_K", FULL.shape).immutable
    assert gq.QuantArray.from_bytes(raw[:4], "q4_K", (4, 256)).immutable
    assert gq.QuantArray.from_bytes(raw.tobytes(), "q4_K", FULL.shape).immutable
    assert gq.QuantArray.from_bytes(memoryview(raw.tobytes()), "q4_K", FULL.shape).immutable
    gq.save(tmp_path / "m.gguf", {"w": FULL})
    assert gq.open(tmp_path / "m.gguf")["w"][3:].immutable
    assert FULL[1:].immutable
    assert not FULL.copy().immutable


def test_memory_that_cannot_be_asked():
    """An array over an object that only tells an address."""

    class Elsewhere:
        raw = FULL.raw.copy()
        __array_interface__ = {**raw.__array_interface__, "data": (raw.ctypes.data, True)}

    assert not gq.QuantArray.from_bytes(np.asarray(Elsewhere()), "q4_K", FULL.shape).immutable
