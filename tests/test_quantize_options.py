"""ggmlq quantize as llama-quantize is called, with its options, and with ours beside them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.base import threads
from ggmlq.cli import main
from ggmlq.gguf import Typed

LAYERS = 4


@pytest.fixture
def tensors(fresh):
    found = {
        "token_embd.weight": fresh.standard_normal((8, 64)),
        "output.weight": fresh.standard_normal((8, 64)),
    }
    for layer in range(LAYERS):
        for part in ("attn_v", "ffn_down"):
            found[f"blk.{layer}.{part}.weight"] = fresh.standard_normal((8, 64))
        found[f"blk.{layer}.attn_norm.weight"] = fresh.standard_normal(64)
    return {name: x.astype(np.float32) for name, x in found.items()}


@pytest.fixture
def run(tensors, tmp_path, monkeypatch, capsys):
    """The command in a folder with a model, and its importance matrix."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(threads, "_requested", [])
    heads = Typed(list(range(1, LAYERS + 1)), "int32")
    gq.save(
        "in.gguf", tensors,
        {"general.architecture": "llama", "llama.block_count": LAYERS, "llama.attention.head_count": 4,
         "llama.attention.head_count_kv": heads, "other.list": [1, 2, 3, 4]},
    )  # fmt: skip
    sums = {f"{name}.in_sum2": np.abs(x[:1]) + 0.1 for name, x in tensors.items() if "norm" not in name}
    gq.save(
        "imatrix.gguf", sums | {k.replace("in_sum2", "counts"): np.ones((1, 1), np.float32) for k in sums}
    )

    def run(*args):
        status = main(["quantize", *map(str, args)])
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


def types(path):
    with gq.open(path) as file:
        return {name: file.info(name).format.name for name in file if "norm" not in name}


def same(a, b, **kwargs):
    return gq.diff.compare(a, b, **kwargs).equal


def test_the_order_of_llama_quantize(run):
    assert run("in.gguf", "a.gguf", "Q4_0", "2")[0] == 0
    assert threads.num_threads() == 2
    assert run("in.gguf", "b.gguf", "--type", "q4_0", "--mixed")[0] == 0
    assert run("in.gguf", "c.gguf", "2")[0] == 0  # the number of that mix
    assert same("a.gguf", "b.gguf")
    assert same("a.gguf", "c.gguf")
    assert run("--pure", "in.gguf", "d.gguf", "q4_0")[0] == 0
    assert set(types("d.gguf").values()) == {"q4_0"}
    assert run("in.gguf", "q4_0")[0] == 0
    assert same("a.gguf", "ggml-model-Q4_0.gguf")
    status, out, _ = run("--dry-run", "in.gguf", "bf16")
    assert status == 0
    assert "would write ggml-model-BF16.gguf, " in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["in.gguf", "o.gguf"], "no type is given"),
        (["in.gguf"], "no type is given"),
        (["in.gguf", "--type", "q4_0"], "OUT is missing"),
        (["in.gguf", "o.gguf", "Q4_0", "--type", "q8_0"], "drop one"),
        (["in.gguf", "o.gguf", "q4_0", "0"], "0 threads"),
        (["in.gguf", "o.gguf", "q4_0", "x", "2"], "order"),
        (["in.gguf", "o.gguf", "COPY"], "ggmlq copy"),
        (["in.gguf", "o.gguf", "5"], "no number of"),
        (["in.gguf", "o.gguf", "q4_9"], "did you mean"),
        (["in.gguf", "o.gguf", "q8_0", "--override-kv", "a=int:x"], "KEY=TYPE:VALUE"),
        (["in.gguf", "o.gguf", "q8_0", "--override-kv", "a=bool:yes"], "KEY=TYPE:VALUE"),
        (["in.gguf", "o.gguf", "q8_0", "--prune-layers", "9"], "layers 0 to 3"),
        (["in.gguf", "o.gguf", "q8_0", "--prune-layers", "0,1,2,3"], "no others"),
        (["in.gguf", "o.gguf", "q8_0", "--include-weights", "a", "--exclude-weights", "b"], "give one"),
        (["in.gguf", "o.gguf", "q8_0", "--output-tensor-type", "q7"], "q7"),
        (["in.gguf", "in.gguf", "q8_0", "--force"], "they are one file"),
        (["in.gguf", "o.gguf", "q8_0", "--text", "t.txt"], "--text without --kl"),
        (["in.gguf", "o.gguf", "q8_0", "--types", "q4_0"], "--types without --target"),
        (["in.gguf", "o.gguf", "--target", "6", "--types", ""], "no such type"),
        (["in.gguf", "o.gguf", "q8_0", "--stretch", "64"], "--stretch without a text"),
        (["in.gguf", "o.gguf", "q8_0", "--force", "--write-types", "in.gguf"], "is read here"),
        (["in.gguf", "o.gguf", "q8_0", "--write-types", "./o.gguf"], "OUT has this name"),
    ],
)
def test_what_is_refused(run, arguments, says):
    before = Path("in.gguf").read_bytes()
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert says in err
    assert sorted(os.listdir()) == ["imatrix.gguf", "in.gguf"]
    assert Path("in.gguf").read_bytes() == before


