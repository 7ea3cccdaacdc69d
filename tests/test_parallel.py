"""Weights in parts on several devices, here all of them the host: the rules that hold on GPUs too."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.arrays.blocks import random_blocks
from ggmlq.errors import BlockIndexError, DeviceError, DTypeError, GGMLQError, ShapeError, UnsupportedError
from ggmlq.formats import FORMATS

TWO = ["cpu", "cpu"]
USUAL = ("q4_0", "q4_K", "f32", "f16")  # and one more each run: most of the time goes into compiling kernels
TILES = [
    ("e4m3", (128, 128)),
    ("e4m3", (1, 128)),
    ("e5m2", (None, None)),
    ("int8", (1, None)),
    ("int8_full", (64, 32)),
]


def near(y, single):
    """Per row of weights, the same arithmetic in another order."""
    assert y.shape == single.shape
    assert y.dtype == single.dtype
    if single.size:
        y, single = (a.reshape(-1, a.shape[-1]).astype(np.float64) for a in (y, single))
        squares = (single**2).mean(axis=0)
        error = ((y - single) ** 2).mean(axis=0) / np.maximum(squares, squares.mean() * 0.1)
        assert not np.any(error > 1e-9), error.max()


def weights(fresh, name, *shape):
    """Valid bytes of a format, with sane scales, whether or not it can be encoded."""
    fmt = gq.formats[name]
    if fmt.block_size == 1:
        return gq.quantize(fresh.standard_normal(shape, np.float32), name)
    rows = int(np.prod(shape[:-1]))
    blocks = random_blocks(fmt, rows, shape[-1] // fmt.block_size, int(fresh.integers(1 << 30)))
    return gq.QuantArray.from_bytes(blocks.tobytes(), name, shape)


@pytest.mark.parametrize("name", [*USUAL, "another"])
def test_products_of_parts_are_those_of_the_whole(name, fresh):
    if name == "another":
        others = [fmt.name for fmt in FORMATS.values() if fmt.block_size > 1 and fmt.name not in USUAL]
        name = str(fresh.choice(others))
    unit = max(gq.formats[name].block_size, 32)
    count = int(fresh.integers(2, 4))
    n, k = int(fresh.integers(count, 200)), unit * int(fresh.integers(count, count + 4))
    q = weights(fresh, name, n, k)
    x = fresh.standard_normal((int(fresh.integers(1, 9)), k), np.float32)
    single = x @ q.T
    for axis in (0, 1, -1, None):
        s = gq.parallel.shard(q, ["cpu"] * count, axis)
        assert s.shape == q.shape
        assert gq.equal(s.to("cpu"), q)
        near(x @ s.T, single)
        near(x[0] @ s.T, single[0])
        near(gq.parallel.linear(x, s).gather(), single)
        near(gq.linear(gq.parallel.replicate(x, s.devices), s), single)


@pytest.mark.parametrize(("code", "tile"), TILES)
def test_products_of_scaled_parts(code, tile, fresh):
    n, k = int(fresh.integers(130, 300)), 128 * int(fresh.integers(2, 5))
    w = gq.quantize_scaled(fresh.standard_normal((n, k), np.float32), code, tile)
    x = fresh.standard_normal((5, k), np.float32)
    single, narrow = x @ w.T, gq.quantize_scaled(x, code, (1, 64))
    for axis in (0, 1, None):
        s = gq.parallel.shard(w, TWO, axis)
        near(x @ s.T, single)
        assert [part.code for part in s.parts] == [w.code] * 2
        if tile[1] != 128:
            continue
        near(narrow @ s.T, narrow @ w.T)
    if w.unit < 96:  # cut where tiles of x would not end: each part has tiles of its own
        y = x[:, :128] @ gq.parallel.shard(w[:, :128], TWO, 1, cuts=[96]).T
        assert gq.nmse(y, x[:, :128].astype(np.float64) @ w[:, :128].dequantize().T) < 2e-2
    requantized = gq.scaled_linear(x, gq.parallel.shard(w, TWO), requantize=("int8", 0.5))
    assert gq.equal(requantized, gq.scaled_linear(x, w, requantize=("int8", 0.5)))


def test_whole_tiles_keep_their_scales(fresh):
    w = gq.quantize_scaled(fresh.standard_normal((3, 512, 256), np.float32), "e4m3", (128, 128))
    s = gq.parallel.shard(w, TWO)
    assert [part.tile for part in s.parts] == [(128, 128)] * 2
    assert sum(part.nbytes for part in s.parts) == w.nbytes
    flat = gq.parallel.shard(w[0], ["cpu"] * 3)
    assert all(part.tile == (128, 128) for part in flat.parts)


@pytest.mark.parametrize("axis", [0, 1, "experts", None])
@pytest.mark.parametrize("kind", ["q4_K", "q8_0", "scaled"])
def test_experts(kind, axis, fresh):
    w = fresh.standard_normal((5, 256, 512), np.float32)
    q = gq.quantize_scaled(w, "e4m3", (128, 128)) if kind == "scaled" else gq.quantize(w, kind)
    ids = fresh.integers(0, 5, (7, 2))
    s = gq.parallel.shard(q, TWO, axis)
    for x in (fresh.standard_normal((7, 512), np.float32), fresh.standard_normal((7, 2, 512), np.float32)):
        near(gq.expert_linear(x, s, ids), gq.expert_linear(x, q, ids))
    ids[3, 1] = 9
    with pytest.raises(BlockIndexError, match=r"ids\[3, 1\] is 9"):
        gq.expert_linear(x, s, ids)
    y = gq.expert_linear(x, s, ids, check=False)
    assert np.isnan(y[3, 1]).all()
    assert np.isfinite(np.delete(y.reshape(14, -1), 7, axis=0)).all()


def test_rows_then_columns_with_one_sum(fresh, rounds):
    for _ in rounds(1):
        count = int(fresh.integers(1, 4))
        width = 256 * int(fresh.integers(count, 9))
        up, gate = (
            gq.quantize(fresh.standard_normal((width, 256), np.float32), name) for name in ("q4_0", "q4_K")
        )
        down = gq.quantize(fresh.standard_normal((96, width), np.float32), "q4_K")
        x = fresh.standard_normal((3, 256), np.float32)
        silu = gq.parallel.silu
        single = (silu(x @ gate.T) * (x @ up.T)) @ down.T
        devices = ["cpu"] * count
        a, b = (gq.parallel.shard(q, devices, 0) for q in (up, gate))
        c = gq.parallel.shard(down, devices, 1)
        with gq.parallel.together(a, b, c, x=x):
            every = gq.parallel.replicate(x, devices)
            h = gq.parallel.linear(every, b).map(silu).map(np.multiply, gq.parallel.linear(every, a))
            y = gq.parallel.linear(h, c)
        assert y.spans is None
        near(np.asarray(y), single)
        near(h @ c.T, single)  # gathered


def test_operands_of_every_kind(fresh):
    q = gq.quantize(fresh.standard_normal((160, 256), np.float32), "q8_0")
    x, bias = fresh.standard_normal((2, 3, 256), np.float32), fresh.standard_normal(160, np.float32)
    single = gq.linear(x, q, bias=bias)
    for axis, count in ((0, 3), (0, 1), (1, 3), (1, 1), (None, 2)):
        s = gq.parallel.shard(q, ["cpu"] * count, axis)
        out = np.empty((2, 3, 160), np.float32)
        assert gq.linear(x, s, bias=bias, out=out) is out
        near(out, single)
        near(gq.parallel.linear(x, s, bias=bias).gather(), single)
        half = gq.linear(x, s, dtype=np.float16, kernel="cpu:naive")
        assert half.dtype == np.float16
        whole = gq.linear(x, q, dtype=np.float16, kernel="cpu:naive").astype(np.float32)
        assert np.allclose(half.astype(np.float32), whole, rtol=2e-3, atol=1e-3)
        near(gq.linear(x[0, 0].tolist(), s, bias=bias), single[0, 0])
        assert gq.linear(x[:0], s).shape == (0, 3, 160)
        near(np.matmul(x, s.T), x @ q.T)


def test_tensors_of_torch(fresh):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    q = gq.quantize(fresh.standard_normal((96, 64), np.float32), "q4_0")
    x = torch.from_numpy(fresh.standard_normal((4, 64), np.float32))
    for axis in (0, 1):
        y = gq.linear(x, gq.parallel.shard(q, TWO, axis), dtype=torch.bfloat16)
        assert y.dtype == torch.bfloat16
        assert torch.equal(y, gq.linear(x, gq.parallel.shard(q, TWO, axis)).to(torch.bfloat16))


def test_the_same_bits_again(fresh):
    q = gq.quantize(fresh.standard_normal((64, 768), np.float32), "q5_K")
    x = fresh.standard_normal((9, 768), np.float32)
    s = gq.parallel.shard(q, ["cpu"] * 3, 1)
    assert (x @ s.T).tobytes() == (x @ s.T).tobytes()
    terms = [x[:, a:b] @ part.T for (a, b), part in zip(s.spans, s.parts, strict=True)]
    assert np.array_equal(x @ s.T, (terms[0] + terms[1]) + terms[2])


def test_parts_are_views_of_what_was_there(fresh, tmp_path):
    q = gq.quantize(fresh.standard_normal((256, 512), np.float32), "q4_K")
    for axis in (0, 1):
        for part in gq.parallel.shard(q, TWO, axis).parts:
            assert np.shares_memory(part.raw, q.raw)
    s = pickle.loads(pickle.dumps(gq.parallel.shard(q, TWO, 1)))
    assert gq.equal(s.to("cpu"), q)
    assert np.array_equal(np.asarray(s), np.asarray(q))
    assert gq.equal(s.copy().to("cpu"), q)
    assert "columns 128" not in repr(s)
    assert "256" in s._repr_html_()


def test_cuts_are_those_of_the_other_side():
    for length in (512, 768, 1000, 2816, 11008, 28672):
        for count in (1, 2, 3, 8):
            n = gq.QuantArray.from_bytes(bytes(length * 34), "q8_0", (length, 32))
            rows = gq.parallel.shard(n, ["cpu"] * count).spans
            sizes = [end - first for first, end in rows]
            assert sum(sizes) == length
            assert max(sizes) - min(sizes) <= 256
            if length % 32 == 0:
                k = gq.QuantArray.from_bytes(bytes(length // 32 * 34), "q8_0", (1, length))
                assert gq.parallel.shard(k, ["cpu"] * count, 1).spans == rows


def test_cuts_that_are_given(fresh):
    up = gq.quantize(fresh.standard_normal((768, 64), np.float32), "q4_0")
    down = gq.quantize(fresh.standard_normal((32, 768), np.float32), "q4_K")
    c = gq.parallel.shard(down, TWO, 1)
    a = gq.parallel.shard(up, TWO, cuts=c.cuts)
    assert a.spans == c.spans
    other = gq.parallel.shard(up, TWO, cuts=[32])
    x = fresh.standard_normal((2, 64), np.float32)
    single = (x @ up.T) @ down.T
    for s in (a, other):  # parts that do not fit are gathered on the way
        near(gq.linear(gq.parallel.linear(x, s), c), single)
    for wrong in ([100], [0], [768], [256, 512], "ab", [1.5], [True]):
        with pytest.raises(ShapeError, match="cuts="):
            gq.parallel.shard(down, TWO, 1, cuts=wrong)


# --- files ----------------------------------------------------------------------------------


@pytest.fixture
def model(tmp_path, fresh):
    tensors = {
        "token_embd.weight": gq.quantize(fresh.standard_normal((300, 256), np.float32), "q8_0"),
        "blk.0.attn_norm.weight": fresh.standard_normal(256, np.float32),
        "blk.0.ffn_up.weight": gq.quantize(fresh.standard_normal((512, 256), np.float32), "q4_K"),
        "blk.0.ffn_down.weight": gq.quantize(fresh.standard_normal((256, 512), np.float32), "q4_K"),
        "blk.0.ffn_gate_exps.weight": gq.quantize(fresh.standard_normal((4, 64, 256), np.float32), "q5_0"),
    }
    for byteorder in ("little", "big"):
        gq.save(tmp_path / f"{byteorder}.gguf", tensors, byteorder=byteorder)
    return tmp_path


@pytest.mark.parametrize("byteorder", ["little", "big"])
def test_a_model_in_parts(model, byteorder):
    with gq.open(model / f"{byteorder}.gguf") as f:
        whole = f.to("cpu")
        for axis in (0, 1, "experts", None, gq.parallel.tensor_parallel):
            for name, s in f.to(TWO, axis=axis).items():
                assert gq.equal(s.to("cpu"), gq.QuantArray.to(whole[name], "cpu")) or byteorder == "big"
                assert np.array_equal(np.asarray(s), np.asarray(whole[name]))
        usual = {name: s.axis for name, s in f.to(TWO, axis=gq.parallel.tensor_parallel).items()}
        assert list(usual.values()) == [None, None, 0, 1, 0]
        assert [s.axis for s in f.to(TWO, "blk.*", axis="experts").values()] == [None, None, None, "experts"]
        with pytest.raises(ShapeError, match="axis=2"):
            f.to(TWO, axis=2)
        with pytest.raises(ShapeError, match="axis=7"):
            f.to(TWO, axis=lambda name, array: 7)


def test_safetensors_in_parts(tmp_path, fresh):
    w = gq.quantize_scaled(fresh.standard_normal((512, 256), np.float32), "e4m3", (128, 128))
    gq.save(tmp_path / "a.safetensors", {"w": w, "mask": np.ones(3, bool), "norm": np.ones(4, np.float32)})
    with gq.open(tmp_path / "a.safetensors") as f:
        made = f.to(TWO)
        x = fresh.standard_normal((2, 256), np.float32)
        assert "mask" not in made
        assert made["norm"].axis is None
        near(x @ made["w"].T, x @ f["w"].T)
        assert all(s.axis is None for name, s in made.items() if "scale" in name)


# --- words ----------------------------------------------------------------------------------

WRONG = [
    (lambda q: gq.parallel.shard(q, []), DeviceError, "names no device"),
    (lambda q: gq.parallel.shard(q, None), DeviceError, "names no device"),
    (lambda q: gq.parallel.shard(q, ["cpu", "gpu"]), GGMLQError, "gpu"),
    (lambda q: gq.parallel.shard(q, [True]), DeviceError, "is no device"),
    (lambda q: gq.parallel.shard(q, [-1]), DeviceError, "is no device"),
    (lambda q: gq.parallel.shard(q, [1.5]), DeviceError, "is no device"),
    (lambda q: gq.parallel.shard(q, TWO, 2), ShapeError, "axis=2"),
    (lambda q: gq.parallel.shard(q, TWO, "rows"), ShapeError, "axis='rows'"),
    (lambda q: gq.parallel.shard(q, TWO, True), ShapeError, "axis=True"),
    (lambda q: gq.parallel.shard(q, TWO, "experts"), ShapeError, r"\[E, N, K\]"),
    (lambda q: gq.parallel.shard(q, ["cpu"] * 3, 1), ShapeError, "not enough for 3 devices"),
    (lambda q: gq.parallel.shard(q[:2], ["cpu"] * 3), ShapeError, "2 rows are not enough"),
    (lambda q: gq.parallel.shard(q[0], TWO), ShapeError, "1-D"),
    (lambda q: gq.parallel.shard(np.ones((2, 2)), TWO), DTypeError, "ndarray"),
    (lambda q: gq.parallel.shard(gq.parallel.shard(q, TWO), TWO), DTypeError, "already"),
    (lambda q: gq.parallel.shard(q, TWO, sums="mpi"), DTypeError, "sums='mpi'"),
    (lambda q: gq.parallel.shard(q, TWO)[0], BlockIndexError, "several devices"),
    (lambda q: list(gq.parallel.shard(q, TWO)), BlockIndexError, "iteration"),
    (lambda q: np.ones((2, 3)) @ gq.parallel.shard(q, TWO).T, ShapeError, "last axis of both is K"),
    (lambda q: np.ones((2, 512), int) @ gq.parallel.shard(q, TWO).T, DTypeError, "int64"),
    (lambda q: gq.scaled_linear(np.ones(512), gq.parallel.shard(q, TWO)), DTypeError, "gq.linear"),
    (
        lambda q: gq.expert_linear(np.ones((1, 512)), gq.parallel.shard(q, TWO), [[0]]),
        ShapeError,
        "2-D",
    ),
    (
        lambda q: gq.linear(np.ones(512), gq.parallel.shard(q, TWO), out=np.empty(3, np.float32)),
        ShapeError,
        "out has shape",
    ),
    (
        lambda q: gq.parallel.linear(np.ones(512), gq.parallel.shard(q, TWO), out=np.empty(64)),
        ShapeError,
        "stay in parts",
    ),
    (
        lambda q: gq.linear(np.ones(512), gq.parallel.shard(q, TWO), bias=np.ones(2)),
        ShapeError,
        "bias has shape",
    ),
    (
        lambda q: gq.linear(np.ones(512), gq.parallel.shard(q, TWO), kernel="cuda:dp4a"),
        GGMLQError,
        "cuda",
    ),
    (
        lambda q: gq.linear(
            gq.parallel.replicate(np.ones(512), TWO), gq.parallel.shard(q, ["cpu"] * 3)
        ),
        DeviceError,
        "same devices",
    ),
    (lambda q: gq.parallel.replicate(np.ones(3), TWO).gather("cuda:0"), DeviceError, "no part there"),
    (lambda q: gq.parallel.replicate(np.ones(3), TWO).map(len), ShapeError, "the function made int"),
    (lambda q: gq.parallel.replicate(np.ones(3), TWO).map(np.add, 1), DTypeError, "operand is a int"),
    (
        lambda q: gq.parallel.together(gq.parallel.shard(q, TWO), gq.parallel.shard(q, ["cpu"])).__enter__(),
        DeviceError,
        "same devices",
    ),
    (lambda q: gq.parallel.together().__enter__(), DeviceError, "one array or more"),
    (lambda q: gq.parallel.shard(q, TWO) @ np.ones(511), ShapeError, "q is .N, K. and x .K. or .K, M."),
    (lambda q: gq.parallel.linear(np.ones(512), q), DTypeError, "make them so with"),
    (lambda q: gq.save("a.gguf", {"s": gq.parallel.shard(q, TWO)}), GGMLQError, "holds whole arrays"),
    (lambda q: gq.save("a.safetensors", {"s": gq.parallel.shard(q, TWO)}), GGMLQError, "holds whole arrays"),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(WRONG)))
def test_what_cannot_be_says_so(case, fresh):
    work, kind, words = WRONG[case]
    q = gq.quantize(fresh.standard_normal((64, 512), np.float32), "q4_K")
    with pytest.raises(kind, match=words):
        work(q)


def test_codes_that_do_not_meet(fresh):
    w = gq.quantize_scaled(fresh.standard_normal((64, 512), np.float32), "e4m3", (1, 32))
    s = gq.parallel.shard(w, ["cpu"] * 3, 1, cuts=[96, 256])
    x = gq.quantize_scaled(fresh.standard_normal((2, 512), np.float32), "e4m3", (1, 128))
    with pytest.raises(ShapeError, match="tiles of x do not meet"):
        x @ s.T
    with pytest.raises(UnsupportedError, match="requantize makes one"):
        gq.parallel.scaled_linear(x, s, requantize=("int8", 1.0))
    with pytest.raises(DTypeError, match="quantized already"):
        gq.scaled_linear(x, gq.parallel.shard(w, TWO), activations="e4m3")
