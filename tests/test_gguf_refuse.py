"""What save refuses: before the first byte, and with the way out."""

from __future__ import annotations

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.gguf import Typed

X = np.ones(4, np.float32)


@pytest.fixture
def refused(tmp_path):
    """Assert that a save fails and leaves the folder as it was."""
    existing = tmp_path / "m.gguf"
    gq.save(existing, {"old": X}, {"k": 1})
    before = existing.read_bytes()

    def refused(match, *args, **options):
        with pytest.raises(gq.GGUFError, match=match) as caught:
            gq.save(existing, *args, **options)
        assert [p.name for p in tmp_path.iterdir()] == ["m.gguf"]
        assert existing.read_bytes() == before
        assert str(existing) in str(caught.value)
        return str(caught.value)

    return refused


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("n" * 64, "64 bytes.*hold 63"), ("ü" * 32, "64 bytes"), ("a\0b", "NUL"), ("\ud800", "surrogate"),
        (3, "names are str"), (b"a", "names are str"), (None, "names are str"),
    ],
)  # fmt: skip
def test_names(refused, name, match):
    refused(match, {name: X})


def test_63_bytes_are_a_name(tmp_path):
    names = ["n" * 63, "ü" * 31, "😀", " ", "a b/c:d"]
    gq.save(tmp_path / "m.gguf", dict.fromkeys(names, X))
    assert list(gq.open(tmp_path / "m.gguf")) == names


@pytest.mark.parametrize(
    "x",
    [
        np.ones(3, np.uint8),
        np.ones(3, np.uint16),
        np.ones(3, np.uint64),
        np.ones(3, bool),
        np.ones(3, complex),
        np.ones(3, np.longdouble),
        np.array(["a"]),
        np.array([b"a"]),
        np.array([None]),
        np.zeros(2, "M8[s]"),
        np.zeros(2, [("a", "f4")]),
        np.zeros(2, gq.formats["q4_0"].dtype),
    ],
    ids=lambda x: str(x.dtype)[:20],
)
def test_dtypes(refused, x):
    said = refused("its dtype is", {"w": x})
    assert "'w'" in said
    assert "float32" in said


@pytest.mark.parametrize("x", [[1.0, 2.0], 1.0, None, "text", b"bytes", object(), {"a": 1}, np.float32])
def test_what_is_no_array(refused, x):
    refused("tensors are QuantArrays, NumPy or CuPy arrays", {"w": x})


def test_masks_and_too_many_axes(refused):
    refused("masked", {"w": np.ma.masked_equal([1.0, 2.0], 2)})
    refused("5 axes", {"w": X.reshape(1, 1, 1, 1, 4)})
    refused("5 axes", {"w": gq.quantize(np.ones((1, 1, 1, 1, 32), np.float32), "q8_0")})


def test_names_and_keys_given_twice(refused):
    refused("'w' is given twice", [("w", X), ("w", X)])
    refused("'k' is given twice", {"w": X}, [("k", 1), ("k", 1)])


@pytest.mark.parametrize("tensors", [5, X, None, "ab", [X], [("a", X, 1)]])
def test_what_is_no_mapping(refused, tensors):
    refused("dict", tensors)


@pytest.mark.parametrize("metadata", [5, None, "ab", ["k"], [("k", 1, 2)], {1: 2}, {None: 1}, {b"k": 1}])
def test_what_is_no_metadata(refused, metadata):
    refused("dict", {"w": X}, metadata)