def test_a_file_that_is_there_stays_without_force(run):
    Path("o.gguf").write_text("old")
    status, _, err = run("in.gguf", "o.gguf", "q8_0")
    assert status == 2
    assert "--force" in err
    assert Path("o.gguf").read_text() == "old"
    assert run("in.gguf", "o.gguf", "q8_0", "--dry-run")[0] == 0
    assert run("in.gguf", "o.gguf", "q8_0", "--force")[0] == 0
    assert types("o.gguf")["output.weight"] == "q8_0"


def test_a_target_and_its_file_of_types(run):
    chosen = ("--types", "q4_0,q5_0,q8_0", "--imatrix", "imatrix.gguf")
    status, out, _ = run("in.gguf", "a.gguf", "--target", "6bpw", *chosen, "--write-types", "t.txt")
    assert status == 0
    assert " bits a weight of 6.000" in out
    assert "wrote t.txt" in out
    assert (
        run("in.gguf", "b.gguf", "--type", "q4_0", "--imatrix", "imatrix.gguf", "--tensor-types", "t.txt")[0]
        == 0
    )
    assert same("a.gguf", "b.gguf", ignore_metadata=True)
    found = json.loads(run("in.gguf", "--size", "7KB", *chosen, "--dry-run", "--json")[1])
    assert found["files"] == []
    status, out, _ = run("in.gguf", "c.gguf", "--size", "7KB", *chosen)
    assert os.path.getsize("c.gguf") <= 7000
    Path("more.txt").write_text(Path("t.txt").read_text() + r"^blk\.77\.attn_v=q4_0 ")
    status, out, _ = run("in.gguf", "d.gguf", "--type", "q4_0", "--tensor-types", "more.txt")
    assert status == 0
    assert "1 entries fit no tensor" in out
    for target in ("4.5x", "0", "-1", "65", "nan"):
        with pytest.raises(SystemExit):
            run("in.gguf", "x.gguf", "--target", target)
    assert "can have" in run("in.gguf", "x.gguf", "--target", "2", *chosen)[2]


def test_single_tensors(run):
    assert run(
        "--output-tensor-type", "q8_0", "--token-embedding-type", "q5_0", "--tensor-type", "attn_v=q5_1",
        "in.gguf", "o.gguf", "Q4_0",
    )[0] == 0  # fmt: skip
    found = types("o.gguf")
    assert (found["output.weight"], found["token_embd.weight"]) == ("q8_0", "q5_0")
    assert (found["blk.1.attn_v.weight"], found["blk.1.ffn_down.weight"]) == ("q5_1", "q4_0")
    assert run("--leave-output-tensor", "in.gguf", "p.gguf", "Q4_0")[0] == 0
    assert types("p.gguf")["output.weight"] == "f32"


