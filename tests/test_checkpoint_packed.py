"""Tensors under Hugging Face's names with their blocks: the values that the way to safetensors writes."""

from __future__ import annotations

import numpy as np
import pytest

import ggmlq as gq
from ggmlq import errors

WIDTH, FEED, HEADS, KV, E = 64, 96, 4, 2, 3


def saved(path, fresh, arch, kind):
    """A GGUF file of one layer with the tensors that a family has."""

    def matrix(*shape):
        return gq.quantize(fresh.standard_normal(shape, np.float32), kind)

    def norm():
        return fresh.standard_normal(WIDTH).astype(np.float32)

    head = WIDTH // HEADS
    tensors = {"token_embd.weight": matrix(40, WIDTH), "output_norm.weight": norm()}
    tensors |= {f"blk.0.{name}.weight": norm() for name in ("attn_norm", "ffn_norm")}
    if arch == "gemma2":
        tensors |= {f"blk.0.{name}.weight": norm() for name in ("post_attention_norm", "post_ffw_norm")}
    shapes = {"attn_q": (WIDTH, WIDTH), "attn_k": (KV * head, WIDTH), "attn_v": (KV * head, WIDTH)}
    shapes |= {"attn_output": (WIDTH, WIDTH)}
    if arch == "qwen3moe":
        shapes |= {
            "ffn_gate_exps": (E, FEED, WIDTH),
            "ffn_up_exps": (E, FEED, WIDTH),
            "ffn_down_exps": (E, WIDTH, FEED),
        }
    else:
        shapes |= {"ffn_gate": (FEED, WIDTH), "ffn_up": (FEED, WIDTH), "ffn_down": (WIDTH, FEED)}
    tensors |= {f"blk.0.{name}.weight": matrix(*shape) for name, shape in shapes.items()}
    if arch == "llama":
        tensors["rope_freqs.weight"] = np.ones(head // 2, np.float32)
        tensors |= {
            f"blk.0.attn_{name}.bias": fresh.standard_normal(
                len(tensors[f"blk.0.attn_{name}.weight"])
            ).astype(np.float32)
            for name in "qk"
        }
    facts = {f"{arch}.attention.head_count": HEADS, f"{arch}.attention.head_count_kv": KV}
    facts |= {f"{arch}.expert_count": E} if arch == "qwen3moe" else {}
    gq.save(path, tensors, {"general.architecture": arch, **facts})
    return tensors


@pytest.mark.parametrize("kind", ["q8_0", "f16"])
@pytest.mark.parametrize("arch", ["llama", "gemma2", "qwen3moe"])
def test_the_values_of_the_way_back(arch, kind, fresh, tmp_path):
    path = tmp_path / "m.gguf"
    saved(path, fresh, arch, kind)
    gq.checkpoint.to_safetensors(path, tmp_path / "folder")
    theirs = gq.open(tmp_path / "folder")
    places = list(gq.checkpoint.packed(gq.open(path)))
    assert {name for _, name, _ in places} == {*theirs}
    for _, name, array in places:
        assert np.array_equal(np.asarray(array, np.float32), np.asarray(theirs[name], np.float32)), name
        if name.endswith("proj.weight"):
            assert array.format.name == kind


def test_companions_are_in_the_arrays(fresh, tmp_path):
    """Scales of nvfp4 come with their array; neither way back has a tensor of them."""
    path = tmp_path / "m.gguf"
    tensors = saved(path, fresh, "llama", "f32")
    up = gq.quantize(fresh.standard_normal((FEED, WIDTH), np.float32), "nvfp4")
    tensors["blk.0.ffn_up.weight"] = gq.QuantArray.from_bytes(up.raw, "nvfp4", up.shape, scale=0.125)
    tensors["blk.0.ffn_up.input_scale"] = np.float32([7])
    gq.save(path, tensors, gq.open(path).metadata)
    arrays = {name: array for _, name, array in gq.checkpoint.packed(gq.open(path))}
    assert arrays["model.layers.0.mlp.up_proj.weight"].scale == 0.125
    gq.checkpoint.to_safetensors(path, tmp_path / "folder")
    theirs = gq.open(tmp_path / "folder")
    assert {*theirs} == {*arrays}
    want = up.dequantize() * np.float32(0.125)
    assert np.array_equal(np.asarray(theirs["model.layers.0.mlp.up_proj.weight"]), want)
    gq.save(
        tmp_path / "flat.safetensors",
        {"w": gq.QuantArray.from_bytes(np.ones((2, 3), np.float32), "f32", (2, 3), scale=2)},
    )
    assert np.array_equal(np.asarray(gq.open(tmp_path / "flat.safetensors")["w"]), np.full((2, 3), 2))


def test_unknown_names(fresh, tmp_path):
    gq.save(tmp_path / "m.gguf", {"w": np.ones((2, 2), np.float32)}, {"general.architecture": "flux"})
    with pytest.raises(errors.ConvertError, match="'flux' has no names here"):
        list(gq.checkpoint.packed(gq.open(tmp_path / "m.gguf")))
    saved(tmp_path / "m.gguf", fresh, "llama", "q8_0")
    f = gq.open(tmp_path / "m.gguf")
    gq.save(tmp_path / "n.gguf", {**f, "blk.0.odd.weight": np.ones((2, 2), np.float32)}, f.metadata)
    with pytest.raises(errors.ConvertError, match=r"'blk\.0\.odd\.weight' is unknown"):
        list(gq.checkpoint.packed(gq.open(tmp_path / "n.gguf")))
    wrong = f.metadata | {"llama.attention.head_count": 7}
    gq.save(tmp_path / "n.gguf", dict(f), wrong)
    with pytest.raises(errors.ConvertError, match="of another model"):
        list(gq.checkpoint.packed(gq.open(tmp_path / "n.gguf")))
