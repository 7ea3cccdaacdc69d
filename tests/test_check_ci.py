"""What `ggmlq check` gives a CI: known faults, JUnit's XML, commands of a workflow, parts, an order."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

import ggmlq as gq
from ggmlq.check import ci, ops, order
from ggmlq.check.batches import Mixture
from ggmlq.check.cases import Case
from ggmlq.check.judge import candidates
from ggmlq.check.opcases import CASES
from ggmlq.check.ops import OpOutcome, case_of, cases_of
from ggmlq.check.outcome import Outcome
from ggmlq.check.plan import Settings, Trial, spread
from ggmlq.cli import command_line, main
from ggmlq.commands import _check_ci
from ggmlq.errors import GGMLQError, UnsupportedError

CLAMP = "CLAMP(ne=[17,5,3,2], rows apart)"


def op(case=CLAMP, threads=1, verdict="wrong", fault="", text="3 of 9 elements", **more):
    return OpOutcome(case.partition("(")[0], case, threads, verdict, fault=fault, text=text, **more)


def records():
    ok = [op(threads=n, verdict="ok", text="") for n in (1, 2)]
    wrong = [op("ADD(a)", 1, "ok", text=""), op("ADD(a)", 2), op("ADD(a)", 5, fault="node-tail")]
    refused = op("SUM(b)", verdict="refused", text="ends: /w/src/ops.cpp:17: GGML_ASSERT(x) failed\x1b")
    return ci.of_operations([*ok, *wrong, refused, op("LOG(c)", verdict="not run", text="no")], "CPU")


def test_a_record_stands_for_a_case_with_all_numbers_of_threads():
    made = records()
    assert [(one.case, one.verdict, one.threads) for one in made] == [
        (CLAMP, "ok", (1, 2)), ("ADD(a)", "wrong", (2, 5)), ("SUM(b)", "refused", (1,)),
        ("LOG(c)", "not run", (1,)),
    ]  # fmt: skip
    assert made[1].fault == "node-tail"
    assert made[1].again == "ggmlq check --case 'ADD(a)' --threads 5"
    case = Case(gq.formats["q4_0"], 9, 64, 96, "huge")
    (one,) = ci.of_products([Outcome(case, "wrong", layout="AMX", threads=n) for n in (1, 32)], "CPU")
    assert one.case == "MUL_MAT(type_a=q4_0,type_b=f32,m=64,n=9,k=96,data=huge) in AMX"
    mixture = Mixture(gq.formats["q4_0"], 9, 64, 96, experts=4, used=2, row_per_use=True)
    assert "MUL_MAT_ID(type_a=q4_0,type_b=f32,n_mats=4,n_used=2,b=0,m=64" in mixture.label


def test_a_baseline_fails_new_faults_alone(tmp_path):
    path, made = tmp_path / "known.json", records()
    assert [one.case for one in ci.Baseline(path).compared(made).new] == ["ADD(a)", "SUM(b)"]
    assert ci.Baseline(path).accept(made, "lib") == 2
    known = json.loads(path.read_text())
    known["known"][0]["why"] = "it is being mended"
    path.write_text(json.dumps(known))
    again = ci.Baseline(path).compared(made)
    assert (again.new, len(again.known), again.gone) == ([], 2, [])
    # another verdict is a new fault; a case that is right is gone; one that did not run stays known
    later = [made[0], made[2]._replace(verdict="failed"), made[1]._replace(verdict="ok", bad=False)]
    compared = ci.Baseline(path).compared(later)
    assert ([one.verdict for one in compared.new], compared.gone) == (["failed"], ["ADD(a)"])
    assert "known and gone: 1 fault: ADD(a)" in " ".join(ci.sentences(compared))
    assert ci.Baseline(path).accept(made[1:2], "lib") == 2
    assert json.loads(path.read_text())["known"][0]["why"] == "it is being mended"
    assert ci.Baseline(path).accept(later, "lib") == 1
    other = [one._replace(device="CUDA0") for one in made]
    assert len(ci.Baseline(path).compared(other).new) == 2, "another device has faults of its own"
    path.write_text("{}")
    with pytest.raises(GGMLQError, match="no file that --accept wrote"):
        ci.Baseline(path)


def test_junit_has_failures_and_known_ones_apart(tmp_path):
    path, made = tmp_path / "check.xml", records()
    ci.write_junit(path, made, [made[1]])
    suites = {suite.get("name"): suite for suite in ElementTree.parse(path).getroot()}
    assert {name: suite.get("failures") for name, suite in suites.items()} == {
        "CLAMP": "0", "ADD": "0", "SUM": "1", "LOG": "0"}  # fmt: skip
    assert [child.tag for case in suites["ADD"] for child in case] == ["skipped"]
    (failure,) = suites["SUM"][0]
    assert failure.tag == "failure"
    assert "ops.cpp:17" in failure.text
    assert suites["LOG"].get("skipped") == "1"


def test_commands_of_a_workflow_point_at_the_source(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("GITHUB_WORKSPACE", "/w")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    bad = [one for one in records() if one.bad]
    first, second = ci.workflow_commands(bad)
    assert first.startswith("::error title=ggmlq check%3A ADD(a)::ADD(a): wrong, node-tail%0A3 of 9 elements")
    assert second.startswith("::error file=src/ops.cpp,line=17,title=ggmlq check%3A SUM(b)::")
    assert len(list(ci.workflow_commands(bad * 20))) == ci.ANNOTATIONS
    args = argparse.Namespace(baseline=None, accept=False, junit=None, github=True, json=False)
    faults, facts = _check_ci.finish(args, "lib", "operations", records(), ["a note"])
    assert (len(faults), facts) == (2, {})
    summary = (tmp_path / "summary.md").read_text()
    assert "3 cases ran, 2 new faults." in summary
    assert "| ADD(a) | wrong | node-tail | 2, 5 |" in summary
    assert "* a note" in summary
    assert capsys.readouterr().out.count("::error") == 2


def test_shards_are_parts_of_the_whole():
    every = [str(case) for case in cases_of(["ADD", "CPY"])]
    parts = [[name for name in every if ci.in_shard(name, (i, 3))] for i in (1, 2, 3)]
    assert sorted(name for part in parts for name in part) == sorted(every)
    assert all(parts)
    assert _check_ci.shard("2/4") == (2, 4)
    assert (_check_ci.seconds("60s"), _check_ci.seconds("1.5m")) == (60, 90)
    for parse, text in ((_check_ci.shard, "5/4"), (_check_ci.seconds, "soon"), (_check_ci.seconds, "0s")):
        with pytest.raises(argparse.ArgumentTypeError):
            parse(text)


def test_the_first_cases_find_most():
    every = list(cases_of(sorted(CASES)))
    names = {str(case) for case in every}
    assert names >= order.gains().keys(), "tools/order_cases.py measures them again"
    assert {case.partition("(")[0] for case in order.gains()} == CASES.keys()
    first = order.ordered(every)
    labels = [str(case) for case in first]
    shares = [order.share(labels[:n], labels) for n in (0, 100, 300, len(labels))]
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert shares[2] > 0.9
    assert shares[3] == 1
    assert order.gains()[labels[0]] >= order.gains()[labels[1]]


def test_a_budget_begins_with_each_type_and_layout():
    how = Settings("CPU", "CPU")
    trials = [
        Trial(Case(gq.formats[name], m, 64, 256, data), replace(how, repack=layout))
        for layout in (False, "AMX") for name in ("q4_0", "q8_0")
        for m, data in ((1, "normal"), (9, "normal"), (65, "tiny"))
    ]  # fmt: skip
    first = [(one.case.m, one.case.data) for one in spread(trials)]
    assert first == [(9, "normal")] * 4 + [(1, "normal")] * 4 + [(65, "tiny")] * 4
    assert [candidates(backend, 9)[0] for backend in ("CPU", "CUDA", "RPC[a:1]")] == [
        "ggml-cpu", "ggml-mmq", "ggml-cpu",
    ]  # fmt: skip


def test_a_case_is_found_by_its_name():
    case = case_of(CLAMP, 3)
    assert (str(case), case.seed) == (CLAMP, 3)
    assert case_of(" clamp(NE=[17,5,3,2],  rows apart)", 3) == case
    with pytest.raises(UnsupportedError, match="CLAMP has no such case; did you mean"):
        case_of("CLAMP(ne=[17,5,3,2], rows aprt)", 0)
    for unknown in ("CLAMPED(a)", "all(a)"):
        with pytest.raises(UnsupportedError, match="is none of ggml's"):
            case_of(unknown, 0)
    with pytest.raises(UnsupportedError, match="its --test-file of any operation"):
        case_of("POOL_1D(pool_type=max,type=f32,ne=[33,5,2,1],k0=3,s0=2,p0=1)", 0)
    one = replace(op(), options=" --lib x")
    assert one.again == f"--case '{CLAMP}' --threads 1 --lib x"
    held = replace(one, how="ggml-cpu-attention")  # by what other cases of the run were computed in
    assert held.again == f"{one.again} --arithmetic ggml-cpu-attention"
    assert replace(held, options=" --arithmetic f32").again.count("--arithmetic") == 1
    assert replace(held, verdict="ok").again == one.again


def test_the_commands_of_the_skill_are_those_of_the_command_line():
    """SKILL.md is for whoever changes kernels, people or not: its options exist."""
    skill = Path(__file__).parent.parent / ".github" / "actions" / "ggmlq-check" / "SKILL.md"
    text = skill.read_text(encoding="utf-8")
    commands = re.findall(r"^ +ggmlq (.+)$", text, re.MULTILINE)
    assert len(commands) >= 7
    for words in commands:
        assert command_line().parse_args(shlex.split(words)).command in ("check", "trace", "logits")
    options = command_line().parse_args(["check"])
    named = {name.replace("-", "_") for name in re.findall(r"`--([a-z-]+)", text)}
    assert named <= vars(options).keys()


@pytest.mark.parametrize(
    "options",
    [
        ["--junit", "no/folder.xml"], ["--junit", "."], ["--baseline", "no/known.json", "--accept"],
        ["--accept"], ["--baseline", "bad.json"], ["--types", "q4_0"], ["--repack"], ["--time", "3"],
    ],
)  # fmt: skip
def test_what_the_end_of_a_run_could_not_do_is_refused_first(options, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("bad.json").write_text("{}")
    monkeypatch.setattr(ops, "run_ops", None)  # nothing runs
    assert main(["check", "--ops", "CLAMP", *options]) == 2
    assert options[0] in capsys.readouterr().err
