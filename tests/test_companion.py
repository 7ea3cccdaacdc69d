"""Companion scales: values and products are blocks times a number of the file, wherever they come up."""

from __future__ import annotations

import copy
import pickle

import ml_dtypes
import numpy as np
import pytest

import ggmlq as gq
from ggmlq import errors
from ggmlq.arrays.companion import checked_scale

E, N, K = 5, 7, 128


def scaled(fresh, shape, scale, name="nvfp4"):
    """An array with a scale, and the same blocks without one."""
    plain = gq.quantize(fresh.standard_normal(shape, np.float32), name)
    return gq.QuantArray.from_bytes(plain.raw, name, shape, scale=scale), plain


@pytest.fixture
def matrix(fresh):
    return scaled(fresh, (N, K), np.float32(fresh.uniform(0.1, 9)))


@pytest.fixture
def experts(fresh):
    return scaled(fresh, (E, N, K), fresh.uniform(0.1, 9, E).astype(np.float32))


def test_what_it_is(matrix, experts):
    q, plain = matrix
    assert plain.scale is None
    assert isinstance(q.scale, np.float32)
    assert f"scale {q.scale:.6g}" in repr(q)
    assert "scale" in q._repr_html_()
    assert np.array_equal(q.raw, plain.raw)
    assert np.array_equal(q.blocks, plain.blocks)
    assert q.nbytes == plain.nbytes
    assert experts[0].scale.shape == (E,)
    assert "scale (5,)" in repr(experts[0])
    with pytest.raises(ValueError, match="read-only"):
        experts[0].scale[0] = 1


