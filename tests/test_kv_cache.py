"""KVCache: sequences of different lengths attend to what was appended; a full one is an error."""

from __future__ import annotations

import json
from importlib import import_module
from itertools import pairwise

import numpy as np
import pytest
from families import family_model

import ggmlq as gq
from ggmlq import errors
from ggmlq.cli import main
from ggmlq.ops.cache import Rotation, hadamard

encoding = import_module("ggmlq.ops.quantize")  # ggmlq.ops has the function of that name


def rows(fresh, *shape):
    return fresh.standard_normal(shape, np.float32)


def test_chunks_of_any_size_are_one_whole(fresh):
    """Bytes of quantize, results of attention on them, however the positions came."""
    k, v, q = rows(fresh, 2, 3, 40, 64), rows(fresh, 2, 3, 40, 96), rows(fresh, 2, 6, 4, 64)
    c, cuts = gq.KVCache(3, 64, 50, "q8_0", "q5_1", batch=2, width_v=96), [0, 1, 2, 17, 17, 40]
    assert len(c) == 0
    assert not c.attend(q).any()
    for a, b in pairwise(cuts):
        c.append(k[:, :, a:b].astype(np.float16).astype(np.float32), v[:, :, a:b])
    kq, vq = gq.quantize(k.astype(np.float16), "q8_0"), gq.quantize(v, "q5_1")
    assert gq.equal(c.k[:, :, :40], kq)
    assert gq.equal(c.v[:, :, :40], vq)
    assert np.array_equal(c.attend(q, causal=True), gq.attention(q, kq, vq, causal=True))
    assert len(c) == 40


def test_sequences_of_different_lengths(fresh):
    c = gq.KVCache(2, 32, 20, "f16", "q4_0", batch=3)
    k, v = rows(fresh, 3, 2, 7, 32), rows(fresh, 3, 2, 7, 32)
    c.append(k, v, lengths=[7, 0, 3])
    c.append(v, k, lengths=np.array([1, 5, 0], np.int32))
    assert c.lengths.tolist() == [8, 5, 3]
    assert len(c) == 8
    q = rows(fresh, 3, 4, 2, 32)
    y = c.attend(q, causal=True)
    parts = (
        (np.concatenate([k[0], v[0, :, :1]], 1), np.concatenate([v[0], k[0, :, :1]], 1)),
        (v[1, :, :5], k[1, :, :5]),
        (k[2, :, :3], v[2, :, :3]),
    )
    for b, (keys, values) in enumerate(parts):
        kq, vq = gq.quantize(keys[None], "f16"), gq.quantize(values[None], "q4_0")
        want = gq.attention(q[b : b + 1], kq, vq, causal=True)
        assert np.array_equal(y[b], want[0]), b
    c.truncate([8, 2, 9])
    assert c.lengths.tolist() == [8, 2, 3]
    c.truncate(3)
    assert c.lengths.tolist() == [3, 2, 3]
    c.lengths[:] = 0  # a copy
    c.append(k[:, :, :1], v[:, :, :1])
    assert c.lengths.tolist() == [4, 3, 4]
    assert np.array_equal(c.k[1, :, 2].dequantize(), k[1, :, 0].astype(np.float16))


def test_a_full_cache_is_an_error_and_stays_as_it_was(fresh):
    c = gq.KVCache(1, 32, 8, batch=2)
    c.append(rows(fresh, 2, 1, 6, 32), rows(fresh, 2, 1, 6, 32), lengths=[6, 3])
    before = c.k.raw.copy(), c.v.raw.copy()
    more = rows(fresh, 2, 1, 3, 32)
    with pytest.raises(
        errors.BlockIndexError, match="sequence 0 has 6 positions and would get 3; the cache holds 8"
    ):
        c.append(more, more)
    bad = more.copy()
    bad[1, 0, 1, 5] = np.nan
    with pytest.raises(errors.NonFiniteError):
        c.append(bad, more, lengths=[2, 3])
    assert c.lengths.tolist() == [6, 3]
    assert np.array_equal(before[0], c.k.raw)
    assert np.array_equal(before[1], c.v.raw)
    c.append(more, more, lengths=[2, 3])
    assert c.lengths.tolist() == [8, 6]


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [False, True])
def test_put_refuses_what_does_not_fit(compiled, fresh, monkeypatch):
    """Wider rows would be written beyond the memory, narrower ones repeated; both stay as they were."""
    monkeypatch.setattr(encoding, "PATIENCE", -1 if compiled else 1 << 60)
    for name in ("q8_0", "q4_0", "f16", "iq4_nl"):
        c = gq.KVCache(2, 64, 100, name, name)
        x, ids = rows(fresh, 1, 2, 30, 64), fresh.permutation(200)[:60].reshape(1, 2, 30)
        c.put(ids, x, x)
        assert gq.equal(c.k.reshape(200, 64)[ids.reshape(-1)], gq.quantize(x.reshape(60, 64), name))
        before = c.k.raw.copy(), c.v.raw.copy()
        wrong = [np.ones((1, 2, 30, width), np.float32) for width in (32, 128, 4096)]
        for k, v, places in (
            *((w, w, ids) for w in wrong),
            *((-x, w, ids) for w in wrong),
            (x, x, ids[..., 1:]),
        ):
            with pytest.raises(errors.ShapeError, match="has a row of q for each id"):
                c.put(places, k, v)
        assert all(np.array_equal(*pair) for pair in zip(before, (c.k.raw, c.v.raw), strict=True))