@pytest.mark.parametrize(
    ("value", "match"),
    [
        (None, "NoneType"),
        ({}, "dict"),
        ({1, 2}, "set"),
        (object(), "object"),
        (1j, "complex"),
        (b"x", "bytes"),
        (bytearray(b"x"), "bytes"),
        (2**64, "fits none"),
        (-(2**63) - 1, "fits none"),
        (10**5000, "16610 bits"),
        ([2**63], "Typed"),
        ([-(2**63) - 1], "fits none"),
        ([10**5000], "16610 bits"),
        (1e39, "too large for float32"),
        ([0.5, -1e300], "too large"),
        ([1, 0.5], "mixes float, int"),
        ([True, 1], "mixes bool, int"),
        ([1, "a"], "mixes int, str"),
        ([[1], 2], "mixes int, list"),
        ([None], "NoneType"),
        ([b"a"], "bytes"),
        ([{}], "dict"),
        ("\ud800", "surrogate"),
        (["a", "\udfff"], "surrogate"),
        (np.array([1j]), "complex128"),
        (np.array([None]), "object"),
        (np.longdouble(1), r"nothing|no type"),
        (np.datetime64("2020"), "datetime64"),
        (np.zeros(2, "S3"), "NumPy array"),
        ([np.zeros(2, complex)], "complex128"),
        (iter([1]), "iterator"),
        (Typed(256, "uint8"), "int 256 does not fit uint8"),
        (Typed(-1, "uint64"), "does not fit"),
        (Typed([1, 300], "int8"), "int 300"),
        (Typed(np.array([300]), "int8"), "int 300"),
        (Typed(1.5, "int32"), "float 1.5"),
        (Typed(1, "bool"), "does not fit bool"),
        (Typed("1", "int32"), "str '1'"),
        (Typed(1, "string"), "pass a str"),
        (Typed([1], "string"), "pass a str"),
        (Typed(np.arange(2), "string"), "str"),
        (Typed(b"ab", "uint8"), "bytes"),
        (Typed([b"ab"], "uint8"), "bytes"),
        (Typed(1, "int128"), "no such type"),
        (Typed([1], "array"), "no such type"),
        (Typed(1, 13), "no such type"),
        (Typed(1, None), "no such type"),
        (Typed(True, "uint8"), "does not fit"),
        (Typed(1e39, "float32"), "too large"),
        (Typed(10**400, "float64"), "does not fit"),
        ([Typed(1, "uint8")], "Typed"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values(refused, value, match):
    said = refused(match, {"w": X}, {"some.key": value})
    assert "'some.key'" in said


def test_lists_too_deep(refused):
    deep = []
    for _ in range(100_000):
        deep = [deep]
    refused("16 deep", {"w": X}, {"k": deep})
    while deep:  # taken apart by hand: the interpreter would recurse
        deep = deep.pop()


@pytest.mark.parametrize("key", ["", "k" * 65536, "\ud800"])
def test_keys(refused, key):
    refused("the key", {"w": X}, {key: 1})


@pytest.mark.parametrize("alignment", [0, 1, 3, 4, 24, 48, -32, 2**21, 2**40, 32.0, "32", None, True])
def test_alignments(refused, alignment):
    refused("alignment", {"w": X}, alignment=alignment)
    refused("alignment", {"w": X}, {"general.alignment": alignment})


@pytest.mark.parametrize("options", [{"byteorder": "middle"}, {"byteorder": None}, {"byteorder": ">"}])
def test_byteorders(refused, options):
    refused("byteorder", {"w": X}, **options)


@pytest.mark.parametrize("most", [0, -1, 1.5, "1", True])
def test_split_sizes(refused, most):
    refused("split_max_bytes", {"w": X}, split_max_bytes=most)


def test_paths(tmp_path):
    with pytest.raises(OSError, match="is a folder"):
        gq.save(tmp_path, {"w": X})
    (tmp_path / "d-00002-of-00002.gguf").mkdir()
    with pytest.raises(OSError, match="is a folder"):
        gq.save(tmp_path / "d.gguf", {"a": X, "b": X}, split_max_bytes=16)
    (tmp_path / "d-00002-of-00002.gguf").rmdir()
    with pytest.raises(FileNotFoundError, match="nothing has changed"):
        gq.save(tmp_path / "no" / "m.gguf", {"w": X})
    with pytest.raises(gq.GGMLQError, match="NoneType"):
        gq.save(None, {"w": X})
    with pytest.raises(gq.GGUFError, match="part 1 of 2"):
        gq.save(tmp_path / "m-00001-of-00002.gguf", {"w": X})
    with pytest.raises(gq.GGUFError, match="null"):
        gq.save("a\0b", {"w": X})
    assert not list(tmp_path.iterdir())


def test_a_closed_file(tmp_path):
    gq.save(tmp_path / "a.gguf", {"w": X})
    with gq.open(tmp_path / "a.gguf") as f:
        pass
    with pytest.raises(gq.GGUFError, match="closed"):
        gq.save(tmp_path / "b.gguf", f)
