"""Files that lie: each one is a GGUFError with offset and reason, and costs next to nothing."""

from __future__ import annotations

import errno
import os
import tracemalloc
from unittest.mock import Mock

import gguf_bytes as gb
import gguf_oracle
import pytest

import ggmlq as gq

HUGE = [2**31, 2**31 - 1, 2**32, 2**40, 2**60 + 1, 2**61, 2**63 - 1, 2**63, 2**64 - 1]
MEMORY = 8 << 20  # bytes that a refused file of a few kilobytes may cost at its peak


@pytest.fixture
def refused(tmp_path):
    """Assert that opening fails, with an offset, and that it costs no memory."""

    def refused(raw, match, name="m.gguf"):
        path = tmp_path / name
        path.write_bytes(raw)
        tracemalloc.start()
        try:
            with pytest.raises(gq.GGUFError, match=match) as caught:
                gq.open(path)
            assert tracemalloc.get_traced_memory()[1] < MEMORY
        finally:
            tracemalloc.stop()
        assert "at byte " in str(caught.value)
        assert str(path) in str(caught.value)
        return str(caught.value)

    return refused


def f32(b, **changes):
    entry = {"name": "w", "ne": [4], "kind": gb.F32, "offset": 0} | changes
    return b.info(**entry)


# --- lengths --------------------------------------------------------------------------------


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("n", HUGE)
@pytest.mark.parametrize("kind", [k for k in range(13) if k != gb.ARRAY])
def test_length_of_an_array(refused, order, n, kind):
    b = gb.Builder(order)
    value = b.u32(kind) + b.u64(n) + bytes(64)
    refused(b.file([b.kv("a", gb.ARRAY, value)]), f"an array of {n} .* are left")


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("n", [100, *HUGE])
def test_length_of_a_string(refused, order, n):
    b = gb.Builder(order)
    refused(b.file([b.text("s") + b.u32(gb.STRING) + b.u64(n) + b"abc"]), "a string needs")


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("n", [100, *HUGE])
@pytest.mark.parametrize("before", [0, 3, 70, 5000])
def test_length_of_a_string_in_an_array(refused, order, n, before):
    b = gb.Builder(order)
    items = b"".join(b.text("abcde") for _ in range(before)) + b.u64(n) + b"abc" * 20
    value = b.u32(gb.STRING) + b.u64(before + 1) + items
    refused(b.file([b.kv("a", gb.ARRAY, value)]), "a string needs")


@pytest.mark.parametrize("n", [100, 65536, *HUGE])
def test_length_of_a_key(refused, n):
    b = gb.Builder()
    refused(b.file([b.u64(n) + b"key" + b.u32(gb.UINT8) + b"\1"]), "a key")


@pytest.mark.parametrize("n", [100, *HUGE])
def test_length_of_a_name(refused, n):
    b = gb.Builder()
    refused(b.file([], [b.u64(n) + b"w" + b.u32(0) + b.u32(0) + b.u64(0)], bytes(4)), "the name of a tensor")


def test_a_name_longer_than_names_can_be(refused):
    b = gb.Builder()
    refused(b.file([b.kv("k" * 65536, gb.UINT8, 1)]), "65535 at most")


@pytest.mark.parametrize("counts", [(n, 0) for n in HUGE] + [(0, n) for n in HUGE] + [(2**64 - 1, 2**64 - 1)])
def test_numbers_of_tensors_and_keys(refused, counts):
    refused(gb.Builder().file(counts=counts) + bytes(100), "need more than the 100 bytes left")


@pytest.mark.parametrize("depth", [17, 1000, 10_000, 100_000])
@pytest.mark.parametrize("closed", [True, False])
def test_arrays_in_arrays(refused, depth, closed):
    b = gb.Builder()
    value = (b.u32(gb.ARRAY) + b.u64(1)) * depth + (b.array(gb.UINT8, [1]) if closed else b"")
    refused(b.file([b.kv("deep", gb.ARRAY, value)]), "deep in each other|left")


def test_sixteen_arrays_in_each_other_are_fine(tmp_path):
    b = gb.Builder()
    value = (b.u32(gb.ARRAY) + b.u64(1)) * 15 + b.array(gb.UINT8, [7])
    (tmp_path / "m.gguf").write_bytes(b.file([b.kv("deep", gb.ARRAY, value)]))
    found = gq.open(tmp_path / "m.gguf").metadata["deep"]
    for _ in range(15):
        (found,) = found
    assert found == [7]


def test_a_wide_array_of_arrays_that_ends_early(refused):
    b = gb.Builder()
    value = b.u32(gb.ARRAY) + b.u64(1000) + b.array(gb.UINT8, []) * 999 + b.u32(gb.UINT8) + b.u64(2**63)
    refused(b.file([b.kv("wide", gb.ARRAY, value)]), "an array of")


@pytest.mark.parametrize("kind", [13, 14, 255, 2**31, 2**32 - 1])
def test_types_that_gguf_does_not_have(refused, kind):
    b = gb.Builder()
    refused(b.file([b.kv("k", kind, bytes(16))]), f"'k' has type {kind}; GGUF has 0 to 12")
    refused(b.file([b.kv("k", gb.ARRAY, b.u32(kind) + b.u64(0))]), f"elements have type {kind}")


