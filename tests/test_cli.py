"""The command: its tables, its JSON, its exit status."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

import ggmlq as gq
from ggmlq import doctor
from ggmlq.cli import main


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

    monkeypatch.setitem(sys.modules, "ggmlq.cpu.machine.report", SimpleNamespace(examine=examine))
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


def test_help_names_every_command(capsys):
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    said = capsys.readouterr().out
    assert "formats" in said
    assert "doctor" in said


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
