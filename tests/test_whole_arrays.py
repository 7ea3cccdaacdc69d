"""Arrays as wholes: joined, cut, reshaped, compared, shown; and what NumPy's own functions make of them."""

from __future__ import annotations

import copy
import inspect
import pickle

import gguf_bytes as gb
import ml_dtypes
import numpy as np
import pytest

import ggmlq as gq
from ggmlq.arrays.protocols import public
from ggmlq.errors import BlockIndexError, DTypeError, GGMLQError, ShapeError

FORMATS = [fmt for fmt in gq.formats.values() if fmt.name not in ("i8", "i16", "i32", "i64")]
BF16 = ml_dtypes.bfloat16


def blocks_of(fresh, fmt, shape):
    """An array of random blocks with sane values, of any format."""
    n = int(np.prod(shape)) // fmt.block_size
    raw = np.frombuffer(fresh.bytes(n * fmt.dtype.itemsize), fmt.dtype).copy()
    for name in raw.dtype.names or ():
        if raw.dtype[name].kind == "f":
            raw[name] = fresh.standard_normal(raw[name].shape)
    if raw.dtype.kind == "f":
        raw[...] = fresh.standard_normal(n)
    return gq.QuantArray.from_bytes(raw.view(np.uint8), fmt, shape)


def floats(fresh, *shape):
    return fresh.standard_normal(shape).astype(np.float32)


def same(q, values):
    assert np.array_equal(np.asarray(q), values, equal_nan=True)


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_columns_rows_and_joins_are_those_of_the_values(fresh, fmt):
    b = fmt.block_size
    q = blocks_of(fresh, fmt, (2, 3, 4 * b))
    v = np.asarray(q)
    for index in (
        (..., slice(b, 3 * b)), (slice(None), slice(None), slice(None, b)), (1, ..., slice(-b, None)),
        ([1, 0], slice(0, 2), slice(b, 2 * b)), (0, 1, slice(b, 4 * b)), ..., (..., slice(b, b)), (0, ...),
    ):  # fmt: skip
        part = q[index]
        same(part, v[index])
        assert part.shape == v[index].shape
    part = q[1, :, b : 3 * b]
    assert np.shares_memory(part.raw, q.raw)
    same(gq.concatenate([q, q[:1]]), np.concatenate([v, v[:1]]))
    same(gq.concatenate([q, q[..., :b], q], axis=-1), np.concatenate([v, v[..., :b], v], axis=-1))
    same(gq.concatenate([part, part[:2]], axis=0), np.concatenate([np.asarray(part), np.asarray(part)[:2]]))
    for axis in (0, 1, 2, -2):
        same(gq.stack([q, q], axis), np.stack([v, v], axis))
    same(q.reshape(3, -1, b), v.reshape(3, -1, b))
    same(q.reshape((6, 4 * b)), v.reshape(6, 4 * b))
    same(q[:, ::2].reshape(-1), v[:, ::2].reshape(-1))


@pytest.mark.parametrize("name", ["f16", "q4_0", "q6_K"])
def test_products_of_slices_are_right_with_every_kernel(fresh, name):
    b = gq.formats[name].block_size
    q = blocks_of(fresh, gq.formats[name], (19, 4 * max(b, 32)))
    part = q[1::2, max(b, 32) : 3 * max(b, 32)]
    x = floats(fresh, 3, part.shape[1])
    whole = gq.QuantArray.from_bytes(part.raw.tobytes(), name, part.shape)
    every = [rung.name for rung in gq.kernels(format=name, device="cpu")] if name == "q4_0" else []
    for kernel in ["auto", *every]:
        assert np.array_equal(gq.linear(x, part, kernel=kernel), gq.linear(x, whole, kernel=kernel))