def test_layers_left_out(run, tensors):
    status, _, _ = run(
        "--prune-layers", "0,2", "--imatrix", "imatrix.gguf", "in.gguf", "o.gguf", "--type", "q4_0",
        "--override-kv", "general.name=str:small", "--override-kv", "a.b=float:0.5",
        "--override-kv", "a.c=int:7", "--override-kv", "a.d=bool:true",
    )  # fmt: skip
    assert status == 0
    with gq.open("o.gguf") as file:
        meta = file.metadata
        assert (meta["llama.block_count"], meta["llama.attention.head_count_kv"]) == (2, [2, 4])
        assert meta["other.list"] == [1, 2, 3, 4]
        set_keys = ["general.quantization_version", "general.file_type", "general.name", "a.b", "a.c", "a.d"]
        at = list(meta).index(set_keys[0])  # llama-quantize sets them in this order, each behind the others
        assert list(meta)[at : at + 6] == set_keys
        assert list(meta)[at + 6].startswith("quantize.imatrix.")
        assert "llama.block_count" in list(meta)[at + 7 :]
        assert [meta[key] for key in ("general.name", "a.b", "a.c", "a.d")] == ["small", 0.5, 7, True]
        assert (meta.type("a.c"), meta.type("llama.attention.head_count_kv")) == ("uint32", "array of int32")
        assert sum(name.startswith("blk.") for name in file) == 6
        for new, old in ((0, 1), (1, 3)):
            x = tensors[f"blk.{old}.ffn_down.weight"]
            with_weights = gq.quantize(x, "q4_0", np.abs(x[0]) + np.float32(0.1))
            assert gq.equal(file[f"blk.{new}.ffn_down.weight"], with_weights)


def test_importance_of_some_tensors(run):
    for option, text, rest in (("--include-weights", "ffn", "attn"), ("--exclude-weights", "attn", "attn")):
        out = f"{text}.gguf"
        assert run(option, text, "--imatrix", "imatrix.gguf", "in.gguf", out, "--type", "q4_0")[0] == 0
        assert run("in.gguf", f"plain-{out}", "--type", "q4_0")[0] == 0
        with gq.open(out) as a, gq.open(f"plain-{out}") as b:
            assert gq.equal(a[f"blk.0.{rest}_v.weight"], b[f"blk.0.{rest}_v.weight"])
            assert not gq.equal(a["blk.0.ffn_down.weight"], b["blk.0.ffn_down.weight"])
            assert a.metadata["quantize.imatrix.entries_count"] < 10


def test_the_parts_stay(run):
    gq.save("s.gguf", gq.open("in.gguf"), split_max_tensors=4)
    count = len([name for name in os.listdir() if name.startswith("s-")])
    assert run("--keep-split", f"s-00001-of-{count:05}.gguf", "o.gguf", "--type", "q8_0")[0] == 0
    for i in range(count):
        a, b = (gq.open(f"{stem}-{i + 1:05}-of-{count:05}.gguf") for stem in "so")
        assert list(a.parts[i].header.tensors) == list(b.parts[i].header.tensors)
    assert (
        run(
            "--keep-split", "--prune-layers", "0,1", f"s-00001-of-{count:05}.gguf", "p.gguf", "--type", "q8_0"
        )[0]
        == 0
    )
    assert run("--prune-layers", "0,1", "in.gguf", "w.gguf", "--type", "q8_0")[0] == 0
    parts = sorted(name for name in os.listdir() if name.startswith("p-"))
    assert 1 < len(parts) <= count
    assert same(parts[0], "w.gguf")


def test_totals(run):
    out = run("in.gguf", "o.gguf", "--type", "q8_0")[1]
    elements = 10 * 8 * 64 + LAYERS * 64
    with gq.open("o.gguf") as file:
        after = 8 * sum(q.nbytes for q in file.values()) / elements
    assert f"32.000 -> {after:.3f} bits a weight" in out
    found = json.loads(run("in.gguf", "p.gguf", "--type", "q8_0", "--json")[1])
    assert found["bits_per_weight_after"] == pytest.approx(after)
    assert found["file_bytes"] == [os.path.getsize("p.gguf")]
