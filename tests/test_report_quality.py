"""``ggmlq report --quality``: numbers of run --kl-against, by token and by layer, on a page and as JSON."""

from __future__ import annotations

import json

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.cli import main
from ggmlq.errors import LibraryFailedError, MissingDependencyError
from ggmlq.model.quality import measured, stretches
from ggmlq.testing.models import Shape, tiny_model
from ggmlq.trace import quality

KINDS = dict.fromkeys(("q", "k", "v", "out", "gate", "up", "down", "embd", "head"), "f16")
TEXT = "Sphinx of black quartz, judge my <b>vow</b>. " * 5


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """An original, and two models made of it."""
    folder = tmp_path_factory.mktemp("models")
    original = tiny_model(folder / "f16.gguf", KINDS, Shape(layers=3), seed=4)
    made = []
    for kind in ("q4_0", "q8_0"):
        made.append(folder / f"{kind}.gguf")
        gq.convert.quantize(original, made[-1], kind)
    (folder / "t.txt").write_text(TEXT)
    return original, *made


@pytest.fixture
def no_library(monkeypatch):
    def none(named=None):
        raise MissingDependencyError("libllama: there is none here")

    monkeypatch.setattr(quality, "locate_llama", none)


def asked(models, *more):
    return ["report", "--quality", *map(str, models), "--text", str(models[0].parent / "t.txt"), *more]


@pytest.mark.usefixtures("no_library")
def test_numbers_are_those_of_run(models, capsys):
    assert main(asked(models, "--json", "--stretch", "64", "--stretches", "3")) == 0
    facts = json.loads(capsys.readouterr().out)
    original, *others = map(gq.model.load, models)
    pieces = stretches(original, TEXT, 64)[:3]
    assert len(pieces) == 3
    assert facts["libllama"] is None
    assert facts["original"]["perplexity"] == pytest.approx(
        measured(original, None, pieces, False)["perplexity"]
    )
    for fact, model in zip(facts["models"], others, strict=True):
        for key, value in measured(model, original, pieces, False).items():
            assert fact[key] == pytest.approx(value, rel=1e-6, abs=1e-9), key
        assert np.mean([kl for _, kl in fact["by_place"]]) == pytest.approx(fact["kl"])
        assert fact["worst"][0]["kl"] == pytest.approx(fact["kl_largest"])
        worst = fact["worst"][0]
        piece, place = pieces[worst["stretch"]], worst["place"]
        assert worst["token"] == original.tokenizer.decode([piece[place]])
        here, there = (m.logits(piece)[place - 1].argmax() for m in (model, original))
        decode = original.tokenizer.decode
        assert (worst["expects"], worst["expected"]) == (decode([here]), decode([there]))
    four, eight = facts["models"]
    assert four["bits_per_weight"] < eight["bits_per_weight"]
    assert len(four["by_layer"]) == 4
    assert all(a > b for a, b in zip(four["by_layer"], eight["by_layer"], strict=True))


@pytest.mark.usefixtures("no_library")
def test_distances_by_layer(models):
    """They are those of the nodes that both models tell."""
    original, four, _ = models
    report = quality.quality(original, [four], TEXT, stretch=32, most=1)
    piece = report.pieces[0]
    nodes = [dict(gq.model.load(path).nodes(piece, flash=True)) for path in (four, original)]
    for i, name in enumerate(("embd", "l_out-0", "l_out-1", "l_out-2")):
        a, b = (one[name][16:].astype(np.float64) for one in nodes)
        want = (((a - b) ** 2).sum(-1) / (b**2).sum(-1)).mean()
        assert report.models[0].by_layer[i] == pytest.approx(want, rel=0.02)


@pytest.mark.usefixtures("no_library")
def test_the_page(models, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(asked(models, "--stretch", "64")) == 0
    out = capsys.readouterr().out
    assert "no numbers by a libllama: libllama: there is none here" in out
    assert "wrote q4_0.quality.html" in out
    text = (tmp_path / "q4_0.quality.html").read_text()
    for words in (
        "Beside the original",
        "KL by size",
        "KL by the place",
        "Distance behind each layer",
        "<svg",
    ):
        assert words in text
    assert "<b>" not in text  # of the text that was read
    assert main(asked(models, "--stretch", "64")) == 2
    assert "--force" in capsys.readouterr().err


def test_what_it_refuses(models, tmp_path, capsys):
    other = tiny_model(tmp_path / "o.gguf", KINDS, Shape(layers=1))
    with gq.open(other) as file:
        tensors = {name: np.asarray(file[name]) for name in file}
        metadata = {k: file.metadata[k] for k in file.metadata if "tokens" not in k and "vocab" not in k}
    for name in ("token_embd.weight", "output.weight"):
        tensors[name] = tensors[name][:96]
    gq.save(tmp_path / "less.gguf", tensors, metadata)
    for words, says in (
        (["report"], "there is no model"),
        (["report", "--quality", str(models[0])], "one model or more"),
        (["report", "--quality", str(models[0]), str(models[1])], "--text FILE"),
        (asked((models[0], tmp_path / "less.gguf"), "--json"), "take two files of one model"),
        (asked(models, "--json", "--lib", str(tmp_path)), "lib"),
        (asked(models, "--json", "--stretch", "2"), "needs 4"),
    ):
        assert main(words) == 2
        assert says in capsys.readouterr().err


def test_a_libllama_that_refuses_a_model(models, monkeypatch):
    """Numbers by the model here stay; a library that the user names is an error."""

    def refuse(path, pieces, lib=None):
        raise LibraryFailedError(f"loading {path}: the library refuses the model")
        yield

    monkeypatch.setattr(quality, "locate_llama", lambda named=None: (None, "libllama.so"))
    monkeypatch.setattr(quality, "logits_of", refuse)
    report = quality.quality(models[0], [models[1]], TEXT, stretch=32, most=1)
    assert not report.by_library
    assert "refuses the model" in report.library
    assert report.models[0].quality.kl
    with pytest.raises(LibraryFailedError, match="refuses"):
        quality.quality(models[0], [models[1]], TEXT, stretch=32, most=1, lib="libllama.so")


@pytest.mark.usefixtures("no_library")
def test_a_model_with_fewer_layers(models, tmp_path):
    with gq.open(models[0]) as file:
        gq.convert.run(gq.convert.plan_quantize(gq.convert.Pruned(file, [1]), "q8_0"), tmp_path / "p.gguf")
    report = quality.quality(models[0], [tmp_path / "p.gguf"], TEXT, stretch=32, most=2)
    assert report.models[0].by_layer == []
    report.write(tmp_path / "p.html")
    assert "other layers" in (tmp_path / "p.html").read_text()


@pytest.mark.llama
def test_a_libllama_gives_nearly_the_same(models):
    report = quality.quality(models[0], [models[1]], TEXT, stretch=48, most=2)
    if not report.by_library:
        pytest.skip(report.library)
    for one in (report.original, *report.models):
        ours, theirs = one.quality.facts(), one.library.facts()
        assert ours["perplexity"] == pytest.approx(theirs["perplexity"], rel=0.02)
    assert ours["kl"] == pytest.approx(theirs["kl"], rel=0.1)