def test_what_an_array_says_of_itself(fresh):
    q = gq.quantize(floats(fresh, 2, 3, 64), "q4_0")
    assert (q.size, q.dtype, q.mT.shape, q.T.shape) == (384, np.float32, (2, 64, 3), (64, 3, 2))
    same(q.mT, np.asarray(q).swapaxes(-1, -2))
    with pytest.raises(ShapeError, match="two axes"):
        _ = q[0, 0].mT
    with pytest.raises(GGMLQError, match=r"q\[e\]"):
        floats(fresh, 2, 5, 64) @ q.mT
    same(q[0].mT, np.asarray(q[0]).T)
    assert (
        np.array_equal(floats(fresh, 1, 64)[[0]] @ q[0].mT, floats(fresh, 1, 64)[[0]] @ q[0].mT) is not None
    )


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda q: q[:, 3:32], r"q\[:, 3:32\].*cut between blocks of 32.*take 0:32"),
        (lambda q: q[:, ::2], "steps of 2"),
        (lambda q: q[:, ::-1], "steps of -1"),
        (lambda q: q[:, "a":"b"], "pass integers"),
        (lambda q: q[:, 0:10], "take 0:32"),
        (lambda q: q[..., ..., 0:32], "rows are picked"),
        (lambda q: q.reshape(7, -1), "do not fill"),
        (lambda q: q.reshape(-1, -1), "do not fill"),
        (lambda q: q.reshape(24, 16), "q4_0 blocks hold 32"),
        (lambda q: q.reshape(2.0, 192), "integers"),
        (lambda q: q.reshape("x"), "integers"),
        (lambda q: gq.concatenate([q, q[:, :32]]), "differ along axis 0"),
        (lambda q: gq.concatenate([q, q], axis=2), "from -2 to 1"),
        (lambda q: gq.concatenate([q, q], axis=True), "axes are integers"),
        (lambda q: gq.concatenate([]), "empty"),
        (gq.concatenate, r"pass \[a, b\]"),
        (lambda q: gq.concatenate([q, np.asarray(q)]), "np.concatenate"),
        (lambda q: gq.concatenate([q, gq.quantize(np.asarray(q), "q8_0")]), "one format"),
        (lambda q: gq.stack([q, q[:1]]), "must be the same"),
        (lambda q: gq.stack([q, q], axis=2), "would be the last"),
        (lambda q: gq.stack(3), r"pass \[a, b\]"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said_in_words(fresh, use, words):
    q = gq.quantize(floats(fresh, 6, 64), "q4_0")
    with pytest.raises(GGMLQError, match=words):
        use(q)


def test_a_big_endian_file(fresh, tmp_path):
    w = floats(fresh, 6, 512)
    gq.save(tmp_path / "b.gguf", {"a": gq.quantize(w, "q4_K"), "b": gq.quantize(w, "q4_K")}, byteorder="big")
    f, q = gq.open(tmp_path / "b.gguf"), gq.quantize(w, "q4_K")
    part = f["a"][1:, 256:]
    assert part.blocks.dtype.fields["d"][0].byteorder == ">"
    assert gq.equal(part, q[1:, 256:])
    assert gq.equal(gq.concatenate([f["a"], q]), gq.concatenate([q, f["b"]]))
    assert gq.equal(f["a"].reshape(3, 2, 512), q.reshape(3, 2, 512))


def test_joined_bytes_are_its_own_and_last(fresh):
    room = np.zeros(4 * 18, np.uint8)
    q = gq.QuantArray.from_bytes(room, "q4_0", (2, 64))
    both = gq.concatenate([q, q])
    assert both.immutable
    assert not np.shares_memory(both.raw, room)
    assert not both.raw.flags.writeable


# --- scaled arrays ----------------------------------------------------------------------------

TILES = [(1, 64), (2, 128), (None, None), (1, None), (3, 32), (1, 1)]


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("code", ["e4m3", "uint8"])
def test_scaled_arrays_are_cut_and_joined_like_their_values(fresh, tile, code):
    many = {"ragged": "pad", "zeros": code == "uint8"}
    s = gq.quantize_scaled(floats(fresh, 2, 3, 256), code, tile, **many)
    t = gq.quantize_scaled(floats(fresh, 1, 3, 256), code, tile, **many)
    v, u = np.asarray(s), np.asarray(t)
    same(s[..., 128:], v[..., 128:])
    same(s[1, 1:, 128:190], v[1, 1:, 128:190])
    same(s[...], v)
    same(s.reshape(6, 256), v.reshape(6, 256))
    same(s.reshape(3, 2, 256)[1], v.reshape(3, 2, 256)[1])
    same(gq.concatenate([s, t]), np.concatenate([v, u]))
    same(gq.concatenate([s, s], axis=1), np.concatenate([v, v], axis=1))
    same(gq.concatenate([s, s], axis=-1), np.concatenate([v, v], axis=-1))
    same(gq.stack([s, s]), np.stack([v, v]))
    same(gq.stack([s[0], s[1], t[0]], axis=1), np.stack([v[0], v[1], u[0]], axis=1))
    assert (s.size, s.dtype) == (1536, np.float32)


def test_scaled_arrays_that_do_not_meet(fresh):
    s = gq.quantize_scaled(floats(fresh, 4, 192), "e4m3", (1, 128), ragged="pad")
    with pytest.raises(ShapeError, match="do not meet"):
        gq.concatenate([s, s], axis=1)
    with pytest.raises(BlockIndexError, match=r"cut between tiles of 128.*take 0:192"):
        s[:, 100:]
    with pytest.raises(ShapeError, match="stays so"):
        s.reshape(8, 96)
    with pytest.raises(DTypeError, match="all must be QuantArrays"):
        gq.stack([s, gq.quantize(np.asarray(s), "q8_0")])
    with pytest.raises(DTypeError, match="one format"):
        gq.concatenate([s, gq.quantize_scaled(np.asarray(s), "e4m3", (1, 64))])


def test_equal_of_scaled_arrays(fresh):
    w = floats(fresh, 4, 256)
    s = gq.quantize_scaled(w, "int8", (1, None))
    assert gq.equal(s, s)
    assert gq.equal(s, s.copy())
    assert gq.equal(s, gq.ScaledArray(s.codes, s.scales, "int8", (1, 256)))
    assert not gq.equal(s, gq.quantize_scaled(w, "int8", (2, None)))
    assert not gq.equal(s, gq.quantize_scaled(2 * w, "int8", (1, None)))
    assert not gq.equal(s, gq.quantize(w, "q8_0"))
    columns = gq.quantize_scaled(w, "e4m3", (1, 64), order="columns")
    assert gq.equal(columns, gq.quantize_scaled(w, "e4m3", (1, 64)))
    zeros = gq.quantize_scaled(w, "uint8", (1, 64), zeros=True)
    assert gq.equal(zeros, zeros.copy())
    assert not gq.equal(zeros, gq.ScaledArray(zeros.codes, zeros.scales, "uint8", (1, 64)))
    nan = gq.ScaledArray(s.codes, np.full_like(s.scales, np.nan), "int8", (1, None))
    assert gq.equal(nan, nan.copy())


# --- NumPy's own functions --------------------------------------------------------------------


@pytest.fixture(params=["q4_0", "scaled"])
def weights(fresh, request):
    w = floats(fresh, 5, 128)
    return gq.quantize_scaled(w, "int8", (1, None)) if request.param == "scaled" else gq.quantize(w, "q4_0")


def test_products_by_other_names(fresh, weights):
    x = floats(fresh, 2, 3, 128)
    y = x @ weights.T
    for other in (
        np.matmul(x, weights.T), np.dot(x, weights.T), np.inner(x, weights), weights.T.__rmatmul__(x),
        np.matmul(x, weights.T, out=np.empty_like(y)), np.dot(x, weights.T, out=np.empty_like(y)),
    ):  # fmt: skip
        assert np.array_equal(y, other)
    assert np.array_equal(x[0, 0].tolist() @ weights.T, x[0, 0] @ weights.T)


def test_weights_times_columns(fresh, weights):
    """``W @ x``, as people write it: the product of the transposes, transposed."""
    x = floats(fresh, 128, 3)
    y = weights @ x
    assert np.array_equal(y, (x.T @ weights.T).T)
    assert np.array_equal(weights @ x[:, 0], x[:, 0] @ weights.T)
    assert np.array_equal(weights @ x.tolist(), y)
    for other in (
        np.matmul(weights, x), np.dot(weights, x), np.inner(weights, x.T), weights @ x.astype(np.float64),
        np.matmul(weights, x, out=np.empty_like(y)), gq.parallel.shard(weights, ["cpu", "cpu"]) @ x,
    ):  # fmt: skip
        assert np.allclose(y, other, atol=1e-4)
    assert (weights @ x[:, :0]).shape == (5, 0)
    with pytest.raises(GGMLQError, match=r"q\[e\]|2-D|\[N, K\]"):
        gq.stack([weights, weights]) @ x


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda q, x: np.abs(q), r"np\.absolute\(np\.asarray\(q\)"),
        (lambda q, x: x + q, r"np\.asarray\(q\).*x @ q\.T is the product"),
        (lambda q, x: np.float32(2) * q, r"q\.dequantize\(\)"),
        (lambda q, x: np.add.reduce(q), r"np\.add\.reduce"),
        (lambda q, x: np.exp(q.T), "do not read"),
        (lambda q, x: x == q, r"gq\.equal"),
        (lambda q, x: q == x, r"gq\.equal"),
        (lambda q, x: x < q, r"gq\.equal"),
        (lambda q, x: np.matmul(x, q), r"write x @ q\.T"),
        (lambda q, x: q @ x, r"with K 128; write x @ q\.T"),
        (lambda q, x: q @ x[:, :5].T, "with K 128; pass 128 numbers a column"),
        (lambda q, x: q @ x.T[None], r"x has shape \(1, 128, 3\)"),
        (lambda q, x: q @ 3.0, r"x has shape \(\)"),
        (lambda q, x: q @ [[1.0], [1.0, 2.0]], "x is no array"),
        (lambda q, x: q @ x.T.astype(int), r"x\.astype\(np\.float32\)"),
        (lambda q, x: q @ q, r"x\.dequantize\(\)|write \.T behind it"),
        (lambda q, x: np.matmul(q, x.T, out=np.empty((3, 5), np.float32)), r"the result has \(5, 3\)"),
        (lambda q, x: np.dot(x, q), r"write x @ q\.T"),
        (lambda q, x: q.T @ x, r"q\.T @ x .*x \[N\] or \[N, M\], with N 5; pass 5 numbers a column"),
        (lambda q, x: np.matmul(x, q.T, dtype=np.float64), "dtype"),
        (lambda q, x: x.__imatmul__(q.T), r"write x = x @ q\.T"),
    ],
)
def test_what_has_no_product_says_what_to_write(fresh, weights, use, words):
    with pytest.raises(GGMLQError, match=words):
        use(weights, floats(fresh, 3, 128))


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (np.mean, r"^np\.mean with .*pass np\.asarray\(q\)"),
        (lambda q: np.linalg.norm(q, axis=1), r"^np\.linalg\.norm with"),
        (lambda q: np.concatenate([q, q]), r"gq\.concatenate"),
        (lambda q: np.einsum("nk,nk->n", q, q), r"^np\.einsum"),
        (lambda q: np.where([[True]], q, 0), r"^np\.where"),
        (lambda q: np.save("never.npy", q), r"gq\.save"),
        (lambda q: np.savez("never.npz", q=q), r"gq\.save"),
        (lambda q: np.array_equal(q, q), r"gq\.equal"),
        (lambda q: np.copyto(np.empty(q.shape), q), r"q\.dequantize\(out="),
        (lambda q: np.transpose(q.T), r"q\.T"),
    ],
)  # fmt: skip
def test_no_function_decodes_in_passing(weights, use, words):
    with pytest.raises(DTypeError, match=words):
        use(weights)


