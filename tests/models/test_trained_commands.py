"""Commands on trained models: no false alarm of a trace, quantizing, diff, pages, quality of a text."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.cli import main

pytestmark = [pytest.mark.models, pytest.mark.llama]


@pytest.fixture
def ask(capsys):
    """``ask(status, *words)``: the JSON of a command that ends with that status."""

    def run(status, *words):
        assert main([str(word) for word in (*words, "--json")]) == status, capsys.readouterr()
        return capsys.readouterr().out

    return run


def test_a_trace_judges_every_node_right(libllama, path, fresh, ask):
    out = ask(
        0, "trace", path, "--tokens", fresh.integers(2, 10), "--generate", 1, "--seed", fresh.integers(99)
    )
    *nodes, end = map(json.loads, out.splitlines())
    assert {node["verdict"] for node in nodes} == {"ok"}
    assert (end["wrong"], end["not_judged"], end["judged"]) == (0, {}, len(nodes))
    assert len(nodes) > 500


def test_a_run_is_the_models(libllama, path, fresh, ask):
    """Roundings explain every node of llama.cpp's run beside ours."""
    out = ask(0, "logits", path, "--against-model", "--tokens", fresh.integers(2, 6))
    *nodes, end = map(json.loads, out.splitlines())
    assert {node["verdict"] for node in nodes} == {"ok"}
    assert (end["first"], end["logits"]["verdict"]) == (None, "ok")


def test_a_recipe_is_measured_alike_by_both(libllama, smollm2, tmp_path, fresh, ask):
    """A file of fewer bits: its types, its difference, its page, and what it costs on a text."""
    made, text, page = tmp_path / "made.gguf", tmp_path / "text.txt", tmp_path / "made.html"
    text.write_text((Path(__file__).parents[2] / "docs" / "house.md").read_text(encoding="utf-8")[:4000])
    target = round(float(fresh.uniform(4.2, 4.8)), 2)
    ask(0, "quantize", smollm2, made, "--target", target, "--sample", 32768, "--allow-requantize")
    with gq.open(made) as file:
        bits = (
            8
            * sum(file.info(name).nbytes for name in file)
            / sum(np.prod(file.info(name).shape) for name in file)
        )
        assert target - 0.1 < bits <= target
    parts = json.loads(ask(1, "diff", smollm2, made))
    assert parts
    facts = json.loads(ask(0, "report", made, "-o", page))
    assert facts
    assert "<html" in page.read_text(encoding="utf-8")
    words = ("--stretch", 192, "--stretches", 1, "--text", text)
    facts = json.loads(ask(0, "report", "--quality", smollm2, made, *words))
    for one in (facts["original"], *facts["models"]):
        there = one["by_libllama"]
        assert abs(np.log(one["perplexity"] / there["perplexity"])) < 0.05
    (model,) = facts["models"]
    assert model["kl"] == pytest.approx(model["by_libllama"]["kl"], rel=0.25)
    assert 0 < model["kl"] < 1


def test_another_type_and_how_far_it_is(gemma3, tmp_path, fresh, ask):
    kind = fresh.choice(["q4_0", "q4_1", "q5_K_S", "q5_0"])
    made, text = tmp_path / "made.gguf", tmp_path / "text.txt"
    text.write_text((Path(__file__).parents[2] / "docs" / "house.md").read_text(encoding="utf-8")[:1500])
    ask(0, "quantize", gemma3, made, kind, "--allow-requantize")
    ask(1, "diff", gemma3, made)
    facts = json.loads(ask(0, "run", made, "--kl-against", gemma3, "--file", text))
    assert 0 < facts["kl"] < 1
    assert facts["same_top"] > 0.6
