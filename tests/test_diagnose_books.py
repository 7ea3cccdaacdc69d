"""Diagnose: mistakes with code books, tables, shared exponents; y of unit vectors is the kernel's matrix."""

from __future__ import annotations

import numpy as np
import planted
import pytest

import ggmlq as gq
from ggmlq.arrays.blocks import random_blocks

F = np.float32


def case(name, n, k, seed=5):
    raw = (
        random_blocks(gq.formats[name], n, k // gq.formats[name].block_size, seed)
        .view(np.uint8)
        .reshape(n, -1)
    )
    return raw, gq.QuantArray.from_bytes(raw, name, (n, k))


@pytest.mark.parametrize("name", planted.CASES)
def test_the_decoders_of_this_test_are_right(name):
    raw, q = case(name, 3, 512)
    np.testing.assert_allclose(planted.decoded(name, raw), q.dequantize(np.float64), rtol=1e-6)
    assert len(planted.CASES[name]) >= 12


def named(name, x, q, raw, which=None):
    """The planted mistakes that are not named, with what diagnose says."""
    missed = {}
    for mistake, (fault, _) in planted.CASES[name].items():
        if which is None or mistake in which:
            y = (x.astype(np.float64) @ planted.decoded(name, raw, mistake).T).astype(F)
            found = gq.diagnose(y, x, q)
            if found.fault != fault:
                missed[mistake] = found.text
    return missed


@pytest.mark.slow
@pytest.mark.parametrize("name", planted.CASES)
def test_all_planted_mistakes_in_products(name, fresh):
    raw, q = case(name, 64, 768, int(fresh.integers(1 << 20)))
    x = fresh.standard_normal((4, 768)).astype(F)
    missed = named(name, x, q, raw)
    assert len(missed) <= len(planted.CASES[name]) // 10, missed


@pytest.mark.slow
@pytest.mark.parametrize("name", planted.CASES)
def test_all_planted_mistakes_in_unit_vectors(name, fresh):
    raw, q = case(name, 24, 512, int(fresh.integers(1 << 20)))
    assert not named(name, 127 * np.eye(512, dtype=F), q, raw)


@pytest.mark.parametrize("name", ["iq2_s", "iq1_m", "mxfp4"])
def test_some_planted_mistakes_in_products(name):
    raw, q = case(name, 48, 512)
    x = np.random.default_rng(1).standard_normal((4, 512)).astype(F)
    assert not named(name, x, q, raw, list(planted.CASES[name])[1:2])


def test_unit_vectors_in_any_order_and_size(fresh):
    q = case("q4_0", 16, 256)[1]
    order = fresh.permutation(256)
    x = np.eye(256, dtype=F)[order] * fresh.uniform(0.5, 2, (256, 1)).astype(F)
    wrong = (np.asarray(q) + 8 * q.blocks["d"].astype(F).repeat(32, axis=1)).T
    assert gq.diagnose(x @ wrong, x, q).fault == "offset-missing"
    assert gq.diagnose(x @ q.T, x, q).ok


def test_a_part_of_the_grid_that_is_mistyped_is_counted():
    raw, q = case("iq3_s", 32, 512)
    y = 127 * planted.decoded("iq3_s", raw, "150 entries mistyped").T.astype(F)
    found = gq.diagnose(y, 127 * np.eye(512, dtype=F), q)
    assert found.fault == "code-book"
    assert "entries of the grid are others: 75.0: " in found.text


@pytest.mark.parametrize(("name", "field"), [("q4_0", "qs"), ("q3_K", "scales"), ("q6_K", "qh")])
def test_fields_of_another_block(name, field, fresh):
    """Codes and scales lie apart in a layout, and one of them is read a block off."""
    raw, q = case(name, 32, 768, int(fresh.integers(1 << 20)))
    blocks = q.blocks.copy()
    blocks[field] = np.roll(blocks[field], -1, axis=1)
    wrong = gq.QuantArray.from_bytes(blocks.view(np.uint8).reshape(raw.shape), name, q.shape)
    x = fresh.standard_normal((3, 768)).astype(F)
    diagnosis = gq.diagnose((x @ wrong.dequantize(np.float64).T).astype(F), x, q)
    assert diagnosis.fault == ("scale-neighbour" if field == "scales" else "codes-misread")
    assert f"{field} of the next block" in diagnosis.text


def rewritten(q, field, change):
    """The blocks with the bytes of a field changed."""
    blocks = q.blocks.copy()
    raw = np.ascontiguousarray(blocks[field]).view(np.uint8).reshape(*blocks.shape, -1)
    changed = np.ascontiguousarray(change(raw), np.uint8)
    blocks[field] = changed.view(blocks.dtype[field].base).reshape(blocks[field].shape)
    return gq.QuantArray.from_bytes(blocks.view(np.uint8).reshape(len(blocks), -1), q.format, q.shape)


FIELDS = [
    ("q4_1", "qs", "codes-misread", planted.turned),
    ("q5_0", "qs", "nibble-order", lambda raw: np.roll(raw, -1, axis=-1)),
    ("q5_K", "qh", "high-bits", lambda raw: raw[..., ::-1]),
    ("q2_K", "scales", "sub-scale-unpack", lambda raw: ~raw),
    ("tq1_0", "qs", "codes-misread", lambda raw: np.repeat(raw[:, :1], raw.shape[1], axis=1)),
    ("q4_K", "scales", "scale-neighbour", lambda raw: np.roll(raw, -1, axis=0)),
    ("iq4_xs", "scales_h", "sub-scale-unpack", lambda raw: raw & 15),
]  # fmt: skip


@pytest.mark.drawn(3)
@pytest.mark.parametrize(("name", "field", "fault", "change"), FIELDS, ids=[f"{f[0]}-{f[1]}" for f in FIELDS])
def test_bytes_of_a_field_read_wrongly(name, field, fault, change, fresh):
    q = case(name, 32, 768, int(fresh.integers(1 << 20)))[1]
    x = fresh.standard_normal((3, 768)).astype(F)
    diagnosis = gq.diagnose((x @ rewritten(q, field, change).dequantize(np.float64).T).astype(F), x, q)
    assert diagnosis.fault == fault, diagnosis.text


@pytest.mark.parametrize(
    ("name", "fault", "change"),
    [
        ("q6_K", "nibble-order", lambda codes: codes.reshape(-1, 2, 2).swapaxes(1, 2)),  # of 4 lanes two
        ("q8_0", "codes-misread", lambda codes: codes % 256),
        ("q2_0", "offset-missing", lambda codes: codes + 1),
        ("iq3_s", "grid-index", lambda codes: codes.reshape(-1, 16, 4)[:, [*range(14), 13, 15]]),
    ],
)
def test_codes_of_a_block_read_wrongly(name, fault, change, fresh):
    q = case(name, 32, 768, int(fresh.integers(1 << 20)))[1]
    codes, scale, _ = q.format.unpack(q.blocks)
    signs = np.where(codes < 0, -1, 1) if name == "iq3_s" else np.ones_like(codes)  # they stay
    wrong = change(codes.astype(np.float64) * signs).reshape(codes.shape) * signs
    values = wrong.reshape(*scale.shape, -1) * scale[..., None].astype(np.float64)
    x = fresh.standard_normal((5, 768)).astype(F)
    diagnosis = gq.diagnose((x @ values.reshape(32, 768).T).astype(F), x, q)
    assert diagnosis.fault == fault, diagnosis.text


def test_minima_of_another_block(fresh):
    """Of a layout that has unpacked scales and minima in arrays of their own."""
    q = case("q4_K", 32, 768, int(fresh.integers(1 << 20)))[1]
    codes, scale, low = q.format.unpack(q.blocks)
    parts = codes.reshape(*scale.shape, 32) * scale[..., None].astype(np.float64)
    values = (parts - np.roll(low, -1, axis=1)[..., None]).reshape(32, 768)
    x = fresh.standard_normal((5, 768)).astype(F)
    diagnosis = gq.diagnose((x @ values.T).astype(F), x, q)
    assert diagnosis.fault == "scale-neighbour", diagnosis.text


def test_a_part_of_k_inside_is_missing(fresh):
    q = case("q4_0", 32, 256, int(fresh.integers(1 << 20)))[1]
    x = fresh.standard_normal((4, 256)).astype(F)
    weights = q.dequantize(np.float64)
    weights[:, 64:96] = 0
    diagnosis = gq.diagnose((x @ weights.T).astype(F), x, q)
    assert (diagnosis.fault, diagnosis.where["K-blocks"]) == ("unknown", {"missing": [(64, 96)]})


def test_infinities_of_unit_vectors_are_an_overflow():
    """Integer sums of unit vectors become halves; nothing else is wrong."""
    q = case("q6_K", 16, 256)[1]
    weights = q.dequantize(np.float64)
    large = np.abs(weights) > np.median(np.abs(weights))
    y = np.where(large, np.copysign(np.inf, weights), 127 * weights).T.astype(F)
    assert gq.diagnose(y, 127 * np.eye(256, dtype=F), q).fault == "scale-f16-overflow"
