"""info, show, validate and copy: what they print, what they return."""

from __future__ import annotations

import json

import gguf_bytes as gb
import numpy as np
import pytest

import ggmlq as gq
from ggmlq.cli import main
from ggmlq.gguf import Typed

W = np.random.default_rng(0).standard_normal((6, 256)).astype(np.float32)


@pytest.fixture
def path(tmp_path, drawn_formats):
    metadata = {
        "general.architecture": "llama", "general.name": "tiny \x1b[31m", "n": Typed(7, "uint8"),
        "nan": float("nan"), "tokens": [f"t{i}" for i in range(100)], "bad": Typed(b"\xff", "string"),
    }  # fmt: skip
    names = [*sorted({"q4_0", "q8_0", *drawn_formats}), "f32", "f16", "bf16"]
    plain = [gq.formats[n] for n in names if gq.formats[n].can_quantize and not gq.formats[n].needs_imatrix]
    tensors = {fmt.name: gq.quantize(W, fmt) for fmt in plain}
    tensors |= {"odd \x1b[2J": W, "one": np.float32(3)}
    tensors |= {"ints": np.arange(5, dtype=np.int32), "empty": W[:0]}
    gq.save(tmp_path / "m.gguf", tensors, metadata)
    return str(tmp_path / "m.gguf")


@pytest.fixture
def run(capsys):
    def run(*args):
        status = main([str(arg) for arg in args])
        said = capsys.readouterr()
        assert "\x1b" not in said.out + said.err
        return status, said.out, said.err

    return run


@pytest.fixture
def facts(run):
    def facts(*args):
        status, out, _ = run(*args, "--json")
        assert status == 0
        return json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))

    return facts


def test_info(run, path):
    status, out, _ = run("info", path)
    assert status == 0
    assert "architecture 'llama', name 'tiny \\x1b[31m'" in out
    assert "little-endian, alignment 32" in out
    assert "['t0', 't1', 't2', 't3', 't4', 't5', 't6', 't7', …] (100)" in out
    assert "not UTF-8" in out
    tensors = run("info", path, "--tensors")[1].splitlines()
    assert tensors[0].split() == ["tensor", "type", "shape", "size"]
    assert len(tensors) == 1 + len(gq.open(path))
    keys = run("info", path, "--metadata")[1].splitlines()
    assert [line.split()[0] for line in keys] == ["key", *gq.open(path).metadata]


def test_info_as_json(facts, path):
    found = facts("info", path)
    f = gq.open(path)
    assert [t["name"] for t in found["tensors"]] == list(f)
    assert [t["shape"] for t in found["tensors"]] == [list(q.shape) for q in f.values()]
    assert found["tensor_bytes"] == sum(q.nbytes for q in f.values())
    assert found["metadata"]["n"] == {"type": "uint8", "value": 7}
    assert found["metadata"]["tokens"]["length"] == 100
    assert found["metadata"]["nan"]["value"] == "nan"
    assert "error" in found["metadata"]["bad"]
    with open(path, "rb") as file:
        raw = file.read()
    for fact, q in zip(found["tensors"], f.values(), strict=True):
        assert raw[fact["at"] : fact["at"] + fact["bytes"]] == q.raw.tobytes()
    assert "metadata" not in facts("info", path, "--tensors")
    assert "tensors" not in facts("info", path, "--metadata")


def test_info_of_nothing(run, tmp_path):
    gq.save(tmp_path / "e.gguf", {})
    assert run("info", tmp_path / "e.gguf")[0] == 0


@pytest.mark.parametrize("name", ["m.gguf", "m.safetensors"])
@pytest.mark.parametrize("options", [(), ("--tensors",), ("--json",)])
def test_info_of_a_download_that_was_cut_off(run, tmp_path, name, options):
    """Missing tensors are named beside every output, and the status says so too."""
    path = tmp_path / name
    gq.save(path, {f"t{i}": np.ones((4, 32), np.float32) for i in range(3)})
    assert run("info", path, *options)[0] == 0
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 600)
    status, out, err = run("info", path, *options)
    assert status == 1
    assert f"{name}: 2 of 3 tensors are missing, 't1' first" in err
    if options == ("--json",):
        assert json.loads(out)["missing"] == ["t1", "t2"]
    elif not options:
        assert "missing, as of a partial download: 2" in out


@pytest.mark.parametrize("command", ["info", "show", "validate", "copy"])
def test_what_cannot_run_is_exit_2(run, tmp_path, command):
    more = {"show": ["w"], "copy": [tmp_path / "out.gguf"]}.get(command, [])
    status, out, err = run(command, tmp_path / "nope.gguf", *more)
    assert (status, out) == (2, "")
    assert err.startswith(f"ggmlq {command}: gguf: ")


