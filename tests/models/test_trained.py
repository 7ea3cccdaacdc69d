"""Trained models beside libllama and float64: tokens, logits, greedy text, chat templates."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from beside import beside, check_tokens, replayed
from vocabularies import hard_texts

import ggmlq as gq
from ggmlq.errors import UnsupportedError
from ggmlq.model.quality import Quality, shares
from ggmlq.trace.activations import logits_of
from ggmlq.trace.session import Run
from ggmlq.trace.settings import settings

pytestmark = [pytest.mark.models, pytest.mark.llama]
MARGIN = 8  # times the size of the roundings of a row of logits: the most that one of its numbers may be off
CHANCE = 4  # standard errors of a mean
SUMS = 1e-11  # of float32, in another order: measured up to 5e-13
SAID = 200
MESSAGES = [
    {"role": "system", "content": " be <b>brief</b>  "}, {"role": "user", "content": "hé & \"hi\"\n\n"},
    {"role": "assistant", "content": "{{ no }} {% template %}"}, {"role": "user", "content": "你好 🦙"},
]  # fmt: skip


def test_tokens_are_its_tokens(libllama, path, fresh):
    pages = [page.read_text(encoding="utf-8") for page in (Path(__file__).parents[2] / "docs").glob("*.md")]
    check_tokens(path, [*hard_texts(fresh, 300), *fresh.choice(pages, 4)])


def test_logits_are_as_near_to_float64_as_its(libllama, path, prose):
    """KL to ``exact`` is not above llama.cpp's, and a text is as likely, but for chance."""
    m = gq.model.load(path)
    tokens = prose(m.tokenizer, 257)
    truth = shares(gq.model.load(path, arithmetic="exact").logits(tokens))
    ours, its = Quality(), Quality()
    ours.add(tokens, shares(m.logits(tokens)), truth)
    its.add(tokens, shares(next(iter(logits_of(path, [tokens])))), truth)
    further = ours.kl[0] - its.kl[0]
    assert further.mean() <= CHANCE * error(further), (ours.facts(), its.facts())
    less = ours.loss[0] - its.loss[0]
    assert abs(less.mean()) <= CHANCE * error(less), (ours.facts(), its.facts())
    assert ours.facts()["same_top"] > 0.8


@pytest.mark.parametrize("layouts", ["", "AMX,CPU_REPACK"])
def test_each_product_is_ggml_cpus(libllama, path, prose, layouts):
    """On the run's own rows; so what parts a run from the arithmetic are roundings that were carried on."""
    tokens = prose(gq.model.load(path).tokenizer, 7)
    how = {"without": layouts} if layouts else {}
    run, off = Run(settings(path, tokens=tokens, flash=False, threads=2, verify=False, **how)), {}
    try:
        with gq.open(path) as file:
            for node in run.nodes():
                if isinstance(node, dict):
                    break
                name = node.tensors.get("w", {}).get("name")
                if node.op != "MUL_MAT" or name not in file or node.tensors["w"].get("buffer") == "AMX":
                    continue
                x, y = node.floats("x").reshape(-1, file[name].shape[-1]), node.floats("y")
                expected = gq.reference.linear(x, file[name], "ggml-cpu")
                off[node.name] = gq.nmse(y.reshape(expected.shape), expected)
    finally:
        run.close()
    assert len(off) > 200
    assert max(off.values()) < SUMS, max(off, key=off.get)


def error(values):
    """The standard error of their mean."""
    return values.std() / np.sqrt(len(values) - 1)


def test_greedy_text_parts_only_where_roundings_explain_it(libllama, path, prose):
    """Wherever ours would go on otherwise, float64 has both tokens nearly equal; until then texts are one."""
    m = gq.model.load(path)
    tokens = prose(m.tokenizer, 24)
    its, then = beside(path, tokens, SAID)
    then, its = then[:SAID], its[:SAID]
    ours = replayed(path, tokens, then[:-1])
    truth = gq.model.load(path, arithmetic="exact").logits(tokens + then[:-1])[len(tokens) - 1 :]
    best = ours.argmax(axis=1)
    assert its.argmax(axis=1).tolist() == then
    parts = np.flatnonzero(best != then)
    for i in parts:
        margin = abs(truth[i, then[i]] - truth[i, best[i]])
        assert margin <= MARGIN * ((ours[i] - truth[i]).std() + (its[i] - truth[i]).std())
    until = parts[0] if len(parts) else SAID
    assert list(m.generate(tokens, int(until))) == then[:until]
    assert len(parts) < SAID / 5


def test_chat_templates_are_jinja2s(smollm2):
    jinja2 = pytest.importorskip("jinja2", reason="chat templates need Jinja2")
    with gq.open(smollm2) as file:
        source = file.metadata["tokenizer.chat_template"]
    template = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(source)
    tokenizer = gq.model.load(smollm2).tokenizer
    for messages in (MESSAGES, MESSAGES[1:], MESSAGES[:2]):
        for answer in (True, False):
            expected = template.render(messages=messages, add_generation_prompt=answer)
            assert tokenizer.chat(messages, answer=answer) == expected
    text = template.render(messages=MESSAGES, add_generation_prompt=True)
    assert tokenizer.encode(tokenizer.chat(MESSAGES)) == tokenizer.encode(text)


def test_a_base_model_has_no_template(gemma3):
    with pytest.raises(UnsupportedError, match=r"no tokenizer\.chat_template"):
        gq.model.load(gemma3).tokenizer.chat(MESSAGES)
