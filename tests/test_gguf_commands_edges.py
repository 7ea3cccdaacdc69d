"""The commands where something is unusual: encodings, types, ranges, names that are not there."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.cli import main
from ggmlq.gguf import Typed


@pytest.fixture
def path(tmp_path):
    values = {
        "general.architecture": "llama", "general.name": "日本", "n": Typed(7, "uint8"),
        "tokens": ["日", "b"], "pairs": [[1], [2]],
    }  # fmt: skip
    tensors = {"wé": np.ones((3, 32), np.float32), "empty": np.ones((0, 32), np.float32)}
    gq.save(tmp_path / "m.gguf", tensors, values)
    return str(tmp_path / "m.gguf")


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
@pytest.mark.parametrize("command", [["info"], ["show", "wé"], ["validate"], ["copy", "ü.gguf"]])
def test_outputs_of_any_encoding(path, tmp_path, encoding, command):
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "1"}
    found = subprocess.run(
        [sys.executable, "-m", "ggmlq", command[0], path, *command[1:]],
        cwd=tmp_path, env=environment | {"PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True,
        check=False,
    )  # fmt: skip
    assert (found.returncode, found.stderr) == (0, b"")
    if command == ["info"]:
        assert ("日本".encode() if encoding == "utf-8" else rb"\u65e5\u672c") in found.stdout


def test_streams_that_are_not_there_or_not_of_text(path, monkeypatch, capsys):
    class Plain:
        said = ""

        def write(self, text):
            self.said += text

        def flush(self):
            pass

    plain = Plain()
    monkeypatch.setattr(sys, "stdout", plain)
    assert main(["info", path]) == 0
    assert "日本" in plain.said
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["validate", path]) == 0
    assert capsys.readouterr().err == ""


def test_set_keeps_the_type_of_a_key(path):
    sets = ['general.architecture=["a"]', "general.name=5", 'tokens=["[", "2"]', "n=9", "pairs=[[3]]"]
    assert main(["copy", path, path, *(arg for s in sets for arg in ("--set", s))]) == 0
    found = gq.open(path).metadata
    keys = ("general.architecture", "general.name", "tokens", "n")
    assert [(found[key], found.type(key)) for key in keys] == [
        ('["a"]', "string"), ("5", "string"), (["[", "2"], "array of string"), (9, "uint8"),
    ]  # fmt: skip
    assert (found["pairs"], found.type("pairs")) == ([[3]], "array of array")


@pytest.mark.parametrize(
    ("args", "match"),
    [
        (["--set", "n=[1, 2]"], "its type is uint8, and '[1, 2]' is an array; write KEY:TYPE=VALUE"),
        (["--set", "tokens=x"], "its type is array of string, and 'x' is no array"),
        (["--set", "k=" + "[" * 100_000], "too deep"),
        (["--drop", "nope"], "--drop 'nope': the file has 5 names, not this one; `ggmlq metadata "),
        (["--drop", "token"], "did you mean 'tokens'"),
    ],
)
def test_copy_refuses_and_says_why(path, tmp_path, capsys, args, match):
    assert main(["copy", path, str(tmp_path / "o.gguf"), *args]) == 2
    assert match in capsys.readouterr().err
    assert not (tmp_path / "o.gguf").exists()


@pytest.mark.parametrize(
    ("args", "match"),
    [
        (["wé", "--rows", "5:9"], "--rows 5:9 of"),
        (["wé", "--rows", "2:1"], "there is no such row; take some of 0:3"),
        (["empty", "--block", "0"], "it has 0 blocks; leave the option out"),
        (["zzz"], "`ggmlq info --tensors"),
    ],
)
def test_show_refuses_and_says_why(path, capsys, args, match):
    assert main(["show", path, *args]) == 2
    assert match in capsys.readouterr().err
