"""Checkpoints to GGUF and back, beyond the converter's figures: errors, 8 bits, fused experts, commands."""

from __future__ import annotations

import json
import re

import checkpoints
import numpy as np
import pytest
import vocabularies

import ggmlq as gq
from ggmlq import cli
from ggmlq.checkpoint import backtokens, general, pretokenizer, sentencepiece, to_gguf, to_safetensors
from ggmlq.model.tokenizer import pairs


@pytest.fixture
def folder(tmp_path):
    """A checkpoint of a case, and the path for its GGUF file."""

    def make(case, **changes):
        return checkpoints.write(tmp_path / case, case, **changes), tmp_path / f"{case}.gguf"

    return make


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def resaved(folder, change):
    """The tensors of a folder in one file, after a change to them."""
    with gq.open(folder) as f:
        tensors = {name: np.asarray(x) for name, x in f.items()}
    change(tensors)
    gq.save(folder / "model.safetensors", tensors)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "architecture is 'MambaForCausalLM'; known are"),
        ({"architectures": "absent", "model_type": "x"}, "architecture is 'x'"),
        ({"num_hidden_layers": 1}, r"layers\.1\..*unknown"),
        ({"num_hidden_layers": 3}, "missing, blk.2.attn_norm"),
        ({"num_hidden_layers": "absent"}, "lacks 'num_hidden_layers'"), ({"num_attention_heads": 0}, "is 0"),
        ({"num_attention_heads": 3}, "no 3 heads"), ({"hidden_size": -1}, "hidden_size"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps"),
        ({"rms_norm_eps": 1e400}, "no JSON|Infinity|is a number"),
        ({"rope_scaling": {"rope_type": "spiral"}}, "spiral"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "longrope"),
        ({"rope_scaling": checkpoints.SLOW | {"original_max_position_embeddings": -1e308}}, "within float32"),
        ({"rope_scaling": checkpoints.SLOW | {"original_max_position_embeddings": 0}}, "positive"),
        ({"rope_scaling": {"type": "yarn", "factor": 2}}, "original_max_position_embeddings"),
        ({"vocab_size": 10**9}, "vocab_size"), ({"num_hidden_layers": 10**6}, "num_hidden_layers"),
    ],
)  # fmt: skip
def test_configurations_that_are_not_known(folder, changes, says):
    source, target = folder("llama", **changes)
    with pytest.raises(gq.GGMLQError, match=says):
        to_gguf(source, target)
    assert not target.exists()


@pytest.mark.parametrize(
    ("case", "changes", "says"),
    [
        ("llama3", {"hidden_size": 66}, r"hidden_size is 66, and .*shape \(320, 64\)"),
        ("llama3", {"hidden_size": 10**9}, "hidden_size is 1000000000"),
        ("llama3", {"head_dim": 18}, "64 rows, which are no 4 heads of 18"),
        ("llama3", {"head_dim": 10**9}, "no 4 heads of 1000000000"),
        ("llama3", {"num_attention_heads": 8}, "64 rows|no 2 heads of 8"),
        ("qwen2", {"num_key_value_heads": 1}, "32 rows, which are no 1 heads of 16"),
        ("llama3", {"vocab_size": 321}, "vocab_size is 321, and .* has 320 rows"),
        ("llama3", {"vocab_size": 10**9}, "vocab_size is 1000000000"),
        ("gemma3", {"vocab_size": 321}, "has 320 rows"),
        ("qwen3moe", {"num_experts": 2**31 - 1}, r"4 of 2147483647 experts.* \[4, 5, 6\]"),
    ],
)
def test_numbers_that_are_not_of_the_tensors(folder, case, changes, says):
    """A few bytes of config.json cannot ask for memory that the tensors do not bear out."""
    source, target = folder(case, **changes)
    with pytest.raises(gq.GGMLQError, match=says):
        to_gguf(source, target)


def test_a_vocabulary_that_is_padded(folder):
    """Rows beyond the last token are tokens without a text, up to as many rows as there are."""
    source, target = folder("llama3")
    to_gguf(source, target)
    tokens = gq.open(target).metadata["tokenizer.ggml.tokens"]
    assert len(tokens) == checkpoints.VOCAB
    assert tokens[-1] == f"[PAD{checkpoints.VOCAB - 1}]"


