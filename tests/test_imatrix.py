"""Importance matrices: both kinds of file, and everything that may be wrong with one."""

from __future__ import annotations

from struct import pack

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.errors import GGUFError
from ggmlq.gguf import Typed

RNG = np.random.default_rng()


def legacy(entries, end=(7, b"wiki.txt")):
    """The bytes of a .dat: entries are name, calls and values."""
    raw = pack("<i", len(entries))
    for name, calls, values in entries:
        text = name.encode() if isinstance(name, str) else name
        raw += pack("<i", len(text)) + text + pack("<ii", calls, len(values))
        raw += np.asarray(values, "<f4").tobytes()
    return raw + (pack("<ii", end[0], len(end[1])) + end[1] if end else b"")


@pytest.fixture
def read(tmp_path):
    def read(content, metadata=None):
        path = tmp_path / "imatrix"
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            keys = {"general.type": "imatrix", "imatrix.datasets": ["wiki.txt", "code.txt"]}
            keys |= {"imatrix.chunk_count": Typed(9, "uint32"), "imatrix.chunk_size": Typed(512, "uint32")}
            gq.save(path, content, keys if metadata is None else metadata)
        return gq.gguf.read_imatrix(path)

    return read


def test_the_older_file(read):
    sums = RNG.gamma(1, 1, 96).astype(np.float32)
    found = read(legacy([("blk.0.ffn_up.weight", 3, sums), ("ünï", 0, [1, 2])]))
    assert list(found) == ["blk.0.ffn_up.weight", "ünï"]
    assert np.array_equal(found["blk.0.ffn_up.weight"], (sums / np.float32(3))[None])
    assert np.array_equal(found["ünï"], [[1, 2]])  # no calls: as they are
    assert (found.chunks, found.datasets) == (7, ("wiki.txt",))
    assert repr(found).endswith("imatrix', 2 tensors, 7 chunks>")


@pytest.mark.parametrize("end", [None, (7, b"")])
def test_the_end_of_the_older_file_may_be_missing(read, end):
    found = read(legacy([("w", 1, [1])], end))
    assert (found.chunks, found.datasets) == (end[0] if end else 0, ())


def test_the_gguf_file(read):
    sums = RNG.gamma(1, 1, (4, 64)).astype(np.float32)
    counts = np.float32([[5], [0], [3], [16_777_215]])
    found = read({"e.in_sum2": sums, "e.counts": counts, "v.counts": np.float32([[2]]),
                  "v.in_sum2": np.float32([[2, 0]]), "v.in_sum": np.float32([[-1, 1]])})  # fmt: skip
    want = sums / np.where(counts == 0, 1, counts).astype(np.float32)
    want[1] = 1  # llama.cpp's choice for an expert that saw no token
    assert np.array_equal(found["e"], want)
    assert found["e"].dtype == np.float32
    assert np.array_equal(found["v"], [[1, 0]])
    assert found.unseen == {"e": (1,)}
    assert (found.chunks, found.datasets) == (9, ("wiki.txt", "code.txt"))


def test_metadata_may_be_missing(read):
    found = read({"v.counts": np.float32([[2]]), "v.in_sum2": np.float32([[2, 4]])}, {})
    assert (found.chunks, found.datasets) == (0, ())


