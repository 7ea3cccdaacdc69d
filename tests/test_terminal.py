"""What commands print: width, colours, folding, filters, names that were meant, several files."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.base import terminal, text
from ggmlq.base.folding import folded, layers, span
from ggmlq.cli import main

ROW = np.arange(64, dtype=np.float32)


class Terminal:
    """A stream that says it is one."""

    def __init__(self, yes=True):
        self.yes = yes

    def isatty(self):
        return self.yes


@pytest.fixture(autouse=True)
def _plain(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "WT_SESSION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tensors = {"token_embd.weight": gq.quantize(np.ones((4, 256), np.float32), "q6_K")}
    for i in range(12):
        tensors[f"blk.{i}.ffn_up.weight"] = gq.quantize(ROW, "q8_0" if i % 2 else "q4_0")
        tensors[f"blk.{i}.norm.weight"] = ROW
    gq.save("m.gguf", tensors, {"general.architecture": "llama", "eps": 1e-6})
    return tensors


def run(capsys, *args):
    status = main([*args])
    return status, capsys.readouterr()


def test_words_about_numbers():
    assert [text.count(n, "tensor") for n in (0, 1, 2)] == ["0 tensors", "1 tensor", "2 tensors"]
    assert text.count(2, "entry", "entries") == "2 entries"
    assert [text.number(n) for n in (7, 999, 1000, 151_936, 7_241_732_096, 10**13)] == [
        "7", "999", "1.00 k", "152 k", "7.24 B", "10.0 T",
    ]  # fmt: skip
    assert text.size(1288490188) == "1.2 GiB"
    assert (text.size(1), text.size(415445811, "GiB"), text.size(3 << 20, "KiB")) == (
        "1 byte",
        "0.4 GiB",
        "3072.0 KiB",
    )


def test_names_that_were_meant():
    names = [f"blk.{i}.ffn_up.weight" for i in range(24)]
    assert text.near("ffn_up", names)[0] == "blk.0.ffn_up.weight"
    assert text.near("FFN_UP", names) != []
    assert text.near("valdate", ["validate", "info"]) == ["validate"]
    assert text.near("", names) == text.near("x" * 300, names) == text.near("zzz", names) == []
    assert text.meant("inof", ["info"], "look") == "did you mean 'info'?"
    assert text.meant("zzz", ["info"], "look") == "look"


def test_a_table_that_is_too_wide():
    rows = [["a.long.name.of.a.tensor.weight", 12345, "words " * 20], ["b", 1, ""]]
    lines = text.table(["name", "n", "words"], rows, 60).split("\n")
    assert max(map(len, lines)) <= 60
    assert "12345" in lines[1]
    assert lines[1].count("…") == 2
    assert lines[1].startswith("a.long")
    assert text.table(["name", "n", "words"], rows).split("\n")[1].endswith("words words")
    assert text.cut("abcdefghij", 5, middle=True) == "ab…ij"
    assert [text.cut("abcdef", n) for n in (6, 5, 1)] == ["abcdef", "abcd…", "…"]


@pytest.mark.parametrize(
    ("env", "tty", "welcome"),
    [
        ({}, True, True), ({}, False, False), ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True), ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": ""}, False, False), ({"TERM": "dumb"}, True, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, False, True),
    ],
)  # fmt: skip
def test_when_colours_are_welcome(monkeypatch, env, tty, welcome):
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    if os.name == "nt":
        monkeypatch.setenv("WT_SESSION", "1")
    assert terminal.colours(Terminal(tty)) is welcome
    assert ("\033[" in terminal.paint("x", "bad", Terminal(tty))) is welcome


def test_how_wide_it_is(monkeypatch):
    monkeypatch.setenv("COLUMNS", "90")
    assert terminal.width(Terminal()) == 90
    assert terminal.width(Terminal(False)) is None
    monkeypatch.setenv("COLUMNS", "7")
    assert terminal.width(Terminal()) == terminal.LEAST
    closed = open(os.devnull)  # noqa: SIM115
    closed.close()
    assert terminal.width(closed) is None
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("COLUMNS", "50")
    assert max(map(len, terminal.wrapped("word " * 40 + "\n" + "x" * 10, "  ").split("\n"))) <= 50
    assert max(map(len, terminal.table(["a", "b"], [["n" * 80, "v" * 80]]).split("\n"))) <= 50 + len(
        "\033[1m\033[0m"
    )
    monkeypatch.setattr(sys, "stdout", None)
    assert terminal.wrapped("word " * 40) == "word " * 40


def test_layers_are_folded():
    assert layers([0, 1, 2, 5]) == "0-2,5"
    assert layers(list(range(0, 20, 2))) == "0,2,4,…,18"
    facts = [{"name": name, "type": "q4_0", "shape": [3], "bytes": 5} for name in
             ("blk.0.a", "blk.1.a", "blk.01.a", "x", "blk.7", "enc.0.blk.0.a")]  # fmt: skip
    found = folded(facts)
    assert [fact["name"] for fact in found] == ["blk.{0-1}.a", "blk.01.a", "x", "blk.7", "enc.0.blk.0.a"]
    assert (found[0]["tensors"], found[0]["bytes"]) == (2, 10)
    assert sum(fact["tensors"] for fact in found) == len(facts)


def test_info_folds_filters_and_sorts(capsys, model):
    status, said = run(capsys, "info", "m.gguf")
    assert status == 0
    assert "blk.{0,2,4,…,10}.ffn_up.weight" in said.out
    assert "blk.{0-11}.norm.weight" in said.out
    assert said.out.splitlines()[-1].startswith("25 tensors, 2.56 k parameters, ")
    assert "1e-06" in said.out
    assert "no name" in said.out
    assert "\033" not in said.out
    assert "blk.3.norm.weight" in run(capsys, "info", "m.gguf", "--no-fold")[1].out
    assert len(run(capsys, "info", "m.gguf", "--tensors")[1].out.splitlines()) == 1 + len(model)
    assert len(run(capsys, "info", "m.gguf", "--tensors", "--fold")[1].out.splitlines()) == 5
    lines = run(capsys, "info", "m.gguf", "--tensors", "--sort", "size")[1].out.splitlines()
    assert lines[1].split()[0] == "token_embd.weight"
    found = json.loads(
        run(capsys, "info", "m.gguf", "--json", "--filter", "*.norm.*", "--sort", "name")[1].out
    )
    assert [fact["name"] for fact in found["tensors"]] == sorted(name for name in model if "norm" in name)
    assert (found["metadata"], found["parameters"]) == ({}, 2560)


@pytest.mark.parametrize(
    ("command", "shown", "every"),
    [
        (
            "quantize m.gguf o.gguf --type q8_0 --allow-requantize --dry-run",
            "blk.{0,2,4,…,10}.ffn_up.weight",
            25,
        ),
        ("dequantize m.gguf o.gguf --dry-run", "blk.{0-11}.norm.weight", 25),
        ("survey m.gguf --no-types", "blk.{0-11}.norm.weight", 25),
        ("diff m.gguf n.gguf", "blk.{0,2,4,…,10}.ffn_up.weight", 12),
        ("convert m.gguf folder --dry-run", "blk.{0-11}.norm.weight", 25),
    ],
)
def test_lines_of_equal_layers_are_one_everywhere(capsys, model, command, shown, every):
    other = {name: gq.quantize(ROW[::-1].copy(), "q4_0") if "up" in name else x for name, x in model.items()}
    gq.save("n.gguf", other, {"general.architecture": "other", "eps": 1e-6})
    gq.save("m.gguf", model, {"general.architecture": "other", "eps": 1e-6})
    said = run(capsys, *command.split())[1].out
    lines = [line for line in said.splitlines() if line.split()[:1] == [shown]]
    assert len(lines) == 1, said
    assert str(6 if "ffn_up" in shown else 12) in lines[0].split()
    assert len(said.splitlines()) < 18
    said = run(capsys, *command.split(), "--all-tensors")[1].out
    assert len([line for line in said.splitlines() if line.startswith(("blk.", "token_embd"))]) == every
    assert not any("{" in line for line in said.splitlines())


def test_a_group_shows_its_least_figure_and_its_largest():
    assert span([2.0, None, 1.0], ".1f") == "1.0 to 2.0"
    assert span([1.0, 1.01], ".1f") == "1.0"
    assert span([None], ".1f") == ""


def test_info_of_several_files(capsys, model):
    gq.save("n.gguf", model)
    gq.save("big.gguf", model, split_max_bytes=1500)
    status, said = run(capsys, "info", "m.gguf", "n.gguf")
    assert status == 0
    assert said.out.count("25 tensors") == 2
    found = json.loads(run(capsys, "info", "*.gguf", "--json")[1].out)
    assert sorted(len(facts["files"]) for facts in found)[:2] == [1, 1]
    assert len(found) == 3, "a split model once"
    assert run(capsys, "validate", "[mn].gguf")[0] == 0
    assert len(json.loads(run(capsys, "validate", "m.gguf", "n.gguf", "--json")[1].out)) == 2
    os.truncate("n.gguf", os.path.getsize("n.gguf") - 1)
    assert run(capsys, "validate", "m.gguf", "n.gguf")[0] == 1
    status, said = run(capsys, "info", "m.gguf", "*.none")
    assert (status, said.out) == (2, "")
    assert "no file fits this pattern" in said.err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["info", "n.gguf"], "there is no such file; did you mean 'm.gguf'?"),
        (["show", "m.gguf", "ffn_up"], "did you mean 'blk.0.ffn_up.weight'"),
        (["show", "m.gguf", "ffn_up"], "12 hold it"),
        (["show", "m.gguf", "token_emb.weight"], "did you mean 'token_embd.weight'?"),
        (["info", "m.gguf", "--filter", "*.norm.weigth"], ".norm.weight', 'blk."),
        (["formats", "q4_kk"], "did you mean q4_K"),
        (["quantize", "m.gguf", "o.gguf", "--type", "q4_K_N"], "q4_K_M"),
    ],
)
def test_what_was_meant(capsys, model, args, words):
    status, said = run(capsys, *args)
    assert (status, said.out) == (2, "")
    assert words in said.err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["inof", "m.gguf"], "there is no command 'inof'; did you mean 'info'"),
        (["zzzzz"], "there is no command 'zzzzz'; choose from"),
        (["info", "m.gguf", "--tensros"], "--tensros; did you mean '--tensors'?"),
        (["info", "m.gguf", "--sort", "sise"], "did you mean 'size'?"),
        (["copy", "a", "b", "c\x1b[31m"], "unrecognized arguments: c\\x1b[31m"),
    ],
)
def test_what_the_command_line_meant(capsys, args, words):
    with pytest.raises(SystemExit) as left:
        main(args)
    assert left.value.code == 2
    assert words in capsys.readouterr().err


def test_help_without_a_command(capsys, monkeypatch):
    status, said = run(capsys)
    assert (status, said.out) == (2, "")
    assert "usage: ggmlq" in said.err
    assert "validate" in said.err
    monkeypatch.setattr(sys, "argv", ["ggmlq"])
    assert main() == 2


def test_colours_of_errors_and_findings(capsys, model, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert run(capsys, "info", "none.gguf")[1].err.startswith("\033[1;31mggmlq info:\033[0m ")
    assert "\033[1mtensor" in run(capsys, "info", "m.gguf")[1].out
    assert "\033[32m0 errors, 0 notes\033[0m" in run(capsys, "validate", "m.gguf")[1].out
    assert "\033" not in run(capsys, "info", "m.gguf", "--json")[1].out


def test_completion_without_its_package(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "argcomplete", None)
    status, said = run(capsys, "completion", "bash")
    assert (status, said.out) == (2, "")
    assert 'pip install "argcomplete' in said.err


@pytest.mark.parametrize(
    ("line", "among"),
    [
        ("ggmlq val", "validate"), ("ggmlq help val", "validate"),
        ("ggmlq quantize a b --type q4_", "q4_K_M"),
        ("ggmlq quantize a b --type Q4_", "Q4_K_M"), ("ggmlq survey m.gguf --types q4_K,q5", "q4_K,q5_K"),
        ("ggmlq dequantize a b --type b", "bf16"),
        ("ggmlq show m.gguf token", "token_embd.weight"),
        ("ggmlq info --so", "--sort"), ("ggmlq info --sort s", "size"), ("ggmlq show none.gguf x", ""),
    ],
)  # fmt: skip
def test_what_a_shell_is_told(model, line, among):
    """As the script of argcomplete asks, through descriptor 8."""
    pytest.importorskip("argcomplete", reason="argcomplete is not installed: extra completion")
    asked = {"": "1", "_IFS": "\n", "_SUPPRESS_SPACE": "1", "_STDOUT_FILENAME": "said"}
    env = os.environ | {f"_ARGCOMPLETE{name}": value for name, value in asked.items()}
    env |= {"COMP_LINE": line, "COMP_POINT": str(len(line))}
    subprocess.run([sys.executable, "-m", "ggmlq"], env=env, check=True, capture_output=True)
    with open("said") as file:
        said = file.read().split("\n")
    assert not among or among in [word.strip() for word in said]