def test_tokenizers_and_cards_larger_than_any(folder, monkeypatch):
    source, target = folder("llama3")
    path = source / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["model"]["merges"] *= 2
    path.write_text(json.dumps(tokenizer))
    with pytest.raises(gq.GGMLQError, match=r"14 merges.* at 9 places"):
        to_gguf(source, target)
    tokenizer["model"].pop("merges")
    path.write_text(json.dumps(tokenizer))
    (source / "merges.txt").write_text("#version: 0.2\n" + "h e\n" * 20)
    with pytest.raises(gq.GGMLQError, match="19 merges"):
        to_gguf(source, target)
    (source / "merges.txt").unlink()
    edit(source / "config.json", vocab_size=None)
    edit(path, added_tokens=[{"id": 10**9, "content": "far"}])
    with pytest.raises(gq.GGMLQError, match="1000000001 tokens"):
        to_gguf(source, target)
    monkeypatch.setattr(sentencepiece, "MOST_TOKENS", 290)
    source, target = folder("mistral")
    with pytest.raises(gq.GGMLQError, match="291 pieces and more"):
        to_gguf(source, target)


@pytest.mark.parametrize(
    ("tags", "says"),
    [("- a\n" * 70_000, "65536 entries"), ("a" * (1 << 22), "4194304 bytes"), ("[" * 5000 + "]" * 5000, "")],
)
def test_a_model_card_larger_than_any(folder, tags, says):
    source, _ = folder("llama3")
    (source / "README.md").write_text(f"---\ntags:{' ' * (tags[0] != '-') or chr(10)}{tags}\n---\n")
    if says:
        with pytest.raises(gq.GGMLQError, match=says):
            general.read_card(source)
    else:  # nested deeper than texts: left out
        assert general.read_card(source) == {}


