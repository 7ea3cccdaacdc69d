"""The compiled ``unpack`` of every format gives what its own in NumPy gives, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from block_cases import BLOCKS

from ggmlq.arrays.blocks import random_blocks
from ggmlq.cpu.unpack import by_atoms, unpacker
from ggmlq.formats import FORMATS

GUARD = 64  # elements on either side of each output that must stay as they are


def damaged(fmt, n, rng):
    """Random bytes, NaN and infinite scales among them; every other block with sane scales."""
    raw = rng.integers(0, 256, (n, fmt.dtype.itemsize), np.uint8)
    sane = random_blocks(fmt, n, 1, seed=int(rng.integers(1 << 30)))
    raw[::2] = sane.view(np.uint8).reshape(n, -1)[::2]
    return raw


def guarded(n, dtype, rng):
    """An array between guards, and the part of it to fill."""
    whole = rng.integers(-100, 100, n + 2 * GUARD).astype(dtype)
    return whole, whole[GUARD : GUARD + n]


def assert_bits(got, want, what):
    """Equal to the bit, signs of zeros too; NaN equals NaN."""
    same = (got == want) & (np.signbit(got) == np.signbit(want)) | (np.isnan(got) & np.isnan(want))
    assert same.all(), f"{what}: {int((~same).sum())} of {same.size} differ, first {int((~same).argmax())}"


def check(fmt, unpack, raw, rng):
    with np.errstate(invalid="ignore", over="ignore"):
        want = fmt.unpack(raw.reshape(-1).view(fmt.dtype))
    groups = want.scale.size
    codes_whole, codes = guarded(want.codes.size, np.int8, rng)
    scales_whole, scales = guarded(groups, np.float32, rng)
    offsets_whole, offsets = guarded(groups if fmt.has_offset else 0, np.float32, rng)
    before = [whole.copy() for whole in (codes_whole, scales_whole, offsets_whole)]
    unpack(raw.reshape(-1), codes, scales, offsets)
    wrong = codes != want.codes.reshape(-1)
    assert not wrong.any(), f"{fmt.name}: {int(wrong.sum())} codes wrong, first {int(wrong.argmax())}"
    assert_bits(scales, want.scale.reshape(-1), f"{fmt.name} scales")
    if want.offset is not None:
        assert_bits(offsets, want.offset.reshape(-1), f"{fmt.name} offsets")
    for whole, old in zip((codes_whole, scales_whole, offsets_whole), before, strict=True):
        assert np.array_equal(whole[:GUARD], old[:GUARD]), "wrote before the start"
        assert np.array_equal(whole[-GUARD:], old[-GUARD:]), "wrote beyond the end"


@pytest.mark.parametrize("fmt", BLOCKS, ids=lambda fmt: fmt.name)
def test_unpack(fmt, fresh):
    for n in (1, 2, 3, 65):
        check(fmt, unpacker(fmt), damaged(fmt, n, fresh), fresh)


@pytest.mark.parametrize("name", ["q4_1", "q6_K", "iq3_s", "nvfp4"])
def test_any_format_is_unpacked_by_its_atoms(name, fresh):
    check(FORMATS[name], by_atoms(FORMATS[name]), damaged(FORMATS[name], 3, fresh), fresh)


@pytest.mark.parametrize("fmt", BLOCKS, ids=lambda fmt: fmt.name)
def test_a_row_may_start_anywhere(fmt, fresh):
    """Rows of a mapped file are not aligned to anything."""
    raw = damaged(fmt, 3, fresh)
    odd = np.empty(raw.size + 1, np.uint8)[1:]
    odd[:] = raw.reshape(-1)
    check(fmt, unpacker(fmt), odd.reshape(raw.shape), fresh)
