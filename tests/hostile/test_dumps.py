"""Dumps that lie: whatever the file, exit 2 and one sentence, in bounded memory and time; nothing hangs."""

from __future__ import annotations

import io
import json
import math
import os
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import ggmlq as gq
from ggmlq import cli
from ggmlq.arrays.dumps import Dump
from ggmlq.check import cases
from ggmlq.errors import DumpError
from ggmlq.trace import saved

SECONDS = 400
ESCAPE = "\x1b]0;gotcha\x07\x1b[31m"


def arrays():
    rng = np.random.default_rng(5)
    x = rng.standard_normal((3, 64), np.float32)
    q = gq.quantize(rng.standard_normal((4, 64), np.float32), "q8_0")
    return {
        "y": (x @ q.T).astype(np.float32),
        "x": x,
        "raw": np.array(q.raw),
        "format": np.array("q8_0"),
        "shape": np.array([4, 64]),
        "data": np.array("normal"),
        "seed": np.array(0),
        "claim": np.array(""),
    }


def npz(path, how=zipfile.ZIP_DEFLATED, **other):
    """A dump with some arrays changed; bytes are a member as it is, None leaves one out."""
    with zipfile.ZipFile(path, "w", how) as archive:
        for name, value in (arrays() | other).items():
            if value is None:
                continue
            data = value
            if not isinstance(value, bytes):
                buffer = io.BytesIO()
                np.save(buffer, value, allow_pickle=True)
                data = buffer.getvalue()
            archive.writestr(f"{name}.npy", data)
    return path


def header(dtype, shape, extra=b""):
    text = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}, }}".encode() + extra
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


@pytest.fixture
def refused(capsys):
    """Both readers refuse it, and what a terminal gets to see is one printable sentence."""

    def refused(path):
        with pytest.raises(gq.GGMLQError):
            cases.load(path).inputs()
        assert cli.main(["diagnose", str(path)]) == 2
        said = capsys.readouterr().err
        assert said.startswith("ggmlq diagnose: ")
        assert said[:-1].isprintable()
        assert len(said) < 1000

    return refused


def test_the_dump_that_these_are_made_of_is_right(tmp_path, capsys):
    path = npz(tmp_path / "a.npz")
    assert cli.main(["diagnose", str(path)]) == 0
    x, q = cases.load(path).inputs()
    assert (x.shape, q.shape) == ((3, 64), (4, 64))


MEMBERS = {
    "raw claims 2**40 floats": {"raw": header("<f4", (2**40,))},
    "x claims 2**40 floats": {"x": header("<f4", (2**20, 2**20))},
    "x claims no bytes": {"x": header("|S0", (2**50,))},
    "x is cut": {"x": header("<f4", (3, 64)) + bytes(700)},
    "x is too long": {"x": header("<f4", (3, 64)) + bytes(800)},
    "a negative length": {"x": header("<f4", (-3, 64))},
    "no shape": {"x": header("<f4", "'ab'")},
    "NaN in a header": {"x": header("<f4", "(float('nan'),)")},
    "deep header": {"x": header("<f4", "(" * 5000)},
    "long header": {"x": header("<f4", (3, 64), b" " * 60000)},
    "version 9": {"x": b"\x93NUMPY\x09\x00" + bytes(50)},
    "no header": {"x": b"nothing of NumPy"},
    "empty member": {"x": b""},
    "an object": {"x": np.array([{}, []], object)},
    "records": {"x": np.zeros(3, "f4,i4")},
    "NaN in the shape": {"shape": np.array([np.nan, 64])},
    "a negative shape": {"shape": np.array([-4, 64])},
    "a long shape": {"shape": np.arange(99)},
    "a huge shape": {"shape": np.array([2**62, 2**62], np.uint64)},
    "text for the shape": {"shape": np.array("4x64")},
    "text for a seed": {"seed": np.array("seven"), "format": np.array(5)},
    "two formats": {"format": np.array(["q8_0", "q4_0"])},
    "no format": {"format": None},
    "a format of escapes": {"format": np.array(ESCAPE)},
    "raw without axes": {"raw": np.array(7, np.uint8)},
    "raw of text": {"raw": np.array(["a"] * 4)},
    "raw too long": {"raw": np.zeros((4, 10**6), np.uint8)},
    "x of one axis": {"x": np.zeros(63, np.float32)},
    "x of text": {"x": np.array([[ESCAPE]])},
    "x of other rows": {"x": np.zeros((3, 96), np.float32)},
    "nothing": dict.fromkeys(arrays()),
    "escapes for names": dict.fromkeys(arrays()) | {ESCAPE: np.zeros(3), "b\u202e": np.zeros(3)},
}  # fmt: skip