@pytest.mark.parametrize("kind", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
def test_values_are_rounded_once(kind, matrix, experts):
    for q, plain in (matrix, experts):
        scale = np.asarray(q.scale)
        want = (plain.dequantize() * scale.reshape(*scale.shape, *[1] * (q.ndim - scale.ndim))).astype(kind)
        assert np.array_equal(q.dequantize(kind), want)
        out = np.empty((2 * q.shape[0], *q.shape[1:]), kind)
        assert gq.dequantize(q, out=out[::2]).shape == q.shape
        assert np.array_equal(out[::2], want)
        ids = [[3, 0], [2, 2]]
        assert np.array_equal(gq.take(q, ids, kind), want[ids])
        rows = gq.take(q, [1, -1, 99], kind, check=False)
        assert np.array_equal(rows[0], want[1])
        assert np.isnan(rows[1:].astype(np.float32)).all()
    assert np.array_equal(np.asarray(q.T), np.asarray(q).T)
    assert np.asarray(q[:, :0]).shape == (E, 0, K)
    assert gq.take(q[:0], [0], check=False).shape == (1, N, K)


@pytest.mark.parametrize("name", ["nvfp4", "q4_K", "q8_0", "f16"])
def test_products(name, fresh):
    """Warm and cold, with a bias and in 16 bits: the sums times the scale, then the bias, rounded once."""
    k = 512
    q, plain = scaled(fresh, (N, k), np.float32(0.37), name)
    x, bias = (fresh.standard_normal(shape, np.float32) for shape in ((2, 3, k), N))
    sums = gq.linear(x, plain) * np.float32(0.37)
    for _ in range(3):
        assert np.array_equal(gq.linear(x, q), sums)
        assert np.array_equal(x @ q.T, sums)
        assert np.array_equal(gq.linear(x, q, bias=bias), sums + bias)
        out = np.empty((2, 3, N), np.float32)
        assert np.array_equal(gq.linear(x, q, bias=bias, out=out), sums + bias)
        assert np.array_equal(gq.linear(x, q, bias=bias, dtype=np.float16), (sums + bias).astype(np.float16))
    exact = gq.reference.linear(x, q)
    np.testing.assert_allclose(exact, 0.37 * gq.reference.linear(x, plain), rtol=1e-6)
    assert gq.diagnose(sums, x, q).ok
    assert not gq.diagnose(gq.linear(x, plain), x, q).ok


def test_products_with_experts(experts, fresh):
    q, plain = experts
    ids = fresh.integers(0, E, (4, 3))
    for x in (fresh.standard_normal((4, K), np.float32), fresh.standard_normal((4, 3, K), np.float32)):
        want = gq.expert_linear(x, plain, ids) * q.scale[ids][..., None]
        for _ in range(2):
            assert np.array_equal(gq.expert_linear(x, q, ids), want)
        assert np.array_equal(gq.expert_linear(x, q, ids, dtype=np.float16), want.astype(np.float16))
        exact = gq.reference.expert_linear(x, q, ids)
        assert gq.nmse(want, exact) < 1e-3
        assert gq.diagnose(want, x, q, ids=ids).ok
    wrong = ids.copy()
    wrong[0, 1] = E
    assert np.isnan(gq.expert_linear(x, q, wrong, check=False)[0, 1]).all()


@pytest.mark.parametrize("each", [False, True])
def test_products_with_rows_as_they_lie_and_gates(each, fresh):
    """``y @ q`` and gated products, with one scale or with one for each row."""
    scale = fresh.random(N, np.float32) if each else np.float32(0.37)
    q, _ = scaled(fresh, (N, K), scale)
    w = fresh.standard_normal((N, 16))
    wide = gq.QuantArray.from_bytes(w.tobytes(), "f64", w.shape, scale=scale)  # NumPy multiplies
    y, x = (fresh.standard_normal((5, length), np.float32) for length in (N, K))
    values = np.asarray(q, np.float64)
    assert gq.nmse(y @ q, y @ values) < 1e-11
    assert gq.nmse(y @ wide, y @ np.asarray(wide, np.float64)) < 1e-11
    assert gq.nmse(gq.reference.linear(y, q.T), y @ values) < 1e-13
    assert gq.nmse(gq.gated_linear(x, q, q, arithmetic="f32"), gq.reference.gated_linear(x, q, q)) < 1e-10


def test_parts_keep_their_own(experts, fresh):
    """Every view and copy decodes to the same part of the values."""
    q, _ = experts
    values, mask = np.asarray(q), np.arange(E) % 2 == 0
    steps = [2, -1, slice(1, 4), slice(None, None, 2), [3, 0, 3], mask, (1, slice(2, 5)), (slice(None), 2)]
    steps += [([1, 2], [3, 4]), (slice(1, 3), [0, 6]), ([[0, 1], [4, 2]],), (..., slice(0, 64)), (2, [5, 1])]
    for step in steps:
        part = q[step]
        assert np.array_equal(np.asarray(part), values[step]), step
    assert q[2].scale == q.scale[2]
    assert np.array_equal(q[1:4].scale, q.scale[1:4])
    assert [one.scale for one in q] == list(q.scale)
    for dims in ((E * N, K), (E, N * 2, K // 2), (1, E, N, K), (E, N * K)):
        assert np.array_equal(np.asarray(q.reshape(dims)), values.reshape(dims))
    with pytest.raises(errors.ShapeError, match="several scales"):
        q.reshape(1, E * N * K)
    for twin in (q.copy(), copy.deepcopy(q), pickle.loads(pickle.dumps(q)), q.to("cpu")):
        assert gq.equal(twin, q)
    shards = gq.parallel.shard(q, ["cpu", "cpu"], axis="experts")
    ids, x = fresh.integers(0, E, (3, 2)), fresh.standard_normal((3, K), np.float32)
    size = np.einsum("tk,tunk->tun", np.abs(x), np.abs(values[ids]))  # of the terms
    assert (np.abs(gq.expert_linear(x, shards, ids) - gq.expert_linear(x, q, ids)) <= 1e-6 * size).all()


def test_equality_and_joining(matrix, experts, fresh):
    q, plain = matrix
    assert not gq.equal(q, plain)
    assert not gq.equal(q, gq.QuantArray.from_bytes(q.raw, "nvfp4", q.shape, scale=q.scale * 2))
    assert gq.concatenate([q, q]).scale == q.scale
    other, _ = scaled(fresh, (3, K), 0.5)
    for arrays, axis in (([q, other], 0), ([q, plain], 0), ([experts[0], experts[0][:2]], 0), ([q, q], 1)):
        values = np.concatenate([np.asarray(one) for one in arrays], axis)
        joined = gq.concatenate(arrays, axis)
        assert np.array_equal(np.asarray(joined), values)
    joined = gq.concatenate([q, other])
    x = fresh.standard_normal((4, K), np.float32)
    assert np.array_equal(x @ joined.T, np.concatenate([x @ q.T, x @ other.T], 1))
    stacked = gq.stack([q, plain, q])
    assert np.array_equal(stacked.scale, np.float32([q.scale, 1, q.scale]))
    assert gq.concatenate([plain, plain]).scale is None
    with pytest.raises(errors.ShapeError, match="columns of one row"):
        gq.concatenate([q, plain], axis=1)


@pytest.mark.parametrize("order", ["little", "big"])
def test_files(order, matrix, experts, tmp_path):
    """A file has them as tensors of their own, and gives them back; saved again it is the same file."""
    (q, plain), (e, _) = matrix, experts
    path = tmp_path / "m.gguf"
    gq.save(path, {"a.weight": q, "b.weight": plain, "e.weight": e, "odd": q}, byteorder=order)
    f = gq.open(path)
    assert list(f) == ["a.weight", "a.scale", "b.weight", "e.weight", "e.scale", "odd", "odd.scale"]
    assert (f["a.scale"].shape, f["e.scale"].shape) == ((1,), (E,))
    assert gq.equal(f["a.weight"], q)
    assert gq.equal(f["e.weight"], e)
    assert f["b.weight"].scale is None
    assert np.array_equal(f["e.weight"][1:3].scale, e.scale[1:3])
    gq.save(tmp_path / "again.gguf", f, byteorder=order)
    assert (tmp_path / "again.gguf").read_bytes() == path.read_bytes()
    assert gq.equal(f.to("cpu")["a.weight"], q)
    gq.save(tmp_path / "big.gguf", {"a.weight": np.asarray(q)})
    assert gq.diff.compare(path, tmp_path / "big.gguf").tensors[0].nmse == 0


def test_names_in_files(matrix, tmp_path):
    """The other name, other shapes, and what only looks like a companion."""
    _, plain = matrix
    path = tmp_path / "m.gguf"
    three = np.float32([3])
    odd = {"c.weight": gq.quantize(np.asarray(plain), "q8_0"), "c.scale": np.ones(3, np.float32)}
    odd |= {"d": odd["c.weight"], "d.scale": three, "b": plain, "b.scale": three}
    gq.save(path, {"a.weight": plain, "a.weight.scale": three, "a.input_scale": three, **odd})
    f = gq.open(path)
    assert f["a.weight"].scale == 3
    assert f["b"].scale == 3
    assert f["c.weight"].scale is None
    assert f["d"].scale is None
    gq.save(tmp_path / "again.gguf", f)
    assert list(gq.open(tmp_path / "again.gguf")) == list(f)
    with pytest.raises(errors.GGUFError, match=r"'a.weight'.*'a.scale' says otherwise"):
        gq.save(tmp_path / "x.gguf", {"a.weight": f["a.weight"], "a.scale": np.float32([4])})
    gq.save(path, {"a.weight": plain, "a.scale": np.ones(2, np.float32)})
    with pytest.raises(errors.GGUFError, match=r"companion has shape \(2,\)"):
        gq.open(path)["a.weight"]
    eight = gq.QuantArray.from_bytes(gq.quantize(np.ones((2, 32)), "q8_0").raw, "q8_0", (2, 32), scale=2)
    gq.save(tmp_path / "z.gguf", {"w.weight": eight})
    assert gq.equal(gq.open(tmp_path / "z.gguf")["w.weight"], eight)
    with pytest.raises(errors.GGUFError, match=r"names end in \.weight"):
        gq.save(tmp_path / "z.gguf", {"w": eight})
    rows = gq.concatenate([gq.open(tmp_path / "again.gguf")["a.weight"], plain])
    with pytest.raises(errors.GGUFError, match="one a tensor or"):
        gq.save(tmp_path / "y.gguf", {"w.weight": rows})


def test_conversion_keeps_them_apart(matrix, tmp_path):
    """Blocks are converted as they are, as llama.cpp does, and the companion still says their scale."""
    q, _ = matrix
    gq.save(tmp_path / "a.gguf", {"blk.0.ffn_up.weight": q}, {"general.architecture": "llama"})
    gq.convert.quantize(tmp_path / "a.gguf", tmp_path / "b.gguf", "q8_0", allow_requantize=True)
    gq.convert.dequantize(tmp_path / "a.gguf", tmp_path / "c.gguf")
    name = "blk.0.ffn_up.weight"
    eight, floats = gq.open(tmp_path / "b.gguf")[name], gq.open(tmp_path / "c.gguf")[name]
    assert (eight.format.name, floats.format.name) == ("q8_0", "f32")
    assert gq.nmse(np.asarray(eight), np.asarray(q)) < 1e-4
    assert np.array_equal(np.asarray(floats), np.asarray(q))


def test_refusals(matrix):
    q, plain = matrix
    with pytest.raises(errors.UnsupportedError, match="companion scale"):
        gq.put(q.copy(), [0], np.ones((1, K)))
    with pytest.raises(errors.ShapeError, match=r"scale has shape \(3,\)"):
        gq.QuantArray.from_bytes(plain.raw, "nvfp4", plain.shape, scale=[1, 2, 3])
    with pytest.raises(errors.DTypeError, match="no array of numbers"):
        gq.QuantArray.from_bytes(plain.raw, "nvfp4", plain.shape, scale="much")
    assert checked_scale("r", None, (3,)) is None
    numbers = np.float32([1, 2])
    assert checked_scale("r", numbers, (2, 3)) is not numbers


def test_attention_reads_them(fresh):
    k, plain = scaled(fresh, (1, 2, 9, 64), np.float32(0.5), "q8_0")
    q = fresh.standard_normal((1, 2, 3, 64), np.float32)
    floats = k.dequantize()
    assert np.array_equal(gq.attention(q, k, k), gq.attention(q, floats, floats))
    assert not np.allclose(gq.attention(q, k, k), gq.attention(q, plain, plain))
