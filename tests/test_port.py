"""The doctor of ports on modules without torch: right ones are silent, planted mistakes have their names."""

from __future__ import annotations

import dataclasses
import json

import fake_port
import numpy as np
import pytest
from families import Sizes, family_model

import ggmlq as gq
from ggmlq import cli
from ggmlq.port import compare
from ggmlq.port.orders import halves

DENSE = ("llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3")
SIZES = Sizes(width=64, head=32, hidden=96, window=12)


@pytest.fixture
def written(fresh, tmp_path):
    """``written(family, change)``: the file of a port, and one of the same model with a mistake."""

    def make(family, change=None, kind="f32"):
        seed, right = int(fresh.integers(1 << 30)), tmp_path / "right.gguf"
        family_model(right, family, seed, types=("f32",), sizes=SIZES)
        with gq.open(right) as file:
            tensors = {name: np.array(file[name], np.float32) for name in file}
            metadata = dict(file.metadata)
        if change is not None:
            change(tensors, metadata)
        blocks = {name: gq.quantize(x, kind) if x.ndim > 1 else x for name, x in tensors.items()}
        gq.save(tmp_path / "other.gguf", blocks, metadata)
        return right, tmp_path / "other.gguf"

    return make


def tensor(end, change):
    """A mistake in all tensors whose names end so."""

    def plant(tensors, _):
        for name in [name for name in tensors if name.endswith(end)]:
            tensors[name] = np.ascontiguousarray(change(tensors[name]), np.float32)

    return plant


def exchanged(a, b):
    """A mistake: tensors under each other's names."""

    def plant(tensors, _):
        for name in [name for name in tensors if a in name]:
            other = name.replace(a, b)
            tensors[name], tensors[other] = tensors[other], tensors[name]

    return plant


def says(key, value):
    """A mistake in the metadata."""
    return lambda _, metadata: metadata.__setitem__(f"{metadata['general.architecture']}.{key}", value)


