"""Two files against each other: nothing that differs is missed, and what is equal is not decoded."""

from __future__ import annotations

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.arrays.blocks import random_blocks
from ggmlq.diff import tensors
from ggmlq.errors import ConvertError, GGUFError
from ggmlq.gguf import Typed

SEED = int(np.random.default_rng().integers(1 << 30))


@pytest.fixture
def diff(tmp_path):
    def diff(a, b, *, metadata=({}, {}), order=("little", "little"), **how):
        for name, content, keys, byteorder in zip("ab", (a, b), metadata, order, strict=True):
            gq.save(tmp_path / f"{name}.gguf", content, keys, byteorder=byteorder)
        return gq.diff.compare(tmp_path / "a.gguf", tmp_path / "b.gguf", **how)

    return diff


def weights(*shape):
    return np.random.default_rng(SEED).standard_normal(shape, np.float32)


def blocks_of(fmt, rows):
    """Any bytes, encoded by nobody: to be equal is a matter of bytes alone."""
    size = max(fmt.block_size, 32)
    raw = np.random.default_rng([SEED, fmt.id]).integers(0, 256, rows * fmt.row_bytes(size), np.uint8)
    return gq.QuantArray.from_bytes(raw, fmt, (rows, size))


def test_a_file_equals_itself(diff, monkeypatch):
    monkeypatch.setattr(tensors, "dequantize", lambda *args: pytest.fail("equal bytes were decoded"))
    content = {fmt.name: blocks_of(fmt, 3) for fmt in gq.formats.values()}
    content |= {"empty": weights(0, 4), "one": np.float32(3), "nan": np.float32([np.nan]), "i": np.arange(4)}
    found = diff(content, dict(reversed(content.items())), metadata=({"k": [1]}, {"k": [1]}))
    assert found.equal
    assert found.identical == len(content) == len(found.tensors)
    assert all(tensor.nmse == 0 for tensor in found.tensors)


@pytest.mark.parametrize("fmt", [f for f in gq.formats.values() if f.block_size > 1], ids=lambda f: f.name)
def test_one_block_of_any_format(diff, fmt):
    """A block that decodes to something else is found, with its fields and its error."""
    blocks = random_blocks(fmt, 5, 4, SEED)
    other = blocks.copy()
    other[3, 2] = random_blocks(fmt, 1, 1, SEED + 1)[0, 0]
    shape = (5, 4 * fmt.block_size)
    a, b = (gq.QuantArray.from_bytes(raw.copy(), fmt, shape) for raw in (blocks, other))
    (tensor,) = diff({"w": a}, {"w": b}).tensors
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    assert tensor.status == tensors.OTHER_VALUES
    assert tensor.nmse == pytest.approx(gq.nmse(y, x), rel=1e-12)
    worst = np.unravel_index(np.abs(y - x).argmax(), x.shape)
    assert tensor.largest.index == worst
    assert (tensor.largest.a, tensor.largest.b) == (x[worst], y[worst])
    assert tensor.largest.error == abs(y - x).max()
    assert tensor.worst.row == (3,)
    assert tensor.worst.columns == (2 * fmt.block_size, 3 * fmt.block_size)
    for name in fmt.dtype.names:
        assert tensor.worst.a[name] == blocks[3, 2][name].tolist()
        assert tensor.worst.b[name] == other[3, 2][name].tolist()


@pytest.mark.parametrize("order", [("big", "big"), ("big", "little"), ("little", "big")])
def test_byte_orders_do_not_matter(diff, order):
    q = gq.quantize(weights(4, 64), "q4_1")
    content = {"q": q, "f": weights(4, 4), "i": np.arange(5, dtype=np.int16)}
    found = diff(content, content, order=order, metadata=({"a": [1, 2]}, {"a": [1, 2]}))
    assert found.equal
    assert found.identical == 3
    same = order[0] == order[1]
    assert {t.status for t in found.tensors} == {tensors.SAME_BYTES if same else tensors.SAME_BLOCKS}


def test_other_types(diff):
    w = weights(600, 1024)  # more than a slab
    q = gq.quantize(w, "q8_0")
    found = diff({"w": w}, {"w": q})
    (tensor,) = found.tensors
    assert tensor.types == ("f32", "q8_0")
    assert tensor.nmse == pytest.approx(gq.nmse(q, w), rel=1e-9)
    error = np.abs(np.asarray(q, np.float64) - w)
    assert tensor.largest.index == np.unravel_index(error.argmax(), w.shape)
    assert tensor.worst.a is None
    assert set(tensor.worst.b) == {"d", "qs"}
    assert not found.equal
    assert diff({"w": w}, {"w": q}, tolerance=tensor.nmse).equal
    assert not diff({"w": w}, {"w": q}, tolerance=tensor.nmse * 0.999).equal


def test_the_same_values_in_another_type(diff):
    q = gq.quantize(weights(4, 64), "q8_0")
    (tensor,) = diff({"w": q}, {"w": np.asarray(q)}).tensors
    assert (tensor.status, tensor.nmse, tensor.largest) == (tensors.SAME_VALUES, 0, None)
    assert not diff({"w": q}, {"w": np.asarray(q)}).equal
    assert diff({"w": q}, {"w": np.asarray(q)}, tolerance=1e-30).equal
    zero = np.zeros(4, np.float32)
    assert diff({"w": zero}, {"w": -zero}).tensors[0].status == tensors.SAME_VALUES


