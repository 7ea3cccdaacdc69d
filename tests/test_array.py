"""QuantArray: a view on bytes with a logical shape."""

from __future__ import annotations

import copy
import mmap
import pickle

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.arrays.blocks import random_blocks
from ggmlq.arrays.rows import rows
from ggmlq.formats import FORMATS


@pytest.fixture
def q():
    return gq.quantize(rows("normal", 6, 64).reshape(3, 2, 64), "q4_0")


def test_facts(q):
    assert (q.format.name, q.shape, q.ndim, q.device, q.nbytes, len(q)) == (
        "q4_0",
        (3, 2, 64),
        3,
        "cpu",
        216,
        3,
    )
    assert q.blocks.shape == (3, 2, 2)
    assert q.blocks.dtype == FORMATS["q4_0"].dtype
    assert (q.raw.shape, q.raw.dtype) == ((3, 2, 36), np.uint8)
    assert np.shares_memory(q.blocks, q.raw)
    assert repr(q) == "<QuantArray q4_0 (3, 2, 64), ne [64, 2, 3], 216 bytes, cpu>"


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda fmt: fmt.name)
def test_every_format(fmt):
    blocks = random_blocks(fmt, 4, 3)
    q = gq.QuantArray.from_bytes(blocks, fmt, (4, 3 * fmt.block_size))
    assert np.array_equal(q.blocks, blocks)
    assert np.array_equal(q.raw, blocks.view(np.uint8).reshape(4, -1))
    assert np.array_equal(np.asarray(q), fmt.decode(blocks))
    assert pickle.loads(pickle.dumps(q)).raw.tobytes() == blocks.tobytes()


@pytest.mark.parametrize("kind", ["bytes", "bytearray", "memoryview", "ndarray", "blocks", "memmap", "mmap"])
def test_any_buffer_without_a_copy(kind, q, tmp_path):
    path = tmp_path / "blocks"
    path.write_bytes(q.raw.tobytes())
    if kind == "mmap":
        with path.open("rb") as file:
            raw = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    else:
        raw = {
            "bytes": q.raw.tobytes,
            "bytearray": lambda: bytearray(q.raw.tobytes()),
            "memoryview": lambda: memoryview(q.raw.tobytes()),
            "ndarray": lambda: q.raw,
            "blocks": lambda: q.blocks,
            "memmap": lambda: np.memmap(path, np.uint8, "r"),
        }[kind]()
    view = gq.QuantArray.from_bytes(raw, "Q4_0", (3, 2, 64))
    assert np.array_equal(view.raw, q.raw)
    assert type(view.raw) is np.ndarray
    if isinstance(raw, np.ndarray):
        assert np.shares_memory(view.raw, raw)
    else:
        assert np.shares_memory(view.raw, np.frombuffer(raw, np.uint8))


def test_a_view_follows_its_buffer_and_cannot_write_to_it():
    buffer = bytearray(18)
    q = gq.QuantArray.from_bytes(buffer, "q4_0", 32)
    buffer[0:2] = np.float16(2).tobytes()
    assert q.blocks["d"][0] == 2
    assert (np.asarray(q) == -16).all()
    for array in (q.blocks["d"], q.raw):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 1


def test_an_unaligned_buffer():
    data = np.arange(8, dtype=np.float32)
    raw = np.frombuffer(b"\0" + data.tobytes(), np.uint8)[1:]
    q = gq.QuantArray.from_bytes(raw, "f32", (2, 4))
    assert np.array_equal(np.asarray(q), data.reshape(2, 4))
    assert np.allclose(np.ones(4, np.float32) @ q.T, [6, 22])


def test_a_scalar():
    q = gq.QuantArray.from_bytes(np.float32(3).tobytes(), "f32", ())
    assert (q.shape, q.ndim, q.blocks.shape, np.asarray(q)[()]) == ((), 0, (), 3)
    with pytest.raises(gq.GGMLQError, match="no axes"):
        len(q)


