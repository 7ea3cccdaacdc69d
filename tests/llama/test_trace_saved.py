"""Wrong nodes of a trace as files: judged again, and computed alone on a library."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.cli import main
from ggmlq.errors import DumpError, UnsupportedError
from ggmlq.llama import Bridge
from ggmlq.trace import saved as trace_saved
from ggmlq.trace import session
from ggmlq.trace.judging import whole
from ggmlq.trace.saved import is_node, judged, load_node, replay, save_node
from ggmlq.trace.tracer import PRODUCTS

pytestmark = pytest.mark.llama


class Capturing(session.Judge):
    """Keeps every node, as if each were wrong."""

    def record(self, node):
        product = super().record(node)
        if product.op in PRODUCTS:
            return product
        return replace(product, captured=whole(node, self._model))


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    "how", [{"fused": True}, {"flash": False}, {"flash": True, "cache": "q8_0"}], ids=str
)
def test_every_operation_alone(libllama, models, monkeypatch, tmp_path, fresh, how):
    """A graph of one node or group computes the same as the run, and the judge calls both right."""
    monkeypatch.setattr(session, "Judge", Capturing)
    operations = set()
    seed, tokens = (int(fresh.integers(1, most)) for most in (1 << 30, 7))
    with Bridge() as bridge:
        for p in gq.llama.trace(models["shared"], tokens=tokens, threads=1, seed=seed, verify=False, **how):
            if p.captured is None or p.op in operations:
                continue
            operations.add(p.op)
            saved = save_node(tmp_path, p).saved
            node = load_node(saved)
            again = judged(node)
            assert (again.verdict, again.op, again.group) == ("ok", p.op, p.group), again.text
            assert (again.judgement.out, again.worst) == (p.judgement.out, p.worst)
            if "ARGSORT+" in p.op:
                with pytest.raises(UnsupportedError, match="two results"):
                    replay(bridge, node)
                continue
            for threads in (1, 2):
                (alone,) = replay(bridge, node, threads=threads, repeats=2)
                assert alone.verdict == "ok", (p.op, alone.text)
    assert {"GET_ROWS", "SWIGLU", "ADD"} <= operations
    assert any("SET_ROWS" in op for op in operations)
    assert not list(tmp_path.glob("*.tmp"))


@pytest.fixture(scope="module")
def saved(libllama, models, tmp_path_factory):
    """The file of one RMS_NORM, one element of which is wrong."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "Judge", Capturing)
        trace = gq.llama.trace(models["dense"], tokens=3, select="norm-0", threads=1, verify=False)
        p = next(iter(trace))
    y = p.captured.arrays["y"].copy()
    y.view(np.float32)[70] += 0.5
    node = replace(p.captured, arrays={**p.captured.arrays, "y": y})
    return save_node(tmp_path_factory.mktemp("saved"), replace(p, captured=node)).saved


def test_the_commands(saved, models, capsys, tmp_path):
    assert is_node(saved)
    assert main(["diagnose", saved]) == 1
    assert "1 of 768 elements are out of bound; the worst, row 0, column 70" in capsys.readouterr().out
    assert main(["diagnose", saved, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["out_of_bound"] == 1
    assert main(["check", "--replay", saved]) == 0  # this library computes it right
    said = capsys.readouterr().out
    assert "RMS_NORM" in said
    assert "0 of 2 results are wrong" in said
    assert main(["check", "--replay", saved, "--threads", "1", "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)["nodes"]
    assert (record["node"], record["op"], record["verdict"]) == ("norm-0", "RMS_NORM", "ok")
    assert main(["check", "--replay", saved, saved]) == 2
    assert "write --replay for each" in capsys.readouterr().err
    np.savez(tmp_path / "other.npz", x=np.ones(3))
    assert main(["check", "--replay", saved, "--replay", str(tmp_path / "other.npz")]) == 2
    assert "replay them apart" in capsys.readouterr().err


def test_an_error_of_ours_is_no_end_of_a_replay(saved, monkeypatch, capsys):
    real = trace_saved._replayed

    def replayed(bridge, node, device, threads, repeats):
        return None.ndim if threads == 1 else real(bridge, node, device, threads, repeats)

    monkeypatch.setattr(trace_saved, "_replayed", replayed)
    assert main(["check", "--replay", saved]) == 0
    out = capsys.readouterr().out
    assert "an error of ggmlq itself, not of the library: AttributeError" in " ".join(out.split())
    assert "0 of 2 results are wrong; 1 not judged" in out
    assert main(["check", "--replay", saved, "--threads", "1"]) == 2
    assert "not judged: an error of ggmlq itself" in capsys.readouterr().err


def test_only_wrong_nodes_are_kept_and_only_where_that_is_wanted(libllama, models):
    for p in gq.llama.trace(models["dense"], tokens=2, threads=1, captures=True, verify=False):
        assert p.captured is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda facts: facts["tensors"]["s0"].update(nb=[4, 1 << 40, 0, 0]), "does not fit into its"),
        (lambda facts: facts["tensors"]["y"].update(ne=[256, -3, 1, 1]), "does not fit into its"),
        (lambda facts: facts["tensors"]["y"].update(nb=[1, 1, 1, 1]), "does not fit into its"),
        (lambda facts: facts.update(form="ggmlq node 9"), "'ggmlq node 9', this version reads"),
        (lambda facts: facts.pop("words"), "no node that .* wrote"),
        (lambda facts: facts.update(tensors=3), "no node that .* wrote"),
    ],
)
def test_damaged_files(saved, tmp_path, change, says):
    with np.load(saved) as arrays:
        content = dict(arrays)
    facts = json.loads(str(content["node"]))
    change(facts)
    np.savez(tmp_path / "bad.npz", **{**content, "node": np.array(json.dumps(facts))})
    with pytest.raises(DumpError, match=says):
        load_node(tmp_path / "bad.npz")


def test_an_operation_that_the_library_lacks(saved):
    node = load_node(saved)
    other = replace(node, op="SQR", tensors={**node.tensors, "y": {**node.tensors["y"], "number": 3}})
    with Bridge() as bridge, pytest.raises(UnsupportedError, match="no such operation up to number 3"):
        replay(bridge, other)
