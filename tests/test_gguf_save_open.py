"""What is open is saved again: the same bytes, with other metadata or alignment, over the file itself."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from test_gguf_save import ORDERS, TYPES, random_array

import ggmlq as gq
from ggmlq.gguf import Typed


def rich(path, **options):
    """A file with a value of every type, some of which do not decode."""
    values = {f"k{i}": value for i, (value, _) in enumerate(TYPES)}
    values |= {"bad": Typed(b"\xff", "string"), "bads": Typed([b"a", b"\xfe"], "string")}
    tensors = {fmt.name: random_array(fmt) for fmt in gq.formats.values()}
    gq.save(path, tensors, values, **options)
    return gq.open(path)


@pytest.mark.parametrize("alignment", [8, 32, 256])
@pytest.mark.parametrize("order", ORDERS)
def test_a_saved_file_saves_to_the_same_bytes(tmp_path, order, alignment):
    f = rich(tmp_path / "a.gguf", byteorder=order, alignment=alignment)
    other = ORDERS[order == "little"]
    gq.save(tmp_path / "b.gguf", f, byteorder=order)
    gq.save(tmp_path / "c.gguf", f, f.metadata, byteorder=other)
    gq.save(tmp_path / "d.gguf", gq.open(tmp_path / "c.gguf"), byteorder=order)
    a, b, c, d = ((tmp_path / f"{name}.gguf").read_bytes() for name in "abcd")
    assert a == b == d
    assert a != c
    assert gq.open(tmp_path / "c.gguf").alignment == alignment


def test_metadata_of_a_file_without_its_default(tmp_path):
    f = rich(tmp_path / "a.gguf")
    gq.save(tmp_path / "b.gguf", f, {})
    assert not gq.open(tmp_path / "b.gguf").metadata
    gq.save(tmp_path / "c.gguf", dict(f), f.metadata)
    assert (tmp_path / "c.gguf").read_bytes() == (tmp_path / "a.gguf").read_bytes()


def test_edited_metadata_leaves_everything_else(tmp_path):
    f = rich(tmp_path / "a.gguf")
    gq.save(tmp_path / "b.gguf", f, f.metadata.without("k0") | {"new": [1, 2], "k3": "text"})
    g = gq.open(tmp_path / "b.gguf")
    assert set(g.metadata) == set(f.metadata) - {"k0"} | {"new"}
    assert (g.metadata["new"], g.metadata["k3"]) == ([1, 2], "text")
    for key in set(f.metadata) - {"k0", "k3"}:
        assert g.metadata.type(key) == f.metadata.type(key)
        assert g.metadata.raw(key) == f.metadata.raw(key)
    assert all(np.array_equal(f[name].raw, g[name].raw) for name in f)


def test_saving_over_the_file_that_is_open(tmp_path):
    path = tmp_path / "a.gguf"
    f = rich(path)
    before = {name: q.raw.tobytes() for name, q in f.items()}
    gq.save(path, {name: q[::-1] for name, q in f.items()}, {"short": 1})
    g = gq.open(path)
    for name, raw in before.items():
        assert f[name].raw.tobytes() == raw
        assert np.array_equal(g[name].raw, f[name].raw[::-1])
    assert f.metadata["k0"] is True


def test_saving_a_file_whose_name_is_another_file_now(tmp_path):
    path = tmp_path / "a.gguf"
    gq.save(path, {"x": np.full(1000, 1, np.float32)})
    f = gq.open(path)
    gq.save(path, {"x": np.full(1000, 2, np.float32)})
    gq.save(tmp_path / "b.gguf", f)
    path.unlink()
    gq.save(tmp_path / "c.gguf", f)
    for name in "bc":
        assert set(gq.open(tmp_path / f"{name}.gguf")["x"].blocks.tolist()) == {1.0}


@pytest.mark.skipif(not hasattr(os, "copy_file_range"), reason="this system does not copy ranges of files")
@pytest.mark.parametrize("calls", [0, 1, 2])
@pytest.mark.parametrize("refusal", [OSError(errno.EXDEV, "Cross-device"), 0])
def test_ranges_that_the_system_copies_in_part(tmp_path, monkeypatch, calls, refusal):
    f = rich(tmp_path / "a.gguf")
    done = []

    def partly(source, target, n, offset):
        if len(done) < calls:
            done.append(n)
            return real(source, target, min(n, 7), offset)
        if refusal:
            raise refusal
        return 0

    real = os.copy_file_range
    monkeypatch.setattr(os, "copy_file_range", partly)
    gq.save(tmp_path / "b.gguf", dict(f), f.metadata)
    assert len(done) == calls
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


MEMORY = """
    import sys, ggmlq as gq
    from ggmlq.gguf.check import check
    def peak():
        with open("/proc/self/status") as file:
            return int(file.read().split("VmHWM:")[1].split()[0]) // 1024
    f = gq.open(sys.argv[1])
    before = peak()
    gq.save(sys.argv[1] + ".a", f)
    gq.save(sys.argv[1] + ".b", dict(f), byteorder="big")
    assert not check(sys.argv[1] + ".b")[1:]
    print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="this system does not tell of memory")
def test_memory_is_bounded_by_a_tensor(tmp_path):
    x = np.ones((1 << 20, 8), np.float32)
    gq.save(tmp_path / "m.gguf", {f"t{i}": x for i in range(12)}, split_max_bytes=None)
    command = [sys.executable, "-c", textwrap.dedent(MEMORY), str(tmp_path / "m.gguf")]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert int(found) < 3 * (x.nbytes >> 20), "12 tensors were saved twice and read once"


def test_the_mode_of_an_existing_file_stays(tmp_path):
    path = tmp_path / "a.gguf"
    gq.save(path, {})
    assert path.stat().st_mode & 0o777 != 0o600
    path.chmod(0o640)
    gq.save(path, {}, {"k": 1})
    assert path.stat().st_mode & 0o777 == 0o640


def test_another_alignment_for_an_open_file(tmp_path):
    path = tmp_path / "a.gguf"
    gq.save(path, {"a": np.ones(3, np.int8)}, alignment=128)
    gq.save(path, gq.open(path), alignment=32)
    f = gq.open(path)
    assert (f.alignment, f.metadata["general.alignment"]) == (32, 32)
    gq.save(path, f, f.metadata | {"general.alignment": 256})
    assert gq.open(path).alignment == 256
