"""``--fused``, ``--bisect`` and ``--repeats`` on a real libllama, some of whose kernels have a fault.

The library's own kernels are replaced by name (``LD_PRELOAD``, ``faulty_ops.c``) in the process that runs it.
"""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.cli import main
from ggmlq.errors import GGMLQError

pytestmark = pytest.mark.llama


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model of floats, in which every rounding reaches the logits; its norms have weights."""
    from ggmlq.testing.models import Shape, tiny_model

    kinds = dict.fromkeys(("q", "k", "v", "out", "gate", "up", "down", "head", "embd"), "f32")
    path = tiny_model(tmp_path_factory.mktemp("floats") / "m.gguf", kinds, Shape(width=128, hidden=128))
    rng = np.random.default_rng(0)
    with gq.open(path) as file:
        tensors = {
            name: rng.uniform(0.5, 1.5, q.shape).astype(np.float32) if "norm" in name else q.copy()
            for name, q in file.items()
        }
        metadata = dict(file.metadata)
    gq.save(path.with_name("normed.gguf"), tensors, metadata)
    return path.with_name("normed.gguf")


@pytest.fixture(scope="module")
def faults(faulty_ops, model):
    """The library of faults; tests that need it are skipped where the library calls nothing by its names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_PRELOAD", str(faulty_ops))
        patch.setenv("FAULTY", "fused")
        trace = gq.llama.trace(model, tokens=1, threads=1)
        list(trace)
    if "same logits" in trace.notes[-1]:
        pytest.skip("this libggml fuses no RMS_NORM with its MUL, or not by a name that can be taken")
    return faulty_ops


@pytest.fixture
def faulty(faults, monkeypatch):
    """``faulty("fused")``: the library has that fault from now on."""
    monkeypatch.setenv("LD_PRELOAD", str(faults))
    return lambda fault: monkeypatch.setenv("FAULTY", fault)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("name", ["dense", "experts", "shared"])
def test_no_false_alarm_of_groups(libllama, models, fresh, name):
    trace = gq.llama.trace(
        models[name], tokens=int(fresh.integers(1, 40)), generate=1, fused=True, threads=1,
        seed=int(fresh.integers(1 << 30)),
    )  # fmt: skip
    records = list(trace)
    assert [(p.node, p.text) for p in records if p.verdict != "ok"] == []
    assert trace.notes == ["Without the trace the run gives the same logits, to the bit."]
    groups = {p.op for p in records if p.group}
    assert "RMS_NORM+MUL" in groups
    assert any("SET_ROWS" in op for op in groups)
    assert any(op.startswith("SOFT_MAX+ARGSORT+GET_ROWS") for op in groups) == (name != "dense")


SPOILED = {
    "get_rows": "GET_ROWS", "set_rows": "SET_ROWS", "mul": "MUL", "rope": "ROPE", "soft_max": "SOFT_MAX",
    "flash_attn_ext": "FLASH_ATTN_EXT", "rms_norm": "RMS_NORM", "add": "ADD", "glu": "SWIGLU", "div": "DIV",
    "sum_rows": "SUM_ROWS",
}  # fmt: skip


@pytest.mark.drawn(2)
@pytest.mark.parametrize("value", ["another", "NaN"])
@pytest.mark.parametrize("fault", SPOILED)
def test_the_wrong_operation_is_named_and_none_behind_it(faulty, models, monkeypatch, fault, value):
    """Everything after it differs from a right run, and is right on what it read."""
    how = {"tokens": 3, "threads": 1, "flash": fault != "soft_max", "verify": False}
    faulty(fault)
    if value == "NaN":
        monkeypatch.setenv("FAULTY_NAN", "1")
    records = list(gq.llama.trace(models["experts"], **how))
    wrong = [p for p in records if p.verdict == "wrong"]
    assert {p.op for p in wrong} == {SPOILED[fault]}
    assert wrong[0] is next(p for p in records if p.op == SPOILED[fault])
    idle = [p for p in records if p.verdict == "not judged"]
    assert all("NaN or infinity: look at the nodes before it" in p.text for p in idle)
    assert not idle or value == "NaN" or max(abs(p.worst["got"]) for p in wrong) > 1e9