def test_conversions_decode(weights, tmp_path):
    v = weights.dequantize()
    for same in (np.asarray(weights), np.array(weights), np.ascontiguousarray(weights), np.float32(weights)):
        assert np.array_equal(same, v)
    np.testing.assert_array_equal(weights, v)  # which converts first
    np.save(tmp_path / "w.npy", np.asarray(weights))


def test_shape_and_dtype_need_no_values(weights):
    assert (np.shape(weights), np.ndim(weights.T), np.size(weights)) == ((5, 128), 2, 640)
    assert np.result_type(weights, np.float16) == np.float32
    room = np.zeros_like(weights)
    assert (room.shape, room.dtype, room.flags.c_contiguous) == ((5, 128), np.float32, True)
    assert weights.__array_ufunc__ is None, "what CuPy asks"


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda q: q * 2, r"^q \* x with .*np\.asarray\(q\) \* x.*q @ x"),
        (lambda q: 2 - q, r"^x - q with .*x - np\.asarray\(q\)"),
        (lambda q: q + np.ones(128), r"^q \+ x"),
        (lambda q: q.T / 2, r"^q / x"),
        (lambda q: -q, r"write -np\.asarray\(q\)"),
        (abs, r"write abs\(np\.asarray\(q\)\)"),
        (lambda q: q < 1, r"^q < x"),
        (sum, r"^x \+ q"),
        (lambda q: q.sum(), r"^q\.sum of .*np\.asarray\(q\)\.sum"),
        (lambda q: q.max(axis=1), r"np\.asarray\(q\)\.max"),
        (lambda q: q.astype("f2"), r"q\.dequantize\(np\.float16\)"),
        (lambda q: q.tolist(), r"np\.asarray\(q\)\.tolist"),
        (lambda q: q.numpy(), r"write np\.asarray\(q\)"),
        (lambda q: q.cuda(), r'q\.to\("cuda"\)'),
        (lambda q: q.dequantise(), "did you mean 'dequantize'"),
        (lambda q: q.T[0], r"^q\.T\[0\] of .*write q\[0\]"),
        (lambda q: list(q.T), r"np\.asarray\(q\.T\)"),
        (lambda q: q.mT[:, 1], r"^q\.mT\[:, 1\] of .*write q\[0\]\.T"),
        (lambda q: q.__setitem__(0, 1), r"^q\[0\] = … of .*read-only.*q\.copy\(\)|s\.codes"),
        (lambda q: f"{q:.2f}", "formatted as the text"),
    ],
)  # fmt: skip
def test_what_people_write_with_floats_gets_a_sentence(weights, use, words):
    with pytest.raises(DTypeError, match=words):
        use(weights)


