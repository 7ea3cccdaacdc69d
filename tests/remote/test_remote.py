"""Files elsewhere: opened, fetched as they are asked for, read by commands and workers."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import sys
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
from served import check, served

import ggmlq as gq
from ggmlq import remote
from ggmlq.cli import main
from ggmlq.errors import MissingDependencyError, RemoteError, RemoteNotFoundError
from ggmlq.gguf import edit
from ggmlq.remote import held


def test_the_header_comes_first_and_tensors_when_they_are_asked_for(server, tensors, gguf_bytes):
    with gq.open(f"{server.url}/a/m.gguf") as f:
        assert list(f) == list(tensors)
        assert (f.metadata["general.name"], len(f.metadata["tokens"])) == ("far", 2000)
        assert server.sent == held.PIECE
        assert len(server.asked) == 1
        x = f["blk.2.ffn_up.weight"]
        assert server.sent <= 2 * held.PIECE + x.nbytes + held.PIECE
        assert np.array_equal(np.asarray(x), tensors["blk.2.ffn_up.weight"])
        before = server.sent
        check(f, {"blk.2.ffn_up.weight": tensors["blk.2.ffn_up.weight"]})
        assert server.sent == before
        assert "/a/m.gguf" in repr(f)
        check(pickle.loads(pickle.dumps(f)), tensors)
        y = np.ones((1, 1024), np.float32) @ f["blk.1.ffn_up.weight"].T
    assert np.allclose(y, tensors["blk.1.ffn_up.weight"].sum(axis=1), atol=1e-3)
    assert np.array_equal(np.asarray(x), tensors["blk.2.ffn_up.weight"])  # held after closing


def test_a_long_header_takes_few_requests(tmp_path, fresh):
    words = [bytes(fresh.integers(97, 123, 12, np.uint8)).decode() for _ in range(60_000)]
    gq.save(
        tmp_path / "m.gguf",
        {"w": np.ones((2048, 1024), np.float32)},
        {"tokens": words, "nothing": [""] * 5000},
    )
    data = (tmp_path / "m.gguf").read_bytes()
    with served({"/m.gguf": data}) as server, gq.open(f"{server.url}/m.gguf") as f:
        assert f.metadata["tokens"][59_999] == words[-1]
        assert len(server.asked) <= 4
        assert server.sent < 5 << 20
        check(f, {"w": np.ones((2048, 1024), np.float32)})


@pytest.mark.parametrize("order", ["little", "big"])
@pytest.mark.parametrize("step", [64, 1000, 4096])
def test_a_header_is_read_right_wherever_its_beginning_ends(tmp_path, fresh, monkeypatch, order, step):
    """The reader begins again and again with a little more, and what it finds is what is there."""
    from ggmlq.remote import held

    monkeypatch.setattr(held, "PIECE", 64)
    monkeypatch.setattr(held, "FIRST", step)
    monkeypatch.setattr(held, "FACTOR", 2)
    keys = {"a": [""] * 1500, "b": ["x" * int(n) for n in fresh.integers(0, 300, 40)], "c": [1, 2, 3]}
    keys |= {"d": [["p", "q"], [1.5] * 9], "general.alignment": 64}
    x = fresh.standard_normal((5, 7), np.float32)
    gq.save(tmp_path / "m.gguf", {"x": x, "y": x[0]}, keys, byteorder=order)
    with served({"/m.gguf": (tmp_path / "m.gguf").read_bytes()}) as server:
        far, here = gq.open(f"{server.url}/m.gguf"), gq.open(tmp_path / "m.gguf")
        assert repr(dict(far.metadata)) == repr(dict(here.metadata))
        check(far, {"x": x, "y": x[0]})
        far.close()


def test_safetensors_with_scales(tmp_path, fresh):
    coded = gq.quantize_scaled(fresh.standard_normal((256, 512), np.float32), "e4m3", (128, 128))
    norm = fresh.standard_normal(512).astype(np.float16)
    gq.save(tmp_path / "m.safetensors", {"up.weight": coded, "norm.weight": norm}, {"format": "pt"})
    config = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    files = {"/m.safetensors": (tmp_path / "m.safetensors").read_bytes()}
    for more in ({}, {"/config.json": json.dumps(config).encode()}):
        with served(files | more) as server, gq.open(f"{server.url}/m.safetensors") as f:
            assert server.sent == held.PIECE
            assert np.array_equal(np.asarray(f["up.weight"]), np.asarray(coded))
            assert np.array_equal(np.asarray(f["norm.weight"]), norm)
            assert f.metadata["format"] == "pt"
            assert f.quantization.method == (config["quantization_config"]["quant_method"] if more else None)


def test_an_index_and_its_files(tmp_path, fresh):
    files, weights = {}, {}
    whole = {f"w{i}": fresh.standard_normal((100, 300), np.float32) for i in range(3)}
    for i, (name, x) in enumerate(whole.items()):
        gq.save(tmp_path / "part.safetensors", {name: x})
        files[f"/m/part-{i}.safetensors"] = (tmp_path / "part.safetensors").read_bytes()
        weights[name] = f"part-{i}.safetensors"
    weights["lost"] = "part-9.safetensors"
    index = "/m/model.safetensors.index.json"
    with served(files | {index: json.dumps({"weight_map": weights}).encode()}) as server:
        with gq.open(server.url + index) as f:
            check(f, whole)
            assert f.missing == ("lost",)
        server.files[index] = json.dumps({"weight_map": {"x": "../../etc/part.safetensors"}}).encode()
        server.etag = '"two"'
        with pytest.raises(gq.errors.SafetensorsError, match="beside its index"):
            gq.open(server.url + index)


def test_all_parts_of_a_split_model(tmp_path, tensors):
    paths = gq.save(tmp_path / "s.gguf", tensors, split_max_tensors=2)
    files = {f"/d/{os.path.basename(path)}": open_bytes(path) for path in paths}
    with served(files) as server, gq.open(f"{server.url}/d/{os.path.basename(paths[1])}") as f:
        check(f, tensors)
        assert len(f.paths) == len(paths)
    del files[f"/d/{os.path.basename(paths[2])}"]
    with served(files) as server, pytest.raises(RemoteNotFoundError, match="00003-of"):
        gq.open(f"{server.url}/d/{os.path.basename(paths[0])}")


def open_bytes(path):
    with open(path, "rb") as file:
        return file.read()


def test_what_is_no_model_is_told(server):
    server.files |= {"/page": b"<!doctype html><title>log in</title>", "/none": b"", "/short.gguf": b"GGUF\3"}
    with pytest.raises(gq.GGUFError, match="a web page"):
        gq.open(f"{server.url}/page")
    with pytest.raises(RemoteError, match="empty"):
        gq.open(f"{server.url}/none")
    with pytest.raises(gq.GGUFError, match="are left"):
        gq.open(f"{server.url}/short.gguf")


def test_a_cut_file_opens_with_what_is_there(server, tensors, gguf_bytes):
    server.files["/cut.gguf"] = gguf_bytes[:700_000]
    with gq.open(f"{server.url}/cut.gguf") as f:
        assert f.missing
        with pytest.raises(gq.GGUFError, match="cut off"):
            f[f.missing[0]]
        check(f, {"blk.0.ffn_up.weight": tensors["blk.0.ffn_up.weight"]})


def test_workers_of_this_machine_read_what_was_fetched(server, tensors, tmp_path):
    with (
        gq.open(f"{server.url}/a/m.gguf") as f,
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool,
    ):
        plan = gq.convert.plan_quantize(f, "q8_0")
        gq.convert.run(plan, tmp_path / "a.gguf", executor=pool)
        gq.convert.run(plan, tmp_path / "b.gguf")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_other_file_systems(tensors, gguf_bytes, monkeypatch):
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed: pip install fsspec")
    system = fsspec.filesystem("memory")
    system.pipe("/far/m.gguf", gguf_bytes)
    with gq.open("memory://far/m.gguf") as f:
        check(f, {"small": tensors["small"]})
        system.pipe("/far/m.gguf", gguf_bytes[::-1])
        with pytest.raises(RemoteError, match="changed"):
            f["blk.3.ffn_up.weight"]
    with pytest.raises(RemoteNotFoundError):
        gq.open("memory://far/none.gguf")
    with pytest.raises(RemoteError, match="fsspec knows no"):
        gq.open("nosuch://far/m.gguf")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingDependencyError, match=r"pip install .fsspec"):
        gq.open("s3://bucket/m.gguf")


def test_commands_and_surveys(server, tensors, gguf_bytes, tmp_path, capsys):
    def run(*words):
        status = main(list(map(str, words)))
        said = capsys.readouterr()
        return status, said.out, said.err

    far = f"{server.url}/a/m.gguf"
    facts = json.loads(run("info", far, "--json")[1])
    assert facts["file_bytes"] == len(gguf_bytes)
    assert len(facts["tensors"]) == len(tensors)
    assert server.sent == held.PIECE
    assert "HTTP 404" in run("info", f"{server.url}/no.gguf?x=[1]")[2]
    found = {one.name: one for one in gq.survey(far, types=["q8_0"]).tensors}
    assert found["blk.1.ffn_up.weight"].values.max == tensors["blk.1.ffn_up.weight"].max()
    assert run("copy", far, tmp_path / "copy.gguf")[0] == 0
    assert (tmp_path / "copy.gguf").read_bytes() == gguf_bytes
    gq.convert.quantize(far, tmp_path / "far.gguf", "q8_0")
    gq.convert.quantize(tmp_path / "copy.gguf", tmp_path / "near.gguf", "q8_0")
    assert (tmp_path / "far.gguf").read_bytes() == (tmp_path / "near.gguf").read_bytes()
    with gq.gguf.open(far) as f:
        assert edit.why_not_in_place(f, f.metadata) == "it lies elsewhere"
    assert far in run("cache")[1]
    assert run("validate", far)[0] == 0
    assert json.loads(run("cache", "--empty", "--json")[1])["removed"]
    assert not remote.entries()