def test_tensors_that_are_not_known(folder):
    source, target = folder("llama")
    resaved(source, lambda t: t.update({"model.layers.0.self_attn.gate.weight": np.ones((2, 2), "f4")}))
    with pytest.raises(gq.GGMLQError, match=r"self_attn.gate.weight.*is unknown in a LlamaForCausalLM"):
        to_gguf(source, target)
    resaved(source, lambda t: t.pop("model.layers.0.self_attn.gate.weight"))
    to_gguf(source, target)
    resaved(source, lambda t: t.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(gq.GGMLQError, match=r"1 tensors are missing, blk\.1\.ffn_up"):
        to_gguf(source, target)


def test_experts_that_are_missing(folder):
    source, target = folder("qwen3moe")
    resaved(source, lambda t: t.pop("model.layers.1.mlp.experts.2.up_proj.weight"))
    with pytest.raises(gq.GGMLQError, match=r"3 of 4 experts; the first that are missing are \[2\]"):
        to_gguf(source, target)


def test_a_tokenizer_that_is_missing(folder):
    source, target = folder("gemma2")
    (source / "tokenizer.model").unlink()
    with pytest.raises(gq.GGMLQError, match=r"no tokenizer\.model"):
        to_gguf(source, target)
    (source / "tokenizer.model").write_bytes(b"\x0a\xff\xff\xff")
    with pytest.raises(gq.GGMLQError, match="no model of sentencepiece"):
        to_gguf(source, target)


def test_a_pre_tokenizer_that_is_not_known(folder):
    source, target = folder("qwen2")
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    tokenizer["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = r"\p{L}+|."
    edit(source / "tokenizer.json", **tokenizer)
    with pytest.raises(gq.GGMLQError, match=r"pre-tokenizer.*unknown.*hash [0-9a-f]{64}.*--pre"):
        to_gguf(source, target)
    to_gguf(source, target, pre="qwen2")
    assert gq.open(target).metadata["tokenizer.ggml.pre"] == "qwen2"


@pytest.mark.parametrize("case", checkpoints.PRE)
def test_pre_tokenizers_by_their_rule(case):
    assert pretokenizer.by_rule(checkpoints.bpe(case)["tokenizer.json"]) == checkpoints.PRE[case]


def test_the_converters_text_in_tokens():
    """Of bytes alone it is its bytes; merges join the pairs that they name, in their order."""
    tokenizer = checkpoints.bpe("qwen2")["tokenizer.json"]
    vocab = tokenizer["model"]["vocab"]
    text = {number: token for token, number in vocab.items()}
    found = pretokenizer.encode(tokenizer, " the there 33 3e")
    assert [text[number] for number in found] == [
        "\u0120the", "\u0120the", "re", "\u0120", "3", "3", "\u0120", "3", "e",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "rule", [r"(a+)+$", r"(?:\s*)*x", r"[^x]*[^y]*[^z]*$", r"(a|b*)(a|b*)", r"a{1,}b*c*d", "\\p{L"]
)
def test_patterns_that_may_take_for_ever(rule):
    tokenizer = checkpoints.bpe("qwen2")["tokenizer.json"]
    tokenizer["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = rule
    with pytest.raises(gq.GGMLQError, match="unknown"):
        pretokenizer.name_of("folder", tokenizer)


def test_types(folder):
    source, target = folder("llama")
    for kind, names in (("q8_0", {"q8_0", "f32"}), ("q4_0", {"q4_0", "f32"}), ("f32", {"f32"})):
        to_gguf(source, target, kind)
        assert {q.format.name for q in gq.open(target).values()} == names
    for kind, says in (("iq2_xs", "importance"), ("i8", "converted to one of"), ("q9", "no such type")):
        with pytest.raises(gq.GGMLQError, match=says):
            to_gguf(source, target, kind)


def test_fp8_through_its_scales(folder):
    source, target = folder("qwen3fp8")
    to_gguf(source, target, "f32")
    name = "model.layers.0.mlp.down_proj.weight"
    codes, scales = (checkpoints.tensors("qwen3fp8")[name + end][1] for end in ("", "_scale_inv"))
    wide = np.repeat(np.repeat(scales, 32, 0), 32, 1)[: codes.shape[0], : codes.shape[1]]
    expected = gq.codes["e4m3"].decode(codes.astype(np.uint8)) * wide
    np.testing.assert_array_equal(np.asarray(gq.open(target)["blk.0.ffn_down.weight"]), expected)


def test_fp8_without_its_scales(folder, tmp_path):
    source, target = folder("qwen3fp8")
    made = checkpoints.tensors("qwen3fp8")
    del made["model.layers.1.mlp.up_proj.weight_scale_inv"]
    (source / "model.safetensors").write_bytes(checkpoints.safetensors(made))
    with pytest.raises(gq.GGMLQError, match=r"up_proj.weight.* without a scale"):
        to_gguf(source, target)


def test_experts_in_one_tensor_are_those_one_by_one(folder, tmp_path):
    source, target = folder("qwen3moe")
    to_gguf(source, target, "f32")

    def fuse(tensors):
        for n in range(checkpoints.LAYERS):
            layer = f"model.layers.{n}.mlp.experts."
            parts = {
                part: np.stack([tensors.pop(f"{layer}{e}.{part}_proj.weight") for e in range(checkpoints.E)])
                for part in ("gate", "up", "down")
            }
            tensors[layer + "gate_up_proj"] = np.concatenate([parts["gate"], parts["up"]], 1)
            tensors[layer + "down_proj"] = parts["down"]

    resaved(source, fuse)
    to_gguf(source, tmp_path / "fused.gguf", "f32")
    a, b = gq.open(target), gq.open(tmp_path / "fused.gguf")
    assert set(a) == set(b)
    for name in a:
        np.testing.assert_array_equal(a[name].raw, b[name].raw, err_msg=name)


@pytest.mark.parametrize("case", ["llama", "mixtral", "qwen2moe", "gemma2", "qwen3fp8"])
def test_there_and_back(folder, tmp_path, case):
    source, target = folder(case)
    to_gguf(source, target, "f32")
    done = to_safetensors(target, tmp_path / "back")
    assert done.architecture == checkpoints.CASES[case][0]
    a, b = gq.open(source), gq.open(tmp_path / "back")
    names = {name for name in a if not name.endswith("_scale_inv")}
    assert set(b) == names
    for name in names:
        np.testing.assert_allclose(np.asarray(b[name]), np.asarray(a[name]), rtol=0, atol=3e-7, err_msg=name)
    to_gguf(tmp_path / "back", tmp_path / "again.gguf", "f32")
    c, d = gq.open(target), gq.open(tmp_path / "again.gguf")
    for name in c:
        np.testing.assert_allclose(np.asarray(d[name]), np.asarray(c[name]), rtol=0, atol=3e-7, err_msg=name)
    assert keys(d) == keys(c)


def keys(file):
    """Types and values of the metadata but for the card's, which a checkpoint has in its README.md."""
    found = {key: file.metadata[key] for key in file.metadata if not key.startswith("general.")}
    return {
        key: (file.metadata.type(key), x if isinstance(x, str | int | float) else list(x))
        for key, x in found.items()
    }


TOKENS = "tokenizer.ggml.tokens"


@pytest.mark.parametrize("case", ["llama3", "mistral", "qwen2", "qwen3", "gemma", "gemma3"])
def test_tokenizers_there_and_back(folder, tmp_path, case):
    source, target = folder(case)
    (source / "generation_config.json").write_text('{"temperature": 0.6, "top_k": 20}')
    to_gguf(source, target, "bf16")
    done = to_safetensors(target, tmp_path / "back")
    assert not [note for note in done.notes if "token" in note]
    to_gguf(tmp_path / "back", tmp_path / "again.gguf", "bf16")
    a, b = gq.open(target), gq.open(tmp_path / "again.gguf")
    assert keys(b) == keys(a)
    assert [b.metadata[f"general.sampling.{key}"] for key in ("top_k", "temp")] == [20, np.float32(0.6)]
    text = f"<s>Hello the world{a.metadata[TOKENS][-1]} 333"
    tokens = [gq.model.Tokenizer(file.metadata).encode(text) for file in (a, b)]
    assert tokens[0] == tokens[1]


def test_what_the_files_of_a_tokenizer_cannot_say(folder, tmp_path):
    """Names of rules come back by the rule or by a hint; types and templates as far as there are words."""
    metadata = vocabularies.pairs_vocabulary("minerva-7b") | {
        "tokenizer.chat_template": "a", "tokenizer.chat_template.tool_use": "b",
        "tokenizer.ggml.normalizer.lowercase": True, "tokenizer.ggml.add_eos_token": True,
        "tokenizer.ggml.eom_token_id": 5,
    }  # fmt: skip
    metadata["tokenizer.ggml.token_type"] = [2, *metadata["tokenizer.ggml.token_type"][1:]]
    written = backtokens.tokenizer(metadata)
    assert re.search(r"^1 tokens, '.' first, .*as normal.*eom_token_id: in gen", " ".join(written.notes))
    assert written.files["generation_config.json"]["eos_token_id"][1:] == [5]
    source, target = folder("qwen3", vocab_size=len(metadata[TOKENS]))
    for name, content in written.files.items():
        (source / name).write_text(json.dumps(content))
    resaved(source, lambda tensors: tensors.update(  # as many rows of embeddings as tokens
        {"model.embed_tokens.weight": np.ones((len(metadata[TOKENS]), checkpoints.H), np.float32)}
    ))  # fmt: skip
    to_gguf(source, target)
    found = {key: value for key, (_, value) in keys(gq.open(target)).items() if key in metadata}
    assert metadata.keys() - found.keys() == {"tokenizer.ggml.eom_token_id"}
    assert found.pop("tokenizer.ggml.token_type")[1:] == metadata["tokenizer.ggml.token_type"][1:]
    assert found == {key: metadata[key] for key in found}
    for change in ({"tokenizer.ggml.pre": "poro-chat"}, {"tokenizer.ggml.model": "t5"}, {TOKENS: ["a", "a"]}):
        refused = backtokens.tokenizer(metadata | change)
        assert not refused.files
        assert re.search("^the tokenizer is not written: .*take its files", refused.notes[0])


def test_rules_with_several_names_are_the_same_rule():
    for rule, names in pretokenizer.LIKE.items():
        for name in names.split():
            assert pairs.RULES[name].steps == pairs.RULES[rule].steps
            assert pairs.RULES[name].begins == (name in pretokenizer.BEGINNING)
            assert pairs.RULES[name].whole_words == (name in pretokenizer.WHOLE)


@pytest.mark.parametrize("case", ["llama", "mixtral", "gemma2"])
@pytest.mark.parametrize("kind", ["f16", "bf16", "f32"])
def test_floats_keep_their_type_on_the_way_back(folder, tmp_path, case, kind):
    """Rows of q and k and matrices of experts are moved, not computed."""
    source, target = folder(case)
    to_gguf(source, target, kind)
    to_safetensors(target, tmp_path / "back")
    back = gq.open(tmp_path / "back")
    assert {back.info(name).dtype.lower() for name in back if "_proj" in name or "experts" in name} == {kind}
    again = tmp_path / "again.gguf"
    to_gguf(tmp_path / "back", again, kind)
    assert all(gq.equal(q, gq.open(again)[name]) for name, q in gq.open(target).items())


def test_blocks_back_to_floats(tmp_path, fresh):
    w = fresh.standard_normal((4, 64)).astype(np.float32)
    q = gq.quantize(w, "q4_0")
    gq.save(tmp_path / "m.gguf", {"some.weight": q, "n": w[0]}, {"general.architecture": "other"})
    for kind in ("f32", "bf16"):
        done = to_safetensors(tmp_path / "m.gguf", tmp_path / "m.safetensors", kind)
        assert "unknown" in done.notes[0]
        found = gq.open(tmp_path / "m.safetensors")["some.weight"]
        np.testing.assert_array_equal(np.asarray(found), np.asarray(gq.quantize(np.asarray(q), kind)))
    with pytest.raises(gq.GGMLQError, match="f32, f16, bf16"):
        to_safetensors(tmp_path / "m.gguf", tmp_path / "m.safetensors", "q4_0")


NAMES = {
    "Qwen/Qwen2.5-7B-Instruct-1M": ("Qwen", "Qwen2.5", "Instruct-1m", None, "7B"),
    "Mixtral-8x7B-Instruct-v0.1": (None, "Mixtral", "Instruct", "v0.1", "8x7B"),
    "bloom-7b1": (None, "bloom", None, None, "7.1B"),
    "my model": (None, None, None, None, None),
    "plain": (None, None, None, None, None),
}


@pytest.mark.parametrize(("name", "parts"), NAMES.items())
def test_names(name, parts):
    found = general.parts(name, 7_600_000_000 if "8x" not in name else 46_700_000_000)
    assert (found.organization, found.basename, found.finetune, found.version, found.size_label) == parts


def test_a_model_card(folder):
    source, target = folder("qwen3")
    (source / "README.md").write_text(
        "---\nlicense: apache-2.0\nbase_model:\n- Org/Base-1B\ntags:\n  - a\n  - b\nlanguage: [en, no]\n"
        "pipeline_tag: text-generation\n---\n# Words\n"
    )
    (source / "generation_config.json").write_text('{"temperature": 0.6, "top_k": 20, "do_sample": true}')
    to_gguf(source, target)
    found = gq.open(target).metadata
    assert found["general.license"] == "apache-2.0"
    assert (list(found["general.tags"]), list(found["general.languages"])) == (
        ["a", "b", "text-generation"],
        ["en", "no"],
    )
    assert found["general.base_model.0.repo_url"] == "https://huggingface.co/Org/Base-1B"
    assert (found["general.sampling.top_k"], found.type("general.sampling.temp")) == (20, "float32")


def test_the_command(folder, tmp_path, capsys):
    source, target = folder("llama3")
    assert cli.main(["convert", str(source), str(target), "--dry-run"]) == 0
    assert not target.exists()
    assert cli.main(["convert", str(source), str(target), "--type", "q8_0", "--json"]) == 0
    printed = capsys.readouterr().out
    assert json.loads(printed[printed.index("\n{") :])["architecture"] == "llama"
    assert gq.open(target)["blk.0.attn_q.weight"].format.name == "q8_0"
    assert cli.main(["convert", str(target), str(tmp_path / "back"), "--type", "bf16"]) == 0
    assert "model.layers.1.mlp.up_proj.weight" in gq.open(tmp_path / "back")
    assert cli.main(["convert", str(target), str(target)]) == 2
    capsys.readouterr()
    assert cli.main(["convert", str(target), str(tmp_path / "o.gguf")]) == 2
    assert not (tmp_path / "o.gguf").exists()
    assert re.search("both are GGUF.*`ggmlq quantize`.*`ggmlq copy`", capsys.readouterr().err, re.DOTALL)
    assert cli.main(["convert", str(tmp_path / "none"), str(target)]) == 2


@pytest.mark.parametrize("type", ["q4_K_M", "Q2_K_S"])
def test_a_mix_is_one_step_from_a_checkpoint(folder, tmp_path, capsys, type):
    source, target = folder("llama3")
    one, two = tmp_path / "one.gguf", tmp_path / "two.gguf"
    assert cli.main(["convert", str(source), str(one), "--type", type, "--dry-run", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert not one.exists()
    assert cli.main(["convert", str(source), str(one), "--type", type]) == 0
    to_gguf(source, target)
    gq.convert.quantize(target, two, type)
    assert one.read_bytes() == two.read_bytes()
    assert {t["name"]: t["type"] for t in planned["tensors"]} == {
        name: q.format.name for name, q in gq.open(one).items()
    }
    assert planned["metadata"]["general.file_type"] == gq.open(one).metadata["general.file_type"]
    assert sorted(path.suffix for path in tmp_path.iterdir() if path != source) == [".gguf"] * 3


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["convert", "SOURCE", "o.gguf", "--type", "q4_K_N"], "did you mean q4_K_S, q4_K_M, q4_K"),
        (["convert", "SOURCE", "none/o.gguf", "--type", "q4_K_M"], "name a file in a folder that may be"),
        (["quantize", "SOURCE", "o.gguf", "--type", "q4_K_M"], "OUT.gguf --type q4_K_M`, which does both"),
    ],
)
def test_a_slip_on_the_way_to_a_mix_names_the_way(folder, tmp_path, capsys, monkeypatch, args, words):
    source, _ = folder("llama3")
    monkeypatch.chdir(tmp_path)
    assert cli.main([str(source) if word == "SOURCE" else word for word in args]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "o.gguf").exists()


def test_a_mix_that_needs_importance_names_the_two_steps():
    from ggmlq.checkpoint.togguf import Planned, planned
    from ggmlq.gguf.header import TensorInfo

    metadata = {"general.architecture": "llama", "llama.block_count": 1}
    info = TensorInfo("blk.0.ffn_up.weight", gq.formats.bf16, (256, 256), 0, 0, 0)
    with pytest.raises(gq.GGMLQError, match=r"1 tensor .* would become iq2_s.* which takes --imatrix"):
        planned(Planned("hf", metadata, [info]), "iq2_m")


def test_commands_on_safetensors(folder, capsys):
    source, _ = folder("qwen3fp8")
    assert cli.main(["info", str(source), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["architecture"], facts["quantization"]["block"]) == ("Qwen3ForCausalLM", [32, 32])
    assert cli.main(["info", str(source)]) == 0
    assert cli.main(["show", str(source), "model.layers.0.mlp.up_proj.weight"]) == 0
    assert cli.main(["validate", str(source)]) == 0
    assert "0 errors" in capsys.readouterr().out


def test_a_partial_checkpoint(folder):
    source, target = folder("mixtral")
    next(source.glob("*-00002-*")).unlink()
    with pytest.raises(gq.GGMLQError, match="the download is incomplete"):
        to_gguf(source, target)


@pytest.mark.parametrize("case", ["gemma2", "gemma3"])
def test_scores_of_gemma_with_a_scale_of_their_own(folder, case):
    """llama.cpp takes the scale from sizes, so queries carry the rest; the way back says it."""
    source, target = folder(case, query_pre_attn_scalar=20)
    to_gguf(source, target)
    plain = target.with_name("plain.gguf")
    edit(source / "config.json", query_pre_attn_scalar=32)  # which is the width of a head
    to_gguf(source, plain)
    carrier = {"gemma2": "attn_q.weight", "gemma3": "attn_q_norm.weight"}[case]
    with gq.open(target) as folded, gq.open(plain) as right:
        for name in right:
            factor = (32 / 20) ** 0.5 if name.endswith(carrier) else 1
            want = np.asarray(right[name], np.float64) * factor
            assert np.allclose(np.asarray(folded[name]), want, rtol=2**-7, atol=0), name
    result = to_safetensors(target, target.with_name("back"))
    assert result is not None
    back = json.loads((target.with_name("back") / "config.json").read_text())
    assert back["query_pre_attn_scalar"] == 32
    edit(source / "config.json", query_pre_attn_scalar=-1)
    with pytest.raises(gq.GGMLQError, match=r"'query_pre_attn_scalar' is -1; .* above 0"):
        to_gguf(source, target)
