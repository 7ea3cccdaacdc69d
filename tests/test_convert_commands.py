"""quantize, dequantize and diff: what they print, what they return."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.base import threads
from ggmlq.cli import main
from ggmlq.gguf import Typed

W = np.random.default_rng(0).standard_normal((6, 96), np.float32)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tensors = {"blk.0.ffn_up.weight": W, "blk.0.ffn_norm.weight": W[0], "odd \x1b[2J.weight": W}
    gq.save("in.gguf", tensors, {"general.architecture": "llama", "general.file_type": 0})
    return tmp_path


@pytest.fixture
def run(capsys, folder, monkeypatch):
    monkeypatch.setattr(threads, "_requested", [])

    def run(*args):
        status = main([str(arg) for arg in args])
        said = capsys.readouterr()
        assert "\x1b" not in said.out + said.err
        return status, said.out, said.err

    return run


def test_quantize(run):
    status, out, err = run("quantize", "in.gguf", "out.gguf", "--type", "Q8_0", "--threads", "1")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["tensor", "shape", "type", "before", "after", "NMSE"]
    nmse = f"{gq.nmse(gq.quantize(W, 'q8_0'), W):.3e}"
    row = ["blk.0.ffn_up.weight", *["6", "x", "96", "f32", "->", "q8_0", "2.2", "KiB", "612", "bytes"], nmse]
    assert lines[1].split() == row
    assert lines[2].split() == ["blk.0.ffn_norm.weight", "96", "f32", "384", "bytes", "one", "axis"]
    assert lines[-2:] == [
        "2 of 3 tensors change, 4.9 KiB -> 1.6 KiB, 32.000 -> 10.308 bits a weight",
        "wrote out.gguf",
    ]
    assert threads.num_threads() == 1


def test_quantize_as_json(run):
    status, out, _ = run("quantize", "in.gguf", "out.gguf", "--type", "q4_0", "--json", "--keep", "odd=same")
    found = json.loads(out)
    assert status == 0
    assert found["files"] == ["out.gguf"]
    first, norm, odd = found["tensors"]
    assert first == {
        "name": "blk.0.ffn_up.weight", "shape": [6, 96], "from": "f32", "to": "q4_0", "imatrix": False,
        "bytes_before": 2304, "bytes_after": 324, "why": "",
        "nmse": pytest.approx(gq.nmse(gq.quantize(W, "q4_0"), W)),
    }  # fmt: skip
    assert (norm["to"], norm["why"], norm["nmse"]) == ("f32", "one axis", 0)
    assert (odd["to"], odd["why"]) == ("f32", "keep odd=same")
    assert (found["bytes_before"], found["bytes_after"]) == (4992, 3012)


def test_dry_run(run, folder):
    status, out, _ = run("quantize", "in.gguf", "out.gguf", "--type", "tq2_0", "--dry-run")
    assert status == 0
    assert "rows of 96 do not fit tq2_0 (256)" in out
    assert "f32 -> q4_0" in out
    assert out.endswith("nothing was written (--dry-run)\n")
    assert os.listdir(folder) == ["in.gguf"]
    found = json.loads(run("quantize", "in.gguf", "out.gguf", "--type", "q8_0", "--dry-run", "--json")[1])
    assert found["files"] == []
    assert found["tensors"][0]["nmse"] is None


def test_there_and_back(run):
    assert run("quantize", "in.gguf", "q.gguf", "--type", "q8_0")[0] == 0
    status, out, _ = run("dequantize", "q.gguf", "back.gguf")
    assert status == 0
    assert "q8_0 -> f32" in out
    assert run("dequantize", "q.gguf", "half.gguf", "--type", "f16", "--keep", "odd=bf16")[0] == 0
    assert gq.open("half.gguf")["blk.0.ffn_up.weight"].format.name == "f16"
    assert gq.open("half.gguf")["odd \x1b[2J.weight"].format.name == "bf16"
    status, out, _ = run("diff", "q.gguf", "back.gguf")
    assert status == 1
    assert "same values" in out
    assert run("diff", "q.gguf", "back.gguf", "--tensors", "--tolerance", "1e-20")[0] == 0


def test_errors_are_exit_2(run, folder):
    cases = [
        (["quantize", "in.gguf", "in.gguf", "--type", "q8_0"], "they are one file"),
        (["quantize", "no.gguf", "out.gguf", "--type", "q8_0"], "there is no such file"),
        (["quantize", "in.gguf", "out.gguf", "--type", "q8"], "did you mean"),
        (["quantize", "in.gguf", "out.gguf"], "no type is given"),
        (["quantize", "in.gguf", "out.gguf", "--type", "q8_0", "--imatrix", "in.gguf"], "none is named"),
        (["quantize", "in.gguf", "out.gguf", "--type", "q8_0", "--keep", "ffn_dwn=q4_0"], "none of the 3"),
        (["quantize", "in.gguf", "out.gguf", "--type", "q2_K", "--no-fallback"], "rows of 96 do not fit"),
        (["dequantize", "in.gguf", "out.gguf", "--type", "q8_0"], "no type of floats"),
        (["diff", "in.gguf", "no.gguf"], "there is no such file"),
        (["diff", "in.gguf", "in.gguf", "--tolerance", "-1"], "0 or more"),
    ]
    for arguments, says in cases:
        status, out, err = run(*arguments)
        assert (status, out) == (2, "")
        assert err.startswith(f"ggmlq {arguments[0]}: ")
        assert says in err
    assert os.listdir(folder) == ["in.gguf"]


@pytest.mark.parametrize(
    "arguments",
    [["--keep", "ffn"], ["--keep", "=q8_0"], ["--keep", "ffn="], ["--threads", "0"], ["--target", "4"]],
)
def test_arguments_that_argparse_refuses(run, arguments, capsys):
    with pytest.raises(SystemExit) as error:
        main(["quantize", "in.gguf", "out.gguf", "--type", "q8_0", *arguments])
    assert error.value.code == 2
    capsys.readouterr()


def test_quantizing_again_must_be_meant(run):
    assert run("quantize", "in.gguf", "q.gguf", "--type", "q8_0")[0] == 0
    status, _, err = run("quantize", "q.gguf", "out.gguf", "--type", "q4_0")
    assert status == 2
    assert "2 tensors (" in err
    status, out, _ = run("quantize", "q.gguf", "out.gguf", "--type", "q4_0", "--allow-requantize")
    assert status == 0
    assert "note: 2 tensors ('odd \\x1b[2J.weight', 'blk.0.ffn_up.weight') quantized a second time" in out


def test_diff(run):
    other = W.copy()
    other[4, 70] += 100
    gq.save("b.gguf", {"blk.0.ffn_up.weight": gq.quantize(other, "q4_0"), "new": W[0]}, {"general.name": "b"})
    status, out, _ = run("diff", "in.gguf", "b.gguf")
    assert status == 1
    lines = out.splitlines()
    assert lines[0].split()[:2] == ["tensor", "status"]
    assert "only in A" in lines[1]
    assert any(line.startswith("blk.0.ffn_up.weight") and "at [4, 70]" in line for line in lines)
    assert "worst block of blk.0.ffn_up.weight: row [4], columns 64 to 95" in out
    assert "  B.d " in out
    assert "general.architecture: only in A: 'llama'" in out
    assert "general.name: only in B: 'b'" in out
    assert lines[-1] == "4 tensors: 0 with the same bytes, 4 different; 3 keys differ"
    found = json.loads(run("diff", "in.gguf", "b.gguf", "--json")[1])
    assert (found["equal"], found["tolerance"]) == (False, 0)
    tensor = found["tensors"][0]
    assert tensor["largest"]["index"] == [4, 70]
    assert tensor["worst"]["row"] == [4]
    assert len(tensor["worst"]["b"]["qs"]) == 16
    assert not tensor["equal"]
    assert {entry["key"]: entry["status"] for entry in found["metadata"]}["general.name"] == "only in B"
    status, out, _ = run("diff", "in.gguf", "in.gguf")
    assert (status, out) == (0, "3 tensors: 3 with the same bytes, 0 different; 0 keys differ\n")


def test_diff_of_text_that_is_not_utf8(run):
    for name, raw in (("a.gguf", b"\xff" + b"x" * 500), ("b.gguf", b"\xfey")):
        gq.save(name, {}, {"t": Typed(raw, "string"), "words": Typed([raw, b"same"], "string")})
    status, out, _ = run("diff", "a.gguf", "b.gguf")
    assert status == 1
    assert "t: changed: '\\\\xff" in out
    assert out.splitlines()[0].endswith("-> '\\\\xfey' (from byte 0 on)")
    assert "(1 elements differ, the first is 0)" in out
    found = json.loads(run("diff", "a.gguf", "b.gguf", "--json")[1])
    assert found["metadata"][0]["values"][1] == "\\xfey"
    assert found["metadata"][1]["values"][1] == ["\\xfey", "same"]


INTERRUPTED = """
    import signal, sys, time
    from ggmlq import cli
    from ggmlq.convert import stream
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the command keeps what nohup has chosen
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells let background jobs ignore it
    real = stream.quantize
    def slow(*args, **options):
        print("started", flush=True)
        time.sleep(20)
        return real(*args, **options)
    stream.quantize = slow
    sys.exit(cli.main(["quantize", "in.gguf", "out.gguf", "--type", "q8_0", "--force"]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals to send")
@pytest.mark.parametrize(
    ("name", "status", "said"),
    [("SIGINT", 130, "ggmlq quantize: interrupted\n"), ("SIGTERM", 143, ""), ("SIGHUP", 129, "")],
)
def test_signals_leave_nothing_behind(folder, name, status, said):
    (folder / "out.gguf").write_bytes(b"old")
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(INTERRUPTED)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        try:
            assert process.stdout.readline() == "started\n"
            process.send_signal(getattr(signal, name))
            _, err = process.communicate(timeout=200)
        finally:
            process.kill()
    assert (process.returncode, err) == (status, said)
    assert (folder / "out.gguf").read_bytes() == b"old"
    assert sorted(os.listdir(folder)) == ["in.gguf", "out.gguf"]
