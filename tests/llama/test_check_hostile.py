"""Special values and odd operands in `ggmlq check`: rules hold a kernel to them, and right ones pass."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.check import strided
from ggmlq.check.cases import Case
from ggmlq.check.nodes import judge_node, judge_product, node_line, operands
from ggmlq.check.opcases import CASES
from ggmlq.check.plan import Settings
from ggmlq.check.run import run_case
from ggmlq.check.sketch import Sketch
from ggmlq.cli import main
from ggmlq.errors import GGMLQError
from ggmlq.llama import Bridge
from ggmlq.llama.process import reports_of

pytestmark = pytest.mark.llama


@pytest.fixture(scope="module")
def bridge():
    """The libggml of this machine, in a process of its own."""
    try:
        opened = Bridge(timeout=60, sleeps=True)
    except GGMLQError as error:
        pytest.skip(str(error))
    with opened:
        yield opened


def case_of(op, words):
    return next(case for case in CASES[op](0) if words in str(case))


def judged(bridge, op, words):
    """A node that the library computed, and a function that judges it with another result."""
    case = case_of(op, words)
    these = operands(bridge.node(case.program, case.arrays()).node)
    assert not judge_node(these).out, str(case)
    return these, lambda y: judge_node(replace(these, y=y)).out


@pytest.mark.parametrize(
    "words", ["f16, heads 4/2x64, 7 of 64, hidden", "f32, heads 4/2x64, 70 of 64, hidden"]
)
def test_a_row_that_sees_nothing_is_zero(bridge, words):
    these, out = judged(bridge, "FLASH_ATTN_EXT", words)
    assert not these.y[0, 0].any()
    for value in (np.nan, 1e-3):
        y = these.y.copy()
        y[0, 0] = value
        assert out(y) == y[0, 0].size
        assert judge_node(replace(these, y=y), quick=True).out == 0, "a GPU promises nothing"


def test_what_is_moved_keeps_its_bits(bridge):
    for op, words in (("CONT", "special values"), ("CPY", "f32 to bf16, special"), ("CONCAT", "special")):
        these, out = judged(bridge, op, words)
        at = np.argwhere(np.isnan(these.y))[0]
        y = these.y.copy()
        y[tuple(at)] = 0
        assert out(y) == 1, op
        y = np.where(these.y == 0, 0, these.y).astype(these.y.dtype)
        assert out(y) == np.count_nonzero(np.signbit(these.y) & (these.y == 0)), op


def test_a_nan_stays_in_its_row(bridge):
    these, out = judged(bridge, "RMS_NORM", "NaN in some rows")
    y = these.y.copy()
    assert np.isnan(y[..., 0, :]).all()
    y[..., 1, 3] = np.nan
    assert out(y) == 1


def test_a_state_in_the_layout_of_early_libraries(bridge):
    these, out = judged(bridge, "GATED_DELTA_NET", "heads 4/2x64")
    y = gq.reference.node(these.op, these.inputs, {**these.params, "turned": True}).value.astype(np.float32)
    assert judge_node(replace(these, y=y)).how == "earlier"
    assert out(y) == 0
    y[..., 3, 9] += 1
    assert out(y) == 1


def test_sums_in_blocks_are_those_of_our_encoder(bridge):
    these, out = judged(bridge, "ADD", "q8_0")
    y = these.y.copy()
    y[..., 0, 7] ^= 1
    assert out(y) == 1


@pytest.mark.parametrize("label", [
    "MUL_MAT(type_a=q4_0,type_b=f32,m=17,n=4,k=96,bs=[2,3],nr=[1,1],per=[0,2,1,3])",
    "MUL_MAT(type_a=q8_0,type_b=f32,m=16,n=9,k=64,bs=[3,1],nr=[1,2],per=[0,3,2,1])",
    "MUL_MAT(type_a=f16,type_b=f16,m=33,n=9,k=96,bs=[1,1],nr=[2,1],k_v=160)",
    "MUL_MAT(type_a=bf16,type_b=bf16,m=7,n=5,k=64,bs=[1,1],nr=[1,1])",
    "MUL_MAT(type_a=q4_K,type_b=f32,m=7,n=6,k=256,data=special)",
])  # fmt: skip
def test_operands_that_lie_otherwise(bridge, label, tmp_path):
    case = strided.parse_product(label, 0)
    assert case.label == label
    outcome = run_case(bridge, case, Settings("CPU", "CPU", 2))
    assert (outcome.verdict, outcome.out) == ("ok", 0), outcome.text
    real, case_type = bridge.node, type(case)
    if case_type is Case:
        return

    class Spoiled:
        reports = ""

        def node(self, program, arrays, *args, **more):
            ran = real(program, arrays, *args, **more)
            ran.node.arrays["y"].view(np.float32)[-1] += 1
            return ran

    assert run_case(Spoiled(), case, Settings("CPU", "CPU")).verdict == "wrong"


def test_products_of_a_file_are_judged(bridge, tmp_path, capsys):
    s = Sketch()
    s.call("mul_mat", s.leaf(96, 17, 2, type="q4_0"), s.leaf(96, 5, 4))
    many = Sketch()
    many.call("mul_mat_id", many.leaf(64, 9, 5, type="q8_0"), many.leaf(64, 1, 7),
              many.leaf(2, 7, type="i32", data="places:5"))  # fmt: skip
    lines = []
    for sketch, op in ((s, "MUL_MAT"), (many, "MUL_MAT_ID")):
        case = sketch.case(op, "of a test", 0)
        node = bridge.node(case.program, case.arrays()).node
        assert judge_product(node, "CPU").out == 0
        node.arrays["y"].view(np.float32)[3] += 1
        assert judge_product(node, "CPU").out == 1
        lines.append(node_line(node, op))
    path = tmp_path / "lines.txt"
    path.write_text("\n".join([*lines, node_line(bridge.node(*_of("ROPE")).node, "a")]))
    assert main(["check", "--test-file", str(path), "--threads", "2"]) == 0
    assert "all 3 cases are right, of 3 operations" in capsys.readouterr().out
    assert main(["check", "--test-file", str(path), "--case", "ROPE(line 3, a)", "--verbose"]) == 0
    assert "OK  ROPE(line 3, a), threads 1, 2, 5" in capsys.readouterr().out
    path.write_text("1 2 3")
    assert main(["check", "--test-file", str(path)]) == 2
    assert "line 1 is none of test-backend-ops" in capsys.readouterr().err


def _of(op):
    case = next(CASES[op](0))
    return case.program, case.arrays()


@pytest.mark.slow
def test_one_case_again_and_its_file(libllama, faulty_ops, monkeypatch, capsys, tmp_path):
    """A case that is wrong is saved, known, and found again by its name."""
    monkeypatch.setenv("LD_PRELOAD", str(faulty_ops))
    monkeypatch.setenv("FAULTY", "arange-refuses")
    known, junit = tmp_path / "known.json", tmp_path / "check.xml"
    options = ["--ops", "ARANGE", "--threads", "1", "--baseline", str(known)]
    assert main(["check", *options, "--junit", str(junit), "--github"]) == 1
    out = capsys.readouterr().out
    again = next(line for line in out.splitlines() if "again: ggmlq check" in line)
    case = again.split("'")[1]
    assert "::error file=ops.cpp,line=7,title=" in out
    assert 'failures="3"' in junit.read_text()
    assert main(["check", "--case", case, "--threads", "1"]) == 1
    assert f"REFUSED  {case}" in capsys.readouterr().out
    assert main(["check", *options, "--accept"]) == 0
    monkeypatch.setenv("FAULTY", "")
    assert main(["check", *options]) == 0
    assert "known and gone: 3 faults" in capsys.readouterr().out
    assert main(["check", "--case", case, "MUL_MAT(type_a=q4_0,m=1,n=1,k=32)"]) == 2
    assert "products and operations are checked apart" in capsys.readouterr().err


def test_a_server_that_is_not_there(bridge, capsys):
    assert main(["check", "--types", "q4_0", "--rpc", "127.0.0.1:9"]) == 2
    assert "has no RPC" in (said := capsys.readouterr().err) or "no server answers there" in said


def test_reports_of_a_sanitizer():
    said = "warn\nops.cpp:3:5: runtime error: index 9 out of bounds\n==1==ERROR: AddressSanitizer: heap\n"
    assert reports_of(said).startswith(
        "a sanitizer says: ops.cpp:3:5: runtime error: index 9 out of bounds; ==1"
    )
    assert reports_of("warn\n") == ""
