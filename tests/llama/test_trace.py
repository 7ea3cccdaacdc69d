"""`gq.llama.trace` and `ggmlq trace` on a real libllama: no false alarm, every failure in words."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from compiled import library

import ggmlq as gq
from ggmlq.base import system
from ggmlq.cli import main
from ggmlq.errors import GGMLQError, GGUFError, LibraryFailedError, MissingDependencyError, UnsupportedError
from ggmlq.llama.process import cause_of
from ggmlq.trace import attach
from ggmlq.trace.session import sentence

pytestmark = pytest.mark.llama


@pytest.mark.drawn(3)
@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("dense", {"tokens": 1, "generate": 1}),
        ("dense", {"tokens": 65, "flash": True, "cache": "q8_0"}),
        ("dense", {"tokens": 9, "flash": False, "cache": "q4_0,f16", "generate": 1}),
        ("experts", {"prompt": "Hello", "generate": 1, "flash": False}),
        ("experts", {"tokens": 300, "flash": True, "cache": "q4_0"}),
        ("shared", {"tokens": 33, "generate": 1}),
    ],
    ids=str,
)
def test_no_false_alarm(libllama, models, fresh, name, how):
    asked = gq.llama.trace(models[name], seed=int(fresh.integers(1 << 30)), threads=1, **how)
    products = list(asked)
    assert products
    for p in products:
        assert p.verdict == "ok", (p.node, p.text)
        assert p.judgement.ok
        assert p.judgement.out == 0
        assert p.worst["error"] <= p.worst["limit"]
    assert asked.notes == ["Without the trace the run gives the same logits, to the bit."]
    assert len(asked.tokens) == how.get("tokens", len(asked.tokens))
    ops = {p.op for p in products}
    assert ("FLASH_ATTN_EXT" in ops) == (
        how.get("flash", "FLASH_ATTN_EXT" in ops) is True or how.get("flash") is None
    )
    weights = {p.weights for p in products if p.op != "FLASH_ATTN_EXT"}
    with gq.open(models[name]) as file:
        multiplied = {t for t in file if "norm" not in t and "bias" not in t and t != "token_embd.weight"}
    assert multiplied <= weights


def test_a_record(libllama, models):
    (p,) = gq.llama.trace(models["dense"], tokens=5, select="blk.1.attn_q.weight", verify=False)
    assert (p.op, p.weights, p.type, p.layer, p.step) == ("MUL_MAT", "blk.1.attn_q.weight", "f16", 1, 0)
    assert (p.m, p.n, p.k, p.parts) == (5, 256, 256, 1)
    assert p.node
    assert p.buffer
    assert p.computed_in == "CPU"
    told = p.diagnose()
    assert told.ok
    assert told.fault == "correct"
    facts = p.facts()
    said = "node op layer weights type buffer m n k arithmetic error limit worst verdict fault"
    assert set(said.split()) <= facts.keys()
    assert json.dumps(facts, allow_nan=False)


@pytest.mark.parametrize("how", ["sample", "full"])
def test_ways_to_judge(libllama, models, how):
    products = list(gq.llama.trace(models["experts"], tokens=7, judge=how, verify=False))
    assert all(p.ok for p in products)
    judged = sum(p.judged for p in products if p.op != "FLASH_ATTN_EXT")
    all_elements = sum(p.m * p.n for p in products if p.op != "FLASH_ATTN_EXT")
    assert (judged >= all_elements) == (how == "full")


def test_the_same_run_twice_and_tokens_of_ones_own(libllama, models):
    asked = gq.llama.trace(models["dense"], tokens=[1, 5, 9], select="Qcur-*", verify=False)
    first, second = list(asked), list(asked)
    assert [p.worst for p in first] == [p.worst for p in second]
    assert asked.tokens == [1, 5, 9]


def test_without_a_layout(libllama, models):
    """Buffers of their own are not used when they are not wanted."""
    plain = list(gq.llama.trace(models["dense"], tokens=3, without="CPU_REPACK,AMX", verify=False))
    assert all(p.ok for p in plain)
    assert not {p.buffer for p in plain} & {"CPU_REPACK", "AMX"}


def test_layouts_are_named_as_check_names_them_and_a_misspelt_one_is_told(libllama, models):
    asked = gq.llama.trace(models["dense"], tokens=3, without="cpu_repack,cpu_repak", verify=False)
    assert "CPU_REPACK" not in {p.buffer for p in asked}
    (note,) = [note for note in asked.notes if "left nothing out" in note]
    assert note.startswith("--without cpu_repak left nothing out")


@pytest.mark.slow
def test_the_command(libllama, models, capsys):
    words = ["trace", str(models["experts"]), "--tokens", "4", "--generate", "1", "--json"]
    assert main(words) == 0
    *lines, end = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {line["verdict"] for line in lines} == {"ok"}
    assert {line["step"] for line in lines} == {0, 1}
    assert (end["node"], end["verdict"], end["judged"], end["wrong"]) == ("", "end", len(lines), 0)
    assert end["products"] == sum(line["op"].startswith("MUL_MAT") for line in lines)
    assert end["not_judged"] == {}
    assert end["first_wrong"] is None
    assert {"RMS_NORM", "ROPE", "SET_ROWS", "GET_ROWS", "SWIGLU", "ADD"} <= {line["op"] for line in lines}
    assert main([*words, "--nodes", "products", "--no-verify"]) == 0
    *few, end = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {line["op"] for line in few} <= {"MUL_MAT", "MUL_MAT_ID", "FLASH_ATTN_EXT"}
    assert end["not_judged"]["RMS_NORM"] >= 2
    assert len(few) + sum(end["not_judged"].values()) == len(lines)
    assert any(line["op"] == "MUL_MAT_ID" and line["parts"] > 1 for line in lines)
    assert main(["trace", str(models["dense"]), "--prompt", "Hi", "-v", "--lib", str(libllama)]) == 0
    out = capsys.readouterr().out
    assert "blk.0.attn_q.weight" in out
    assert "0 wrong" in out
    assert re.search(r"(\d+) of \1 nodes judged, \d+ views, 0 wrong; \d+ tokens", out.splitlines()[-1])
    assert "same logits" in out
    words = ["trace", str(models["dense"]), "--prompt", "Hi", "--nodes", "products", "--no-verify"]
    assert main(words) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert re.search(r"not judged: \d+ of \d+ nodes: .*RMS_NORM \d", last)


@pytest.mark.slow
def test_two_builds(libllama, models, capsys):
    assert (
        main(["logits", str(models["dense"]), "--against", str(libllama), "--tokens", "5", "--generate", "1"])
        == 0
    )
    said = capsys.readouterr().out
    assert "no node differs by more than rounding explains" in said
    assert "not judged" not in said
    both, equal, same = map(
        int, re.search(r"(\d+) nodes in both; (\d+) of them .* (\d+) of these", said).groups()
    )
    assert both == equal == same > 60
    if system.FILES.exists():
        assert said.count(f"{libllama.resolve().parent}: ") == 2, "the libraries of A and of B"
    assert main(["logits", str(models["dense"]), "--against", str(libllama), "--tokens", "3", "--json"]) == 0
    *pairs, end = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert end["logits"]["largest"] == 0
    assert {pair["outputs"] for pair in pairs} == {0.0}
    assert {"RMS_NORM", "ROPE", "SET_ROWS", "MUL_MAT", "SWIGLU", "ADD"} <= {pair["op"] for pair in pairs}
    assert {(pair["inputs_equal"], pair["elements"], pair["largest"]) for pair in pairs} == {(True, 0, 0.0)}


def test_a_program_that_knows_nothing_of_it(libllama, models):
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    with attach(models["dense"]) as seen:
        llm = llama_cpp.Llama(str(models["dense"]), n_ctx=64, verbose=False, n_threads=1)
        llm.create_completion([5, 6, 7], max_tokens=2)
        count = len(seen)
    assert count > 20
    assert all(p.verdict == "ok" for p in seen)
    assert {p.m for p in seen} >= {1, 3}
    llm.create_completion([5, 6, 7], max_tokens=2)
    assert len(seen) == count  # afterwards nobody asks
    assert {"MUL_MAT", "RMS_NORM", "ROPE", "ADD"} <= {p.op for p in seen}
    assert seen.others == {}
    llm.close()


@pytest.fixture
def with_a_tool(libllama, tmp_path):
    """A folder with the library, and a command whose main function is in a library of its own."""
    for path in libllama.parent.iterdir():
        if path.is_file():
            (tmp_path / path.name).symlink_to(path.resolve())
    library(Path(__file__).with_name("fake_tool.c"), tmp_path / "libfake-tool-impl.so")
    return tmp_path


def test_a_command_of_llama_cpp(with_a_tool, models, capsys):
    words = ["trace", str(models["dense"]), "--lib", str(with_a_tool), "--json", "--", "fake-tool"]
    assert main(words) == 0
    *lines, _ = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {line["verdict"] for line in lines} == {"ok"}
    assert {
        (line["step"], line["m"]) for line in lines if "Qcur" in line["node"] and line["op"] == "MUL_MAT"
    } == {(0, 3), (1, 1)}
    assert main([*words, "fail"]) == 2
    assert "ended with status 8" in capsys.readouterr().err
    assert main([*words[:-1], "no-such-tool"]) == 2
    assert "there is no libno-such-tool-impl.so" in capsys.readouterr().err


def test_after_a_wrong_product_the_plain_layout_is_tried(libllama, models, monkeypatch):
    """A judge that finds fault with every layout of its own: the plain one is told to be right."""
    from ggmlq.trace import session

    class Strict(session.Judge):
        def record(self, node):
            found = super().record(node)
            return replace(found, verdict="wrong") if found.buffer == "CPU_REPACK" else found

    monkeypatch.setattr(session, "Judge", Strict)
    asked = gq.llama.trace(models["dense"], tokens=2, threads=1, verify=False)
    wrong = [p for p in asked if p.verdict == "wrong"]
    if not wrong:
        pytest.skip("this processor has no repacked layout")
    (note,) = asked.notes
    assert note.endswith("in the plain layout (--without CPU_REPACK) all are right there.")
    assert note.startswith(f"{len({p.node for p in wrong})} nodes are wrong in CPU_REPACK")


# --- what goes wrong in other ways -----------------------------------------------------------


def test_files_that_are_no_models(libllama, models, tmp_path, capsys):
    with pytest.raises(FileNotFoundError, match="there is no such file"):
        gq.llama.trace(tmp_path / "none.gguf")
    whole = models["dense"].read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(GGUFError):
        gq.llama.trace(cut)
    assert main(["trace", str(cut)]) == 2
    assert "Traceback" not in capsys.readouterr().err
    gq.save(tmp_path / "other.gguf", {"a": np.ones(32, np.float32)}, {"general.architecture": "none"})
    with pytest.raises(LibraryFailedError, match="the library refuses the model"):
        list(gq.llama.trace(tmp_path / "other.gguf"))


def test_libraries_that_are_none(models, tmp_path, capsys):
    with pytest.raises(MissingDependencyError):
        list(gq.llama.trace(models["dense"], lib=tmp_path))
    assert main(["trace", str(models["dense"]), "--lib", str(tmp_path / "nothing")]) == 2
    said = capsys.readouterr()
    assert "neither a file nor a folder" in said.err
    assert said.out == ""  # no head of a table that has no lines
    assert main(["trace", str(tmp_path)]) == 2
    assert "that is a folder; name a GGUF file" in capsys.readouterr().err


def test_a_library_without_what_a_trace_needs(libllama, models, tmp_path, compile_fake):
    for path in libllama.parent.iterdir():
        if "llama" in path.name and path.is_file():
            shutil.copy(path, tmp_path / path.name, follow_symlinks=False)
    compile_fake(tmp_path / "libggml.so")
    with pytest.raises(GGMLQError, match=r"cannot load|is missing"):
        list(gq.llama.trace(models["dense"], lib=tmp_path))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"judge": "some"}, "choose of all, sample, full"),
        ({"tokens": 0}, "1 to 131072 random tokens"),
        ({"tokens": []}, "no tokens"),
        ({"prompt": "a", "tokens": 2}, "drop one"),
        ({"prompt": ""}, "the prompt is empty"),
        ({"generate": -1}, "generate=-1"),
        ({"timeout": 0}, "timeout=0"),
        ({"cache": "q4_9"}, "q4_9"),
        ({"cache": "f16,f16,f16"}, "one of K and one of V"),
    ],
)
def test_options_that_make_no_sense(models, options, says):
    with pytest.raises(GGMLQError, match=says):
        gq.llama.trace(models["dense"], **options)


def test_nothing_selected(libllama, models, capsys):
    assert main(["trace", str(models["dense"]), "--tokens", "2", "--select", "nothing.*"]) == 2
    assert "no node of" in capsys.readouterr().err


def test_a_context_that_the_library_refuses(libllama, models):
    """A quantized V cache without flash attention."""
    with pytest.raises(LibraryFailedError, match="the library makes none"):
        list(gq.llama.trace(models["dense"], tokens=2, cache="q8_0", flash=False))


def test_nothing_is_left_behind(libllama, models):
    before = set(Path("/dev/shm").glob("ggmlq-trace-*")) if Path("/dev/shm").is_dir() else set()
    for p in gq.llama.trace(models["dense"], tokens=2):
        assert p.ok
        break  # the process ends with the iteration
    if before or Path("/dev/shm").is_dir():
        assert set(Path("/dev/shm").glob("ggmlq-trace-*")) <= before


def test_a_death_that_a_compiler_makes(tmp_path):
    node = {"name": "Q", "op": "MUL_MAT", "type": "f32", "ne": [1], "of": []}
    node["of"] = [{"name": "w", "type": "q8_0", "ne": [1], "buffer": "AMX"}]
    for version, told in ((12, True), (13, False)):
        (tmp_path / "libggml-cpu.so").write_bytes(b"\0GCC: (Debian %d.2.0-14) %d.2.0\0" % (version, version))
        said = sentence("tracing m", "died: SIGSEGV", [node], 0, "", [tmp_path / "libggml-cpu.so"])
        assert ("This build is of gcc 12" in said) == told
        assert said.endswith("run it again with --without AMX, which keeps weights in the plain layout")
    for how, layouts in (("died: SIGABRT", ["AMX"]), ("died: SIGSEGV", ["CPU_REPACK", False])):
        assert not cause_of(how, layouts, [tmp_path / "libggml-cpu.so"])


def test_a_death_is_told(libllama, models, monkeypatch, capsys):
    """The library's process is ended while it computes, as a crash would."""
    from ggmlq.trace import runs

    asked = gq.llama.trace(models["dense"], tokens=3, verify=False)
    run = runs.Run(asked.settings)
    nodes = run.nodes()
    next(nodes)
    os.kill(run.child._process.pid, 11)
    with pytest.raises(LibraryFailedError, match="died: SIGSEGV"):
        list(nodes)
    error = asked._died(run, LibraryFailedError("…", "died: SIGSEGV", "last words"))
    assert "while it" in str(error) or "within" in str(error)
    run.close()