# --- tensors --------------------------------------------------------------------------------


@pytest.mark.parametrize("n_dims", [5, 6, 2**16, 2**31, 2**32 - 1])
def test_number_of_dimensions(refused, n_dims):
    b = gb.Builder()
    info = b.text("w") + b.u32(n_dims) + b.u64(1) * min(n_dims, 8) + b.u32(gb.F32) + b.u64(0)
    refused(b.file([], [info], bytes(64)), f"{n_dims} dimensions")


@pytest.mark.parametrize(
    "ne",
    [
        [2**32, 2**32], [2**63], [2**64 - 1], [2**64 - 4, 2], [2**62, 2**62, 2**62, 2**62], [2**61],
        [4, 2**62], [0, 2**62, 2**62], [2**63, 0],
    ],
)  # fmt: skip
def test_dimensions_whose_product_overflows(refused, ne):
    b = gb.Builder()
    refused(b.file([], [f32(b, ne=ne)], bytes(64)), "more bytes than 64 bits can count")


@pytest.mark.parametrize("ne", [[17], [2**30], [2**40, 2**10], [4, 5], [2, 2, 2, 3]])
def test_tensors_that_end_outside_the_file(refused, ne, tmp_path):
    b = gb.Builder()
    refused(b.file([], [f32(b, ne=ne, offset=32)], bytes(64)), "'w' needs bytes")
    path = tmp_path / "cut.gguf"  # where tensors follow each other it is a download that was cut off
    path.write_bytes(b.file([], [f32(b, ne=ne)], bytes(64)))
    f = gq.open(path)
    assert f.missing == ("w",)
    with pytest.raises(gq.GGUFError, match="'w' needs bytes"):
        f["w"]
    with pytest.raises(gq.GGUFError, match="'w' needs bytes"):
        gq.save(tmp_path / "copy.gguf", f)
    with pytest.raises(gq.GGUFError, match="'w' needs bytes"):
        gq.convert.dequantize(path, tmp_path / "copy.gguf")
    assert not (tmp_path / "copy.gguf").exists()


@pytest.mark.parametrize("offset", [64, 96, 2**31, 2**40, 2**62, 2**63, 2**64 - 32])
def test_tensors_that_start_outside_the_file(refused, offset):
    b = gb.Builder()
    refused(b.file([], [f32(b, offset=offset)], bytes(64)), "'w' needs bytes")
    refused(b.file([], [f32(b, offset=offset, ne=[0])]), "'w' needs bytes")


@pytest.mark.parametrize("offset", [1, 4, 16, 31, 33, 2**64 - 1])
def test_tensors_that_are_not_aligned(refused, offset):
    b = gb.Builder()
    refused(b.file([], [f32(b, offset=offset)], bytes(256)), "no multiple of the alignment 32")


@pytest.mark.parametrize("offsets", [(0, 0), (0, 32), (32, 0), (64, 32)])
def test_tensors_that_overlap(refused, offsets):
    b = gb.Builder()
    infos = [b.info(name, [9], gb.F32, offset) for name, offset in zip("ab", offsets, strict=True)]
    refused(b.file([], infos, bytes(256)), "overlaps")


def test_an_empty_tensor_overlaps_nothing(tmp_path):
    b = gb.Builder()
    infos = [f32(b), f32(b, name="e", ne=[0]), f32(b, name="x", ne=[2, 0], offset=0)]
    (tmp_path / "m.gguf").write_bytes(b.file([], infos, bytes(16)))
    assert len(gq.open(tmp_path / "m.gguf")) == 3


@pytest.mark.parametrize("kind", [4, 5, 31, 32, 33, 36, 37, 38, 43, 100, 2**31, 2**32 - 1])
def test_types_that_ggml_does_not_have(refused, kind):
    b = gb.Builder()
    said = refused(b.file([], [f32(b, kind=kind)], bytes(64)), f"tensor 'w' has type {kind}: ")
    assert ("removed" in said) == (kind in (4, 5, 31, 32, 33, 36, 37, 38))


@pytest.mark.parametrize(("kind", "ne"), [(gb.Q4_0, [31]), (gb.Q4_0, [33, 32]), (gb.Q4_0, []), (12, [32])])
def test_rows_that_are_no_whole_blocks(refused, kind, ne):
    b = gb.Builder()
    refused(b.file([], [f32(b, kind=kind, ne=ne)], bytes(512)), "blocks hold")


# --- names ----------------------------------------------------------------------------------


def test_names_that_are_there_twice(refused):
    b = gb.Builder()
    refused(
        b.file([b.kv("k", gb.UINT8, 1), b.kv("x", gb.UINT8, 1), b.kv("k", gb.UINT8, 2)]), "'k' is there twice"
    )
    refused(b.file([], [f32(b), f32(b, offset=32)], bytes(64)), "'w' is there twice")