def test_an_open_file_says_where_its_tensors_are(tmp_path):
    gq.save(tmp_path / "m.gguf", {"w": np.ones(4, np.float32)})
    f = gq.open(tmp_path / "m.gguf")
    with pytest.raises(AttributeError, match=r"^f\.tensors of <GGUF.*a tensor is f\[name\].*list\(f\)$"):
        _ = f.tensors
    with pytest.raises(gq.GGMLQError, match="did you mean 'metadata'"):
        _ = f.metadat
    assert not hasattr(f, "nothing")
    assert getattr(f, "__array__", None) is None
    assert [*pickle.loads(pickle.dumps(f))] == ["w"]


def test_format_and_hasattr(weights):
    assert f"{weights:>200}" == repr(weights).rjust(200)
    assert f"{weights}" == str(weights)
    assert not hasattr(weights, "sum")
    assert not hasattr(weights, "nothing")
    assert getattr(weights, "__cuda_array_interface__", None) is None


@pytest.mark.parametrize("kind", [gq.QuantArray, gq.ScaledArray, gq.gguf.GGUFFile], ids=lambda k: k.__name__)
def test_a_directory_shows_what_is_documented(kind, weights, tmp_path):
    """Tab in a notebook: no member that only the package uses, and a docstring of its own for each."""
    gq.save(tmp_path / "m.gguf", {"w": np.ones((2, 3), np.float32)})
    examples = [weights, gq.quantize(np.ones((1, 32), np.float32), "q8_0"), gq.open(tmp_path / "m.gguf")]
    examples += [gq.quantize_scaled(np.ones((1, 32), np.float32), "int8", (1, None))]
    example = next(each for each in examples if isinstance(each, kind))
    names = {name for name in dir(example) if not name.startswith("_")}
    assert names == {*public(kind)}
    for name in names:
        assert inspect.getdoc(getattr(kind, name)), name
    inner = {
        "prepared_copies",
        "decoding",
        "drop_recordings",
        "keep_recording",
        "prepared_copy",
        "immutable",
        "lock",
        "matrices",
        "memory",
    }
    inner |= {"recording", "prepared", "product", "recorded", "stored", "unit", "whole", "facts", "matrix_at"}
    assert not names & inner
    assert names >= {
        gq.QuantArray: {"T", "raw", "blocks", "drop_raw", "dequantize", "nbytes", "from_bytes", "to"},
        gq.ScaledArray: {"T", "codes", "scales", "zeros", "code", "tile", "dequantize", "drop_prepared"},
        gq.gguf.GGUFFile: {"metadata", "parts", "path", "paths", "keys", "items", "get", "close", "version"},
    }[kind]  # fmt: skip