def test_places_in_more_axes(diff):
    x = np.zeros((2, 3, 4, 5), np.float32)
    y = x.copy()
    y[1, 2, 3, 4] = 7
    (tensor,) = diff({"w": x}, {"w": y}).tensors
    assert tensor.largest.index == (1, 2, 3, 4)
    assert tensor.nmse == np.inf  # of nothing but zeros
    assert tensor.worst is None
    (tensor,) = diff({"w": x[0, 0, 0]}, {"w": y[1, 2, 3]}).tensors
    assert tensor.largest.index == (4,)
    (tensor,) = diff({"w": np.float32(1)}, {"w": np.float32(3)}).tensors
    assert (tensor.largest.index, tensor.nmse) == ((), 4)


def test_wide_integers_keep_their_last_bits(diff):
    a = np.array([2**24 + 1, 5], np.int32)
    (tensor,) = diff({"i": a}, {"i": a - [1, 0]}).tensors
    assert tensor.status == tensors.OTHER_VALUES
    assert tensor.largest.error == 1


def test_errors_too_small_to_be_squared(diff):
    (tensor,) = diff({"w": np.array([1.0, 0])}, {"w": np.array([1, 1e-200])}).tensors
    assert (tensor.status, tensor.largest.index) == (tensors.OTHER_VALUES, (1,))


@pytest.mark.parametrize("swap", [False, True])
def test_nan_is_never_near(diff, swap):
    x = weights(4, 32)
    y = x.copy()
    y[2, 3] = np.nan
    (tensor,) = (diff({"w": y}, {"w": x}) if swap else diff({"w": x}, {"w": y})).tensors
    assert np.isnan(tensor.nmse)
    assert tensor.largest.index == (2, 3)
    assert not tensor.within(1e9)
    x[2, 3], x[0, 0] = np.nan, np.inf
    y[0, 0], y[0, 1] = np.inf, y[0, 1] + 1
    (tensor,) = diff({"w": x}, {"w": y}).tensors  # both NaN, both infinite: these agree
    assert tensor.largest.index == (0, 1)


def test_names_and_shapes(diff):
    found = diff({"a": weights(2, 3), "s": weights(2, 3)}, {"s": weights(3, 2), "b": weights(4)})
    assert [(t.name, t.status) for t in found.tensors] == [
        ("a", "only in A"), ("s", "other shape"), ("b", "only in B"),
    ]  # fmt: skip
    assert found.tensors[0].types == ("f32", None)
    assert found.tensors[2].shapes == (None, (4,))
    assert len(found.differing) == 3
    assert diff({"w": weights(1, 1, 3)}, {"w": weights(3)}).equal  # ggml has no such axes


def test_metadata(diff):
    same = {"same": [0.5, float("nan")], "text": ["a", "b"]}
    a = same | {"gone": True, "n": Typed(1, "uint8"), "x": 1.5, "ids": [1, 2, 3, 4], "words": ["a", "b"],
                "bad": Typed(b"\xff", "string"), "of": [1, 2], "nested": [[1], [2]]}  # fmt: skip
    b = same | {"n": Typed(1, "uint16"), "x": 2.5, "ids": [1, 9, 3], "words": ["a", "c"], "new": "é",
                "bad": Typed(b"\xfe", "string"), "of": [1.0, 2.0], "nested": [[1], [3]]}  # fmt: skip
    found = diff({}, {}, metadata=(a, b))
    assert not found.equal
    assert {d.key: (d.status, d.types) for d in found.metadata} == {
        "gone": ("only in A", ("bool", None)), "n": ("changed", ("uint8", "uint16")),
        "x": ("changed", ("float32", "float32")), "ids": ("changed", ("array of int32",) * 2),
        "words": ("changed", ("array of string",) * 2), "bad": ("changed", ("string",) * 2),
        "of": ("changed", ("array of int32", "array of float32")),
        "nested": ("changed", ("array of array",) * 2), "new": ("only in B", (None, "string")),
    }  # fmt: skip
    by_key = {d.key: d for d in found.metadata}
    assert (by_key["ids"].elements, by_key["ids"].first) == (2, 1)
    assert (by_key["words"].elements, by_key["words"].first) == (1, 1)
    assert (by_key["nested"].elements, by_key["nested"].first) == (1, 1)
    assert by_key["bad"].values == (b"\xff", b"\xfe")
    assert (by_key["bad"].elements, by_key["bad"].first) == (None, 0)
    assert by_key["x"].values == (1.5, 2.5)
    assert diff({}, {}, metadata=(a, b), ignore_metadata=True).equal


def test_equal_bytes_in_another_order_are_another_number(diff):
    keys = {"n": Typed(1, "uint32")}, {"n": Typed(1 << 24, "uint32")}
    (found,) = diff({}, {}, metadata=keys, order=("little", "big")).metadata
    assert found.values == (1, 1 << 24)


def test_long_text(diff):
    text = "x" * 5000
    (found,) = diff({}, {}, metadata=({"t": text + "a"}, {"t": text + "b" * 9})).metadata
    assert found.first == 5000


def test_bad_input(diff, tmp_path):
    for tolerance in (-1, float("nan")):
        with pytest.raises(ConvertError, match="an NMSE is 0 or more"):
            diff({}, {}, tolerance=tolerance)
    with pytest.raises(GGUFError, match="no such file"):
        gq.diff.compare(tmp_path / "a.gguf", tmp_path / "nothing.gguf")


def test_open_files_stay_open(tmp_path):
    gq.save(tmp_path / "a.gguf", {"w": weights(3)})
    with gq.open(tmp_path / "a.gguf") as f:
        assert gq.diff.compare(f, f).equal
        assert f["w"].shape == (3,)
