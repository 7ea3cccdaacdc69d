"""The command ``ggmlq gru``, and the example that listens for a voice."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import gru_cases as cases
import numpy as np
import pytest
import scripts

import ggmlq as gq
from ggmlq.cli import main
from ggmlq.gru import to_torch_order

pytestmark = pytest.mark.filterwarnings("ignore::ggmlq.gru.SaturationWarning")


@pytest.fixture
def files(fresh, tmp_path, monkeypatch):
    """Weights under both kinds of names, inputs, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    parts = cases.arrays(fresh, 3, 5)
    np.savez("own.npz", **dict(zip(cases.PARTS, parts, strict=True)))
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    np.savez("torch.npz", **{f"gru.{n}": to_torch_order(p) for n, p in zip(names, parts, strict=True)})
    np.savez("both.npz", **{n: np.stack([p, p[::-1]]) for n, p in zip(cases.PARTS, parts, strict=True)})
    x = cases.inputs(fresh, 30, 2, 3)
    np.save("x.npy", x)
    np.savez("more.npz", x=2 * x, h0=np.zeros((2, 5), "f4"))
    return parts, x


def run(capsys, *args):
    status = main(["gru", *args])
    return status, capsys.readouterr()


def test_from_weights_to_results(capsys, files):
    parts, x = files
    assert run(capsys, "calibrate", "own.npz", "x.npy", "more.npz", "-o", "f.npz")[0] == 0
    g = gq.GRU(*parts)
    g.observe(x)
    g.observe(2 * x)
    want = g.fixed("mixed")
    f = gq.FixedGRU.load("f.npz")
    assert f.widths == "mixed"
    status, said = run(capsys, "run", "f.npz", "x.npy", "-o", "y.npz", "--intermediates")
    assert status == 0
    assert "y [30, 2, 5] float32" in said.out
    found = np.load("y.npz")
    for a, b in zip((found["y"], found["h"], found["v"]), want(x, return_intermediates=True), strict=True):
        assert np.array_equal(a, b)
    run(capsys, "calibrate", "torch.npz", "x.npy", "more.npz", "-o", "t.npz")
    assert np.array_equal(gq.FixedGRU.load("t.npz")(x)[0], found["y"])


def test_in_parts_as_in_one(capsys, files, monkeypatch):
    from ggmlq.commands import gru

    _, x = files
    run(capsys, "calibrate", "own.npz", "x.npy", "-o", "f.npz", "--widths", "int8", "--width", "h=12")
    assert gq.FixedGRU.load("f.npz").parameters["h"].bits == 12
    monkeypatch.setattr(gru, "AT_ONCE", 40)
    for more in ((), ("--codes",), ("--batch-first",)):
        source = "turned.npy" if more == ("--batch-first",) else "x.npy"
        np.save("turned.npy", x.swapaxes(0, 1))
        assert run(capsys, "run", "f.npz", source, "-o", "y.npz", "--force", *more)[0] == 0
        want = gq.FixedGRU.load("f.npz")(
            np.load(source), batch_first=source != "x.npy", return_codes=more == ("--codes",)
        )
        assert np.array_equal(np.load("y.npz")["y"], want[0])
        assert np.array_equal(np.load("y.npz")["h"], want[1])
    np.save("one.npy", x[:, 0])
    assert (
        run(capsys, "run", "f.npz", "one.npy", "-o", "one.npz", "--h0", "y.npz")[0] == 2
    )  # h of two sequences
    assert run(capsys, "run", "f.npz", "one.npy", "-o", "one.npz")[0] == 0
    assert np.load("one.npz")["y"].shape == (30, 5)


def test_json_and_info(capsys, files):
    _, said = run(capsys, "calibrate", "both.npz", "x.npy", "-o", "f.npz", "--json")
    facts = json.loads(said.out)
    assert (facts["directions"], facts["units"], facts["observed"], facts["written"]) == (2, 5, 60, "f.npz")
    assert len(facts["tensors"]) == 36
    assert facts["error"]["mse"] < 1e-2
    _, said = run(capsys, "info", "f.npz", "--json")
    assert json.loads(said.out)["tensors"] == facts["tensors"]
    status, said = run(capsys, "info", "f.npz")
    assert status == 0
    assert "both directions" in said.out
    _, said = run(capsys, "run", "f.npz", "x.npy", "-o", "y.npz", "--json")
    assert json.loads(said.out)["arrays"] == {"y": [30, 2, 10], "h": [2, 2, 5]}
    np.save("far.npy", np.full((4, 2, 3), 99, "f4"))
    assert json.loads(run(capsys, "run", "f.npz", "far.npy", "-o", "z.npz", "--json")[1].out)["notes"]


def test_what_is_refused(capsys, files):
    run(capsys, "calibrate", "own.npz", "x.npy", "-o", "f.npz")
    np.savez("odd.npz", a=np.zeros(3))
    np.save("nan.npy", np.full((4, 2, 3), np.nan, "f4"))
    np.save("whole.npy", np.zeros((4, 2), int))
    before = Path("f.npz").read_bytes()
    for words, match in (
        (("calibrate", "own.npz", "x.npy", "-o", "f.npz"), "--force"),
        (("calibrate", "odd.npz", "x.npy", "-o", "g.npz"), "weight_ih_l0"),
        (("calibrate", "x.npy", "x.npy", "-o", "g.npz"), "npz"),
        (("calibrate", "no.npz", "x.npy", "-o", "g.npz"), "cannot be read"),
        (("calibrate", "no.onnx", "x.npy", "-o", "g.npz"), "cannot be read"),
        (("calibrate", "own.npz", "nan.npy", "-o", "g.npz"), "finite"),
        (("calibrate", "own.npz", "x.npy", "-o", "g.npz", "--width", "h"), "--width h=12"),
        (("calibrate", "own.npz", "x.npy", "-o", "g.npz", "--width", "k=9"), "'k'"),
        (("calibrate", "own.npz", "x.npy", "-o", "g.npz", "--width", "h=99"), "2 to 16"),
        (("calibrate", "own.npz", "x.npy", "-o", "no/g.npz"), "no/g.npz"),
        (("run", "own.npz", "x.npy", "-o", "y.npz"), "no GRU"),
        (("run", "f.npz", "whole.npy", "-o", "y.npz"), "x"),
        (("run", "f.npz", "x.npy", "-o", "y.npz", "--kernel", "k"), "k"),
        (("run", "f.npz", "x.npy", "-o", "no/y.npz"), "no/y.npz"),
        (("info", "x.npy"), "no GRU"),
    ):
        status, said = run(capsys, *words)
        assert status == 2, words
        assert match in said.err, (words, said.err)
        assert "Traceback" not in said.err
    assert Path("f.npz").read_bytes() == before


def test_the_example_hears_voices():
    voice = scripts.load("tools", "tables.voice")
    found = {row[0]: float(row[1].rstrip("%")) for row in voice.rows(6)}
    assert found["float32"] > 90
    assert found["mixed, h of 12 bits"] > 90
    assert found["float32"] - found["int16"] < 1
    assert voice.WEIGHTS.stat().st_size < 100_000


def test_the_picture_is_one():
    assert ET.parse(scripts.ROOT / "docs" / "gru.svg").getroot().tag.endswith("svg")