def test_values_that_are_columns_of_keys(fresh):
    c = gq.KVCache(1, 192, 30, "q8_0", width_v=128, shared=True)
    k, q = rows(fresh, 1, 1, 9, 192), rows(fresh, 1, 16, 2, 192)
    c.append(k)
    assert c.nbytes == c.k.nbytes
    kq = gq.quantize(k, "q8_0")
    assert np.array_equal(c.attend(q, causal=True), gq.attention(q, kq, kq[..., :128], causal=True))


@pytest.mark.parametrize("shared", [False, True])
def test_rotation_changes_nothing_but_roundings(shared, fresh):
    """In float32 the same results; with outliers in q4_0 smaller errors."""
    k, v, q = (
        rows(fresh, 1, 2, 200, 96),
        None if shared else rows(fresh, 1, 2, 200, 64),
        rows(fresh, 1, 4, 5, 96),
    )
    k[..., [3, 70]] *= 15
    off = {}
    for name in ("f32", "q4_0"):
        for rotate in (False, True, 7):
            c = gq.KVCache(2, 96, 200, name, name, width_v=64, shared=shared, rotate=rotate)
            c.append(*(x for x in (k, v) if x is not None))
            y = c.attend(q, causal=True, scale=0.02)
            want = gq.reference.attention(q, k, k[..., :64] if shared else v, causal=True, scale=0.02)
            off[name, rotate] = gq.nmse(y, want)
            assert np.array_equal(
                c.attend(q, causal=True, scale=0.02, dtype=np.float16), y.astype(np.float16)
            )
            out = np.empty_like(y)
            assert c.attend(q, causal=True, scale=0.02, out=out) is out
            assert np.array_equal(out, y)
    assert max(off["f32", rotate] for rotate in (False, True, 7)) < 1e-11
    # Of 60 draws 0.60 in the median, 0.73 at most.
    assert max(off["q4_0", True], off["q4_0", 7]) < 0.85 * off["q4_0", False]
    assert off["q4_0", True] != off["q4_0", 7]


def test_rotations_are_orthogonal(fresh):
    for width, part, block in (
        (128, 0, 128),
        (96, 0, 32),
        (576, 512, 64),
        (80, 0, 16),
        (2048, 0, 512),
        (33, 0, 1),
    ):
        rotation, x = Rotation(width, 3, part), rows(fresh, 5, width)
        assert rotation.block == block
        y = rotation.forward(x)
        assert np.allclose(rotation.back(y), x, atol=1e-5)
        assert np.allclose(y @ y.T, x @ x.T, rtol=1e-4, atol=1e-3)
        assert np.array_equal(rotation.forward(x[:2, :part]), y[:2, :part]) or not part
    assert np.array_equal(
        hadamard(np.eye(4, dtype=np.float32)) * 2,
        [[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]],
    )


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda c, x: gq.KVCache(2, 48, 10), errors.ShapeError, "pad the last axis to 64"),
        (lambda c, x: gq.KVCache(0, 32, 10), errors.ShapeError, "heads is 0"),
        (lambda c, x: gq.KVCache(1, 32, 9, width_v=64, shared=True), errors.ShapeError, "first columns"),
        (lambda c, x: gq.KVCache(1, 32, 10, device="gpu"), errors.DeviceError, '"cuda:1"'),
        (lambda c, x: gq.KVCache(10**9, 64, 10**9), errors.ShapeError, r"fewer than 2\*\*63"),
        (lambda c, x: gq.KVCache(1, 32, 10, rotate=1.5), errors.DTypeError, "a seed from 0 on"),
        (lambda c, x: c.advance(11), errors.BlockIndexError, "from 0 to 10"),
        (lambda c, x: c.advance(1.5), errors.BlockIndexError, "pass an integer from 0 to 10"),
        (lambda c, x: c.advance("x"), errors.BlockIndexError, "pass an integer from 0 to 10"),
        (lambda c, x: c.append(x), errors.DTypeError, "v is missing; .*pass k and v"),
        (lambda c, x: c.append(x[0], x), errors.ShapeError, r"here \(1, 2, T, 32\)"),
        (lambda c, x: c.append(x, x[:, :, :1]), errors.ShapeError, "k has 3 positions, v 1"),
        (lambda c, x: c.append(x, x, lengths=[4]), errors.ShapeError, "from 0 to 3"),
        (lambda c, x: c.append(x, x, lengths=[1, 1]), errors.ShapeError, "one for each of 1"),
        (lambda c, x: c.attend(x, lengths=[1]), errors.DTypeError, "leave lengths out"),
        (lambda c, x: c.truncate(-1), errors.ShapeError, r"truncate\(-1\)"),
        (lambda c, x: c.put([0], x), errors.DTypeError, "v is missing"),
        (lambda c, x: c.put(np.arange(6.0).reshape(1, 2, 3), x, x), errors.DTypeError, "ids are float64"),
    ],
)  # fmt: skip
def test_errors(call, error, words):
    c = gq.KVCache(2, 32, 10)
    with pytest.raises(error, match=words):
        call(c, np.ones((1, 2, 3, 32), np.float32))
    assert c.lengths.tolist() == [0]


