"""ggmlq metadata: shown in full, changed in place where it fits and else anew, nothing else touched."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.base.mixes import file_type_name
from ggmlq.cli import main
from ggmlq.gguf import Typed, edit

BASE = {
    "general.architecture": "llama", "general.name": "a name", "n": Typed(7, "uint8"),
    "tokens": [f"t{i}" for i in range(40)], "scores": Typed(np.linspace(0, 1, 40), "float32"),
    "general.file_type": Typed(1, "uint32"), "big": 1 << 40, "yes": True,
}  # fmt: skip


@pytest.fixture
def tensors(fresh):
    shapes = {"a.weight": (4, 64), "b.weight": (3, 32), "c": (5,)}
    return {name: fresh.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.fixture(params=["little", "big"])
def path(request, tmp_path, tensors):
    gq.save(tmp_path / "m.gguf", tensors, BASE, byteorder=request.param)
    return str(tmp_path / "m.gguf")


@pytest.fixture
def run(capsys):
    def run(*args):
        capsys.readouterr()  # of other commands
        status = main(["metadata", *map(str, args)])
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


def holds(path, tensors, expected):
    """Every rule of the format holds, tensors are as they were, and so are the values."""
    with gq.open(path) as file:
        assert {key: file.metadata[key] for key in file.metadata if key != edit.ROOM} == expected
        for name, x in tensors.items():
            assert np.array_equal(np.asarray(file[name]), x)
    assert main(["validate", path]) == 0


def test_in_place_where_there_is_room(run, path, tensors, fresh):
    assert run(path, "--room", "2KiB")[0] == 0
    inode, size = os.stat(path).st_ino, os.path.getsize(path)
    expected = {key: gq.open(path).metadata[key] for key in BASE}
    for _ in range(25):
        text = "x\u00e4" * int(fresh.integers(0, 300))
        status, out, _ = run(path, "--set", f"general.name={text}", "--set", f"n={len(text) % 256}")
        assert (status, out) == (0, f"{path} is changed, in place\n")
        expected |= {"general.name": text, "n": len(text) % 256}
        holds(path, tensors, expected)
    assert run(path, "--remove", "tokens", "--rename", "n=m", "--set", "new=[1, 2]")[1].endswith("in place\n")
    del expected["tokens"]
    expected["m"] = expected.pop("n")
    holds(path, tensors, expected | {"new": [1, 2]})
    assert list(gq.open(path).metadata)[:3] == ["general.architecture", "general.name", "m"]
    assert (os.stat(path).st_ino, os.path.getsize(path)) == (inode, size)
    assert run(path, "--set", "general.name=" + "y" * 5000)[1].endswith("anew: the header has not the room\n")
    holds(path, tensors, expected | {"new": [1, 2], "general.name": "y" * 5000})


@pytest.mark.slow
def test_every_length_around_the_alignment(run, path, tensors):
    """Without room on purpose: a few bytes fit into the padding, the rest is written anew; never wrong."""
    ways = set()
    for n in (*range(40), 0, 33, 34, 32, 31, 1):
        inode = os.stat(path).st_ino
        assert run(path, "--set", f"general.name={'z' * n}")[0] == 0
        ways.add(os.stat(path).st_ino == inode)
        holds(path, tensors, base_values(path) | {"general.name": "z" * n})
    assert ways == {True, False}


def base_values(path):
    with gq.open(path) as file:
        return {key: file.metadata[key] for key in BASE}


def test_bytes_that_differ_are_all_that_is_written(path, monkeypatch):
    written = []
    monkeypatch.setattr(edit, "_put", lambda fd, start, data: written.append(len(data)))
    with gq.open(path) as file:
        edit.change(file, file.metadata | {"n": Typed(8, "uint8")})
        edit.change(file, file.metadata)
    assert written == [1]


def test_a_failing_write_leaves_what_was_there(path, tensors, monkeypatch):
    before = Path(path).read_bytes()
    real = os.write

    def half(fd, data):
        if len(data) > 3 and not failed:
            failed.append(real(fd, bytes(data[:3])))
            raise OSError(28, "No space left on device")
        return real(fd, data)

    failed = []
    monkeypatch.setattr(os, "write", half)
    with gq.open(path) as file, pytest.raises(OSError, match="as it was") as error:
        edit.change(file, file.metadata | {"general.name": "b nume"})
    assert isinstance(error.value, gq.GGMLQError)
    assert Path(path).read_bytes() == before


def test_links_keep_what_they_lead_to(run, path, tensors, tmp_path):
    before = Path(path).read_bytes()
    os.symlink(path, tmp_path / "link.gguf")
    os.link(path, tmp_path / "hard.gguf")
    for name in ("link.gguf", "hard.gguf"):
        status, out, _ = run(tmp_path / name, "--set", "n=8")
        assert (status, out.endswith("stay as they are\n")) == (0, True)
        assert gq.open(tmp_path / name).metadata["n"] == 8
    assert Path(path).read_bytes() == before


def test_a_dry_run_and_anew(run, path):
    before, inode = Path(path).read_bytes(), os.stat(path).st_ino
    found = json.loads(run(path, "--set", "n=9", "--dry-run", "--json")[1])
    assert (found["in_place"], found["written"]) == (True, False)
    assert Path(path).read_bytes() == before
    assert run(path, "--set", "n=9", "--anew")[1].endswith("anew: it was asked for\n")
    assert os.stat(path).st_ino != inode
    assert run(path, "--set", "general.alignment=64")[1].endswith("alignment moves the tensors\n")
    assert gq.open(path).alignment == 64


def test_parts_stay_parts(run, tmp_path, tensors):
    paths = gq.save(tmp_path / "s.gguf", tensors, BASE, split_max_tensors=1)
    assert len(paths) == 3
    assert run(paths[1], "--set", "n=8")[0] == 0
    assert sorted(os.listdir(tmp_path)) == [os.path.basename(path) for path in paths]
    holds(paths[2], tensors, base_values(paths[0]) | {"n": 8})


def test_values_from_files(run, path, tmp_path):
    text = "{% if x %}\n  \u00e4\n{% endif %}\n"
    (tmp_path / "t.jinja").write_text(text)
    (tmp_path / "l.json").write_text(json.dumps(["a", "b"]))
    (tmp_path / "raw").write_bytes(b"\xff")
    assert run(path, "--set-file", f"tokenizer.chat_template={tmp_path / 't.jinja'}")[0] == 0
    assert run(path, "--set-file", f"tokens={tmp_path / 'l.json'}")[0] == 0
    assert run(path, "--get", "tokenizer.chat_template")[1] == text
    assert json.loads(run(path, "tokens")[1]) == ["a", "b"]  # as llama.cpp's tools take a key
    assert gq.open(path).metadata.type("tokens") == "array of string"
    for name, says in (("raw", "not UTF-8"), ("none", "no such file"), ("", "cannot be read")):
        status, _, err = run(path, "--set-file", f"k={tmp_path / name}")
        assert status == 2
        assert says in err


def test_numbers_as_they_were_written(run, path):
    run(path, "--set", "general.epsilon=1e-06")
    assert re.search(r"general\.epsilon +float32 +1e-06\n", run(path)[1])


def test_all_of_an_array_in_json(run, path):
    found = json.loads(run(path, "--json")[1])
    assert found["tokens"] == {"type": "array of string", "value": BASE["tokens"]}
    assert len(found["scores"]["value"]) == 40
    assert found["general.file_type"] == {"type": "uint32", "value": 1, "name": "f16"}
    assert json.loads(run(path, "--get", "scores")[1]) == found["scores"]["value"]
    assert run(path, "--get", "big")[1] == f"{1 << 40}\n"


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("Q4_K_M", 15),
        ("mostly_iq2_xxs", 19),
        ("ALL_F32", 0),
        ("LLAMA_FTYPE_MOSTLY_BF16", 32),
        ("q4_k", 15),
        ("7", 7),
    ],
)
def test_file_types_by_name(run, capsys, path, name, number):
    assert run(path, "--set", f"general.file_type={name}")[0] == 0
    assert gq.open(path).metadata["general.file_type"] == number
    said = f"{number} ({file_type_name(number)})"
    assert said in run(path)[1]
    assert main(["info", str(path), "--metadata"]) == 0
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--set", "general.file_type=q4_k_n"], "did you mean q4_k_"),
        (["--set", "x"], "there is no '='"),
        (["--set", "n=300"], "does not fit uint8"),
        (["--remove", "nam"], "did you mean 'general.name', 'n'?"),
        (["--rename", "n"], "OLD=NEW"),
        (["--rename", "n=yes"], "such a key already"),
        (["--rename", "q=r"], "not this one"),
        (["--set", "split.no=1"], "every save makes it anew"),
        (["--set", "a\0b=1"], "NUL"),
        (["--get", "nope"], "not this one"),
        (["--get", "n", "--set", "n=1"], "one after the other"),
    ],
)
def test_what_is_refused_changes_nothing(run, path, arguments, says):
    before = Path(path).read_bytes()
    status, out, err = run(path, *arguments)
    assert (status, out) == (2, "")
    assert says in err
    assert Path(path).read_bytes() == before


def test_copies_by_number_of_tensors(path, tmp_path, tensors, capsys):
    def copy(*args):
        status = main(["copy", path, *map(str, args)])
        return status, capsys.readouterr()

    status, said = copy(tmp_path / "s.gguf", "--split-max-tensors", "2", "--dry-run", "--json")
    found = json.loads(said.out)
    assert (status, len(found["files"]), found["written"]) == (0, 2, False)
    assert not any(map(os.path.exists, found["files"]))
    assert copy(tmp_path / "s.gguf", "--split-max-tensors", "2")[0] == 0
    assert [os.path.getsize(name) for name in found["files"]] == found["file_bytes"]
    assert [len(part.header.tensors) for part in gq.open(found["files"][0]).parts] == [2, 1]
    status, said = copy(tmp_path / "s.gguf", "--split-max-tensors", "2")
    assert status == 2
    assert "--force" in said.err
    assert copy(tmp_path / "s.gguf", "--split-max-tensors", "2", "--force")[0] == 0
    assert copy(path, "--rename", "n=m", "--room", "1KiB")[0] == 0  # over itself
    assert (gq.open(path).metadata["m"], len(gq.open(path).metadata[edit.ROOM]) > 900) == (7, True)
    for wrong in (0, -1, True, [1], [1, 1, 2], "3", [0, 3]):
        with pytest.raises(gq.GGUFError, match="split_max_tensors"):
            gq.save(tmp_path / "w.gguf", tensors, split_max_tensors=wrong)
    assert len(gq.save(tmp_path / "w.gguf", tensors, split_max_tensors=[1, 2])) == 2