# --- values -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["f32", "bf16", "f64", "q4_0", "q6_K", "iq3_s"])
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, BF16])
def test_values_into_an_array(fresh, name, kind):
    q = blocks_of(fresh, gq.formats[name], (2, 3, 512))
    with np.errstate(over="ignore", invalid="ignore"):
        want = q.dequantize(np.float64 if np.float64 in (kind, q.format.dtype) else np.float32).astype(kind)
    assert np.array_equal(q.dequantize(kind), want, equal_nan=True)
    room = np.zeros((4, 3, 1024), kind)
    for out in (room[:2, :, :512], room[::2, ::-1, ::2], np.asfortranarray(room[:2, :, :512])):
        assert gq.dequantize(q, out=out) is out
        assert np.array_equal(out, want, equal_nan=True)


def test_scaled_values_into_an_array(fresh):
    s = gq.quantize_scaled(floats(fresh, 3, 256), "e4m3", (1, 128))
    for kind in (np.float16, BF16, np.float64):
        room = np.zeros((6, 256), kind)
        assert s.dequantize(out=room[::2]).base is room
        assert np.array_equal(room[::2], s.dequantize().astype(kind))
        assert np.array_equal(s.dequantize(kind), room[::2])


def test_out_over_the_blocks_themselves(fresh):
    room = np.zeros(4 * 32 * 4, np.uint8)
    room[: 4 * 34] = gq.quantize(floats(fresh, 4, 32), "q8_0").raw.reshape(-1)
    q = gq.QuantArray.from_bytes(room[: 4 * 34], "q8_0", (4, 32))
    want = q.dequantize()
    assert np.array_equal(q.dequantize(out=room.view(np.float32).reshape(4, 32)), want)


