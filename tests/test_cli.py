"""The command: its tables, its JSON, its exit status."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

import ggmlq as gq
from ggmlq import doctor
from ggmlq.check.batches import ROUTINGS
from ggmlq.check.cases import KINDS
from ggmlq.cli import command_line, main
from ggmlq.commands import completion, info, survey
from ggmlq.commands._options import GROUPS
from ggmlq.convert.measure import ELEMENTS


def run(capsys, *args):
    status = main(args)
    return status, capsys.readouterr()


def test_formats(capsys):
    status, said = run(capsys, "formats")
    lines = said.out.splitlines()
    assert status == 0
    assert lines.index("") == 1 + len(gq.formats)
    assert any(line.split()[:4] == ["q4_K_M", "15", "q4_K", "q6_K"] for line in lines)
    assert lines[3].split() == ["q4_0", "2", "32", "18", "4.5", "yes", "yes", "used"]
    assert any(line.split()[:5] == ["q4_K", "12", "256", "144", "4.5"] for line in lines)


def test_formats_by_name_and_id(capsys):
    status, said = run(capsys, "formats", "Q4_k", "16", "--json")
    facts = json.loads(said.out)
    assert status == 0
    assert [fact["name"] for fact in facts] == ["q4_K", "iq2_xxs"]
    assert facts[0]["fields"][3] == {"name": "qs", "offset": 16, "type": "|u1", "shape": [128]}
    assert [fact["needs_imatrix"] for fact in facts] == [False, True]


def test_mixes(capsys):
    found = json.loads(run(capsys, "formats", "--mixes", "--json")[1].out)
    assert {(fact["name"], fact["file_type"]) for fact in found} >= {("q4_K_M", 15), ("iq2_xxs", 19)}
    assert [fact["name"] for fact in found if fact["name"] == "iq3_xs" and fact["needs_imatrix"]]
    _, said = run(capsys, "formats", "Q5_K_m")
    assert said.out.splitlines()[1].split()[:3] == ["q5_K_M", "17", "q5_K"]


def test_an_unknown_format_is_exit_2(capsys):
    status, said = run(capsys, "formats", "q4_kk")
    assert status == 2
    assert said.err.startswith("ggmlq formats: format 'q4_kk'")


def test_doctor(capsys):
    status, said = run(capsys, "doctor", "--json")
    report = json.loads(said.out)
    assert status == 0
    assert report["ggmlq"] == gq.__version__
    assert report["packages"]["numpy"]
    assert "features" in report["cpu"]
    assert "devices" in report["gpu"] or report["gpu"]["error"]
    assert "version" in report["libggml"] or report["libggml"]["error"]
    status, said = run(capsys, "doctor")
    assert status == 0
    for word in ("CPU", "GPU", "libggml", "no problems found"):
        assert word in said.out


def test_doctor_names_a_problem(capsys, monkeypatch):
    versions = {"numpy": "2.5.2"}
    monkeypatch.setattr(doctor, "_version", versions.get)
    status, said = run(capsys, "doctor")
    assert status == 1
    assert "problem: numba is not installed" in said.out


def test_doctor_where_numba_cannot_be_imported(capsys, monkeypatch):
    """As beside a damaged .numba_config.yaml, whose parser has errors of its own."""

    def examine():
        raise type("ParserError", (Exception,), {})('while parsing\n in ".numba_config.yaml"')

    monkeypatch.setitem(sys.modules, "ggmlq.cpu.report", SimpleNamespace(examine=examine))
    status, said = run(capsys, "doctor")
    assert status == 1
    assert 'Numba cannot be imported (ParserError: while parsing in ".numba_config.yaml")' in said.out
    assert run(capsys, "doctor", "--json")[0] == 1


def test_as_a_program():
    for command in (["-m", "ggmlq"],):
        done = subprocess.run(
            [sys.executable, *command, "--version"], capture_output=True, text=True, check=True
        )
        assert done.stdout == f"ggmlq {gq.__version__}\n"
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert "usage: ggmlq" in done.stderr


def helped(capsys, *args):
    with pytest.raises(SystemExit) as left:
        main([*args])
    assert left.value.code == 0
    return capsys.readouterr().out


def test_help_names_every_command_in_its_group(capsys):
    said = helped(capsys, "--help")
    assert helped(capsys, "help") == said
    assert said.startswith("usage: ggmlq [-h] [-V] COMMAND")
    groups = re.findall(r"^(\w+):\n((?:  .+\n)+)", said, flags=re.MULTILINE)
    names = {group: re.findall(r"^  ([a-z-]+) ", lines, flags=re.MULTILINE) for group, lines in groups}
    assert [*names] == [*GROUPS, "options", "examples"]
    assert sorted(name for group in GROUPS for name in names[group]) == [*command_line().commands.choices]
    assert said.rstrip().splitlines()[-1].startswith("  ggmlq ")


def test_help_of_a_command(capsys):
    assert helped(capsys, "help", "gru", "run") == helped(capsys, "gru", "run", "--help")
    assert "usage: ggmlq quantize" in helped(capsys, "help", "quantize")
    assert "usage: ggmlq help" in helped(capsys, "help", "--help")
    assert helped(capsys, "-V") == helped(capsys, "--version") == f"ggmlq {gq.__version__}\n"
    with pytest.raises(SystemExit) as left:
        main(["help", "quantise"])
    assert left.value.code == 2
    assert "'quantize'" in capsys.readouterr().err


def parsers(parser=None):
    """All commands, and those within them."""
    for action in (parser or command_line())._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield each
                yield from parsers(each)


@pytest.mark.parametrize("parser", [*parsers()], ids=lambda parser: parser.prog)
def test_every_command_has_an_example_and_a_file(parser):
    assert re.search(rf"^  (?:mpiexec .*|eval .*)?{parser.prog}\b", parser.epilog, flags=re.MULTILINE)
    name = parser.prog.split()[1].replace("-", "_")
    assert name == "help" or callable(importlib.import_module(f"ggmlq.commands.{name}").run)


SILENT = {"ggmlq gru", "ggmlq help", "ggmlq completion"}  # they report nothing


@pytest.mark.parametrize("parser", [*parsers()], ids=lambda parser: parser.prog)
def test_every_command_that_reports_takes_json(parser):
    assert ("--json" in parser._option_string_actions) is (parser.prog not in SILENT)


def test_words_of_the_parsers_are_those_of_the_commands():
    """They import none of the code that has these lists."""
    options = {f"{parser.prog} {action.dest}": action for parser in parsers() for action in parser._actions}
    for name, module in {"info": info, "survey": survey}.items():
        assert set(options[f"ggmlq {name} sort"].choices) == set(module.SORTS)
    assert options["ggmlq check data"].help.endswith(", ".join(KINDS))
    assert options["ggmlq check spread"].help.endswith(", ".join(ROUTINGS))
    assert f"({ELEMENTS})" in options["ggmlq survey sample"].help
    assert f"({ELEMENTS})" in options["ggmlq quantize sample"].help
    assert sorted(completion.types()) == sorted(gq.formats)


@pytest.mark.parametrize("line", ["", "ggmlq ", "ggmlq info --so", "ggmlq quantize a b --type q4_"])
def test_neither_help_nor_a_tab_imports_numpy(tmp_path, line):
    """CPU seconds stay below those that importing NumPy alone would take: 0.3 and 0.25 s."""
    env = {**os.environ}
    if line:
        pytest.importorskip("argcomplete", reason="argcomplete is not installed: ggmlq[completion]")
        env |= {
            "_ARGCOMPLETE": "1",
            "_ARGCOMPLETE_IFS": "\n",
            "COMP_LINE": line,
            "COMP_POINT": str(len(line)),
        }
        env |= {"_ARGCOMPLETE_STDOUT_FILENAME": str(tmp_path / "said")}
    code = f"""
import os, sys
os._exit = sys.exit
try:
    import ggmlq.cli
    ggmlq.cli.main({["--help"] * (not line)})
except SystemExit:
    print(*sys.modules, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    imported = {*done.stderr.split()}
    assert "ggmlq.commands.quantize" in imported
    assert not {"numpy", "numba", "tqdm", "concurrent.futures"} & imported
    rooms = {name.split(".")[1] for name in imported if name.startswith("ggmlq.")}
    assert rooms == {"base", "cli", "commands", "errors"}


def test_a_reader_that_leaves_early():
    done = subprocess.run(
        f"{sys.executable} -m ggmlq formats --json | head -1",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "[\n"
    assert done.stderr == ""


def test_an_error_of_a_command_is_two_lines(capsys):
    """All options beside it would hide it."""
    with pytest.raises(SystemExit) as left:
        main(["run", "model.gguf", "--top-p=-1"])
    error, way = capsys.readouterr().err.splitlines()
    assert (left.value.code, way) == (2, "ggmlq run --help lists the options")
    assert error == "ggmlq run: error: argument --top-p: '-1' is not a share; write a number above 0, up to 1"
