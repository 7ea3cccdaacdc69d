"""safetensors that lie: lengths, offsets, JSON, indexes, files of other kinds, mutants of right ones."""

from __future__ import annotations

import contextlib
import json
import os
import random
import tracemalloc

import numpy as np
import pytest

import ggmlq as gq
from ggmlq import cli

MEMORY = 40 << 20
ONE = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def packed(header, data=b"", length=None):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw + data


@pytest.fixture
def refused(tmp_path):
    """Assert that opening fails with words, and that it costs no memory."""

    def refused(raw, match, name="m.safetensors"):
        path = tmp_path / name
        path.write_bytes(raw)
        tracemalloc.start()
        try:
            with pytest.raises(gq.GGMLQError, match=match) as caught:
                gq.open(path)
            assert tracemalloc.get_traced_memory()[1] < MEMORY
        finally:
            tracemalloc.stop()
        assert str(path) in str(caught.value)

    return refused


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"shape": [3]}, "they must agree"), ({"shape": [2, 2**62]}, "more than 64 bits"),
        ({"shape": [-2]}, "up to 32 lengths"), ({"shape": [True]}, "up to 32 lengths"),
        ({"shape": [2.0]}, "up to 32 lengths"), ({"shape": 2}, "up to 32 lengths"),
        ({"shape": [1] * 33}, "up to 32 lengths"), ({"dtype": "F33"}, "ggmlq knows"),
        ({"dtype": 3}, "ggmlq knows"),
        ({"data_offsets": [8, 0]}, "begin, end"), ({"data_offsets": [0]}, "begin, end"),
        ({"data_offsets": [0, 2**80]}, "begin, end"), ({"data_offsets": [-8, 0]}, "begin, end"),
        ({"data_offsets": [8, 16]}, "leaves a gap"), ({"extra": 1}, "it needs"),
        ({"dtype": "F64"}, "must agree"),
    ],
)  # fmt: skip
def test_entries(refused, change, match):
    refused(packed({"w": ONE | change}, bytes(16)), match)


@pytest.mark.parametrize(
    ("raw", "match"),
    [
        (b'{"w": 3}', "it needs"), (b"{", "no JSON"), (b"{]", "no JSON"), (b'{"a":1,"a":2}', "twice"),
        (b'{"__metadata__":{"a":1}}', "texts to texts"), (b'{"__metadata__":[]}', "texts to texts"),
        (b'{"a":NaN}', "NaN"), (b'{"a":Infinity}', "Infinity"), (b'{"a":"\xff"}', "not UTF-8"),
        (b'{"a":' + b"9" * 5000 + b"}", "thousands of digits"),
        (b'{"a":' * 90000, "too deep|no JSON|brackets"),
        (b'{"\\ud800":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}', "lone surrogate"),
        (b"{" + b'"a":[[],[]],' * 2_000_000, "brackets"), (b"{" + b"," * 9_000_000, "commas"),
    ],
)  # fmt: skip
def test_headers(refused, raw, match):
    refused(packed(raw, bytes(8)), match)


@pytest.mark.parametrize(
    ("raw", "match"),
    [
        (b"", "empty"), (b"\1", "needs 8 bytes|no safetensors"), (packed(b"{}", length=3), "cut short"),
        (packed(b"{}", length=2**63), "claims|no safetensors"),
        (packed(b"{}", length=10**9), "claims 1000000000"),
        (packed(b"[]"), "no safetensors"), (packed({"w": ONE}, bytes(9)), "1 bytes follow"),
        (packed({"w": ONE, "v": ONE}, bytes(8)), "overlaps"),
        (packed({"w": ONE, "v": ONE}, bytes(16)), "overlaps"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "Git LFS.*git lfs pull"),
        (b"<!DOCTYPE html><html>", "a web page"), (b"Entry not found", "a text, 'Entry not found'"),
        (b"\x80\x02}q\x00", "a pickle"), (b"PK\3\4" + bytes(30) + b"archive/data.pkl", "PyTorch"),
        (bytes(99), "zeros"),
    ],
)  # fmt: skip
def test_files(refused, raw, match):
    refused(raw, match)


def test_a_cut_at_every_byte(tmp_path):
    raw = packed({"a": ONE, "b": ONE | {"data_offsets": [8, 16]}}, bytes(range(16)))
    path, start = tmp_path / "m.safetensors", len(raw) - 16
    for n in range(len(raw)):
        path.write_bytes(raw[:n])
        if n < start:
            with pytest.raises(gq.GGMLQError):
                gq.open(path)
            continue
        f = gq.open(path)
        assert f.missing == tuple(name for name, end in (("a", 8), ("b", 16)) if n < start + end)
        for name in f.missing:
            with pytest.raises(gq.GGMLQError, match="download was cut off"):
                f[name]
        assert cli.main(["validate", str(path)]) == 1
    path.write_bytes(raw)
    assert cli.main(["validate", str(path)]) == 0


