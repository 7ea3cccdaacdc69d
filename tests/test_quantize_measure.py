"""``ggmlq quantize --measure``: sensitivities by KL, models with one tensor replaced, recipes by them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from families import family_model

import ggmlq as gq
from ggmlq.cli import main
from ggmlq.convert import Sensitivity
from ggmlq.model.quality import measured, stretches
from ggmlq.model.sensitivity import Change, changed, chosen, sensitivities
from ggmlq.testing.models import Shape, tiny_model

KINDS = dict.fromkeys(("q", "k", "v", "out", "gate", "up", "down", "embd", "head"), "f16")
TEXT = "How vexingly quick daft zebras jump; pack my box with five dozen liquor jugs. " * 4


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("m")
    (folder / "t.txt").write_text(TEXT)
    return tiny_model(folder / "m.gguf", KINDS, Shape(layers=3), seed=8)


def remade(path, target, name, q):
    """The model with one tensor of other values, as a file."""
    with gq.open(path) as file:
        gq.save(target, {one: q if one == name else file[one] for one in file}, file.metadata)
    return gq.model.load(target)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("family", ["llama", "qwen3moe", "gemma3", "phi3"])
def test_a_tensor_alone(family, fresh, tmp_path):
    """A pass from its layer on gives what the whole model with that tensor gives; others are as before."""
    path = family_model(tmp_path / "m.gguf", family, types=("f16",))
    m = gq.model.load(path)
    pieces = [fresh.integers(3, 250, 24).tolist() for _ in range(2)]
    before = m.logits(pieces[0])
    names = [name for name in m.file if m.file[name].ndim > 1]
    some = fresh.choice(names, 4, replace=False).tolist()
    changes = {name: Change(gq.formats["q4_0"], None) for name in some}
    for name, facts in sensitivities(m, pieces, changes, False):
        other = remade(path, tmp_path / "o.gguf", name, changed(m.file[name], changes[name]))
        want = measured(other, gq.model.load(path), pieces, False)
        assert facts["kl"] == pytest.approx(want["kl"], rel=0.05, abs=1e-7), name
    assert np.array_equal(m.logits(pieces[0]), before)


def test_values_of_experts_have_their_own_importance(fresh):
    x, rows = fresh.standard_normal((3, 8, 64), np.float32), fresh.gamma(1, 1, (3, 64)).astype(np.float32)
    q = changed(gq.quantize(x, "f32"), Change(gq.formats["q4_0"], rows))
    for one, row, expert in zip(x, rows, q, strict=True):
        assert np.array_equal(np.asarray(expert), np.asarray(gq.quantize(one, "q4_0", imatrix=row)))


def test_layers_that_are_measured():
    names = ["token_embd.weight", *(f"blk.{i}.ffn_up.weight" for i in range(30))]
    some = chosen(names, 4)
    assert some == ["token_embd.weight", *(f"blk.{i}.ffn_up.weight" for i in (0, 10, 19, 29))]
    assert chosen(names, 40) == names


def test_a_recipe_takes_what_is_sensitive(path):
    """Of tensors alike the one whose errors cost more gets the better type; those between lie between."""
    q4 = gq.formats["q4_0"]
    for costly in (0, 2):
        known = {f"blk.{i}.ffn_up.weight": Sensitivity(q4, 1.0 if i == costly else 1e-4) for i in (0, 2)}
        keep = [("^(?!blk.*ffn_up)", "q8_0")]
        made = gq.convert.recipe(path, 8.5, types=["q4_0", "q8_0"], keep=keep, sensitivities=known)
        bits = [made.types[f"blk.{i}.ffn_up.weight"].bits_per_weight for i in range(3)]
        assert bits[costly] == max(bits) > bits[2 - costly]
        assert any("KL predicted" in note for note in made.plan.notes)


@pytest.mark.slow
def test_the_command(path, tmp_path, capsys):
    text, out, kept = path.parent / "t.txt", tmp_path / "o.gguf", tmp_path / "s.json"
    words = ["quantize", str(path), str(out), "--target", "5.0", "--types", "q4_0,q5_0,q8_0", "--json"]
    more = ["--measure", str(text), "--stretch", "48", "--write-measure", str(kept)]
    assert main([*words, *more]) == 0
    facts = json.loads(capsys.readouterr().out)
    (note,) = [note for note in facts["notes"] if "on text held back" in note]
    m, small = gq.model.load(path), gq.model.load(out)
    pieces = stretches(m, TEXT, 48)
    want = measured(small, m, pieces[1:8:2], False)
    assert float(note.split()[1]) == pytest.approx(want["kl"], abs=2e-5)
    assert facts["bits_per_weight_after"] <= 5.0
    content = json.loads(kept.read_text())
    assert {one["type"] for one in content["tensors"].values()} == {"q3_K"}
    assert main([*words, "--measure", str(kept), "--force"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert [one["to"] for one in again["tensors"]] == [one["to"] for one in facts["tensors"]]
    for content, says in (
        ("[]", "no file of sensitivities"),
        ('{"tensors": {"a": {"type": "q4_0", "kl": 1}}}', "another model"),
        ('{"tensors": {"output.weight": {"type": "q9", "kl": 1}}}', "q9"),
        ('{"tensors": {"output.weight": {"type": "q4_0", "kl": 0}}}', "above 0"),
    ):
        kept.write_text(content)
        assert main([*words, "--measure", str(kept), "--force"]) == 2
        assert says in capsys.readouterr().err
    for wrong, says in (
        (["--type", "q4_0", "--measure", str(text)], "--target"),
        (["--target", "5", "--write-measure", str(kept)], "nothing is measured"),
        (["--target", "5", "--measure", str(tmp_path / "no.txt")], "no.txt"),
    ):
        assert main(["quantize", str(path), str(tmp_path / "p.gguf"), *wrong]) == 2
        assert says in capsys.readouterr().err
    assert sorted(one.name for one in tmp_path.iterdir()) == ["o.gguf", "s.json"]