def test_show_statistics(facts, path):
    for name, q in gq.open(path).items():
        found = facts("show", path, name)["statistics"]
        values = np.asarray(q).astype(np.float64)
        assert found["elements"] == values.size
        if values.size:
            assert (found["min"], found["max"]) == (values.min(), values.max())
            assert found["mean"] == pytest.approx(values.mean())
            assert found["rms"] == pytest.approx(np.sqrt((values**2).mean()))
            assert found["zeros"] == (values == 0).sum()
        if q.format.block_size > 1:
            parts = q.format.unpack(q.blocks)
            assert found["scales"]["groups"] == parts.scale.size
            counted = sum(b["count"] for b in found["scales"]["histogram"]) + found["scales"]["zero"]
            assert counted == parts.scale.size


def test_show_saturation_of_codes(facts, path):
    q = gq.open(path)["q4_0"]
    codes = facts("show", path, "q4_0")["statistics"]["codes"]
    stored = q.format.unpack(q.blocks).codes
    assert (codes["min"], codes["max"]) == (-8, 7)
    assert codes["saturated"] == np.isin(stored, [-8, 7]).sum()
    assert facts("show", path, "q8_0")["statistics"]["codes"]["min"] == -127


def test_show_counts_every_block(facts, tmp_path, fresh):
    """Those behind the last whole run, too."""
    rows = int(fresh.integers(1100, 3000))
    q = gq.quantize(fresh.standard_normal((rows, 32), np.float32), "q4_0")
    gq.save(tmp_path / "m.gguf", {"x": q})
    found = facts("show", tmp_path / "m.gguf", "x")["statistics"]
    assert found["blocks_seen"] == found["scales"]["groups"] == sum(found["codes"]["counts"]) // 32 == rows


def test_show_rows(facts, path):
    found = facts("show", path, "q8_0", "--rows", "1:3")
    values = np.asarray(gq.open(path)["q8_0"][1:3])
    assert found["statistics"]["elements"] == 512
    assert found["statistics"]["max"] == values.max()


def test_show_counts_nan_and_infinity(facts, tmp_path):
    x = np.array([[np.nan, 1, np.inf, 0], [-np.inf, 2, 3, 0]], np.float32)
    gq.save(tmp_path / "m.gguf", {"x": x})
    found = facts("show", tmp_path / "m.gguf", "x")["statistics"]
    assert [found[key] for key in ("nan", "infinite", "zeros", "min", "max")] == [1, 2, 2, 0, 3]


@pytest.mark.parametrize("order", ["little", "big"])
def test_show_a_block(facts, tmp_path, order):
    for fmt in gq.formats.values():
        rng = np.random.default_rng(0)
        q = gq.QuantArray.from_bytes(
            rng.integers(0, 256, 4 * fmt.dtype.itemsize, np.uint8), fmt, (2, 2 * fmt.block_size)
        )
        gq.save(tmp_path / "m.gguf", {"x": q}, byteorder=order)
        block = facts("show", tmp_path / "m.gguf", "x", "--block", "3")["block"]
        assert (block["row"], block["column"]) == (1, fmt.block_size)
        right = np.asarray(q)[1, fmt.block_size :]
        found = np.array(block["values"], np.float64)
        assert np.array_equal(found, right, equal_nan=True)
        bits = "".join("".join(field["bits"]) for field in block["fields"])
        big = q.blocks[1, 1:].astype(fmt.dtype.newbyteorder(">"))
        assert bits == "".join(f"{byte:08b}" for byte in big.tobytes())
        assert [field["name"] for field in block["fields"]] == list(fmt.dtype.names or ["value"])


def test_show_a_block_as_text(run, path):
    status, out, _ = run("show", path, "q4_0", "--block", "2")
    q = gq.open(path)["q4_0"]
    assert status == 0
    assert "block 2: row 0, columns from 64" in out
    assert f"{q.blocks['d'].view(np.uint16)[0, 2]:016b}" in out
    assert "uint8_t qs[16]" in out
    assert run("show", path, "one", "--block", "0")[0] == 0
    assert run("show", path, "q4_0")[0] == 0
    assert run("show", path, "empty")[0] == 0


@pytest.mark.parametrize("rows", ["1", "a:b", "-1:2", "1:2:3"])
def test_show_rows_that_are_none(run, path, rows):
    with pytest.raises(SystemExit, match="2"):
        run("show", path, "q4_0", f"--rows={rows}")


def test_validate_a_sound_file(run, tmp_path):
    gq.save(tmp_path / "m.gguf", {"w": W}, {"general.architecture": "llama"})
    status, out, _ = run("validate", tmp_path / "m.gguf")
    assert (status, out) == (0, f"{tmp_path / 'm.gguf'}: 0 errors, 0 notes\n")


def test_validate_broken_structure(run, tmp_path):
    (tmp_path / "m.gguf").write_bytes(gb.small()[:-1])
    status, out, _ = run("validate", tmp_path / "m.gguf")
    assert status == 1
    assert "error: structure: " in out
    assert "at byte" in out