def test_unsupported_is_said_of_a_node(libllama, models):
    """A tensor that the file has as another type is not judged, and the reason is told."""
    from ggmlq.trace.judging import Node
    from ggmlq.trace.verdicts import Judge

    facts = {"name": "w", "type": "q4_0", "ne": [32, 4, 1, 1], "nb": [18, 18, 72, 72], "buffer": "AMX"}
    y = {"name": "y", "type": "f32", "ne": [4, 1, 1, 1], "nb": [4, 16, 16, 16], "buffer": "CPU"}
    x = {"name": "x", "type": "f32", "ne": [32, 1, 1, 1], "nb": [4, 128, 128, 128], "buffer": "CPU"}
    arrays = {"x": np.zeros(128, np.uint8), "y": np.zeros(16, np.uint8)}
    node = Node("MUL_MAT", 0, {"y": y, "w": facts, "x": x}, arrays)
    assert "cannot be read back" in Judge({}, "all").record(node).text
    q = gq.quantize(np.ones((4, 32), np.float32), "q8_0")
    found = Judge({"w": q}, "all").record(node)
    assert found.verdict == "not judged"
    assert "converted when it was loaded" in found.text
    assert isinstance(UnsupportedError(""), NotImplementedError)


def test_a_result_over_one_that_is_still_read(faulty_ops, models, monkeypatch, capsys, tmp_path):
    """An allocator gave the residual's memory away: every kernel is right, and the last reader is accused."""
    monkeypatch.setenv("LD_PRELOAD", str(faulty_ops))
    monkeypatch.setenv("FAULTY", "lifetime")
    words = ["trace", str(models["dense"]), "--tokens", "3", "--generate", "1", "--threads", "1"]
    assert main([*words, "--no-verify", "--save", str(tmp_path / "wrong")]) == 1
    out = capsys.readouterr().out
    assert out.count("l_out-0 changed after it was computed: norm-1 lies over it.") == 1
    assert "WRONG: overwritten" in out
    assert not (tmp_path / "wrong").exists()
    last = out.splitlines()[-1]
    numbers = re.match(
        r"(\d+) of (\d+) nodes judged, \d+ views, 2 wrong, the first is \S+ \(\w+, step 0\)", last
    )
    assert numbers[1] == numbers[2]