def test_numbers_and_results_of_odd_sizes(fresh):
    c = gq.KVCache(1, 32, 10, rotate=True)
    x = rows(fresh, 1, 1, 4, 32)
    c.append(x, x)
    for most in (2**63, np.array([2**64 - 1], np.uint64)):  # no int64 holds them
        c.truncate(most)
        assert c.lengths.tolist() == [4]
    with pytest.raises(errors.ShapeError, match="out has shape"):  # NumPy would write the result twice
        c.attend(x, out=np.empty((2, 1, 4, 32)))
    assert c.attend(x, dtype=np.float64).dtype == np.float64


def test_the_cost_of_each_type(fresh):
    """More bits less error; keys and values apart; a rotation helps where a column is large."""
    q, k, v = (rows(fresh, 1, n, 100, 64) for n in (4, 2, 2))
    k[..., 9] *= 12
    table = gq.cache_error(q, k, v, ("f16", "q8_0", "q4_0"), causal=True, scale=0.05)
    by_type = {(row.type, row.rotated): row for row in table}
    assert [row.type for row in table] == ["f16", "f16", "q8_0", "q8_0", "q4_0", "q4_0"]
    for part in ("keys", "values", "both"):
        f16, q8, q4 = (getattr(by_type[name, False], part) for name in ("f16", "q8_0", "q4_0"))
        assert f16 < q8 < q4
    assert by_type["q4_0", True].keys < 0.7 * by_type["q4_0", False].keys
    kq, vq = gq.quantize(k, "q4_0"), gq.quantize(v, "q4_0")
    want = gq.reference.attention(q, k, v, causal=True, scale=0.05)
    y = gq.attention(q, kq, vq, causal=True, scale=0.05)
    assert np.isclose(by_type["q4_0", False].both, gq.nmse(y, want), rtol=1e-3)
    assert str(table).splitlines()[0].split() == ["type", "bits", "rotated", "keys", "values", "both"]
    with pytest.raises(gq.errors.DTypeError, match="k is int64"):
        gq.cache_error(q, k.astype(int), v)


def called(capsys, *words):
    assert main(["cache-error", *map(str, words)]) == 0
    return capsys.readouterr().out


def test_the_cost_in_a_model(fresh, tmp_path, capsys):
    """Each layer's queries, keys and values, with what they see; means of their errors; arrays of a file."""
    path = family_model(tmp_path / "m.gguf", "gemma3", int(fresh.integers(1 << 30)), types=("q8_0",))
    m = gq.model.load(path, cache="f32")
    tokens = fresh.integers(3, 259, 30).tolist()
    layers = list(gq.model.attention_operands(m, tokens))
    results = [x for name, x in m.nodes(tokens, flash=True) if name.startswith("kqv_out")]
    assert len(layers) == len(results) == m.config.layers
    assert [a.options["window"] for a in layers] == [window or None for window in m.config.windows]
    for a, y in zip(layers, results, strict=True):
        again = gq.attention(a.q, a.k, a.v, **a.options)[0]
        assert np.allclose(again.swapaxes(0, 1).reshape(y.shape), y, atol=1e-5 * np.abs(y).max())
    facts = json.loads(called(capsys, path, "--tokens", 30, "--types", "q8_0,q4_0", "--json"))
    assert facts["tokens"] == 30
    means = [np.mean([layer[i]["both"] for layer in facts["layers"]]) for i in range(4)]
    assert np.allclose([row["both"] for row in facts["errors"]], means)
    q, k, v = layers[0][:3]
    np.savez(tmp_path / "a.npz", q=q, k=k, v=v)
    table = gq.cache_error(q, k, v, "q4_0", causal=True)
    assert called(capsys, tmp_path / "a.npz", "--causal", "--types", "q4_0") == f"{table}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a.npz"], "no arrays q, k and v"),
        (["a.npz", "--tokens", "3"], "arrays read no text"),
        (["m.gguf"], "pass --prompt, --file or --tokens"),
        (["m.gguf", "--causal"], "leave it out"),
    ],
)
def test_errors_of_the_command(words, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("a.npz", q=np.ones(3))
    family_model(tmp_path / "m.gguf", "llama", 1, types=("q8_0",))
    assert main(["cache-error", *words]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("cache-error") == 1
