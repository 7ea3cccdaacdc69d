"""The search for strings gives what a walk gives, on any bytes."""

from __future__ import annotations

import random
from struct import pack, unpack_from

import pytest

from ggmlq.errors import GGUFError
from ggmlq.gguf import node
from ggmlq.gguf.source import Source

LENGTHS = [0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 31, 254, 255, 256, 257, 300, 511, 512]


@pytest.fixture(params=[(1 << 17, 64), (64, 1), (256, 3)], ids=str)
def sizes(request, monkeypatch):
    """The real window and small ones, so that every kind of border is met often."""
    monkeypatch.setattr(node, "SHORT", request.param[1])
    monkeypatch.setattr(node, "STRETCH", 16 * request.param[1])
    monkeypatch.setattr(node, "WINDOW", request.param[0])
    monkeypatch.setattr(node, "BURST", request.param[1])
    monkeypatch.setattr(node, "MAX_BURST", 2 * request.param[1])


def walk(raw, at, count):
    """The starts and the end, or None where a string ends outside."""
    starts = []
    for _ in range(count):
        if at + 8 > len(raw):
            return None
        (n,) = unpack_from("<Q", raw, at)
        starts.append(at)
        at += 8 + n
        if at > len(raw):
            return None
    return starts, at


def found(path, raw, at, count, byteorder="little"):
    path.write_bytes(raw)
    source = Source(str(path))
    source.set_byteorder(byteorder)
    starts, end = [], at
    try:
        for run in node.runs(source, at, count):
            assert len(run.starts)
            starts += run.starts.tolist()
            end = run.end
    except GGUFError:
        with pytest.raises(GGUFError):
            node.end(source, at, count)
        return None
    assert node.end(source, at, count) == end
    return starts, end


def text(rng, kind):
    """Text that tries to be taken for lengths: zeros, whole prefixes, prefixes cut in two."""
    n = rng.choice(LENGTHS) if kind != "short" else rng.randrange(1, 20)
    if kind == "zeros":
        return bytes(n)
    if kind == "prefixes":
        return b"".join(pack("<Q", rng.choice([*LENGTHS, 2**20, 2**63])) for _ in range(n // 8)) + bytes(
            n % 8
        )
    if kind == "cut":
        return (pack("<Q", rng.randrange(256)) * 3)[rng.randrange(8) :][: n % 24]
    if kind == "binary":
        return bytes(rng.choice([0, 0, 0, 1, 5, 255]) for _ in range(n))
    return bytes(rng.randrange(97, 123) for _ in range(n))


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("kind", ["short", "letters", "zeros", "prefixes", "cut", "binary", "mixed"])
@pytest.mark.parametrize("seed", range(8))
def test_the_same_as_a_walk(tmp_path, kind, seed):
    rng = random.Random(f"{kind} {seed}")
    kinds = ["short", "letters", "zeros", "prefixes", "cut", "binary"]
    texts = [
        text(rng, rng.choice(kinds) if kind == "mixed" else kind) for _ in range(rng.choice([1, 5, 400]))
    ]
    for _ in range(rng.randrange(4)):
        texts[(at := rng.randrange(len(texts))) : at] = [b""] * rng.choice([1, 31, 33, 200])
    start = rng.randrange(9)
    body = b"".join(pack("<Q", len(t)) + t for t in texts)
    raw = bytes(start) + body + bytes(rng.randrange(20))
    expected = walk(raw, start, len(texts))
    assert expected is not None
    assert expected[1] == start + len(body)
    assert found(tmp_path / "raw", raw, start, len(texts)) == expected


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("seed", range(150))
def test_the_same_as_a_walk_on_damaged_bytes(tmp_path, seed):
    rng = random.Random(seed)
    kinds = ["short", "zeros", "prefixes", "cut", "binary"]
    texts = [text(rng, rng.choice(kinds)) for _ in range(rng.randrange(1, 60))]
    raw = bytearray(b"".join(pack("<Q", len(t)) + t for t in texts))
    for _ in range(rng.randrange(1, 4)):
        raw[rng.randrange(len(raw))] = rng.choice([0, 0, 1, 7, 255])
    raw = bytes(raw[: rng.randrange(1, len(raw) + 1)])
    count = rng.randrange(1, len(texts) + 30)
    assert found(tmp_path / "raw", raw, 0, count) == walk(raw, 0, count)


@pytest.mark.usefixtures("sizes")
def test_random_bytes_of_few_values(tmp_path):
    rng = random.Random(0)
    for _ in range(150):
        raw = bytes(rng.choices([0, 1, 2, 8], [20, 2, 1, 1], k=rng.randrange(8, 600)))
        start, count = rng.randrange(8), rng.randrange(1, 40)
        assert found(tmp_path / "raw", raw, start, count) == walk(raw, start, count)


def test_a_long_array_crosses_many_windows(tmp_path):
    rng = random.Random(1)
    texts = [text(rng, "short") for _ in range(40_000)]
    texts[20_000] = bytes(300_000)
    raw = b"".join(pack("<Q", len(t)) + t for t in texts)
    expected = walk(raw, 0, len(texts))
    assert found(tmp_path / "raw", raw, 0, len(texts)) == expected
    swapped = b"".join(pack(">Q", len(t)) + t for t in texts)
    assert found(tmp_path / "raw", swapped, 0, len(texts), "big") == expected
