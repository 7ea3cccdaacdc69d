"""Cases with experts: what they say of themselves, how tokens are divided among experts, what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.check import batches, cases
from ggmlq.check.judge import by_expert
from ggmlq.errors import GGMLQError

FORMAT = gq.formats["q4_0"]


def mixture(routing="uniform", m=40, experts=(16, 4), **more):
    case = cases.Case(FORMAT, m, 8, 64, seed=5)
    return batches.with_experts(case, experts, routing, **({"row_per_use": False} | more))


def test_routings():
    for routing in batches.ROUTINGS:
        case = mixture(routing)
        ids = case.ids()
        assert (ids.shape, ids.dtype) == ((40, 4), np.int32)
        assert 0 <= ids.min() <= ids.max() < 16
        assert np.array_equal(ids, case.ids()), "the same for the same seed"
        counts, twice = (
            np.bincount(ids.reshape(-1), minlength=16),
            [len(set(row)) < 4 for row in ids.tolist()],
        )
        assert any(twice) == (routing == "duplicate")
        assert (counts == 0).any() == (routing == "few") or routing == "uniform"
        if routing == "skewed":
            assert counts[0] > 1.5 * np.median(counts)


def test_what_a_case_says_repeats_it():
    case = mixture("skewed", row_per_use=True)
    again = case.repeat_options.split("'")[1]
    assert again == "MUL_MAT_ID(type_a=q4_0,type_b=f32,n_mats=16,n_used=4,b=0,m=8,n=40,k=64,spread=skewed)"
    assert batches.parse_mixture(again, case.seed) == case
    x, q = case.inputs()
    assert (x.shape, q.shape) == ((40, 4, 64), (16, 8, 64))
    assert case.json_facts == {"experts": 16, "used": 4, "spread": "skewed", "apart": True}
    assert "16/4 apart" in str(case)


def test_edges_give_every_expert_several_tiles():
    for tiled in (batches.TILED, batches.TILED_ON_GPU):
        case = batches.default_cases(gq.formats["q4_0"], 0, tiled=tiled)[-1]
        assert np.bincount(case.ids().reshape(-1), minlength=4).min() > 128
        assert case.n > 128
        assert case.experts == 4


def test_cases_of_test_backend_ops():
    text = "MUL_MAT_ID(type_a=q4_0,type_b=f32,n_mats=8,n_used=2,b={},m=512,n=129,k=256)"
    case = batches.parse_mixture(text.format(1), 7)
    assert (case.m, case.n, case.k, case.experts, case.used, case.row_per_use) == (129, 512, 256, 8, 2, False)
    assert batches.parse_mixture(text.format(0), 7).row_per_use
    for wrong in (
        text.replace("n_used=2,", ""),
        text.replace("type_b=f32", "type_b=f16"),
        text.replace("=8", "=x"),
    ):
        with pytest.raises(GGMLQError, match="MUL_MAT_ID"):
            batches.parse_mixture(wrong.format(1), 7)


@pytest.mark.parametrize("text", ["8", "8/", "/2", "2/8", "8/0", "a/b", "8x2"])
def test_experts_that_are_none(text):
    with pytest.raises(GGMLQError, match="8/"):
        mixture(experts=batches.parse_experts(text))


def test_a_routing_that_is_none():
    with pytest.raises(GGMLQError, match="uniform, skewed"):
        batches.parse_routing("even")


def test_by_expert(fresh):
    case = mixture("duplicate", m=30, row_per_use=bool(fresh.integers(2)))
    (x, q), ids = case.inputs(), case.ids()
    y = gq.reference.expert_linear(x, q, ids, "ggml-mmvq").astype(np.float32)
    found = by_expert(y, x, q, ids, ["ggml-cpu", "q8", "ggml-mmvq"])
    assert (found.arithmetic, found.ok) == ("ggml-mmvq", True)
    y[3, 1] = y[4, 2]
    assert by_expert(y, x, q, ids, ["ggml-mmvq"]).out > 0


def test_files_that_are_no_case(tmp_path):
    case = mixture(m=3)
    x, q = case.inputs()
    whole = {"format": "q4_0", "data": "normal", "seed": 5, "x": x, "raw": np.array(q.raw), "ids": case.ids(),
             "shape": case.lengths}  # fmt: skip
    path = tmp_path / "case.npz"
    np.savez(path, **whole)
    assert batches.load_mixture(path).lengths == [16, 8, 64]
    changes = {
        "ids": np.zeros((3, 4)),
        "raw": whole["raw"][:, :3],
        "x": x[:2],
        "shape": [16, 8],
        "data": "odd",
    }
    for name, wrong in changes.items():
        np.savez(path, **(whole | {name: wrong}))
        with pytest.raises(GGMLQError, match="--replay"):
            batches.load_mixture(path)
