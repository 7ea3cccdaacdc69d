"""``ggmlq logits --against-model``: runs of a real libllama beside the model, right ones and spoiled ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from families import EXPERTS, NAMES, family_model
from recurrent_families import NEMOTRON, RECURRENT

import ggmlq as gq
from ggmlq.cli import main
from ggmlq.trace import explained
from ggmlq.trace.explained import Rounding, Rows, choice

SPEAKS = Path(__file__).parents[1] / "golden" / "speaks.gguf"
TYPES = ("q4_0", "q8_0", "q5_1", "f16", "iq4_nl", "q4_1", "bf16", "f32")


# --- limits -----------------------------------------------------------------------------------


def test_what_lies_within_the_margin_is_explained(fresh):
    """A row as far from the truth as the margin says is within; any more of it in one place is not."""
    exact = fresh.standard_normal((100, 96))
    off = fresh.standard_normal(exact.shape) * 1e-3
    rows = Rows(exact, exact + off)
    inside = rows.judged(exact - 0.99 * explained.MARGIN * off, Rounding(), 0.0)
    assert 0.97 < inside.share <= 0.99
    spoiled = exact + off
    place = int(fresh.integers(100)), int(fresh.integers(96))
    spoiled[place] += 2 * explained.MARGIN * np.sqrt(2) * np.abs(off).max() * max(
        1.0, float(np.sqrt(rows.size[:, None] / rows.size).max())
    )  # fmt: skip
    outside = rows.judged(spoiled, Rounding(), 0.0)
    assert outside.share > 1
    assert outside.where == place
    assert outside.value == spoiled[place]
    spoiled[place] = np.nan
    assert rows.judged(spoiled, Rounding(), 0.0).share == np.inf
    assert rows.judged(exact + 100 * off, Rounding(1.0, 1.0), 0.0).share < 1, "as other steps had it"
    assert rows.judged(exact + 1e-9, Rounding(), 1e-15).share < rows.judged(exact + 1e-9, Rounding(), 0).share


def test_experts_change_places_where_scores_are_near():
    scores = np.array([[0.5, 0.3, 0.299, 0.1], [0.4, 0.3, 0.2, 0.1]])
    rows = Rows(scores, scores)
    limits = np.full(2, 1e-4)  # the margin of two scores: 0.0092 and 0.0077
    for order, share in (
        ([[0, 1], [0, 1]], 0), ([[0, 2], [0, 1]], 0.001), ([[1, 0], [0, 1]], 0.2), ([[0, 1], [0, 3]], 0.2),
        ([[0, 1, 2, 3], [3, 0, 1, 2]], 0.3), ([[0, 1, 2, 3], [0, 1, 3, 2]], 0.1),
    ):  # fmt: skip
        finding = choice(np.array(order), rows, limits)
        assert finding.distance == pytest.approx(share, abs=1e-12)
        assert (finding.share <= 1) == (share <= 0.001)
        assert finding.where == (int(order[0] in ([0, 1], [0, 1, 2, 3]) and share > 0),)
    for order in ([[0, 0], [0, 1]], [[0, 4], [0, 1]], [[-1, 0], [0, 1]]):
        assert choice(np.array(order), rows, limits).share == np.inf


# --- models -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.drawn(2)
@pytest.mark.parametrize("cache", ["f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("family", NAMES)
def test_a_right_run_does_not_part(libllama, fresh, tmp_path, family, cache):
    """Any layout of weights, any types, a prompt and tokens after it, attention in either way."""
    path = family_model(
        tmp_path / "m.gguf", family, int(fresh.integers(1 << 30)), fresh.choice(TYPES, 3).tolist()
    )
    comparison = gq.llama.compare_with_model(
        gq.model.load(path, cache=cache), tokens=fresh.integers(3, 259, int(fresh.choice([1, 2, 9, 70]))),
        generate=2, threads=int(fresh.choice([1, 2])), flash=cache != "f16" or bool(fresh.integers(2)),
    )  # fmt: skip
    nodes = list(comparison)
    assert [(p.node, p.step, p.finding) for p in nodes if not p.ok] == []
    assert comparison.ok, comparison.logits
    assert {name.partition("-")[0] for name in comparison.unpaired} <= {"v_cont"}
    assert {p.step for p in nodes} == {0, 1, 2}
    seen = {p.node for p in nodes}
    assert {"Qcur-2" if family in NEMOTRON else "Qcur-1", "l_out-1", "result_output"} <= seen
    if family not in (*RECURRENT, "glm4moe", "gemma4-moe"):  # which have others, or other names
        assert {"embd", "ffn_norm-0"} - seen <= ({"ffn_norm-0"} if family == "gpt-oss" else set())
    assert any(p.is_choice for p in nodes) == (family in EXPERTS)


def test_a_trained_model_and_its_report(libllama, capsys):
    words = ["logits", str(SPEAKS), "--against-model", "--prompt", "A room imports", "--generate", "1"]
    assert main(words) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == "the runs do not part: roundings explain all nodes"
    assert said[-2].endswith("the same likeliest token")
    assert [line.split()[1] for line in said[1:4]] == ["l_out-0", "l_out-1", "result_output"]
    assert main([*words, "--json", "--cache", "q8_0"]) == 0
    *nodes, end = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {node["verdict"] for node in nodes} == {"ok"}
    assert all(node["distance"] <= node["limit"] for node in nodes)
    assert end["compared"] == len(nodes) > 50
    assert (end["verdict"], end["first"], end["logits"]["verdict"]) == ("end", None, "ok")
    assert len(end["generated"]) == 1


def test_one_of_both_is_named(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["logits", str(SPEAKS)])
    assert "--against-model" in capsys.readouterr().err


# --- faults -----------------------------------------------------------------------------------


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("family", "fault", "node"),
    [
        (None, "glu", "ffn_swiglu-1"), (None, "rope", "Qcur-0"), ("gemma3", "rms_norm", "norm-1"),
        ("gpt-oss", "add", "ffn_moe_out-0"), ("qwen3moe", "argsort", "ffn_moe_argsort-1"),
        ("mixtral", "argsort", "ffn_moe_argsort-0"), ("mixtral", "div", "ffn_moe_weights_norm-1"),
        ("qwen2", "soft_max", "kq_soft_max-1"), ("deepseek2", "add", "ffn_out-1"),
    ],
)  # fmt: skip
def test_the_node_with_a_fault_is_the_first(
    libllama, faulty_ops, fresh, tmp_path, monkeypatch, family, fault, node
):
    """One element of one node is off, or one choice of experts; nothing before it parts."""
    path = (
        SPEAKS if family is None else family_model(tmp_path / "m.gguf", family, int(fresh.integers(1 << 30)))
    )
    monkeypatch.setenv("LD_PRELOAD", str(faulty_ops))
    for name, value in {"FAULTY": fault, "FAULTY_NODE": node, "FAULTY_BY": "100"}.items():
        monkeypatch.setenv(name, value)
    tokens = fresh.integers(3, 259, int(fresh.integers(2, 30)))
    comparison = gq.llama.compare_with_model(
        gq.model.load(path), tokens=tokens, threads=1, flash=False, without="AMX,CPU_REPACK"
    )
    nodes = list(comparison)
    assert comparison.first is not None, "the library does not take kernels by their names"
    assert comparison.first.node == node
    assert comparison.first.finding.where[0] == 0
    assert not comparison.ok
    at = nodes.index(comparison.first)
    if fault in ("glu", "add"):  # the query of the first token has one position to look at, whatever it is
        assert not any(p.ok for p in nodes[at:] if p.node.startswith("l_out"))
