"""Importance matrices made, merged and written: both kinds of file, there and back, their statistics."""

from __future__ import annotations

import json

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.cli import main
from ggmlq.gguf import Collector, collected, read_imatrix


@pytest.fixture
def activations(fresh):
    return {
        f"blk.{i}.attn_q.weight": fresh.standard_normal((int(fresh.integers(1, 90)), 24)) for i in range(3)
    }


@pytest.fixture
def made(activations):
    found = Collector(chunk_size=16)
    for name, x in activations.items():
        for part in np.array_split(x.astype(np.float32), 3):
            found.add(name, part)
    found.datasets.append("text.txt")
    return found


def close(a, b):
    assert set(a) == set(b)
    for name in a:
        assert np.allclose(a[name], b[name], rtol=1e-6)


def test_means_of_squares(made, activations):
    close(made, {name: (x**2).mean(axis=0)[None] for name, x in activations.items()})
    assert made.chunks == max(map(len, activations.values())) // 16


@pytest.mark.parametrize("kind", ["gguf", "dat"])
def test_files_of_both_kinds(made, tmp_path, kind):
    path = made.save(tmp_path / f"i.{kind}")
    read = read_imatrix(path)
    close(read, made)
    assert (read.chunks, read.datasets) == (made.chunks, ("text.txt",))
    again = collected(path, chunk_size=16)
    close(again, made)
    other = again.save(tmp_path / f"j.{'dat' if kind == 'gguf' else 'gguf'}")
    close(read_imatrix(other), made)
    assert (again.chunks - made.chunks) * (kind == "gguf") == 0


def test_the_keys_of_a_file(made, tmp_path):
    with gq.open(made.save(tmp_path / "i.gguf")) as file:
        assert dict(file.metadata) == {
            "general.type": "imatrix", "imatrix.datasets": ["text.txt"], "imatrix.chunk_count": made.chunks,
            "imatrix.chunk_size": 16,
        }  # fmt: skip
        assert file.metadata.type("imatrix.chunk_size") == "uint32"
        names = list(file)
        assert names == sorted(
            names[::2] + names[1::2], key=lambda n: (n.rpartition(".")[0], n.endswith("counts"))
        )
        assert file["blk.0.attn_q.weight.counts"].shape == (1, 1)


def test_experts(fresh, tmp_path):
    ids = fresh.integers(0, 3, (40, 2))  # of 4: one is never reached
    x = fresh.standard_normal((40, 2, 8))
    found = Collector(chunk_size=8)
    found.add("blk.0.ffn_down_exps.weight", x[:25], ids[:25], experts=4)
    found.add("blk.0.ffn_down_exps.weight", x[25:], ids[25:], experts=4)
    found.add("blk.0.ffn_up_exps.weight", x[:, 0], ids, experts=4)
    for name, values in (("down", x), ("up", np.repeat(x[:, :1], 2, axis=1))):
        row = found[f"blk.0.ffn_{name}_exps.weight"]
        for expert in range(3):
            mine = values[ids == expert]
            assert np.allclose(row[expert], (mine**2).mean(axis=0)) if len(mine) else (row[expert] == 1).all()
        assert (row[3] == 1).all()
    assert found.unseen["blk.0.ffn_up_exps.weight"][-1] == 3
    merged = collected(found.save(tmp_path / "a.gguf"))
    merged.merge(collected(found.save(tmp_path / "b.dat"), merged.chunk_size))  # one count for all experts
    assert merged.entries["blk.0.ffn_up_exps.weight"].counts.shape == (4,)


def test_a_merger_weighs_by_tokens(made, activations, tmp_path, capsys):
    one, two = Collector(16), Collector(16)
    for name, x in activations.items():
        one.add(name, x[: len(x) // 3])
        two.add(name, x[len(x) // 3 :])
    paths = [one.save(tmp_path / "a.gguf"), two.save(tmp_path / "b.gguf")]
    made_of = ["imatrix", *paths, "--output", str(tmp_path / "c.gguf"), "--force"]
    for more in ([], ["--show-statistics"]):
        assert main([*made_of, *more]) == 0
        out = capsys.readouterr().out
        assert out.splitlines()[-1] == f"wrote {tmp_path / 'c.gguf'}"
        assert ("entropy" in out) == bool(more)
    close(read_imatrix(tmp_path / "c.gguf"), made)


def test_statistics(made, tmp_path, capsys):
    path = made.save(tmp_path / "i.gguf")
    assert main(["imatrix", path, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["chunks"], found["chunk_size"], found["datasets"]) == (made.chunks, 16, ["text.txt"])
    for i, fact in enumerate(found["tensors"]):
        means = made[f"blk.{i}.attn_q.weight"].astype(np.float64)
        assert fact["sum"] == pytest.approx(means.sum(), rel=1e-6)
        assert (fact["columns"], fact["active"]) == (24, 1.0)
        assert fact["max"] == pytest.approx(means.max(), rel=1e-6)
        assert fact["zd"] == pytest.approx((means > means.mean() + means.std()).mean())
        shares = means / means.sum()
        assert fact["entropy"] == pytest.approx(-(shares * np.log2(shares)).sum(), rel=1e-5)
        assert (fact["cosine"] is None) == (i == 0)
    assert main(["imatrix", path, path]) == 0
    out = capsys.readouterr().out
    assert "3 tensors, " in out
    assert out.count("computed on text.txt") == 2


@pytest.mark.parametrize(
    ("x", "ids", "experts"),
    [
        ([[np.nan]], None, None),
        (1.0, None, None),
        ([[1.0]], [[0]], None),
        ([[1.0]], [[2]], 2),
        ([[1.0]], [[-1]], 2),
        ([[1.0]], [[0.5]], 2),
        ([[1.0], [2.0]], [[0]], 2),
    ],
)
def test_activations_that_are_none(x, ids, experts):
    with pytest.raises(gq.GGUFError, match="activations of 'a'"):
        Collector().add("a", x, ids, experts)


def test_what_does_not_go_together(made, tmp_path, capsys):
    path = made.save(tmp_path / "i.gguf")
    other = Collector()
    other.add("blk.0.attn_q.weight", np.ones((2, 8)))
    wrong = other.save(tmp_path / "o.gguf")
    before = (tmp_path / "i.gguf").read_bytes()
    for arguments, says in (
        ([path, wrong], "different models"),
        ([path, "--output", path], "--force"),
        (["--model", wrong, "--text", path, "--output", path, "--force"], "is read here"),
        (["--model", wrong, "--text", wrong, "--output", wrong, "--force"], "is read here"),
        ([tmp_path / "no.dat"], "no such file"),
        ([path, "--output", tmp_path / "no" / "x.dat"], "refused"),
    ):
        assert main(["imatrix", *map(str, arguments)]) == 2
        assert says in capsys.readouterr().err
    assert (tmp_path / "i.gguf").read_bytes() == before
    with pytest.raises(gq.GGUFError, match="nothing was collected"):
        Collector().save(tmp_path / "x.gguf")
    made.save(tmp_path / "d.dat")
    (tmp_path / "cut.dat").write_bytes((tmp_path / "d.dat").read_bytes()[:-30])
    assert main(["imatrix", str(tmp_path / "cut.dat")]) == 2
