"""What is saved comes back: every type, every kind of value, both byte orders."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from fake_cupy import on_device

import ggmlq as gq
from ggmlq.base import progress
from ggmlq.gguf import Typed

ORDERS = ["little", "big"]


def random_array(fmt, shape=(3, 2, 2), seed=0):
    """Random bytes as blocks: every bit of a format is used."""
    rng = np.random.default_rng(seed)
    shape = (*shape[:-1], shape[-1] * fmt.block_size)
    raw = rng.integers(0, 256, int(np.prod(shape)) // fmt.block_size * fmt.dtype.itemsize, np.uint8)
    return gq.QuantArray.from_bytes(raw, fmt, shape)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", list(gq.formats))
def test_every_format(tmp_path, name, order):
    fmt = gq.formats[name]
    q = random_array(fmt)
    gq.save(tmp_path / "m.gguf", {"a": q, "b": q[1:]}, byteorder=order)
    f = gq.open(tmp_path / "m.gguf")
    assert f.byteorder == order
    for found, right in [(f["a"], q), (f["b"], q[1:])]:
        assert (found.format, found.shape) == (fmt, right.shape)
        assert np.array_equal(found.raw, right.raw)
        assert np.array_equal(np.asarray(found), np.asarray(right), equal_nan=True)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", ["f2", "f4", "f8", "i1", "i2", "i4", "i8", ">f4", ">i2"])
@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0), (0, 3), (7, 5), (2, 3, 4), (2, 1, 2, 3)])
def test_numpy_arrays(tmp_path, kind, shape, order):
    x = (np.arange(np.prod(shape), dtype=np.int64).reshape(shape) - 3).astype(kind)
    gq.save(tmp_path / "m.gguf", {"x": x}, byteorder=order)
    q = gq.open(tmp_path / "m.gguf")["x"]
    assert q.shape == shape
    assert q.blocks.dtype.newbyteorder("=") == x.dtype.newbyteorder("=")
    assert np.array_equal(q.blocks, x)


def test_arrays_that_are_not_contiguous(tmp_path):
    x = np.arange(120, dtype=np.float32).reshape(4, 5, 6)
    q = random_array(gq.formats["q4_0"], (8, 4))
    views = {
        "T": x.T,
        "step": x[::2, ::-1, 1::3],
        "rows": q[::3],
        "fortran": np.asfortranarray(x),
        "bc": np.broadcast_to(x[0, 0], (3, 6)),
    }
    gq.save(tmp_path / "m.gguf", views)
    f = gq.open(tmp_path / "m.gguf")
    for name, view in views.items():
        right = view.blocks if isinstance(view, gq.QuantArray) else view
        assert np.array_equal(f[name].blocks, right), name


def test_numpy_scalars_and_subclasses(tmp_path):
    mapped = np.memmap(tmp_path / "raw", np.int16, "w+", shape=(1, 2))
    mapped[:] = [[1, 2]]
    gq.save(tmp_path / "m.gguf", {"s": np.float32(1.5), "m": mapped})
    f = gq.open(tmp_path / "m.gguf")
    assert (f["s"].shape, f["s"].blocks.item(), f["m"].blocks.tolist()) == ((), 1.5, [[1, 2]])


def test_bfloat16(tmp_path):
    bits = np.array([[0x3F80, 0xC000, 0x7F80]], np.uint16)
    q = gq.QuantArray.from_bytes(bits, "bf16", (1, 3))
    gq.save(tmp_path / "m.gguf", {"x": q, "y": BFloat16(bits)})
    f = gq.open(tmp_path / "m.gguf")
    for name in "xy":
        assert f[name].format.name == "bf16"
        assert np.asarray(f[name]).tolist() == [[1, -2, np.inf]]


class BFloat16(np.ndarray):
    """What an array of ml_dtypes.bfloat16 shows of itself: a dtype of 2 bytes with that name."""

    def __new__(cls, bits):
        ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
        return bits.view(ml_dtypes.bfloat16)


def test_arrays_on_a_device(tmp_path):
    x = np.arange(6, dtype=np.float16).reshape(2, 3)
    gq.save(tmp_path / "m.gguf", {"x": on_device(x)})
    assert np.array_equal(gq.open(tmp_path / "m.gguf")["x"].blocks, x)


@pytest.mark.parametrize("terminal", [True, False])
def test_a_long_write_shows_a_bar(tmp_path, monkeypatch, capsys, terminal):
    monkeypatch.setattr(progress, "AFTER", -1)
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    gq.save(tmp_path / "m.gguf", {"x": np.ones(1 << 20, np.float32), "y": np.ones(1 << 20, np.float32)})
    assert ("writing GGUF" in capsys.readouterr().err) == terminal


def test_tensors_and_metadata_as_pairs(tmp_path):
    x = np.ones(2, np.float32)
    gq.save(tmp_path / "m.gguf", [("b", x), ("a", x)], [("z", 1), ("y", 2)])
    f = gq.open(tmp_path / "m.gguf")
    assert (list(f), dict(f.metadata)) == (["b", "a"], {"z": 1, "y": 2})


def test_a_mapping_that_makes_its_arrays_when_asked(tmp_path):
    class Lazy(dict):
        def __getitem__(self, name):
            return np.full(3, super().__getitem__(name), np.float32)

    gq.save(tmp_path / "m.gguf", Lazy(a=1, b=2))
    assert gq.open(tmp_path / "m.gguf")["b"].blocks.tolist() == [2, 2, 2]


def test_a_mapping_that_changes_its_mind_leaves_no_file(tmp_path):
    class Fickle(dict):
        asked = 0

        def __getitem__(self, name):
            Fickle.asked += 1
            return np.zeros(Fickle.asked, np.float32)

    with pytest.raises(gq.GGUFError, match="changed its type or shape"):
        gq.save(tmp_path / "m.gguf", Fickle(a=1))
    assert not list(tmp_path.iterdir())


# --- types of values ------------------------------------------------------------------------

TYPES = [
    (True, "bool"),
    (0, "uint32"),
    (2**32 - 1, "uint32"),
    (-1, "int32"),
    (-(2**31), "int32"),
    (2**32, "uint64"),
    (2**64 - 1, "uint64"),
    (-(2**31) - 1, "int64"),
    (-(2**63), "int64"),
    (0.5, "float32"),
    (float("inf"), "float32"),
    ("", "string"),
    ("héllo ☃ 😀", "string"),
    ("a\0b", "string"),
    ([1, 2], "array of int32"),
    ([-(2**31), 2**31 - 1], "array of int32"),
    ([2**31], "array of int64"),
    ((1, 2), "array of int32"),
    (range(3), "array of int32"),
    ([True, False], "array of bool"),
    ([0.5, -1.0], "array of float32"),
    (["a", "", "ü" * 200], "array of string"),
    ([], "array of int32"),
    ([[1], [2, 3]], "array of array"),
    ([["a"], []], "array of array"),
    ([[]], "array of array"),
    (np.uint8(5), "uint8"),
    (np.int8(-5), "int8"),
    (np.uint16(5), "uint16"),
    (np.int16(5), "int16"),
    (np.int32(5), "int32"),
    (np.int64(5), "int64"),
    (np.uint64(5), "uint64"),
    (np.float64(0.1), "float64"),
    (np.float32(0.5), "float32"),
    (np.float16(0.5), "float32"),
    (np.bool_(True), "bool"),
    (np.str_("x"), "string"),
    (np.arange(3, dtype=np.uint16), "array of uint16"),
    (np.zeros(2, bool), "array of bool"),
    (np.array([0.1, 2]), "array of float64"),
    (np.arange(6).reshape(2, 3), "array of array"),
    (np.array(["a", "b"]), "array of string"),
    (np.array(5, np.int16), "int16"),
    (np.array([], np.int8), "array of int8"),
    (np.array([1, -2], ">i4"), "array of int32"),
    ([np.uint8(1), np.uint8(2)], "array of uint8"),
    ([np.int64(1), 2], "array of int32"),
    ([np.float64(0.1), 0.25], "array of float64"),
    (Typed(5, "uint8"), "uint8"),
    (Typed(5, "UINT16"), "uint16"),
    (Typed(0.1, "float64"), "float64"),
    (Typed(5, "float32"), "float32"),
    (Typed([1, 2], "uint8"), "array of uint8"),
    (Typed([], "string"), "array of string"),
    (Typed([2**63], "uint64"), "array of uint64"),
    (Typed([1, 0.5], "float32"), "array of float32"),
    (Typed([[1], [2]], "int8"), "array of array"),
    (Typed(b"raw", "string"), "string"),
    (Typed(7, 0), "uint8"),
    (Typed(np.arange(3), "float32"), "array of float32"),
    (Typed(True, "bool"), "bool"),
]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("value", "kind"), TYPES, ids=lambda value: repr(value)[:40])
def test_the_type_of_a_value(tmp_path, value, kind, order):
    gq.save(tmp_path / "m.gguf", {}, {"k": value}, byteorder=order)
    metadata = gq.open(tmp_path / "m.gguf").metadata
    assert metadata.type("k") == kind
    value = value.value if isinstance(value, Typed) else value
    right = value.tolist() if isinstance(value, np.ndarray) else value
    right = right.decode() if isinstance(right, bytes) else right
    right = list(right) if isinstance(right, tuple | range) else right
    assert metadata["k"] == right


def test_floats_are_rounded_to_float32(tmp_path):
    gq.save(tmp_path / "m.gguf", {}, {"k": 0.1, "tiny": 1e-60, "nan": float("nan")})
    metadata = gq.open(tmp_path / "m.gguf").metadata
    assert (metadata["k"], metadata["tiny"]) == (float(np.float32(0.1)), 0.0)
    assert np.isnan(metadata["nan"])


# --- alignment ------------------------------------------------------------------------------


def test_alignment_and_its_key_agree(tmp_path):
    path, x = tmp_path / "a.gguf", {"a": np.ones(3, np.int8), "b": np.ones(5, np.float32)}
    for metadata, options, right in [
        ({}, {}, 32),
        ({}, {"alignment": 64}, 64),
        ({}, {"alignment": np.int64(16)}, 16),
        ({"general.alignment": 128}, {}, 128),
        ({"general.alignment": Typed(128, "uint64")}, {"alignment": 128}, 128),
        ({"general.alignment": 32}, {}, 32),
    ]:
        gq.save(path, x, metadata, **options)
        f = gq.open(path)
        assert f.alignment == right
        assert f.metadata.get("general.alignment", 32) == right
        assert f["b"].blocks.tolist() == [1] * 5
    with pytest.raises(gq.GGUFError, match="alignment=64, but"):
        gq.save(path, x, {"general.alignment": 128}, alignment=64)


# --- a big-endian QuantArray ----------------------------------------------------------------


@pytest.mark.parametrize("name", list(gq.formats))
def test_big_endian_blocks(tmp_path, name):
    fmt = gq.formats[name]
    q = random_array(fmt, (4, 2))
    gq.save(tmp_path / "m.gguf", {"a": q}, byteorder="big")
    big = gq.open(tmp_path / "m.gguf")["a"]
    assert big.blocks.dtype == fmt.dtype.newbyteorder(">")
    assert not big.blocks.flags.owndata
    for field in fmt.dtype.names or ():
        assert np.array_equal(big.blocks[field], q.blocks[field], equal_nan=fmt.dtype[field].base.kind == "f")
    assert big.raw is big.raw
    assert not big.raw.flags.writeable
    for found in (
        big,
        big.copy(),
        copy.deepcopy(big),
        pickle.loads(pickle.dumps(big)),
        big.to("cpu"),
        big[:],
    ):
        assert np.array_equal(found.raw, q.raw)
        assert np.array_equal(np.asarray(found), np.asarray(q), equal_nan=True)
    assert np.array_equal(big[[2, 0]].raw, q.raw[[2, 0]])
    assert np.array_equal(big[1].raw, q.raw[1])
    assert big.nbytes == q.nbytes
    assert np.array_equal(fmt.invalid(big.blocks), fmt.invalid(q.blocks))


@pytest.mark.parametrize("name", ["q5_1", "q8_0", "q4_K", "iq3_s", "bf16"])
def test_a_product_on_big_endian_weights(tmp_path, name):
    rng = np.random.default_rng(0)
    q = gq.quantize(rng.standard_normal((5, 256)).astype(np.float32), name)
    x = rng.standard_normal((3, 256)).astype(np.float32)
    gq.save(tmp_path / "m.gguf", {"a": q}, byteorder="big")
    assert np.array_equal(x @ gq.open(tmp_path / "m.gguf")["a"].T, x @ q.T)
