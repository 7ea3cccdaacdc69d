"""The command ``ggmlq diagnose``: files of every kind, exit status, words and JSON."""

from __future__ import annotations

import json

import numpy as np
import pytest
from test_diagnose import some

import ggmlq as gq
from ggmlq.cli import main
from ggmlq.faults.catalogue import CATALOGUE, EXPERTS, GRU_FAULTS, NODES, SCALED


@pytest.fixture
def files(tmp_path):
    """A product in files: npy, raw, npz, GGUF; and the same with columns lost."""
    x, q = some()
    y = x @ q.T
    wrong = y.copy()
    wrong[:, 21:] = 0
    at = {name: str(tmp_path / name) for name in (
        "y.npy", "x.npy", "wrong.npy", "y.bin", "x.bin", "w.bin", "w.npz", "all.npz", "w.gguf", "new.npz",
    )}  # fmt: skip
    np.save(at["y.npy"], y)
    np.save(at["x.npy"], x)
    np.save(at["wrong.npy"], wrong)
    y.tofile(at["y.bin"])
    x.tofile(at["x.bin"])
    q.raw.tofile(at["w.bin"])
    weights = {"raw": q.raw, "format": np.array("q4_0"), "shape": np.array(q.shape)}
    np.savez(at["w.npz"], **weights)
    np.savez(at["all.npz"], y=wrong, x=x, **weights, seed=np.array(7), arithmetic=np.array("f32"))
    gq.save(at["w.gguf"], {"w": q, "v": q})
    return at


def run(capsys, *args):
    status = main(["diagnose", *args])
    return status, capsys.readouterr()


def test_npy_and_gguf(capsys, files):
    status, said = run(capsys, files["y.npy"], files["x.npy"], files["w.gguf"], "--tensor", "w")
    assert status == 0
    assert said.out.startswith("correct (confidence 0.99)")
    status, said = run(capsys, files["wrong.npy"], files["x.npy"], files["w.npz"])
    assert status == 1
    assert said.out.startswith("n-tail")
    assert "columns 21 to 23" in said.out


@pytest.mark.parametrize(
    ("options", "lacks"),
    [
        ((), r"--format TYPE and --weights-shape NxK are missing"),
        (("--format", "q4_0"), "; --weights-shape NxK is missing"),
        (("--weights-shape", "24x256"), "; --format TYPE is missing"),
    ],
)
def test_raw_weights_that_lack_something(capsys, files, options, lacks):
    status, said = run(capsys, files["y.bin"], files["x.bin"], files["w.bin"], "--shape", "9x24", *options)
    assert status == 2
    assert lacks in " ".join(said.err.split())


def test_a_dump_whose_k_is_0(capsys, tmp_path):
    path = tmp_path / "k0.npz"
    for value in (0, 1):
        y, raw = np.full((2, 8), value, np.float32), np.zeros(0, np.uint8)
        np.savez(path, y=y, x=np.zeros((2, 0), np.float32), raw=raw, format="q4_0", shape=[8, 0])
        assert run(capsys, str(path))[0] == value


def test_raw_bytes(capsys, files):
    shape = ("--shape", "9x24", "--format", "Q4_0", "--weights-shape", "24x256")
    assert run(capsys, files["y.bin"], files["x.bin"], files["w.bin"], *shape)[0] == 0


def test_one_npz_for_all(capsys, files):
    status, said = run(capsys, files["all.npz"], "--json")
    found = json.loads(said.out)
    assert status == 1
    assert (found["ok"], found["fault"]) == (False, "n-tail")
    assert found["where"]["columns"] == [[21, 24]]


def test_a_saved_case_knows_what_was_never_written(capsys, files, tmp_path):
    with np.load(files["all.npz"]) as saved:
        arrays = dict(saved)
    lost = np.zeros((9, 24), np.bool_)
    lost[:, 21:] = True
    np.savez(tmp_path / "lost.npz", **arrays | {"y": np.where(lost, np.float32(np.nan), arrays["y"])},
             unwritten=lost)  # fmt: skip
    status, said = run(capsys, str(tmp_path / "lost.npz"))
    assert status == 1
    assert said.out.startswith("unwritten")


def test_repeats_and_claims(capsys, files):
    given = (files["y.npy"], files["x.npy"], files["w.npz"])
    assert run(capsys, *given, "--repeat", files["y.npy"], "--arithmetic", "f32")[0] == 0
    status, said = run(capsys, *given, "--repeat", files["wrong.npy"])
    assert status == 1
    assert said.out.startswith("race")


def test_an_input_that_tells_faults_apart(capsys, files):
    run(capsys, files["all.npz"], "--make-input", files["new.npz"])
    with np.load(files["new.npz"], allow_pickle=False) as made:
        assert made["x"].shape == (33, 256)
        assert str(made["format"]) == "q4_0"
    y = np.load(files["new.npz"])["x"] @ some()[1].T
    np.save(files["y.npy"], y)
    assert run(capsys, files["y.npy"], files["new.npz"], files["new.npz"])[0] == 0


def test_a_tensor_behind_a_colon_is_answered_with_the_option(capsys, files):
    status, said = run(capsys, files["y.npy"], files["x.npy"], f"{files['w.gguf']}:w")
    assert status == 2
    assert "--tensor w" in said.err
    with pytest.raises(SystemExit):
        main(["diagnose", "--help"])
    assert "ggmlq diagnose y.npy x.npy model.gguf --tensor" in " ".join(capsys.readouterr().out.split())


def test_list(capsys):
    status, said = run(capsys, "--list")
    assert status == 0
    known = list(CATALOGUE | SCALED | EXPERTS | NODES | GRU_FAULTS)
    assert [line for line in said.out.splitlines() if line[:1] not in (" ", "")] == known
    assert [fault["id"] for fault in json.loads(run(capsys, "--list", "--json")[1].out)] == known


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "there is no Y"),
        (("y.npy",), "pass Y, X and W"),
        (("y.npy", "w.npz"), "pass Y, X and W"),
        (("nothing.npy", "x.npy", "w.npz"), "cannot be read"),
        (("y.npy", "x.npy", "w.gguf"), "name one with --tensor"),
        (("y.npy", "x.npy", "w.bin"), "--format TYPE and --weights-shape NxK are missing"),
        (("y.npy", "x.npy", "w.bin", "--format", "q4_0", "--weights-shape", "24x128"), "needs"),
        (("x.npy", "x.npy", "w.npz"), "y has shape"),
        (("y.bin", "x.bin", "w.npz", "--shape", "7x7"), "--shape asks for"),
        (("w.npz", "x.npy", "w.npz"), "name the array 'y'"),
        (("bad.npy", "x.npy", "w.npz"), "damaged|named like"),
        (("nan.npy", "nan.npy", "w.npz"), "shape"),
        (("y.npy", "nanx.npy", "w.npz"), "must be finite"),
        (("y.npy", "x.npy", "w.npz", "--arithmetic", "q9"), "no such arithmetic"),
    ],
)
def test_bad_input_is_a_sentence_and_exit_2(capsys, files, tmp_path, monkeypatch, args, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.npy").write_bytes(b"\x93NUMPY\x01\x00garbage")
    np.save(tmp_path / "nan.npy", np.full(3, np.nan, np.float32))
    np.save(tmp_path / "nanx.npy", np.full((9, 256), np.nan, np.float32))
    status, said = run(capsys, *args)
    assert status == 2
    assert said.out == ""
    assert said.err.startswith("ggmlq diagnose: ")
    assert any(word in said.err for word in words.split("|")), said.err
    assert said.err.count("\n") == 1
