"""Many small arrays cost no more than their strings, and long runs of empty strings next to nothing."""

from __future__ import annotations

from struct import pack

import gguf_bytes as gb
import pytest

import ggmlq as gq
from ggmlq.gguf import node

B = gb.Builder()


@pytest.fixture
def searches(monkeypatch):
    """How often NumPy searched a window, and how many steps of a walk were asked for."""
    counted = {"windows": 0, "walks": 0}

    def window(*args):
        counted["windows"] += 1
        return real_window(*args)

    def walk(*args):
        counted["walks"] += 1
        return real_walk(*args)

    real_window, real_walk = node._window, node._walk
    monkeypatch.setattr(node, "_window", window)
    monkeypatch.setattr(node, "_walk", walk)
    return counted


@pytest.fixture
def opened(tmp_path):
    def opened(*kvs):
        (tmp_path / "m.gguf").write_bytes(B.file(list(kvs)))
        return gq.open(tmp_path / "m.gguf")

    return opened


def test_small_arrays_are_not_searched(opened, searches):
    one = B.array(gb.STRING, ["x"])
    keys = [B.kv(f"k{i}", gb.ARRAY, one) for i in range(3000)]
    f = opened(B.kv("nested", gb.ARRAY, B.array(gb.ARRAY, [one] * 3000)), *keys)
    assert searches == {"windows": 0, "walks": 0}
    assert f.metadata["nested"][2999] == ["x"]
    assert f.metadata["k7"] == ["x"]
    assert searches["windows"] == 0


def test_windows_follow_the_bytes_and_not_the_arrays(opened, searches):
    arrays = [B.array(gb.STRING, ["x"] * (node.SHORT + 1))] * 50
    f = opened(B.kv("nested", gb.ARRAY, B.array(gb.ARRAY, arrays)))
    assert searches["windows"] <= 50
    assert len(f.metadata["nested"][49]) == node.SHORT + 1


def test_small_nested_arrays_are_passed_without_a_call(opened, monkeypatch):
    calls = []
    real = node.skip
    monkeypatch.setattr(node, "skip", lambda *args: calls.append(args) or real(*args))
    inner = B.array(gb.ARRAY, [B.array(gb.UINT8, [1]), B.array(gb.STRING, ["a", "b"])])
    f = opened(B.kv("nested", gb.ARRAY, B.array(gb.ARRAY, [inner, B.array(gb.FLOAT64, [])] * 1000)))
    assert not calls
    assert f.metadata["nested"][1998] == [[1], ["a", "b"]]
    assert f.metadata["nested"][1999] == []


@pytest.mark.parametrize(
    ("last", "match"),
    [
        (pack("<IQ", 13, 0), "an array's elements have type 13"),
        (pack("<IQ", gb.UINT32, 3) + bytes(8), "an array of 3 uint32"),
        (pack("<IQ", gb.STRING, 1) + pack("<Q", 9) + b"x", "a string needs 9 bytes"),
        (pack("<IQ", gb.ARRAY, 1) + bytes(11), "an array of 1 array"),
        (bytes(11), "an array of 3 array"),
        (pack("<IQ", gb.STRING, 1) + bytes(7), "an array of 1 string"),
    ],
)
def test_damage_in_small_arrays_is_found(tmp_path, last, match):
    value = pack("<IQ", gb.ARRAY, 3) + B.array(gb.UINT8, []) * 2 + last
    (tmp_path / "m.gguf").write_bytes(B.file([B.kv("k", gb.ARRAY, value)]))
    with pytest.raises(gq.GGUFError, match=rf"at byte \d+: {match}"):
        gq.open(tmp_path / "m.gguf")


@pytest.mark.parametrize("order", "<>")
def test_long_runs_of_empty_strings(opened, searches, tmp_path, order):
    b = gb.Builder(order)
    texts = ["a"] * 3 + [""] * 400_000 + ["bc"] + [""] * 5
    (tmp_path / "m.gguf").write_bytes(b.file([b.kv("k", gb.ARRAY, b.array(gb.STRING, texts))]))
    f = gq.open(tmp_path / "m.gguf")
    assert searches["walks"] < 12
    assert f.metadata["k"] == texts


def test_empty_strings_to_the_end_of_a_file_with_a_hole(tmp_path, searches):
    count = 1 << 22
    path = tmp_path / "m.gguf"
    path.write_bytes(B.file([B.text("k") + pack("<IIQ", gb.ARRAY, gb.STRING, count)]))
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + 8 * count)
    assert len(gq.open(path).metadata) == 1
    assert searches["walks"] < 5
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1)
    with pytest.raises(gq.GGUFError, match="at byte"):
        gq.open(path)