@pytest.mark.parametrize("name", [b"\xff", b"abc\xc3", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80"])
def test_names_that_are_not_utf8(refused, name):
    b = gb.Builder()
    refused(b.file([b.kv(name, gb.UINT8, 1)]), "a key .* is not UTF-8")
    refused(b.file([], [f32(b, name=name)], bytes(64)), "the name of a tensor .* is not UTF-8")


# --- the frame ------------------------------------------------------------------------------


@pytest.mark.parametrize("alignment", [0, 3, 5, 33, 48, 2**32 - 1])
def test_alignments_that_are_no_power_of_two(refused, alignment):
    b = gb.Builder()
    refused(b.file([b.kv("general.alignment", gb.UINT32, alignment)]), "must be a power of two")


@pytest.mark.parametrize("kind", [gb.UINT8, gb.INT32, gb.UINT64, gb.FLOAT32, gb.STRING, gb.ARRAY])
def test_alignments_of_another_type(refused, kind):
    b = gb.Builder()
    value = {gb.STRING: "32", gb.ARRAY: b.array(gb.UINT32, [32])}.get(kind, 32)
    refused(b.file([b.kv("general.alignment", kind, value)]), "must be a uint32")


def test_an_alignment_beyond_the_file(refused):
    b = gb.Builder()
    refused(b.file([b.kv("general.alignment", gb.UINT64, 2**40)]), "must be a uint32")
    refused(
        b.file([b.kv("general.alignment", gb.UINT32, 2**31)], [f32(b, offset=2**31)], bytes(64)),
        "'w' needs bytes",
    )


@pytest.mark.parametrize("magic", [b"FUGG", b"GGML", b"gguf", b"\0\0\0\0", b"PK\3\4", b"GGUE"])
def test_other_magics(refused, magic):
    refused(gb.Builder().file(magic=magic), "no GGUF file")


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("version", [0, 1, 4, 99, 2**16, 2**32 - 1])
def test_other_versions(refused, order, version):
    refused(gb.Builder(order).file(version=version), "version")


@pytest.mark.parametrize("order", "<>")
def test_a_version_in_the_other_byte_order(refused, order):
    raw = bytearray(gb.small(order))
    raw[4:8] = raw[4:8][::-1]
    refused(raw, "not (big|little)-endian like the rest")


def test_no_file(refused, tmp_path):
    refused(b"", "empty")
    for n in range(1, 24):
        refused(gb.small()[:n], "GGUF|bytes")
    with pytest.raises(FileNotFoundError, match="no such file") as missing:
        gq.open(tmp_path / "nope.gguf")
    with pytest.raises(OSError, match=r"is a folder; .*with \*\.safetensors") as folder:
        gq.open(tmp_path)
    assert isinstance(missing.value, gq.GGUFError)
    assert isinstance(folder.value, gq.GGUFError)
    assert missing.value.errno == 2


def test_what_cannot_be_a_path():
    with pytest.raises(gq.GGUFError, match="null byte"):
        gq.open("a\0b")
    with pytest.raises(gq.GGUFError, match="no path"):
        gq.open("a\udfff")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs on this system")
def test_a_fifo_does_not_wait(tmp_path):
    os.mkfifo(tmp_path / "f.gguf")
    with pytest.raises(OSError, match="not a regular file"):
        gq.open(tmp_path / "f.gguf")


def test_no_permission(tmp_path, monkeypatch):
    path = tmp_path / "m.gguf"
    path.write_bytes(gb.small())
    path.chmod(0)
    if os.access(path, os.R_OK):  # root may read everything
        refusal = PermissionError(errno.EACCES, "Permission denied", str(path))
        monkeypatch.setattr("ggmlq.gguf.source.open", Mock(side_effect=refusal), raising=False)
    with pytest.raises(OSError, match="cannot be opened: Permission denied") as caught:
        gq.open(path)
    assert isinstance(caught.value, gq.GGUFError)
    assert caught.value.errno == errno.EACCES


@pytest.mark.parametrize("order", "<>")
def test_truncation_at_every_byte(tmp_path, order):
    raw = gb.small(order)
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    end = gq.open(path).parts[0].header.end
    for n in range(1, len(raw)):
        path.write_bytes(raw[:n])
        if n < end:
            with pytest.raises(gq.GGUFError, match=f"{path}: at byte "):
                gq.open(path)
            continue
        f = gq.open(path)  # a partial download: what is there can be read
        for name in f:
            if name in f.missing:
                with pytest.raises(gq.GGUFError, match="the download was cut off"):
                    f[name]
            else:
                assert f[name].nbytes
        assert f.missing
    for padding in range(40):  # bytes after the last tensor may be there or not
        path.write_bytes(raw + bytes(padding))
        assert len(gq.open(path)) == 3


@pytest.mark.parametrize("order", "<>")
def test_the_oracle_of_these_tests_reads_what_it_should(order):
    with pytest.raises(gguf_oracle.Bad):
        gguf_oracle.parse(gb.small(order)[:100])
    assert None in gguf_oracle.parse(gb.small(order)[:-1])[4].values()
    assert len(gguf_oracle.parse(gb.small(order))[4]) == 3