@pytest.mark.parametrize("other", MEMBERS.values(), ids=MEMBERS)
def test_members(tmp_path, refused, other):
    refused(npz(tmp_path / "a.npz", **other))


def test_a_case_says_what_it_is(tmp_path):
    for other, says in (
        ({"seed": np.array("seven")}, "seed is .*, not a whole number"),
        ({"seed": np.array(-1)}, "a seed is 0 or more"),
        ({"data": np.array("../../etc/" + ESCAPE)}, "data is .* one of normal"),
        ({"raw": np.zeros((4, 33), np.uint8)}, "rows of raw have 33 bytes, and 64 elements 68"),
        ({"x": np.zeros((3, 64), np.float64)}, "x is float64"),
    ):
        with pytest.raises(gq.GGMLQError, match=says):
            cases.load(npz(tmp_path / "a.npz", **other))


@pytest.mark.parametrize("how", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_packings_that_numpy_does_not_write(tmp_path, refused, how):
    refused(npz(tmp_path / "a.npz", how))


@pytest.mark.parametrize(
    ("at", "value"),
    [(6, 1), (8, 97), (8, 9)],
    ids=["encrypted", "unknown packing", "deflate64"],
)
def test_flags_of_the_directory(tmp_path, refused, at, value):
    path = npz(tmp_path / "a.npz")
    raw = bytearray(path.read_bytes())
    for magic, offset in ((b"PK\x03\x04", at), (b"PK\x01\x02", at + 2)):
        found = -1
        while (found := raw.find(magic, found + 1)) >= 0:
            raw[found + offset] = value
    path.write_bytes(raw)
    refused(path)


def test_other_files(tmp_path, refused):
    path = tmp_path / "a.npz"
    whole = npz(path).read_bytes()
    for raw in (
        b"",
        b"PK\x03\x04",
        b"PK\x05\x06" + bytes(18),
        whole[:-30],
        whole[:200],
        b"\x93NUMPY",
        b"text",
    ):
        path.write_bytes(raw)
        refused(path)
    np.save(tmp_path / "a.npy", arrays()["y"])
    refused(tmp_path / "a.npy")
    refused(tmp_path / "none.npz")
    refused(tmp_path)
    named = tmp_path / f"{ESCAPE.replace('/', '')}.npz"
    named.write_bytes(whole[:200])
    refused(named)


def test_nodes(tmp_path, refused):
    """What ``ggmlq trace --save`` writes, with other facts in it."""
    tensor = {"type": "f32", "ne": [4, 1, 1, 1], "nb": [4, 16, 16, 16], "name": "y"}
    facts = {"form": saved.FORM, "tensors": {"y": tensor}, "op": "ADD", "step": 0, "words": []}
    facts["members"] = None

    def node(text):
        np.savez(tmp_path / "node.npz", node=np.array(text), tensor_y=np.zeros(16, np.uint8))
        return tmp_path / "node.npz"

    assert saved.load_node(node(json.dumps(facts))).op == "ADD"
    wrong = [{"ne": 4}, {"ne": []}, {"ne": [[1]] * 4}, {"ne": [math.inf] * 4}, {"nb": None}]
    wrong += [{"type": "x"}, {"type": []}]
    texts = [json.dumps(facts | {"tensors": {"y": tensor | change}}) for change in wrong]
    texts += [json.dumps(facts | {"tensors": {"y": {}}}), json.dumps(facts | {"step": math.inf})]
    for text in ("[" * 100_000, "[]", "7", *texts):
        refused(node(text))


def test_mutants(tmp_path, refused, capsys, fresh, rounds):
    """Any bytes of an archive changed: judged, or refused in words, never a traceback."""
    path = tmp_path / "a.npz"
    whole = npz(path, zipfile.ZIP_STORED).read_bytes()
    for _ in rounds(1.5):
        raw = bytearray(whole)
        for at in fresh.integers(0, len(raw), fresh.integers(1, 6)):
            raw[at] = fresh.integers(256)
        if fresh.random() < 0.2:
            del raw[fresh.integers(len(raw)) :]
        path.write_bytes(raw)
        try:
            cases.load(path).inputs()
            dump = Dump(path)
            for name in dump.names:
                dump.array(name)
        except gq.GGMLQError:
            continue


# --- files that are no files, and more than memory holds ------------------------------------

LIMITED = """
import resource, sys
import ggmlq.cli, ggmlq.check.cases
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
sys.exit(ggmlq.cli.main(sys.argv[1:]))
"""


def diagnose(*args):
    return subprocess.run(
        [sys.executable, "-c", LIMITED, "diagnose", *map(str, args)],
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip


def bomb(path, name, nbytes):
    """A dump with a member of zeros that unpacks to two hundred times its bytes."""
    with (
        zipfile.ZipFile(npz(path, **{name: None}), "a", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open(f"{name}.npy", "w", force_zip64=True) as member,
    ):
        member.write(header("<f4", (nbytes // 256, 64)))
        for _ in range(nbytes >> 20):
            member.write(bytes(1 << 20))
    return path


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory as Linux has them")
def test_zip_bombs(tmp_path):
    path = tmp_path / "a.npz"
    for name, nbytes, says in (("raw", 1 << 27, "are possible"), ("y", 1 << 27, "are possible"),
                               ("x", 1 << 30, "larger than the memory left")):  # fmt: skip
        done = diagnose(bomb(path, name, nbytes))
        assert done.returncode == 2, done.stderr
        assert says in done.stderr
        assert done.stderr.count("\n") == 1
    path.write_bytes(path.read_bytes().replace(b"x.npy", b"o.npy"))  # now nobody needs it
    with zipfile.ZipFile(path, "a") as archive, archive.open("x.npy", "w") as member:
        np.save(member, arrays()["x"])
    done = diagnose(path)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory as Linux has them")
def test_a_directory_of_gigabytes(tmp_path, refused):
    """A sparse file whose end says that the directory is all of it."""
    path = tmp_path / "a.npz"
    with path.open("wb") as file:
        file.write(b"PK\x03\x04")
        file.seek(3 << 30)
        file.write(struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 9, 9, 3 << 30, 0, 0))
    refused(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no FIFOs")
def test_what_is_no_file(tmp_path, refused):
    os.mkfifo(tmp_path / "fifo.npz")
    for path in (tmp_path / "fifo.npz", Path("/dev/zero"), Path("/dev/stdin")):
        refused(path)
    good = npz(tmp_path / "a.npz")
    fifo = tmp_path / "fifo.npz"
    for order in ([fifo, good, good], [good, fifo, good], [good, good, "/dev/zero"]):
        done = diagnose(*order)
        assert done.returncode == 2
        assert "no regular file" in done.stderr


def test_an_npy_that_claims_more_than_it_has(tmp_path):
    good = npz(tmp_path / "a.npz")
    path = tmp_path / "y.npy"
    for raw in (header("<f4", (2**40,)), header("<f4", (3, 4)) + bytes(47), b"\x93NUMPY\x01\x00\xff\xff{"):
        path.write_bytes(raw)
        assert cli.main(["diagnose", str(path), str(good), str(good)]) == 2
    path.write_bytes(header("<f4", (3, 4)) + bytes(47))
    with pytest.raises(DumpError, match=r"claims \(3, 4\) of float32, 48 bytes, and there are 47"):
        Dump(path).array("y")
