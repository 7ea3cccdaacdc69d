"""Checkpoints of this year's families: what transformers says of them, the converted file says."""

from __future__ import annotations

import json
from pathlib import Path

import checkpoints_newer as cases
import numpy as np
import pytest

import ggmlq as gq
from ggmlq.checkpoint import to_gguf
from ggmlq.errors import ConvertError

SAID = json.loads((Path(__file__).parent / "golden" / "newer.json").read_text())
SUMS = 1e-6  # transformers' are of float32, over states that grow; its delta rule has another epsilon


@pytest.fixture
def converted(tmp_path):
    """``converted(case)``: the path of the file that a case becomes; ``config`` and ``change`` before."""

    def convert(case, kind="f32", change=None, **config):
        said = {key: v for key, v in (SAID[case]["config"] | config).items() if v != "absent"}
        folder = cases.write(tmp_path / case, said, SAID[case]["shapes"], change)
        to_gguf(folder, tmp_path / f"{case}.gguf", kind)
        return tmp_path / f"{case}.gguf"

    return convert


@pytest.mark.parametrize("case", SAID)
def test_logits_are_those_of_transformers(converted, case):
    """Loading holds each tensor's name and shape against the metadata."""
    m = gq.model.load(converted(case), arithmetic="exact", cache="f32")
    assert gq.nmse(m.logits(cases.TOKENS)[cases.SOME], np.array(SAID[case]["logits"])) < SUMS


@pytest.mark.parametrize("case", ["granitehybrid", "lfm2moe", "qwen35moe", "gemma4", "nemotron_h_moe"])
def test_types_that_llama_cpp_reads(converted, case):
    with gq.open(converted(case, "q8_0")) as file:
        kinds = {name: file.info(name).format.name for name in file}
    fixed = (
        "conv1d.weight",
        "conv.conv.weight",
        "gate_inp.weight",
        "norm.weight",
        ".scale",
        "ssm_a",
        "ssm_d",
    )
    assert {kind for name, kind in kinds.items() if name.endswith(fixed)} == {"f32"}
    assert "q8_0" in kinds.values()


@pytest.mark.parametrize(
    ("case", "lost", "words"),
    [
        ("granitehybrid", "layers.0.mamba.in_proj.weight", r"missing, blk\.0\.attn_q"),
        ("granitehybrid", "layers.2.mamba.out_proj.weight", r"missing, blk\.2\.ssm_out"),
        ("granitehybrid", "layers.1.self_attn.o_proj.weight", r"missing, blk\.1\.attn_output"),
        ("lfm2", "embedding_norm.weight", "missing, token_embd_norm"),
        ("lfm2moe", "layers.2.feed_forward.experts.5.w3.weight", r"5 of 6 experts"),
        ("qwen35", "layers.0.linear_attn.in_proj_z.weight", r"missing, blk\.0\.attn_gate"),
        ("qwen35", "layers.3.mlp.up_proj.weight", r"missing, blk\.3\.ffn_up"),
        ("nemotron_h", "layers.3.norm.weight", r"missing, blk\.3\.attn_norm"),
        ("nemotron_h", "layers.3.mixer.down_proj.weight", r"missing, blk\.3\.attn_q"),
    ],
)
def test_tensors_that_are_missing(converted, case, lost, words):
    def change(tensors):
        tensors.pop(next(name for name in tensors if name.endswith(lost)))

    with pytest.raises(ConvertError, match=words):
        converted(case, change=change)


@pytest.mark.parametrize(
    ("case", "config", "words"),
    [
        ("qwen35", {"linear_num_key_heads": 3}, "4 linear_num_value_heads for 3"),
        ("qwen3next", {"linear_key_head_dim": 32}, "one length of both"),
        ("gemma4", {"layer_types": ["full_attention"]}, "no kind for each layer"),
        ("lfm2", {"conv_L_cache": "absent"}, "lacks 'conv_L_cache'"),
        ("granite", {"num_attention_heads": 8}, "rows, which are no"),
    ],
)
def test_configurations_that_do_not_fit(converted, case, config, words):
    with pytest.raises(ConvertError, match=words):
        converted(case, **config)


def test_layers_that_guess_further_tokens_are_left_out(converted):
    def change(tensors):
        new = {
            name.replace("layers.2.", "layers.3."): one
            for name, one in tensors.items()
            if "layers.2." in name
        }
        tensors |= new | {"model.layers.3.eh_proj.weight": tensors["model.layers.0.self_attn.q_proj.weight"]}

    path = converted("glm4moe", change=change, num_nextn_predict_layers=1)
    assert gq.model.load(path).config.layers == 3
    with pytest.raises(ConvertError, match=r"layers\.3\..*unknown"):
        converted("glm4moe", change=change, num_nextn_predict_layers=0)


def test_a_tokenizer_of_characters(converted, tmp_path):
    """Gemma 4's: pairs of characters, bytes as a fallback."""
    letters = [
        "<pad>",
        "<eos>",
        "<bos>",
        "<unk>",
        *(f"<0x{i:02X}>" for i in range(256)),
        "▁",
        "a",
        "b",
        "▁a",
        "ab",
    ]
    converted("gemma4")
    folder = tmp_path / "gemma4"
    tokenizer = {
        "added_tokens": [{"id": i, "content": letters[i], "special": True} for i in range(4)],
        "model": {
            "type": "BPE", "byte_fallback": True, "vocab": {text: i for i, text in enumerate(letters)},
            "merges": [["▁", "a"], ["a", "b"]],
        },
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    to_gguf(folder, tmp_path / "t.gguf", "f32")
    t = gq.model.load(tmp_path / "t.gguf").tokenizer
    assert len(t) == 320
    assert t.encode("ab ac\n") == [2, 264, 263, 4 + ord("c"), 4 + ord("\n")]
    assert t.decode(t.encode("ab ac\n")) == "ab ac\n"
