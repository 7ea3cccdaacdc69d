"""Metadata: arrays, values that do not decode, edited copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import gguf_bytes as gb
import numpy as np
import pytest

import ggmlq as gq
from ggmlq.gguf import Array, Metadata, Typed, ValueType


@pytest.fixture
def opened(tmp_path):
    def opened(*kvs, order="<"):
        path = tmp_path / "m.gguf"
        path.write_bytes(gb.Builder(order).file(list(kvs)))
        return gq.open(path).metadata

    return opened


def test_an_array_is_a_read_only_sequence(opened):
    b = gb.Builder()
    a = opened(b.kv("a", gb.ARRAY, b.array(gb.INT16, [5, -6, 7])))["a"]
    assert isinstance(a, Sequence)
    assert (a == [5, -6, 7], a == (5, -6, 7), a != [5, -6], a == "5") == (True, True, True, False)
    assert (a[0], a[-1], a[1:], len(a), 7 in a, a.index(-6)) == (5, 7, [-6, 7], 3, True, 1)
    assert np.asarray(a).dtype == np.int16
    assert not np.asarray(a).flags.writeable
    assert np.array(a, np.float32).tolist() == [5, -6, 7]
    with pytest.raises(TypeError):
        a[0] = 1
    with pytest.raises(IndexError):
        a[3]
    assert repr(a) == "<array of 3 int16: 5, -6, 7>"


@pytest.mark.parametrize("order", "<>")
def test_text_that_is_not_utf8_fails_that_value_only(opened, order):
    b = gb.Builder(order)
    metadata = opened(
        b.kv("good", gb.STRING, "x"),
        b.kv("bad", gb.STRING, b"a\xff"),
        b.kv("list", gb.ARRAY, b.array(gb.STRING, ["a", "b", b"\xc3(", "d"])),
        order=order,
    )
    assert metadata["good"] == "x"
    with pytest.raises(gq.GGUFError, match=r"'bad'.*not UTF-8.*byte 1"):
        metadata["bad"]
    with pytest.raises(gq.GGUFError, match=r"at byte \d+.*'list': element 2 is not UTF-8"):
        metadata["list"]
    assert metadata.raw("bad") == b"a\xff"
    assert metadata.raw("list") == [b"a", b"b", b"\xc3(", b"d"]


@pytest.mark.parametrize("byte", [2, 127, 128, 255])
def test_bools_are_0_or_1(opened, byte):
    b = gb.Builder()
    metadata = opened(
        b.kv("one", gb.BOOL, bytes([byte])),
        b.kv("many", gb.ARRAY, b.array(gb.BOOL, [1, 0, bytes([byte])])),
        b.kv("deep", gb.ARRAY, b.array(gb.ARRAY, [b.array(gb.BOOL, [bytes([byte])])])),
    )
    with pytest.raises(gq.GGUFError, match=f"byte {byte}"):
        metadata["one"]
    with pytest.raises(gq.GGUFError, match=f"element 2 is a bool with byte {byte}"):
        metadata["many"]
    with pytest.raises(gq.GGUFError):
        metadata["deep"]
    assert metadata.raw("many") == bytes([1, 0, byte])


@pytest.mark.parametrize("order", "<>")
def test_raw_numbers_are_little_endian(opened, order):
    b = gb.Builder(order)
    metadata = opened(b.kv("n", gb.UINT32, 1), b.kv("a", gb.ARRAY, b.array(gb.UINT16, [1, 2])), order=order)
    assert (metadata.raw("n"), metadata.raw("a")) == (b"\1\0\0\0", b"\1\0\2\0")


def test_floats_that_are_no_numbers(opened):
    b = gb.Builder()
    metadata = opened(
        *(b.kv(str(x), gb.FLOAT64, x) for x in (np.nan, np.inf, -np.inf)), b.kv("z", gb.FLOAT32, -0.0)
    )
    assert np.isnan(metadata["nan"])
    assert (metadata["inf"], metadata["-inf"], str(metadata["z"])) == (np.inf, -np.inf, "-0.0")


def test_edits_are_copies_that_keep_the_types(opened):
    b = gb.Builder()
    metadata = opened(b.kv("a", gb.UINT8, 1), b.kv("b", gb.FLOAT64, 0.1), b.kv("c", gb.STRING, "x"))
    edited = metadata.without("c") | {"d": 5, "b": Typed(2, "int8")}
    assert dict(edited) == {"a": 1, "b": 2, "d": 5}
    assert [edited.type(key) for key in edited] == ["uint8", "int8", "uint32"]
    assert dict(metadata) == {"a": 1, "b": 0.1, "c": "x"}
    assert dict({"a": 9, "z": 1} | metadata) == {"a": 1, "z": 1, "b": 0.1, "c": "x"}
    with pytest.raises(KeyError):
        metadata.without("nope")
    with pytest.raises(gq.GGUFError, match="'d'"):
        metadata | {"d": None}
    with pytest.raises(TypeError):
        metadata | 3


def test_metadata_of_python_values_reads_as_it_will_be_read():
    metadata = Metadata.of({"f": 0.1, "l": [1, 2], "t": ("a",), "e": []})
    assert isinstance(metadata, Mapping)
    assert metadata["f"] == float(np.float32(0.1))
    assert (metadata["l"], metadata["t"], metadata["e"]) == ([1, 2], ["a"], [])
    assert Metadata.of(metadata) is metadata


def test_array_of_its_own():
    a = Array(ValueType.UINT8, np.array([1, 2], np.uint8))
    assert Metadata.of({"a": a}).type("a") == "array of uint8"
    assert Metadata.of({"a": a[:0]}).type("a") == "array of uint8"
