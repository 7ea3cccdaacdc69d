"""A survey: its statistics against NumPy's, its errors against a whole encoding, from any workers."""

from __future__ import annotations

import json
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
from executors import importance, model

import ggmlq as gq
from ggmlq.cli import main
from ggmlq.errors import ConvertError, GGUFKeyError
from ggmlq.tasks import rows


@pytest.fixture
def many(tmp_path, fresh):
    """A GGUF file and a checkpoint of 8 bits, and what is in both."""
    tensors = model(tmp_path / "m.gguf", fresh)
    coded = gq.quantize_scaled(fresh.standard_normal((300, 256), np.float32), "e4m3", (128, 128))
    other = {"up.weight": coded, "norm.weight": fresh.standard_normal(64).astype(np.float16)}
    other["mask"] = np.array([True, False])
    gq.save(tmp_path / "c.safetensors", other)
    return [tmp_path / "m.gguf", tmp_path / "c.safetensors"], tensors, coded


def test_statistics_are_numpys(many):
    paths, tensors, coded = many
    found = {one.name: one for one in gq.survey(paths, types=[]).tensors}
    whole = {**tensors, "up.weight": np.asarray(coded)}
    for name, stored in whole.items():
        values, x = found[name].values, stored.astype(np.float64)
        assert (values.elements, values.zeros, values.nan) == (x.size, (x == 0).sum(), 0), name
        if x.size:
            assert (values.min, values.max) == (x.min(), x.max())
            assert values.mean == pytest.approx(x.mean(), rel=1e-9, abs=1e-12)
            assert values.rms == pytest.approx(np.sqrt((x**2).mean()), rel=1e-9)
            assert values.peak == pytest.approx(np.abs(x).max() / values.rms)
            powers = np.floor(np.log2(np.abs(x[x != 0]))).astype(int)
            counts = {int(e): int((powers == e).sum()) for e in np.unique(powers)}
            assert {round(np.log2(m["from"])): m["count"] for m in values.facts()["magnitudes"]} == counts
    assert found["mask"].values is None
    assert "only listed" in found["mask"].note
    assert found["up.weight"].type == "e4m3"


def test_errors_are_those_of_all_rows_where_all_are_tried(many, fresh):
    paths, tensors, coded = many
    imatrix = importance(tensors, fresh)
    found = {one.name: one for one in gq.survey(paths, types=["q8_0", "q4_K"], imatrix=imatrix).tensors}
    for name in ("blk.1.ffn_up.weight", "blk.0.ffn_up_exps.weight", "up.weight"):
        x = tensors.get(name, np.asarray(coded))
        for kind, error in found[name].errors.items():
            made = np.asarray(gq.quantize(x, kind))
            assert error == pytest.approx(gq.nmse(made, x), rel=1e-9)
    x, by = tensors["blk.0.ffn_up_exps.weight"], imatrix["blk.0.ffn_up_exps.weight"].reshape(3, 256)
    made = np.stack([np.asarray(gq.quantize(x[e], "q4_K", by[e])) for e in range(3)])
    weight = by[:, None].astype(np.float64)
    right = (weight * (made - x.astype(np.float64)) ** 2).sum() / (weight * x.astype(np.float64) ** 2).sum()
    assert found["blk.0.ffn_up_exps.weight"].sensitivity["q4_K"] == pytest.approx(right, rel=1e-9)
    assert found["up.weight"].sensitivity is None
    assert found["blk.0.ffn_down.weight"].errors.keys() == {"q8_0"}
    assert not found["blk.0.attn_norm.weight"].errors


def test_some_rows_stand_for_all(tmp_path, fresh):
    x = fresh.standard_normal((4096, 256), np.float32) * np.exp(fresh.standard_normal((4096, 1)))
    gq.save(tmp_path / "m.gguf", {"blk.0.ffn_up.weight": x.astype(np.float32)})
    (few,) = gq.survey(tmp_path / "m.gguf", types=["q4_0"], elements=1 << 14).tensors
    (all_of_it,) = gq.survey(tmp_path / "m.gguf", types=["q4_0"], elements=1 << 20).tensors
    assert few.errors["q4_0"] == pytest.approx(all_of_it.errors["q4_0"], rel=0.1)
    assert few.errors != all_of_it.errors