@pytest.mark.parametrize(
    ("said", "match"),
    [
        ([], "holds"), ({}, "no weight_map"), ({"weight_map": []}, "no weight_map"),
        ({"weight_map": {"w": 3}}, "names the file"),
        ({"weight_map": {"w": "../m.safetensors"}}, "names the file"),
        ({"weight_map": {"w": "/etc/m.safetensors"}}, "names the file"),
        ({"weight_map": {"w": ""}}, "names the file"),
        ({"weight_map": {"w": "a/../../m.safetensors"}}, "names the file"),
        ({"weight_map": {"w": "c:\\m.safetensors"}}, "names the file"),
        ({"weight_map": {"w": "passwd"}}, "names the"),
        ({"weight_map": {"w": "no\n.safetensors"}}, "names the file"), ({"weight_map": {}}, "none is there"),
        ({"weight_map": {"w": "none.safetensors"}}, "none is there"),
        ({"weight_map": {"v": "m.safetensors"}}, "lacks the tensor 'v'"),
    ],
)  # fmt: skip
def test_indexes(tmp_path, said, match):
    (tmp_path / "m.safetensors").write_bytes(packed({"w": ONE}, bytes(8)))
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps(said))
    for asked in (path, tmp_path):
        with pytest.raises(gq.GGMLQError, match=match):
            gq.open(asked)


def test_folders(tmp_path):
    with pytest.raises(OSError, match="is a folder"):
        gq.open(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(gq.GGMLQError, match="run code"):
        gq.open(tmp_path)
    for name in "ab":
        (tmp_path / f"{name}.safetensors").write_bytes(packed({}))
    with pytest.raises(gq.GGMLQError, match="no index that joins them"):
        gq.open(tmp_path)
    os.mkfifo(tmp_path / "pipe.safetensors")
    with pytest.raises(gq.GGMLQError, match="not a regular file"):
        gq.open(tmp_path / "pipe.safetensors")
    with pytest.raises(FileNotFoundError):
        gq.open(tmp_path / "none.safetensors")


@pytest.mark.parametrize(
    "config", [b"[]", b"{", b'{"quantization_config": 3}', b'{"quantization_config": {"config_groups": [1]}}']
)
def test_configurations(tmp_path, config):
    tensors = {"w": {"dtype": "F8_E4M3", "shape": [2, 2], "data_offsets": [0, 4]}}
    (tmp_path / "m.safetensors").write_bytes(packed(tensors, bytes(4)))
    (tmp_path / "config.json").write_bytes(config)
    f = gq.open(tmp_path / "m.safetensors")
    try:
        assert np.asarray(f["w"]).tolist() == [[0, 0], [0, 0]]
    except gq.GGMLQError as error:
        assert "config.json" in str(error)  # noqa: PT017


def test_mutants(tmp_path, fresh, rounds):
    """Whatever is changed in a right file: it opens and can be read, or is refused in words."""
    rng = random.Random(int(fresh.integers(2**63)))
    header = {
        "__metadata__": {"a": "b"}, "w": {"dtype": "F8_E4M3", "shape": [4, 4], "data_offsets": [0, 16]},
        "w_scale_inv": {"dtype": "F32", "shape": [2, 2], "data_offsets": [16, 32]},
        "b": {"dtype": "BF16", "shape": [], "data_offsets": [32, 34]},
    }  # fmt: skip
    base, path, opened = packed(header, bytes(range(34))), tmp_path / "m.safetensors", 0
    for _ in rounds(2):
        raw = bytearray(base)
        for _ in range(rng.choice([1, 1, 2, 3])):
            at = rng.randrange(len(raw))
            kind = rng.randrange(4)
            if kind == 0:
                raw[at] = rng.choice(b'0123456789[]{},:"x\0\xff')
            elif kind == 1:
                del raw[at : at + rng.choice([1, 2, 9])]
            elif kind == 2:
                raw[at:at] = rng.choice([b"0", b"9", b"[", b'"', b"-", bytes(8)])
            else:
                raw[at:] = b""
            raw = raw or bytearray(1)
        if rng.random() < 0.7:  # a length that is right leads further
            end = bytes(raw).rfind(b"}") + 1
            raw[:8] = max(end - 8, 0).to_bytes(8, "little")
        path.write_bytes(raw)
        try:
            f = gq.open(path)
        except gq.GGMLQError:
            continue
        opened += 1
        for name in f:
            with contextlib.suppress(gq.GGMLQError):
                np.asarray(f[name])
    assert opened