def test_empty_arrays():
    for shape in ((0, 64), (2, 0), (0,)):
        q = gq.QuantArray.from_bytes(b"", "q4_0", shape)
        assert np.asarray(q).shape == shape
        assert q.blocks.size == q.nbytes == 0


# --- rows -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "index",
    [1, -1, np.int64(2), slice(1, 3), slice(None, None, -1), slice(0, 0), (2, 1), (slice(None), 0),
     (slice(1, None), slice(None), slice(None)), (0, slice(None), slice(None))],
)  # fmt: skip
def test_leading_axes_give_views(q, index):
    part = q[index]
    want = np.asarray(q)[index]
    assert part.shape == want.shape
    assert np.array_equal(np.asarray(part), want)
    assert np.shares_memory(part.raw, q.raw) or part.raw.size == 0
    assert np.array_equal(part.blocks, q.blocks[index])


@pytest.mark.parametrize("index", [[0, 2, 2], np.array([1]), np.array([True, False, True])])
def test_rows_by_number_are_copies(q, index):
    part = q[index]
    assert np.array_equal(np.asarray(part), np.asarray(q)[index])
    assert not np.shares_memory(part.raw, q.raw)


def test_iteration(q):
    parts = list(q)
    assert [part.shape for part in parts] == [(2, 64)] * 3
    assert np.array_equal(np.asarray(parts[2]), np.asarray(q)[2])


@pytest.mark.parametrize(
    "index", [(0, 0, 0), (0, 0, 0, ...), (..., ...), (..., 0), None, (0, None), (slice(None), 0, [0])]
)
def test_the_last_axis_is_not_indexed(q, index):
    with pytest.raises(gq.GGMLQError, match=r"lies in blocks of 32|rows are picked by") as error:
        q[index]
    assert isinstance(error.value, IndexError)


@pytest.mark.parametrize(
    "index",
    [3, (0, 5), [7], True, np.bool_(False), "d", 1.0, [0.5], slice("a", "b"), np.ones((3, 2, 36), bool),
     np.ones((3, 2, 64), bool), np.ones((3, 2), bool), [True, False], b"x"],
)  # fmt: skip
def test_what_is_no_row(q, index):
    """Never a raw NumPy error, and never an array whose bytes do not fit its shape."""
    with pytest.raises(gq.GGMLQError, match=r"<QuantArray q4_0 \(3, 2, 64\)"):
        q[index]


def test_rows_of_rows(q):
    ids = np.array([[0, 2], [1, 1]])
    assert np.array_equal(np.asarray(q[ids]), np.asarray(q)[ids])
    assert q[[]].shape == (0, 2, 64)


def test_one_row_has_no_rows(q):
    row = q[0, 0]
    assert row.ndim == 1
    for use in (lambda: row[0], lambda: row[0:16], lambda: list(row)):
        with pytest.raises(gq.GGMLQError):
            use()
    assert row[:].shape == row.shape


def test_facts_cannot_be_changed(q):
    for name, value in (("shape", (99, 64)), ("format", FORMATS["q8_0"])):
        with pytest.raises(AttributeError):
            setattr(q, name, value)


# --- copies ---------------------------------------------------------------------------------


def test_a_copy_may_be_edited(q):
    mine = q.copy()
    mine.blocks["d"][...] = 0
    assert not np.asarray(mine).any()
    assert np.asarray(q).any()
    mine[1].blocks["d"][...] = 1
    assert mine.blocks["d"][1].all()


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, lambda q: pickle.loads(pickle.dumps(q))])
def test_clones_are_equal_and_apart(q, clone):
    other = clone(q)
    assert (other.format, other.shape) == (q.format, q.shape)
    assert np.array_equal(other.raw, q.raw)
    assert not np.shares_memory(other.raw, q.raw)
    assert pickle.loads(pickle.dumps(q[::2])).shape == (2, 2, 64)