@pytest.mark.parametrize(
    ("out", "words"),
    [
        (np.empty((2, 64), np.float32), r"out has shape \(2, 64\)"),
        (np.empty((3, 64), np.int32), "values are floats"),
        ([0.0], "out is a list"),
        (np.broadcast_to(np.float32(0), (3, 64)), "read-only"),
    ],
)
def test_out_that_cannot_take_it(fresh, out, words):
    with pytest.raises(GGMLQError, match=words):
        gq.quantize(floats(fresh, 3, 64), "q8_0").dequantize(out=out)


def test_products_in_bfloat16(fresh):
    x, q = floats(fresh, 3, 64), gq.quantize(floats(fresh, 5, 64), "q4_0")
    want = (x @ q.T).astype(BF16)
    out = np.empty((3, 5), BF16)
    for y in (gq.linear(x, q, dtype=BF16), gq.linear(x, q, dtype="bfloat16"), gq.linear(x, q, out=out)):
        assert y.dtype == BF16
        assert np.array_equal(y, want)


# --- in a notebook ----------------------------------------------------------------------------


def test_formats_and_codes_by_attribute():
    assert gq.formats.q4_K is gq.formats["q4_K"]
    assert gq.formats.Q4_k is gq.formats.q4_K
    assert {"q4_K", "bf16", "keys"} <= set(dir(gq.formats))
    assert gq.codes.e4m3 is gq.codes["e4m3"]
    assert not hasattr(gq.formats, "q4_kk")
    with pytest.raises(AttributeError, match="did you mean q4_K"):
        _ = gq.formats.q4_KK
    with pytest.raises(AttributeError, match="e4m3"):
        _ = gq.codes.e4m33
    assert copy.copy(gq.formats)["q4_0"] is gq.formats.q4_0
    assert pickle.loads(pickle.dumps(gq.formats.q4_0)) is gq.formats.q4_0


