"""``ggmlq check``: its cases, its verdicts and its exit status."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.check import batches, cases, strided
from ggmlq.check import plan as running
from ggmlq.check import run as run_module
from ggmlq.check.cases import Case
from ggmlq.check.judge import candidates, judge
from ggmlq.check.plan import Plan, Settings, other_threads, trial_lines, untried
from ggmlq.cli import main
from ggmlq.errors import ShapeError, UnsupportedError
from ggmlq.formats import FORMATS
from ggmlq.llama import Device, Measurement

Q4_0 = FORMATS["q4_0"]
SMALL = ["--types", "q4_0", "--shapes", "9x7x96,1x8x32"]


@pytest.fixture
def check(capsys, fake_library, monkeypatch):
    """Run the command on the fake library; its status, its stdout and its stderr."""

    def run(*options, fault="", device="FAKE0"):
        monkeypatch.setenv("FAKE_GGML", fault)
        status = main(["check", "--lib", str(fake_library), "--device", device, *map(str, options)])
        return status, *capsys.readouterr()

    return run


# --- cases ------------------------------------------------------------------------------------


def test_the_same_case_is_the_same_data():
    case = Case(Q4_0, 9, 7, 96, "outliers", 5)
    (x, w), (x2, w2) = case.inputs(), case.inputs()
    np.testing.assert_array_equal(x, x2)
    np.testing.assert_array_equal(w.raw, w2.raw)
    other, _ = Case(Q4_0, 9, 7, 96, "outliers", 6).inputs()
    assert (other != x).mean() > 0.9


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda fmt: fmt.name)
def test_edges_touch_every_limit(fmt):
    block = max(fmt.block_size, 32)
    edges = cases.edges(fmt, 3)
    assert {1, 8, 9, 63, 64, 65} <= {case.m for case in edges}
    assert {case.n % 16 for case in edges} >= {0, 1, 2, 7}
    assert {case.k // block % 2 for case in edges} == {0, 1}
    assert min(case.k for case in edges) == block
    assert {case.data for case in edges} == set(cases.KINDS)
    assert all(case.seed == 3 for case in edges)
    assert all(case.n % 16 == 0 for case in cases.edges(fmt, 3, 16))


def test_kinds_are_what_they_say():
    for m in (1, 9):
        x = {kind: cases.activations(kind, m, 1056, 1) for kind in cases.KINDS}
        special = x.pop("special")
        assert all(np.isfinite(rows).all() for rows in x.values())
        assert np.isfinite(special[::2]).all()
        assert not np.isfinite(special[1::2]).all(axis=1).any()
        assert 0 < (x["zero"] == 0).mean() < 0.9
        assert (x["constant"] == x["constant"][:, :1]).all()
        assert np.abs(x["huge"]).sum(axis=1).max() > 65504
        assert np.abs(x["tiny"]).max(axis=1).min() / 127 < 2**-14
        assert np.abs(x["outliers"]).max() > 50


def test_shapes_and_types():
    shapes = cases.parse_shapes("1x4096x4096, 9×64×512,3x9x64x512, 2x3x9x64x512")
    assert shapes == [((), (1, 4096, 4096)), *(((lead), (9, 64, 512)) for lead in ((), (3,), (2, 3)))]
    assert [fmt.name for fmt in cases.parse_types("Q4_0,q4_k")] == ["q4_0", "q4_K"]
    for text in ("9x64", "1x1x1x9x64x512", "3xx9x64x512"):
        with pytest.raises(ShapeError, match=f"'{text}' is not M×N×K .* or 3x9x64x512 for three batches"):
            cases.parse_shapes(text)
    with pytest.raises(ShapeError, match="K is a multiple of 32"):
        Case(Q4_0, 1, 1, 33)
    with pytest.raises(UnsupportedError, match="there is no such kind; choose of normal"):
        cases.parse_data("weird")


def test_cases_of_test_backend_ops():
    text = "MUL_MAT(type_a=q5_1,type_b=f32,m=16,n=1,k=256,bs=[1,1],nr=[1,1],per=[0,1,2,3],k_v=0,o=1): FAIL"
    case = strided.parse_product(text, 7)
    assert (case.format.name, case.m, case.n, case.k, case.seed) == ("q5_1", 1, 16, 256, 7)


def test_batches_of_test_backend_ops():
    """Bs are axes of the weights, from the inner one; nr how many times as many the activations have."""
    sizes = "type_a=q4_0,type_b=f32,m=16,n=5,k=256"
    case = strided.parse_product(f"MUL_MAT({sizes},bs=[3,2],nr=[2,1])", 0)
    assert (case.batches, case.matrices, case.shape) == ((2, 6), (2, 3), "2x6x5x16x256 of 6 matrices")
    x, q, ids = *case.inputs(), case.ids()
    assert (x.shape, q.shape, ids.shape) == ((60, 256), (6, 16, 256), (60, 1))
    assert ids[::5, 0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    of_x, of_q = case.axes(x, q)
    assert (of_x.shape, of_q.shape) == ((2, 6, 5, 256), (2, 3, 16, 256))
    assert strided.parse_product(case.repeat_options.split("'")[1], 0) == case
    one = strided.parse_product(f"MUL_MAT({sizes},nr=[3,1])", 0)
    assert (one.shape, one.ids(), one.repeat_options) == (
        "3x5x16x256", None, f"--case 'MUL_MAT({sizes},bs=[1,1],nr=[3,1])' --seed 0")  # fmt: skip
    with pytest.raises(ShapeError, match="the former is a multiple of the latter"):
        batches.Batch(Q4_0, 5, 16, 256, batches=(1, 3), matrices=(1, 2))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("MUL_MAT_ID(type_a=q4_0,m=1,n=1,k=32)", "only MUL_MAT"),
        ("q4_0 1x1x1", "only MUL_MAT"),
        ("MUL_MAT(type_a=q4_0,m=1,n=1)", "k must be given, as in .*,k=256"),
        ("MUL_MAT(type_a=q4_0,m=1,n=x,k=32)", "m, n, k must be given"),
        (
            "MUL_MAT(type_a=q4_0,type_b=q8_0,m=1,n=1,k=32)",
            "type_b=q8_0 is no product .*type_b=bf16 or f16 or f32",
        ),
        ("MUL_MAT(type_a=q4_0,m=1,n=1,k=32,data=odd)", "--data odd: there is no such kind"),
        ("MUL_MAT(type_a=q4_0,m=1,n=1,k=64,k_v=64)", "more than k=64, a multiple of 32"),
        ("MUL_MAT(type_a=q4_0,m=1,n=1,k=32,bs=[2])", r"bs=\[2\] is not two counts"),
        ("MUL_MAT(type_a=q4_0,m=1,n=1,k=32,nr=[0,1])", r"nr=\[0,1\] is not two counts"),
        ("MUL_MAT(type_a=q4_0,m=1,n=1,k=32,per=[1, 0, 2, 3])", r"per=\[1,0,2,3\] is no"),
        ("MUL_MAT(type_a=q9_9,m=1,n=1,k=32)", "no such type"),
    ],
)
def test_other_cases_are_refused(text, says):
    with pytest.raises(gq.GGMLQError, match=says):
        strided.parse_product(text, 0)


# --- verdicts ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["q4_0", "q5_1", "q6_K", "iq4_nl", "mxfp4", "q8_0"])
@pytest.mark.parametrize("arithmetic", ["ggml-cpu", "ggml-mmvq", "ggml-mmq", "q8", "f16", "f32"])
def test_the_arithmetic_is_found(name, arithmetic):
    x, q = cases.activations("normal", 4, 512, 1), cases.weights(FORMATS[name], "normal", 33, 512, 1)
    y = gq.reference.linear(x, q, arithmetic).astype(np.float32)
    found = judge(y, x, q, candidates("CPU", 4))
    assert found.ok
    assert found.distance < 1e-11


def test_one_bad_element_is_out_of_bound():
    x, q = cases.activations("normal", 16, 1024, 1), cases.weights(Q4_0, "normal", 256, 1024, 1)
    right = gq.reference.linear(x, q, "ggml-cpu").astype(np.float32)
    for wrong in (0.0, np.nan, np.inf, right[3, 5] * 1.01):
        y = right.copy()
        y[3, 5] = wrong
        found = judge(y, x, q, ["ggml-cpu"])
        assert not found.ok
        assert found.out == 1


def _truncated(x, q, right):
    """An activation quantizer that cuts off where it should round."""
    runs = x.reshape(len(x), -1, 32).astype(np.float64)
    step = np.abs(runs).max(axis=-1, keepdims=True) / 127
    return (np.trunc(runs / step) * step).reshape(x.shape) @ np.asarray(q, np.float64).T


def _bfloat_scales(x, q, right):
    rounded = q.copy()
    bits = q.blocks["d"].astype(np.float32).view(np.uint32) + 0x8000 & 0xFFFF0000
    rounded.blocks["d"][...] = bits.view(np.float32)
    return gq.reference.linear(x, rounded, "ggml-cpu")


def _half_sums(x, q, right):
    w, sums = np.asarray(q), np.zeros(right.shape, np.float16)
    for start in range(0, x.shape[1], 32):
        at = slice(start, start + 32)
        sums += (x[:, at] @ w[:, at].T).astype(np.float16)
    return sums


MISSED = {
    "scale off by 1/128": lambda x, q, right: right * (1 + 1 / 128),
    "a row of zeros": lambda x, q, right: np.where(np.arange(right.shape[1]) == 2, 0, right),
    "truncation": _truncated,
    "bfloat16 scales": _bfloat_scales,
    "half sums": _half_sums,
}


@pytest.mark.parametrize("fault", MISSED)
@pytest.mark.parametrize("backend", ["CPU", "CUDA"])
def test_what_passes_an_nmse_of_5e_4_is_caught(fault, backend):
    """What test-backend-ops lets through is out of bound in every arithmetic."""
    x, q = cases.activations("normal", 8, 1024, 1), cases.weights(Q4_0, "normal", 512, 1024, 1)
    right = gq.reference.linear(x, q, "ggml-cpu")
    y = MISSED[fault](x, q, right).astype(np.float32)
    assert gq.nmse(y, right) < 5e-3
    assert judge(right.astype(np.float32), x, q, candidates(backend, 8)).ok
    assert judge(y, x, q, candidates(backend, 8)).out > 0


def test_overflow_must_be_where_the_arithmetic_has_it():
    x, q = cases.activations("normal", 3, 256, 1), cases.weights(Q4_0, "normal", 8, 256, 1)
    x[1] *= 2.0**24  # its scale is no half any more
    with np.errstate(over="ignore"):
        y = gq.reference.linear(x, q, "ggml-cpu").astype(np.float32)
        assert not np.isfinite(y[1]).any()
        assert judge(y, x, q, ["ggml-cpu"]).ok
        assert judge(np.zeros_like(y), x, q, ["ggml-cpu"]).out == y.size


def test_a_claim_that_no_kernel_makes():
    x, q = cases.activations("normal", 3, 256, 1), cases.weights(FORMATS["tq1_0"], "normal", 8, 256, 1)
    with pytest.raises(UnsupportedError, match="tq1_0 weights are not multiplied in ggml-mmq"):
        judge(np.zeros((3, 8), np.float32), x, q, ["ggml-mmq"])


# --- the command ------------------------------------------------------------------------------


def test_a_right_library(check):
    status, out, err = check(*SMALL, "--data", "all", "--seed", 7)
    assert status == 0, out
    assert not err
    lines = [line.split() for line in out.splitlines() if line.startswith("q4_0")]
    assert len(lines) == 2 * len(cases.KINDS) + 1
    assert lines[0][:4] == ["q4_0", "9x7x96", "normal", "f32"]
    assert lines[0][-2:] == ["0", "ok"]
    assert lines[-1][:6] == ["q4_0", str(2 * len(cases.KINDS)), "0", "0", "0", "0"]


def test_edges_are_the_default(check):
    status, out, _ = check("--types", "f32", "--repeats", 2)
    assert status == 0, out
    assert "cases, all right; 4 more could not run" in out, "that library has no views"
    assert sum(line.startswith("f32") for line in out.splitlines()) == 2  # and of the summary
    status, out, _ = check("--types", "q4_0,f32", "--repeats", 2, "--verbose")
    for fmt in ("q4_0", "f32"):
        for case in cases.edges(FORMATS[fmt], 0):
            assert f"{fmt:8} {case.shape:>15} {case.data}" in out


def test_a_case_of_test_backend_ops(check):
    status, out, _ = check("MUL_MAT(type_a=q4_0,type_b=f32,m=16,n=1,k=256)")
    assert status == 0
    assert "1x16x256" in out


def test_a_wrong_kernel_is_diagnosed(check):
    status, out, _ = check(*SMALL, fault="offset")
    assert status == 1
    assert "WRONG: offset-missing" in out
    assert "again: ggmlq check --case 'MUL_MAT(type_a=q4_0,type_b=f32,m=7,n=9,k=96)' --seed 0" in out


def test_a_wrong_kernel_is_wrong_on_all_data(check):
    status, out, _ = check("--types", "q4_0", "--shapes", "1x65x1056", "--data", "all", fault="offset")
    assert status == 1
    assert out.count("WRONG") == len(cases.KINDS)


def test_what_is_not_written_is_wrong(check):
    status, out, _ = check(*SMALL, "--json", fault="unwritten")
    report = json.loads(out)
    assert status == 1
    assert [case["verdict"] for case in report["cases"]] == ["wrong", "wrong"]
    assert [case["unwritten"] for case in report["cases"]] == [9, 1]
    assert [case["out_of_bound"] for case in report["cases"]] == [0, 0]  # what was written is right
    assert [case["fault"] for case in report["cases"]] == ["unwritten", "unwritten"]
    assert "9 of 63 elements of y were never written: the last of 7 columns." in report["cases"][0]["text"]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("batches", ["126 of 189 elements of y were never written", "504 bytes behind y were overwritten"]),
        ("behind", ["8 bytes behind y were overwritten, from 0 to 8 bytes away from it"]),
        ("reads", ["are made of memory outside the operands"]),
    ],
)
def test_what_lies_beside_the_result_is_told(check, tmp_path, fault, said):
    """Also where every element is right; and a case in batches is saved and replayed as such."""
    status, out, _ = check("--types", "f32", "--shapes", "3x9x7x96", "--save", tmp_path, fault=fault)
    assert status == 1
    out = " ".join(out.split())
    for words in said:
        assert words in out
    label = "MUL_MAT(type_a=f32,type_b=f32,m=7,n=9,k=96,bs=[1,1],nr=[3,1])"
    assert f"again: ggmlq check --case '{label}' --seed 0 --lib" in out
    if fault == "batches":
        (saved,) = tmp_path.glob("*.npz")
        assert check("--replay", saved, fault=fault)[0] == 1
        assert check("--replay", saved)[0] == 0


def test_matrices_of_weights_in_batches(check, tmp_path):
    case = "MUL_MAT(type_a=q4_0,type_b=f32,m=7,n=9,k=96,bs=[2,1],nr=[3,1])"
    status, out, _ = check(case)
    assert (status, "6x9x7x96 of 2 matrices" in out) == (0, True)
    assert check(case, "--save", tmp_path, fault="offset")[0] == 1
    (saved,) = tmp_path.glob("*.npz")
    assert check("--replay", saved)[0] == 0
    assert main(["diagnose", str(saved)]) == 1


def test_an_input_of_diagnose_is_run(check, tmp_path, capsys):
    x, q = Case(Q4_0, 9, 7, 96).inputs()
    y = gq.reference.linear(x, q).astype(np.float32)
    np.savez(tmp_path / "all.npz", x=x, y=y, raw=q.raw, format="q4_0", shape=q.shape)
    assert main(["diagnose", str(tmp_path / "all.npz"), "--make-input", str(tmp_path / "new.npy")]) == 0
    assert f"wrote {tmp_path / 'new.npy.npz'}" in capsys.readouterr().out.replace("\n", "")
    status, out, _ = check("--replay", tmp_path / "new.npy.npz")
    assert (status, "33x7x96" in out) == (0, True)


def test_a_race_is_found(check):
    status, out, _ = check(*SMALL, fault="race")
    assert status == 1
    assert "DIFFERS from run to run" in out
    assert "9 elements change from run to run" in out
    assert "Each run alone is right." in out


def test_a_death_is_one_case(check):
    status, out, _ = check("--types", "q4_0", "--shapes", "9x7x96,8x7x96,1x8x32", "--json", fault="crash")
    report = json.loads(out)
    assert status == 1
    assert [case["verdict"] for case in report["cases"]] == ["failed", "ok", "ok"]
    assert "SIGSEGV" in report["cases"][0]["text"]


def test_a_type_that_keeps_dying_is_left_alone(check):
    status, out, _ = check("--types", "q4_0", fault="abort")
    assert status == 1
    assert out.count("FAILED") == 3
    assert "FAKE_ASSERT(k > 0) failed" in out
    assert "3 cases of q4_0 failed before; the rest is not tried" in out


def test_an_assertion_where_the_device_says_yes_refuses_the_product(check, tmp_path):
    words = ("--types", "q4_0", "--shapes", "9x7x96", "--baseline", tmp_path / "known.json")
    status, out, _ = check(*words, "--accept", fault="asserts")
    assert "REFUSED" in out
    assert "supports_op says yes, and the library ends: fake.c:7: GGML_ASSERT(k > 64) failed" in out
    assert (status, check(*words, fault="asserts")[0]) == (0, 0)
    assert check(*words[:4], fault="asserts")[0] == 1
    assert check(*words[:4], fault="unsupported")[0] == 2


def test_json_is_the_whole_report(check):
    status, out, _ = check(*SMALL, "--json", "--time", 2)
    report = json.loads(out)
    assert status == 0
    assert report["device"]["name"] == "FAKE0"
    first = report["cases"][0]
    assert (first["type"], first["m"], first["n"], first["k"], first["seed"]) == ("q4_0", 9, 7, 96, 0)
    assert first["nmse"] < 1e-10 < first["nmse_exact"] * 1e10
    assert first["seconds"] > 0


def test_a_saved_case_is_replayed(check, tmp_path):
    status, out, _ = check(*SMALL, "--data", "outliers", "--save", tmp_path, fault="unwritten")
    assert status == 1
    (path,) = tmp_path.glob("q4_0-9x7x96-*.npz")
    assert f"saved: {path}" in out
    with np.load(path) as saved:
        assert saved["y"].shape == (9, 7)
        assert saved["repeats"].shape == (2, 9, 7)
    assert main(["diagnose", str(path)]) == 1  # it reads such files
    status, out, _ = check("--replay", path)
    assert status == 0
    assert "9x7x96 outliers" in out
    status, out, _ = check("--replay", path, fault="unwritten")
    assert status == 1
    assert f"again: ggmlq check --replay {path}" in out


def test_what_was_claimed_is_not_lost(check, tmp_path, capsys):
    """A kernel that is right in another arithmetic than it claims: the command to repeat says so too."""
    claim = ["--arithmetic", "ggml-mmvq", "--threads", "1"]
    status, out, _ = check(*SMALL, *claim, "--save", tmp_path)
    assert status == 1
    (again,) = {line.strip() for line in out.splitlines() if "again:" in line and "m=7,n=9,k=96)" in line}
    assert again.endswith("--arithmetic ggml-mmvq --threads 1")
    (path,) = tmp_path.glob("q4_0-9x7x96-*.npz")
    main(["diagnose", str(path)])
    assert "not multiply in the claimed arithmetic 'ggml-mmvq'" in capsys.readouterr().out


@pytest.mark.parametrize(
    "option",
    ["--timeout=-1", "--repeats=0", "--threads=0", "--time=-1", "--timeout=nan"],
)
def test_numbers_that_make_no_sense(check, option):
    status, out, err = check(*SMALL, option)
    assert status == 2
    assert "or more" in err
    assert not out


def test_a_folder_that_cannot_be_written(check, tmp_path):
    (tmp_path / "file").touch()
    status, _, err = check(*SMALL, "--save", tmp_path / "file", fault="unwritten")
    assert status == 2
    assert "cannot write q4_0-9x7x96-normal-0.npz" in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--types", "q4_9"], "format 'q4_9'"),
        (["--types", "q8_0", "--shapes", "1x1x32"], "has no type q8_0"),
        (["--types", "q8_1", "--shapes", "1x1x32"], "no weights of type q8_1"),
        (["--types", "q4_0", "--shapes", "1x1x33"], "K is a multiple of 32"),
        (["--shapes", "1x1x31", "--data", "weird"], "no such kind"),
        (["--arithmetic", "fast"], "--arithmetic fast: no kernel multiplies so"),
        (["--types", "f32", "--arithmetic", "q8"], "f32 weights are not multiplied in q8"),
        (["--replay", "none.npz"], "--replay none.npz: not a case"),
        (["--threads", "0"], "--threads 0: it must be 1 or more"),
        ([*SMALL, "--seed", "-1"], "a seed is 0 or more"),
        ([*SMALL, "--threads", "513"], "ggml takes up to 512"),
        (["--types", "q4_0", "--shapes", "1x1000000000x3200000"], "too little memory"),
        (["MUL_MAT(type_a=q4_0,m=1,n=1,k=32)", "--shapes", "1x1x32"], "drop one"),
        ([*SMALL, "--repack"], "has no repacked layout"),
    ],
)
def test_what_cannot_run_is_exit_2(check, options, says):
    status, _, err = check(*options)
    assert status == 2
    assert err.startswith("ggmlq check: ")
    assert says in err


def test_faults_of_the_device_are_exit_2(check):
    for fault, says in [("unsupported", "does not multiply it"), ("driver", "did not start")]:
        status, _, err = check(*SMALL, fault=fault)
        assert status == 2
        assert says in err
    status, _, err = check(*SMALL, device="CUDA7")
    assert status == 2
    assert "--device CUDA7" in err
    assert "has FAKE0" in err


def test_no_library(capsys, tmp_path):
    assert main(["check", "--lib", str(tmp_path)]) == 2
    assert "holds no libggml-base" in capsys.readouterr().err


# --- the default run --------------------------------------------------------------------------


class Takes:
    """A bridge that multiplies in the plain layout, and in others where ``rule`` says so."""

    def __init__(self, rule):
        self.rule = rule

    def takes(self, fmt, shapes, device, *, repack):
        return [not repack or self.rule(repack, *shape) for shape in shapes]


def planned(rule, layouts, backend="CPU", threads=(1, 32)):
    device = Device("CPU", "a CPU", backend, "CPU", 1, 1, "", ("AMX", "CPU_REPACK"))
    plan = Plan(Takes(rule), device, Settings("CPU", backend, 2), threads=threads)
    return device, plan.products(Q4_0, layouts)


def test_the_default_run_tries_every_layout_with_several_threads():
    device, trials = planned(lambda layout, x, w, ids: layout == "CPU_REPACK", [False, "AMX", "CPU_REPACK"])
    ways = {(trial.how.repack, trial.how.threads) for trial in trials}
    assert ways == {(layout, n) for layout in (False, "CPU_REPACK") for n in (1, 2, 32)}
    assert all(trial.case.n % 16 == 0 for trial in trials if trial.how.repack)
    assert {trial.how.repack for trial in trials if isinstance(trial.case, batches.Batch)} == {
        False,
        "CPU_REPACK",
    }
    edges = [trial for trial in trials if not trial.how.repack and trial.how.threads == 2]
    assert len(edges) == len(cases.edges(Q4_0, 0)) + 1 + len(strided.default_cases(Q4_0, 0))
    assert len(trials) < 2 * len(edges)
    other = Device("CUDA0", "a card", "CUDA", "GPU", 1, 1)
    left = untried(device, [device, other], trials)
    assert left == [
        "weights in AMX (--buffer)",
        "products with experts (--experts edges)",
        "CUDA0 (--device)",
    ]
    assert trial_lines(trials)[0] == "plain layout: 34 cases of q4_0 with 2 threads, 4 of them with 1, 32"


def test_a_layout_that_takes_long_rows_only():
    """AMX of 2025: any default shape would be left out, and a bug that shows at K = 4096 with it."""
    takes = lambda layout, x, w, ids: w[-1] % 4096 == 0 and len(x) == 2
    for layouts in ([False, "AMX"], ["AMX"]):
        inside = [trial.case for trial in planned(takes, layouts)[1] if trial.how.repack]
        assert {case.k for case in inside} == {4096}
        assert {case.m for case in inside} >= {1, 8, 9, 64, 65}
        assert all(case.n % 32 == 0 for case in inside)
    assert {trial.how.repack for trial in planned(lambda *of: False, [False, "AMX"])[1]} == {False}
    never = planned(lambda *of: False, ["AMX"])[1]
    assert {trial.case.k for trial in never} >= {32, 1024}, "where nothing is taken the reasons are told"


def test_other_threads():
    device = planned(lambda *of: True, [])[0]
    assert {1, 32} <= set(other_threads(device, 2)) <= {1, 32, os.cpu_count()}
    assert other_threads(replace(device, backend="CUDA"), 2) == []


def test_verdicts_are_known_again_by_their_bits(monkeypatch):
    """Other threads give the same bits, which are not judged twice."""
    judged = []
    monkeypatch.setattr(run_module, "judge", lambda y, *of: judged.append(y) or "a verdict")
    kept, case = run_module.Cache(), Case(Q4_0, 9, 7, 96)
    x, q, ids = kept.operands(case)
    assert kept.operands(Case(Q4_0, 9, 7, 96))[0] is x
    for y in (x[:, :7], x[:, :7].copy(), x[:, 1:8]):
        product = running.Product(None, case, x, q, ids, Settings("CPU", "CPU"))
        kept.judge(product, Measurement(np.ascontiguousarray(y), (), (), ""), [])
    assert len(judged) == 2


def test_an_operation_is_no_option(check):
    status, _, err = check("--op", "MUL_MAT")
    assert (status, "--op MUL_MAT: write --ops MUL_MAT" in err) == (2, True)


def test_a_bar_only_on_a_terminal(check, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    status, out, err = check(*SMALL)
    assert status == 0
    assert "/2" in err
    assert "9x7x96" in out


@pytest.mark.llama
def test_llama_cpp_on_this_cpu(capsys, libggml, drawn_formats):
    """Types of this run, at two edges; the whole sweep is for the command."""
    blocks = sorted(drawn_formats - {"q8_1", "q8_K"})  # which ggml has for activations alone
    types = ",".join(["f32", "f16", "bf16", *blocks])
    options = ["--types", types, "--shapes", "8x7x768,9x65x256", "--data", "normal,huge", "--threads", "2"]
    status = main(["check", "--lib", str(libggml.path), *options])
    said = capsys.readouterr()
    assert status == 0, said.out
    assert blocks[0] in said.out
    assert "wrong" not in said.err