PLANTED = [
    ("norm-plus-one", "gemma3", tensor("norm.weight", lambda w: w - 1)),
    ("rope-order", "llama", tensor("attn_q.weight", lambda w: w[halves(128, 4)])),
    ("rope-base", "qwen3", says("rope.freq_base", 1e4)),
    ("rope-scaling", "llama", says("rope.scaling.factor", 4.0)),
    ("rope-dims", "llama", says("rope.dimension_count", 16)),
    ("epsilon", "llama", says("attention.layer_norm_rms_epsilon", 1e-6)),
    ("bias-missing", "qwen2", lambda tensors, _: [tensors.pop(f"blk.{i}.attn_k.bias") for i in (0, 1)]),
    ("bias-shifted", "qwen2", tensor("attn_v.bias", lambda b: np.roll(b, 1))),
    ("swapped", "llama", exchanged("ffn_gate", "ffn_up")),
    ("swapped", "phi3", tensor("ffn_up.weight", lambda w: np.roll(w, len(w) // 2, 0))),
    ("layer-swapped", "qwen3", exchanged("blk.0.", "blk.1.")),
    ("transposed", "llama", tensor("ffn_down.weight", lambda w: w.T.reshape(w.shape))),
    ("tied-output", "llama", lambda tensors, _: tensors.pop("output.weight")),
    ("soft-cap", "gemma2", says("final_logit_softcapping", 30.0)),
    ("window", "gemma3", says("attention.sliding_window_pattern", 1)),
    ("scale", "llama", tensor("attn_output.weight", lambda w: w / 2)),
    ("rows", "qwen3", tensor("attn_v.weight", lambda w: np.roll(w, 3, 0))),
]


@pytest.mark.parametrize("family", DENSE)
@pytest.mark.parametrize("kind", ["f32", "q4_0"])
def test_right_ports_are_silent(written, family, kind):
    """And the cost of quantization is no mistake."""
    port, other = written(family, kind=kind)
    comparison = compare(fake_port.Port(port), other)
    assert comparison.ok, str(comparison)
    assert not comparison.notes
    assert {place.type for place in comparison.places} == ({""} if kind == "f32" else {"", kind})
    assert f"{len(comparison.places)} of {len(comparison.places)} places agree" in str(comparison)
    nodes = [place.node for place in comparison.places]
    assert {"embd", "kqv_out-0", "kqv_out-1", "blk.0.attn_output", "output_norm", "result_output"} <= {*nodes}
    assert nodes.index("blk.0.attn_norm") < nodes.index("kqv_out-0") < nodes.index("blk.1.attn_norm")


@pytest.mark.parametrize(
    ("mistake", "family", "plant"), PLANTED, ids=lambda one: one if isinstance(one, str) else ""
)
def test_planted_mistakes_have_their_names(written, mistake, family, plant):
    port, other = written(family, plant)
    comparison = compare(fake_port.Port(port), other)
    assert {place.mistake for place in comparison.mistakes} == {mistake}, str(comparison)
    first = comparison.first
    assert f"they part first at {first.node} ({first.path}): {mistake}" in str(comparison)


@pytest.mark.parametrize(
    ("mistake", "changes"),
    [
        ("attention-scale", {"scale": 0.25}), ("soft-cap", {"score_cap": 20.0}),
        ("window", {"windows": (6, 6)}), ("rope-type", {"neox": False}), ("rope-missing", {"scale": 0.0}),
    ],
)  # fmt: skip
def test_a_module_with_other_settings(written, mistake, changes):
    port, other = written("qwen3")
    rope = compare_rope(port)
    if mistake.startswith("rope"):
        changes = {"rope": dataclasses.replace(rope, **changes)}
    comparison = compare(fake_port.Port(port, **changes), other)
    assert {place.mistake for place in comparison.mistakes} == {mistake}, str(comparison)


def compare_rope(path):
    """The settings of RoPE of a file."""
    return gq.model.load(path).config.rope


def test_metadata_that_do_not_fit(written):
    port, other = written("llama", says("attention.head_count_kv", 4))
    comparison = compare(fake_port.Port(port), other)
    assert comparison.first.mistake == "metadata"
    assert "attn_k.weight has shape" in comparison.first.text
    assert "the metadata do not fit the tensors" in str(comparison)


def test_what_is_not_reached_is_said(written):
    port, other = written("gemma3", says("attention.sliding_window", 200))
    said = compare(fake_port.Port(port, windows=(200, 0)), other)
    assert said.notes == ["windows of 200 positions, with 32 tokens: take more"]


def test_modules_that_cannot_be_compared(written):
    port, other = written("llama")
    module = fake_port.Port(port)
    with pytest.raises(gq.GGMLQError, match="take 2 or more"):
        compare(module, other, 1)
    with pytest.raises(gq.GGMLQError, match="from 0 to 999; the embedding has rows"):
        compare(module, other, [0, 999])
    del module.parts["model.embed_tokens"]
    with pytest.raises(gq.GGMLQError, match=r"no embed_tokens among .* pass names"):
        compare(module, other)
    module.parts = {"words": fake_port.Part()}
    with pytest.raises(gq.GGMLQError, match="none of 1 parts was called"):
        compare(module, other, names={"token_embd": "words"})


@pytest.fixture
def command(monkeypatch, tmp_path, capsys, written):
    """``command(change, *arguments)``: the status, stdout and stderr of `ggmlq compare` with our port."""

    def run(change, *arguments):
        port, other = written("llama", change)
        text = f"import fake_port\ndef load():\n    return fake_port.Port({str(port)!r})\n"
        (tmp_path / "my_port.py").write_text(text + "def missing():\n    import torch_of_nobody\n")
        monkeypatch.syspath_prepend(tmp_path)
        status = cli.main(["compare", str(other), *(arguments or ("--torch", "my_port:load"))])
        return status, *capsys.readouterr()

    return run


def test_the_command(command, monkeypatch):
    status, out, _ = command(None)
    assert (status, "places agree" in out) == (0, True)
    status, out, _ = command(
        says("rope.freq_base", 77.0), "--torch", "my_port:load", "--json", "--tokens", "9"
    )
    facts = json.loads(out)
    assert (status, facts["ok"], facts["first"]) == (1, False, "kqv_out-0")
    assert facts["mistakes"] == ["rope-base"]
    assert "RoPE's base is 77 in the file, 10000 in the module" in out
    for where, says_so in (
        ("my_port", "it is transformers:ID_OR_FOLDER or PYTHON_MODULE:FUNCTION"),
        ("my_port:missing", "could not be loaded: ModuleNotFoundError"), ("my_port:none", "AttributeError"),
    ):  # fmt: skip
        status, _, err = command(None, "--torch", where)
        assert status == 2
        assert says_so in err
    monkeypatch.setattr("ggmlq.commands.compare.has", lambda name: name != "torch")
    status, _, err = command(None, "--torch", "transformers:folder")
    assert status == 2
    assert "torch not installed; pip install" in err


def test_heads_of_another_number(written, tmp_path):
    """Products of another width are said, and the rest goes on with ours."""
    _, other = written("qwen3")
    sizes = dataclasses.replace(SIZES, kv_heads=4)
    port = family_model(tmp_path / "wide.gguf", "qwen3", 1, types=("f32",), sizes=sizes)
    comparison = compare(fake_port.Port(port), other)
    wide = {place.node: place.text for place in comparison.mistakes if place.mistake == "shape"}
    assert wide["blk.0.attn_k"] == "the file has (64, 64), the module (128, 64)"
    assert {"blk.1.attn_v", "blk.0.attn_k"} <= {*wide}


def test_a_module_that_gives_nan_or_raises(written, tmp_path):
    port, other = written("llama")
    with gq.open(port) as file:
        tensors = {name: np.array(file[name], np.float32) for name in file}
        tensors["blk.1.ffn_up.weight"][3, 4] = np.nan
        gq.save(tmp_path / "nan.gguf", tensors, dict(file.metadata))
    first = compare(fake_port.Port(tmp_path / "nan.gguf"), other).first
    assert (first.node, first.text) == ("blk.1.ffn_up", "the module gives NaN or infinity")
    module = fake_port.Port(port)
    module.file = None
    with pytest.raises(gq.GGMLQError, match=r"the module raised TypeError .* takes a tensor \[1, T\]"):
        compare(module, other)