@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.parametrize("fault", ["fused", "fused-mul"])
def test_a_fused_kernel_that_is_wrong(faulty, model, fault, capsys, tmp_path):
    faulty(fault)
    plain = gq.llama.trace(model, tokens=3, threads=1)
    alone = list(plain)
    assert all(p.verdict == "ok" for p in alone)  # a stop at every node keeps them apart
    assert "--fused" in plain.notes[-1]
    words = ["trace", str(model), "--tokens", "3", "--threads", "1"]
    assert main([*words, "--fused", "--json"]) == 1
    said = capsys.readouterr()
    *lines, end = [json.loads(line) for line in said.out.splitlines()]
    wrong = [line for line in lines if line["verdict"] == "wrong"]
    assert {(line["op"], line["fault"]) for line in wrong} == {("RMS_NORM+MUL", "fused-kernel")}
    assert end["first_wrong"] == "attn_norm-0" == wrong[0]["node"]
    assert wrong[0]["group"] == ["norm-0", "attn_norm-0"]
    assert end["judged"] == len(alone)
    assert ("without its MUL" in wrong[0]["text"]) == (fault == "fused-mul")
    assert "asked for one by one, all are right: the kernels that fuse them are wrong" in said.err
    assert "same logits" in said.err
    assert main([*words, "--fused", "--no-verify", "--save", str(tmp_path)]) == 1
    capsys.readouterr()
    path = str(min(tmp_path.glob("0-attn_norm-0-*.npz")))
    assert main(["check", "--replay", path, "--threads", "1"]) == 1  # fused again, though alone
    assert "WRONG: fused-kernel" in capsys.readouterr().out
    faulty("none")
    assert main(["check", "--replay", path]) == 0
    capsys.readouterr()
    faulty(fault)
    assert main([*words, "--bisect"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "are norm-0 (RMS_NORM, step 0) and attn_norm-0 (MUL, step 0)" in out
    assert "and the group is wrong" in out
    assert "1 wrong, the first is attn_norm-0 (RMS_NORM+MUL, step 0)" in out


def test_only_the_fused_node_of_a_later_step(faulty, model):
    """The bisection finds the first of many groups, wherever it is."""
    faulty("fused-later")
    trace = gq.llama.trace(model, tokens=3, generate=2, threads=1, bisect=True)
    (wrong,) = [p for p in trace if p.verdict == "wrong"]
    assert (wrong.node, wrong.step, wrong.group) == ("ffn_norm-0", 1, ("norm-0", "ffn_norm-0"))
    assert wrong.again
    assert "norm-0 (RMS_NORM, step 1) and ffn_norm-0 (MUL, step 1)" in trace.notes[-1]


def test_a_fused_kernel_that_rounds_otherwise(faulty, model):
    faulty("fused-rounds")
    trace = gq.llama.trace(model, tokens=3, threads=1, bisect=True)
    records = list(trace)
    assert all(p.ok for p in records)
    assert "right within its bound: it rounds otherwise" in trace.notes[-1]
    assert (records[-1].op, records[-1].again) == ("RMS_NORM+MUL", True)
    assert all(p.ok for p in gq.llama.trace(model, tokens=3, threads=1, fused=True))


def test_races(faulty, model):
    faulty("race")
    trace = gq.llama.trace(model, tokens=3, threads=1, repeats=4)
    races = [p for p in trace if p.fault == "race"]
    assert races
    assert {p.op for p in races} == {"ADD"}
    assert all("all that it reads is the same" in p.text for p in races)
    assert "a race" in trace.notes[0]
    assert "the library's own results vary" in trace.notes[-1]
    faulty("none")
    few = gq.llama.trace(model, tokens=3, threads=1, select="*_norm-1", fused=True, verify=False)
    assert [p.op for p in few] == ["RMS_NORM+MUL"] * 2
    assert few.others["RMS_NORM"] == few.others["MUL"] == 3
    calm = gq.llama.trace(model, tokens=3, threads=1, repeats=3, fused=True)
    assert all(p.ok for p in calm)
    assert calm.notes == [
        "In 3 runs every node gave the same result on the same inputs, to the bit.",
        "Without the trace the run gives the same logits, to the bit, 3 times.",
    ]


@pytest.fixture
def copied(libllama, tmp_path):
    """The same build in another folder."""
    for path in libllama.parent.glob("*.so*"):
        if not path.is_symlink():
            shutil.copy(path, tmp_path)
    for path in libllama.parent.glob("*.so*"):
        if path.is_symlink():
            (tmp_path / path.name).symlink_to(path.readlink())
    return tmp_path


@pytest.mark.drawn(1)
@pytest.mark.parametrize("fault", ["rms_norm", "glu-rounds"])
def test_two_builds_of_which_one_has_a_fault(faulty, copied, libllama, model, monkeypatch, capsys, fault):
    """The norm is wrong in B alone, and named, though all nodes behind it differ; roundings are no fault."""
    monkeypatch.setenv("FAULTY_IN", str(copied))
    faulty(fault)
    words = ["logits", str(model), "--against", str(copied), "--tokens", "3", "--threads", "1"]
    assert main([*words, "--json"]) == (fault == "rms_norm")
    *pairs, end = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    first = next(pair for pair in pairs if pair["elements"])
    assert first["inputs_equal"]
    assert first["op"] == {"rms_norm": "RMS_NORM", "glu-rounds": "SWIGLU"}[fault]
    assert {pair["a"]["verdict"] for pair in pairs} == {"ok"}
    assert end["first"] == ("norm-0" if fault == "rms_norm" else None)
    wrong = {pair["op"] for pair in pairs if pair["b"]["verdict"] == "wrong"}
    assert wrong == ({"RMS_NORM"} if fault == "rms_norm" else set())
    assert end["logits"]["largest"] > 0
    if fault == "rms_norm":
        assert main(words) == 1
        said = capsys.readouterr().out
        assert "first: norm-0 = RMS_NORM of " in said
        assert "B is wrong: " in said


def test_options_that_exclude_each_other(libllama, models):
    for options, says in (
        ({"fused": True, "nodes": "products"}, "fused=True with nodes='products'"),
        ({"fused": True, "tool": ["llama-cli"]}, "fused=True with a command, llama-cli,"),
        ({"bisect": True, "verify": False}, "bisect=True with verify=False"),
        ({"repeats": 0}, "repeats=0; 1 to 1000"),
        ({"repeats": 2, "tool": ["llama-cli"]}, "repeats=2"),
    ):
        with pytest.raises(GGMLQError, match=says):
            gq.llama.trace(models["dense"], **options)