def test_workers_find_the_same(many, fresh, monkeypatch):
    paths, tensors, _ = many
    monkeypatch.setattr(rows, "ELEMENTS", 1 << 13)
    how = {"types": ["q8_0", "q4_0"], "imatrix": importance(tensors, fresh)}
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        shared = gq.survey(paths, **how, executor=pool)
    alone = gq.survey(paths, **how)
    assert shared.facts() == alone.facts()
    assert str(shared) == str(alone)


def test_values_that_are_no_numbers_are_counted_and_not_tried(tmp_path, fresh):
    x = fresh.standard_normal((8, 64), np.float32)
    x[1, 2], x[3, 4], x[5, 6] = np.nan, np.inf, 0
    gq.save(
        tmp_path / "m.gguf", {"blk.0.ffn_up.weight": x, "blk.1.ffn_up.weight": np.zeros((4, 64), np.float32)}
    )
    found = gq.survey(tmp_path / "m.gguf", types=["q8_0"])
    bad, zero = found.tensors
    assert (bad.values.nan, bad.values.infinite, bad.values.zeros, found.ok) == (1, 1, 1, False)
    finite = x[np.isfinite(x)]
    assert (bad.values.min, bad.values.max) == (finite.min(), finite.max())
    assert bad.values.rms == pytest.approx(np.sqrt((finite.astype(np.float64) ** 2).mean()))
    assert not bad.errors
    assert "no numbers" in bad.note
    assert zero.errors == {"q8_0": 0.0}
    assert zero.values.peak is None
    assert json.loads(json.dumps(found.facts()))["tensors"][0]["values"]["nan"] == 1


def test_scales_that_fit_no_tensor_are_a_note(tmp_path, fresh):
    codes = gq.quantize_scaled(fresh.standard_normal((96, 256), np.float32), "e4m3", (32, 128)).codes
    coded = gq.ScaledArray(codes, np.ones((3, 2), np.float32), "e4m3", (32, 128))
    gq.save(tmp_path / "c.safetensors", {"up.weight": coded, "b.weight": np.ones((4, 64), np.float32)})
    found = {one.name: one for one in gq.survey(tmp_path / "c.safetensors", types=["q8_0"])}
    assert "weight_block_size" in found["up.weight"].note
    assert found["b.weight"].errors


def test_a_filter_may_take_none_of_one_model(many):
    paths, _, _ = many
    assert [one.name for one in gq.survey(paths, types=[], filter="up.weight").tensors] == ["up.weight"]


def test_a_file_that_was_cut_off(tmp_path, fresh):
    model(tmp_path / "m.gguf", fresh)
    with gq.gguf.open(tmp_path / "m.gguf") as f:
        os.truncate(tmp_path / "m.gguf", f.parts[0].header.data + 1000)
    found = gq.survey(tmp_path / "m.gguf")
    assert all("cut off" in one.note for one in found.tensors if one.name != "nothing")


@pytest.mark.parametrize(
    ("paths", "how", "said"),
    [
        ([], {}, "no model"),
        (None, {"elements": 0}, "1 or more"),
        (None, {"types": ["nvfp5"]}, "nvfp5"),
        (None, {"filter": "*.bias"}, "takes none"),
        (None, {"imatrix": {"blk.0.ffn_up.weight": np.ones(3)}}, "another model"),
    ],
)
def test_what_cannot_be_surveyed_is_told(tmp_path, fresh, paths, how, said):
    model(tmp_path / "m.gguf", fresh)
    with pytest.raises((ConvertError, GGUFKeyError, gq.GGMLQError), match=said):
        gq.survey([tmp_path / "m.gguf"] if paths is None else paths, **how)


def test_the_command(many, capsys):
    paths, _, _ = many
    words = ["survey", *map(str, paths), "--types", "q8_0,q4_0", "--json"]
    said = []
    for more in ([], ["--workers", "1"]):
        assert main([*words, *more]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    facts = json.loads(said[0])
    assert facts["types"] == ["q8_0", "q4_0"]
    assert facts["tensors"][0]["errors"]["q8_0"] < facts["tensors"][0]["errors"]["q4_0"]


def test_the_command_compares_with_workers_too(tmp_path, fresh, capsys):
    for name in "ab":
        model(tmp_path / f"{name}.gguf", fresh)
    words = ["diff", *(str(tmp_path / f"{name}.gguf") for name in "ab")]
    said = []
    for more in ([], ["--workers", "1"]):
        assert main([*words, *more]) == 1
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
