"""Mutated files: the reader refuses what an independent reader refuses, and agrees on the rest.

2,000 mutants, new ones in each run (``--seed`` repeats them); 60,000 with ``--long``.
"""

from __future__ import annotations

import random
from struct import pack

import gguf_bytes as gb
import gguf_oracle
import pytest

import ggmlq as gq
from ggmlq.gguf import node

MUTANTS, LONG = 2_000, 60_000
GROUPS = 8
NUMBERS = [0, 1, 2, 3, 4, 5, 8, 9, 12, 13, 31, 32, 33, 255, 256, 65535, 65536]
NUMBERS += [2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64 - 32]


def seeds():
    b = gb.Builder()
    words = b.kv("tokens", gb.ARRAY, b.array(gb.STRING, [f"w{i}" for i in range(40)]))
    aligned = b.file(
        [b.kv("general.alignment", gb.UINT32, 8), words, b.kv("split.count", gb.UINT16, 1)],
        [b.info("a", [32], gb.Q8_0, 0), b.info("b", [4], gb.F32, 40), b.info("c", [2, 2, 2, 2], gb.I8, 56)],
        bytes(72), alignment=8,
    )  # fmt: skip
    return [gb.small("<"), gb.small(">"), aligned]


def mutate(rng, raw):
    raw = bytearray(raw)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        at = rng.randrange(len(raw) + 1)
        kind = rng.randrange(8)
        if kind == 0:
            raw[at : at + 1] = bytes([rng.randrange(256)])
        elif kind == 1 and at < len(raw):
            raw[at] ^= 1 << rng.randrange(8)
        elif kind in (2, 3):
            code, width = rng.choice([("I", 4), ("Q", 8)])
            number = rng.choice(NUMBERS) % (1 << 8 * width)
            raw[at : at + width] = pack(rng.choice("<>") + code, number)
        elif kind == 4:
            del raw[at : at + rng.choice([1, 4, 8, 30])]
        elif kind == 5:
            raw[at:at] = rng.choice([b"\0", bytes(8), bytes(32), b"\xff" * 4, raw[at - 20 : at]])
        elif kind == 6:
            other = rng.randrange(len(raw) + 1)
            raw[at : at + 12] = raw[other : other + 12]
        elif at:
            del raw[at:]
    return bytes(raw)


def value_of(metadata, key):
    try:
        return metadata[key]
    except gq.GGUFError:
        metadata.raw(key)
        return gguf_oracle.BadValue


def same(a, b):
    """Equal, with NaN equal to NaN."""
    if isinstance(b, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b or (a != a and b != b)  # noqa: PLR0124


def compare(path, raw):
    """Whether the file was refused; anything but agreement raises."""
    try:
        version, order, alignment, values, tensors = gguf_oracle.parse(raw)
    except gguf_oracle.Bad:
        with pytest.raises(gq.GGUFError):
            gq.open(path)
        return True
    f = gq.open(path)
    assert (f.version, f.byteorder, f.alignment) == (version, {"<": "little", ">": "big"}[order], alignment)
    assert list(f.metadata) == list(values)
    for key, value in values.items():
        assert same(value_of(f.metadata, key), value), key
    assert list(f) == list(tensors)
    assert set(f.missing) == {name for name, tensor in tensors.items() if tensor is None}
    for name, tensor in tensors.items():
        if tensor is None:
            with pytest.raises(gq.GGUFError):
                f[name]
            continue
        kind, shape, data = tensor
        q = f[name]
        assert (q.format.id, q.shape, q.blocks.tobytes()) == (kind, shape, data), name
    return False


@pytest.mark.parametrize("group", range(GROUPS))
def test_mutants(tmp_path, group, monkeypatch, fresh, request):
    rng = random.Random(int(fresh.integers(2**63)))
    if group % 2:  # so that the few strings here are searched and not only walked
        monkeypatch.setattr(node, "SHORT", 2)
    bases, refused = seeds(), 0
    path = tmp_path / "m.gguf"
    count = (LONG if request.config.option.long else MUTANTS) // GROUPS
    for number in range(count):
        raw = mutate(rng, rng.choice(bases))
        path.write_bytes(raw)
        try:
            refused += compare(path, raw)
        except BaseException:
            print(f"group {group}, mutant {number}: {path}")
            raise
    assert 0.2 * count < refused < 0.95 * count, "mutants must be of both kinds to mean something"