def test_a_directory_without_strangers():
    names = [name for name in dir(gq) if not name.startswith("_")]
    assert sorted(names) == sorted([*gq.__all__, "torch"])
    assert {"concatenate", "stack", "equal", "linear"} <= set(names)


def test_tables_for_a_notebook(tmp_path, fresh):
    evil = "<script>alert('x')</script> & \x1b[31m"
    tensors = {f"blk.{i}.w": np.zeros(3, np.float32) for i in range(80)} | {evil: np.eye(3, dtype=np.float32)}
    gq.save(tmp_path / "m.gguf", dict(reversed(tensors.items())))
    f = gq.open(tmp_path / "m.gguf")
    page = f._repr_html_()
    assert "<script" not in page
    assert "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt; &amp; \\x1b[31m" in page
    assert "<td>blk.{0-79}.w</td><td>f32</td><td>3</td><td>80</td>" in page, "equal layers are one line"
    many = {f"tensor {i}": np.zeros(3, np.float32) for i in range(80)}
    gq.save(tmp_path / "many.gguf", many, {"note": evil, "tokens": ["a"] * 999, "eps": 1e-6})
    page = gq.open(tmp_path / "many.gguf")._repr_html_()
    assert "… and 20 more" in page
    for kind in (page, gq.open(tmp_path / "many.gguf").metadata._repr_html_()):
        assert "<script" not in kind
        assert "<td>note</td><td>string</td><td>&quot;&lt;script&gt;" in kind
        assert "<td>eps</td><td>float32</td><td>1e-06</td>" in kind
        assert len(kind) < 10_000
    assert "<td>q4_K</td><td>12</td><td>4.5</td><td>256</td><td>yes</td>" in gq.formats._repr_html_()
    assert f._ipython_key_completions_() == list(f)
    assert f.metadata._ipython_key_completions_() == list(f.metadata)
    assert gq.formats._ipython_key_completions_() == list(gq.formats)
    f.close()
    assert "closed" in f._repr_html_()
    assert f._ipython_key_completions_() == []
    for array in (
        gq.quantize(floats(fresh, 2, 3, 256), "q4_K"), gq.quantize(floats(fresh, 64), "q8_0"),
        gq.quantize_scaled(floats(fresh, 3, 200), "e4m3", (1, 128), ragged="pad"),
        gq.quantize(np.empty((0, 32), np.float32), "q8_0"),
        gq.QuantArray.from_bytes(bytes(4), "f32", ()),
    ):  # fmt: skip
        page = array._repr_html_()
        assert page.startswith("<table><caption>")
        assert str(array.shape) in page
        corner = np.atleast_2d(np.asarray(array)).reshape(-1, *array.shape[-1:] or (1,))[:1, :1]
        assert not array.size or not array.ndim or f"<td>{corner[0, 0]:.6g}</td>" in page


def test_a_damaged_file_in_a_notebook(tmp_path):
    """A header with a zero-sized tensor and one of unusual blocks still has a table."""
    b = gb.Builder()
    (tmp_path / "e.gguf").write_bytes(b.file([], [b.info("e", [0], gb.F32, 0)], b""))
    assert "<td>e</td>" in gq.open(tmp_path / "e.gguf")._repr_html_()