def findings(run, path):
    status, out, _ = run("validate", path, "--json")
    found = json.loads(out)
    assert found["ok"] == (status == 0)
    return [(f["severity"], f["where"]) for f in found["findings"]]


@pytest.mark.parametrize("order", ["little", "big"])
def test_validate_blocks(run, tmp_path, order):
    bad = gq.quantize(W, "q4_0").copy()
    bad.blocks["d"][2, 3] = np.inf
    mx = gq.quantize(W, "mxfp4").copy()
    mx.blocks["e"][0, 0] = 255
    nan = W.copy()
    nan[1, 2] = np.nan
    tensors = {"good": W, "q": bad, "mx": mx, "nan": nan, "ints": np.arange(3)}
    gq.save(tmp_path / "m.gguf", tensors, {"general.architecture": "x"}, byteorder=order)
    assert findings(run, tmp_path / "m.gguf") == [
        ("error", f"tensor '{name}'") for name in ("q", "mx", "nan")
    ]
    assert (
        "1 of 48 q4_0 blocks have a NaN, infinite or forbidden scale; the first is [2, 3]"
        in run("validate", tmp_path / "m.gguf")[1]
    )


def test_validate_metadata(run, path):
    assert ("error", "key 'bad'") in findings(run, path)


def test_validate_notes_alone_are_fine(run, tmp_path):
    b = gb.Builder()
    raw = b.file([], [b.info("e", [0], gb.F32, 0)], bytes(100), version=2)
    (tmp_path / "m.gguf").write_bytes(raw)
    found = findings(run, tmp_path / "m.gguf")
    assert {severity for severity, _ in found} == {"note"}
    assert len(found) == 4


def test_copy_is_the_same(run, path, tmp_path):
    status, out, _ = run("copy", path, tmp_path / "o.gguf")
    assert (status, out) == (0, f"wrote {tmp_path / 'o.gguf'}\n")
    assert (tmp_path / "o.gguf").read_bytes() == (tmp_path / "m.gguf").read_bytes()


def test_copy_splits_and_merges(facts, path, tmp_path):
    parts = facts("copy", path, tmp_path / "s.gguf", "--split-max-size", "2k")["files"]
    assert len(parts) > 3
    facts("copy", parts[2], tmp_path / "o.gguf")
    assert (tmp_path / "o.gguf").read_bytes() == (tmp_path / "m.gguf").read_bytes()


def test_copy_changes_the_byte_order(run, path, tmp_path):
    run("copy", path, tmp_path / "b.gguf", "--byteorder", "big")
    assert gq.open(tmp_path / "b.gguf").byteorder == "big"
    run("copy", tmp_path / "b.gguf", tmp_path / "k.gguf", "--alignment", "64")
    f = gq.open(tmp_path / "k.gguf")
    assert (f.byteorder, f.alignment) == ("big", 64)
    run("copy", tmp_path / "b.gguf", tmp_path / "l.gguf", "--byteorder", "little")
    assert (tmp_path / "l.gguf").read_bytes() == (tmp_path / "m.gguf").read_bytes()


def test_copy_edits_metadata_in_place(run, path):
    sets = [
        "n=9",
        "general.name=a=b",
        "new=[1, 2]",
        "text=hello",
        "t:uint16=5",
        'l:string=["x", "y"]',
        "yes=true",
        "f=0.5",
    ]
    status, _, err = run("copy", path, path, *(arg for s in sets for arg in ("--set", s)), "--drop", "bad")
    assert (status, err) == (0, "")
    metadata = gq.open(path).metadata
    assert "bad" not in metadata
    keys = ("n", "general.name", "new", "text", "t", "l", "yes", "f")
    assert [(metadata[k], metadata.type(k)) for k in keys] == [
        (9, "uint8"), ("a=b", "string"), ([1, 2], "array of int32"), ("hello", "string"), (5, "uint16"),
        (["x", "y"], "array of string"), (True, "bool"), (0.5, "float32"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "args",
    [
        ["--set", "novalue"],
        ["--drop", "nope"],
        ["--set", "n=300"],
        ["--set", "x:bool=2"],
        ["--alignment", "3"],
    ],
)
def test_copy_refuses(run, path, tmp_path, args):
    status, _, err = run("copy", path, tmp_path / "o.gguf", *args)
    assert status == 2
    assert err.startswith("ggmlq copy: ")
    assert not (tmp_path / "o.gguf").exists()


@pytest.mark.parametrize("size", ["0x1", "1.5.2G", "-1", "4 G", ""])
def test_copy_sizes(run, path, tmp_path, size):
    with pytest.raises(SystemExit, match="2"):
        run("copy", path, tmp_path / "o.gguf", f"--split={size}")