@pytest.mark.parametrize("cut", range(1, len(legacy([("w", 1, [1, 2]), ("v", 1, [3])])) - 16))
def test_the_older_file_cut_short(read, cut):
    """Any end but that of the last entry, of the count of chunks or of the whole."""
    with pytest.raises(GGUFError, match=r"at byte \d+: .*left"):
        read(legacy([("w", 1, [1, 2]), ("v", 1, [3])])[:cut])


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "the file is empty"),
        (pack("<i", 0), "the number of entries is 0"),
        (pack("<i", -5), "the number of entries is 4294967291"),
        (pack("<i", 10**9), "the length of the name of an entry needs 4 bytes, 0 are left"),
        (legacy([("w", -1, [1])]), "the number of calls is 4294967295"),
        (legacy([("w", 1, [])]), "the number of values is 0"),
        (legacy([("", 1, [1])]), "the length of the name of an entry is 0"),
        (legacy([(b"\xff", 1, [1])]), "is not UTF-8"),
        (legacy([("w", 1, [1]), ("w", 1, [2])]), "'w' is there twice"),
        (legacy([("w", 1, [1])]) + b"?", "1 bytes follow the end"),
        (legacy([("w", 1, [1, np.nan])]), "'w': value 1 is nan"),
        (legacy([("w", 1, [np.inf])]), "value 0 is inf"),
        (legacy([("w", 1, [1, 1, -0.5])]), "value 2 is -0.5"),
        (b"<html>not found</html>", "an entry"),
    ],
)
def test_what_is_wrong_with_the_older_file(read, raw, says):
    with pytest.raises(GGUFError, match=says):
        read(raw)


ONE = np.ones((2, 4), np.float32)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"blk.0.ffn_up.weight": ONE}, r"1 tensors and none is named \*.in_sum2"),
        ({}, "0 tensors"),
        ({"w.in_sum2": ONE}, "there is no tensor 'w.counts'"),
        ({"w.in_sum2": ONE, "w.counts": np.ones(3, np.float32)}, "8 sums and 3 counts"),
        ({"w.in_sum2": ONE, "w.counts": np.ones(0, np.float32)}, "8 sums and 0 counts"),
        ({"w.in_sum2": ONE.astype(np.float16), "w.counts": ONE[:, :1]}, "'w.in_sum2' is f16"),
        ({"w.in_sum2": -ONE, "w.counts": ONE[:, :1]}, "value 0 is -1.0"),
        ({"w.in_sum2": ONE * np.float32(np.nan), "w.counts": ONE[:, :1]}, "value 0 is nan"),
        ({"w.in_sum2": ONE, "w.counts": -ONE[:, :1]}, "'w.counts': value 0 is -1.0"),
        (
            {"w.in_sum2": ONE, "w.counts": ONE[:, :1] * np.float32(1e30)},
            r"'w.counts': value 0 is 1.0.*e\+30; .* 2\^63",
        ),
    ],
)
def test_what_is_wrong_with_the_gguf_file(read, content, says):
    with pytest.raises(GGUFError, match=says):
        read(content)


def test_a_path_that_is_none(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no such file"):
        gq.gguf.read_imatrix(tmp_path / "nothing")
    with pytest.raises(TypeError, match="llama-imatrix"):
        gq.gguf.read_imatrix(3)


@pytest.mark.parametrize("kind", ["dat", "gguf"])
def test_damaged_files_are_refused_or_read(tmp_path, kind):
    """Whatever bytes change: an error of ours, or values that are finite and not negative."""
    path = tmp_path / "imatrix"
    if kind == "dat":
        path.write_bytes(legacy([("w", 3, np.arange(8)), ("experts", 2, np.ones(32))]))
    else:
        sums = {"w.in_sum2": np.ones((2, 8), np.float32), "w.counts": np.float32([[2], [3]])}
        gq.save(path, sums, {"imatrix.datasets": ["a"], "imatrix.chunk_count": Typed(9, "uint32")})
    right = path.read_bytes()
    for seed in RNG.integers(1 << 30, size=120).tolist():
        rng = np.random.default_rng(seed)
        raw = bytearray(right)
        for at in rng.integers(len(raw), size=rng.integers(1, 4)).tolist():
            raw[at] = rng.choice([0, 1, 127, 128, 255, int(rng.integers(256))])
        path.write_bytes(raw[: int(rng.integers(len(raw) // 2, len(raw) + 1))])
        try:
            found = gq.gguf.read_imatrix(path)
        except GGUFError:
            continue
        for rows in found.values():
            assert rows.ndim == 2, seed
            assert (np.isfinite(rows) & (rows >= 0)).all(), seed
