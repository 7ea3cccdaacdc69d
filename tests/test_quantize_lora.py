"""ggmlq quantize --lora: adapters of PEFT and of llama.cpp become part of the weights."""

from __future__ import annotations

import json

import numpy as np
import pytest
from families import family_model

import ggmlq as gq
from ggmlq.cli import main

MODULES = ("self_attn.q_proj", "self_attn.k_proj", "down_proj")


def adapter(folder, fresh, file, rank=4, **more):
    """Write a folder of PEFT for a model; what it adds by names of the checkpoint."""
    tensors, added = {}, {}
    for _, name, q in gq.checkpoint.packed(file):
        if name.removesuffix(".weight").endswith(MODULES):
            a, b = (
                fresh.standard_normal(shape, np.float32) for shape in ((rank, q.shape[1]), (q.shape[0], rank))
            )
            stem = "base_model.model." + name.removesuffix(".weight")
            tensors[f"{stem}.lora_A.weight"], tensors[f"{stem}.lora_B.weight"] = a, b
            added[name] = b.astype(np.float64) @ a
    folder.mkdir(exist_ok=True)
    gq.safetensors.save(folder / "adapter_model.safetensors", tensors)
    says = {"peft_type": "LORA", "r": rank, "lora_alpha": 16} | more
    (folder / "adapter_config.json").write_text(json.dumps(says))
    return added, tensors


def values(path):
    return {name: np.asarray(q) for _, name, q in gq.checkpoint.packed(gq.open(path))}


@pytest.mark.drawn(1)
@pytest.mark.parametrize("family", ["llama", "qwen3moe"])
def test_a_folder_of_peft(family, fresh, tmp_path):
    path = family_model(tmp_path / "m.gguf", family, types=("f32",))
    pattern = {"layers.0.self_attn.k_proj": 2}
    added, _ = adapter(tmp_path / "a", fresh, gq.open(path), alpha_pattern=pattern, use_rslora=True)
    out = tmp_path / "o.gguf"
    assert main(["quantize", str(path), str(out), "--lora", str(tmp_path / "a")]) == 0
    before, after = values(path), values(out)
    assert added
    for name, x in before.items():
        factor = (2 if "layers.0.self_attn.k_proj" in name else 16) / 2
        np.testing.assert_allclose(after[name], x + factor * added.get(name, 0), rtol=1e-4, atol=1e-4)


def test_blocks_keep_their_types_and_the_error_is_told(fresh, tmp_path, capsys):
    path, out = family_model(tmp_path / "m.gguf", "llama", types=("q8_0",)), tmp_path / "o.gguf"
    _, tensors = adapter(tmp_path / "a", fresh, gq.open(path), lora_alpha=4)
    words = ["quantize", str(path), str(out), "--force", "--json", "--lora"]
    assert main([*words, str(tmp_path / "a")]) == 0
    facts = {fact["name"]: fact for fact in json.loads(capsys.readouterr().out)["tensors"]}
    old, new = gq.open(path), gq.open(out)
    assert dict(new.metadata) == dict(old.metadata) | {"general.quantization_version": 2}
    for name in old:
        assert new[name].format is old[name].format
        assert (
            (0 < facts[name]["nmse"] < 1e-3)
            if facts[name]["from"] == "f32" != facts[name]["to"]
            else (np.array_equal(new[name].raw, old[name].raw))
        )
    # llama.cpp's file of the same matrices: rows of q and k in the order of GGUF
    heads = {"attn_q": old.metadata["llama.attention.head_count"]}
    heads["attn_k"] = old.metadata["llama.attention.head_count_kv"]
    names = {new: name for name, new, _ in gq.checkpoint.packed(old)}
    other = {}
    for key, rows in tensors.items():
        stem, kind = key.removeprefix("base_model.model.").removesuffix(".weight").split(".lora_")
        name = names[stem + ".weight"]
        count = heads.get(name.split(".")[2])
        turned = kind == "B" and count
        pairs = rows.reshape(count, 2, -1, rows.shape[1]).swapaxes(1, 2) if turned else rows
        other[f"{name}.lora_{kind.lower()}"] = pairs.reshape(rows.shape)
    says = {"general.type": "adapter", "general.architecture": "llama", "adapter.type": "lora"}
    gq.save(tmp_path / "a.gguf", other, says | {"adapter.lora.alpha": 4.0})
    assert main([*words, str(tmp_path / "a.gguf")]) == 0
    again = gq.open(out)
    assert all(np.array_equal(again[name].raw, new[name].raw) for name in new)
    gq.save(tmp_path / "a.gguf", other, says | {"general.architecture": "gemma3"})
    capsys.readouterr()
    assert main([*words, str(tmp_path / "a.gguf")]) == 2
    assert "of the architecture" in capsys.readouterr().err


def test_adapters_that_are_refused(fresh, tmp_path, capsys):
    path, out, folder = family_model(tmp_path / "m.gguf", "llama"), tmp_path / "o.gguf", tmp_path / "a"
    _, tensors = adapter(folder, fresh, gq.open(path))
    first = min(tensors)

    def says(text, *more):
        assert main(["quantize", str(path), str(out), "--lora", str(folder), *more]) == 2
        assert text in capsys.readouterr().err
        assert not out.exists()

    says("--feedback", "--feedback", "text.txt")
    for change, text in (
        ({first: np.zeros((4, 7), np.float32)}, "(4, 7)"),
        ({first: np.zeros((), np.float32)}, "()"),
        ({first: np.full_like(tensors[first], np.nan)}, "NaN"),
        ({first + "x": tensors[first]}, "more than pairs"),
        ({"base_model.model.strange.lora_A.weight": tensors[first]}, "A alone"),
        ({key.replace("q_proj", "z_proj"): x for key, x in tensors.items() if "q_proj" in key}, "lacks"),
    ):
        gq.safetensors.save(folder / "adapter_model.safetensors", tensors | change)
        says(text)
    for config, text in (('{"peft_type": "LORA", "use_dora": true}', "use_dora"), ("[]", "no configuration"),
                         ('{"peft_type": "LORA", "alpha_pattern": {"(": 1}}', "no configuration"),
                         ('{"peft_type": "IA3"}', "IA3")):  # fmt: skip
        (folder / "adapter_config.json").write_text(config)
        says(text)