def test_a_pickle_remembers_whether_it_may_be_edited(q):
    assert not pickle.loads(pickle.dumps(q)).blocks.flags.writeable
    assert pickle.loads(pickle.dumps(q.copy())).blocks.flags.writeable


def test_to_the_same_place_is_itself(q):
    assert q.to("cpu") is q


# --- as an array ----------------------------------------------------------------------------


def test_asarray(q):
    assert np.asarray(q).dtype == np.float32
    assert np.array_equal(np.asarray(q), q.dequantize())
    assert np.array_equal(np.asarray(q), gq.dequantize(q))
    assert np.array_equal(np.asarray(q, np.float64), q.dequantize())
    assert np.array_equal(np.asarray(q.T), np.asarray(q).T)
    assert np.asarray(q, np.float16).dtype == np.float16
    with pytest.raises(ValueError, match="new array"):
        np.asarray(q, copy=False)


def test_numpy_functions_do_not_take_it_for_floats(q):
    with pytest.raises(TypeError):
        np.add(q, 1)
    with pytest.raises(TypeError):
        q + 1


def test_the_bytes_carry_the_array_protocols(q):
    assert np.from_dlpack(q.raw).nbytes == q.nbytes
    assert np.from_dlpack(q.copy().raw).nbytes == q.nbytes  # for consumers that refuse read-only data
    assert memoryview(q.raw).nbytes == q.nbytes
    assert q.raw.__array_interface__["typestr"] == "|u1"


def test_transpose(q):
    t = q[0].T
    assert (t.shape, t.ndim) == ((64, 2), 2)
    assert t.T.shape == (2, 64)
    assert "QuantArray q4_0" in repr(t)


# --- bad input ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "format", "shape", "error", "words"),
    [
        (bytes(17), "q4_0", 32, ValueError, "has 17 bytes, this shape needs 18"),
        (bytes(36), "q4_0", (2, 2, 32), ValueError, "has 36 bytes, this shape needs 72"),
        (bytes(18), "q4_0", 30, ValueError, "rows have 30 elements, q4_0 .* hold 32; pad .* to 32"),
        (bytes(18), "q4_0", (-1, 32), ValueError, "negative"),
        (bytes(18), "q4_0", 32.0, TypeError, "tuple of integers"),
        (bytes(18), "q4_0", (1.5, 32), TypeError, "tuple of integers"),
        (bytes(18), "q4_0", (), ValueError, "rows have 1 elements"),
        (bytes(18), "q4_0", (2**40, 2**40), ValueError, "this shape needs"),
        ("text", "q4_0", 32, TypeError, "no buffer in this str"),
        (None, "q4_0", 32, TypeError, "no buffer in this NoneType"),
        (np.zeros((4, 18), np.uint8)[::2], "q4_0", (2, 32), ValueError, "not C-contiguous"),
        (memoryview(bytes(36))[::2], "q4_0", 32, ValueError, "not C-contiguous"),
        (np.array([None]), "q4_0", 32, TypeError, "holds no bytes"),
        (np.ma.zeros(18, np.uint8), "q4_0", 32, TypeError, "mask"),
        (bytes(18), "q4_0", True, TypeError, "tuple of integers"),
        (bytes(18), "q4_0", (True, 32), TypeError, "tuple of integers"),
        (b"", "q4_0", (2**63, 0), ValueError, "beyond 2..63"),
        (b"", "q4_0", (2**40, 2**40, 32), ValueError, "this shape needs"),
        (b"", "q4_0", (1,) * 64 + (32,), ValueError, "more than 63 axes"),
        (bytes(18), "q4_9", 32, KeyError, "did you mean .*q4_0"),
        (bytes(18), 4, 32, KeyError, "removed"),
    ],
)  # fmt: skip
def test_from_bytes_refuses(raw, format, shape, error, words):
    with pytest.raises(gq.GGMLQError, match=words) as caught:
        gq.QuantArray.from_bytes(raw, format, shape)
    assert isinstance(caught.value, error)
