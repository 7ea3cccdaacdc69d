"""Models of transformers from a GGUF file alone: packed, and with the logits of gq.model."""

from __future__ import annotations

import re
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from vocabularies import pairs_vocabulary

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: tools/test --hosts")

from families import family_model  # noqa: E402

import ggmlq as gq  # noqa: E402
import ggmlq.torch as gt  # noqa: E402
from ggmlq import errors  # noqa: E402
from ggmlq.testing.models import Shape, tiny_model  # noqa: E402
from ggmlq.torch.hosts.pretrained import known  # noqa: E402

pytestmark = [pytest.mark.hosts, pytest.mark.filterwarnings("ignore")]  # warnings of others
FAMILIES = (
    "llama", "llama3", "mistral", "mistral3", "mixtral", "qwen2", "qwen3", "qwen3moe", "gemma2", "gemma3",
    "gpt-oss", "phi3", "phi3-long", "glm4", "glm4moe", "granite",
    "granitemoe", "granitemoe-shared", "granitehybrid", "lfm2", "lfm2moe", "qwen3next", "qwen35", "qwen35moe",
    "nemotron_h", "nemotron_h_moe", "deepseek2", "deepseek-lite", "gemma4", "gemma4-moe",
)  # fmt: skip
ROUTERS = ("MixtralTopKRouter", "Qwen3MoeTopKRouter", "GptOssTopKRouter", "Glm4MoeTopkRouter")
ROUTERS += ("GraniteMoeTopKRouter", "Lfm2MoeTopKRouter", "Conv1d", "GraniteMoeSharedTopKRouter")
ROUTERS += ("Qwen3NextTopKRouter", "Qwen3_5MoeTopKRouter", "NemotronHTopkRouter", "DeepseekV3TopkRouter")
ROUTERS += ("DeepseekV2TopkRouter",)
MIXTURES = {
    "mixtral", "qwen3moe", "gpt-oss", "glm4moe", "granitemoe", "lfm2moe", "granitemoe-shared", "qwen3next",
    "qwen35moe", "nemotron_h_moe", "deepseek2", "deepseek-lite", "gemma4-moe",
}  # fmt: skip
TYPES = ("q4_0", "q8_0", "q5_1")
from_gguf = gt.hosts.transformers.from_gguf


def ids_of(rng, count=60):
    return [int(token) for token in rng.integers(3, 250, count)]


def logits_of(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].numpy()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_logits_of_gq_model(family, fresh, tmp_path):
    path = family_model(tmp_path / "m.gguf", family.removesuffix("-shared"), types=TYPES)
    f = gq.open(path)
    if family == "granitemoe":  # the shared expert is in another class of transformers
        kept = {name: q for name, q in f.items() if "_shexp" not in name}
        gq.save(path, kept, f.metadata | {"granitemoe.expert_shared_feed_forward_length": 0})
    if family.startswith("deepseek"):  # norms of short vectors have that of transformers
        gq.save(path, dict(f), f.metadata | {"deepseek2.attention.layer_norm_rms_epsilon": 1e-6})
    version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    if f.metadata["general.architecture"] in known()[1] or (family == "granitehybrid" and version < (5, 23)):
        with pytest.raises(
            errors.UnsupportedError, match=rf"transformers {transformers.__version__} .*newer|another"
        ):
            from_gguf(path)
        return
    model, _ = from_gguf(path)
    ids = ids_of(fresh, 110 if family == "phi3-long" else 60)  # beyond the context of its short factors
    # Where two experts are nearly as good, another rounding takes another one.
    y, want = logits_of(model, ids), np.asarray(gq.model.load(path).logits(ids))
    most = 5e-2 if family == "deepseek-lite" else 5e-3  # of 27 layers
    near = [gq.nmse(one, other) < most for one, other in zip(y, want, strict=True)]
    assert np.mean(near) > (0.6 if family in MIXTURES else 0.99)
    report = gt.report(model)
    floats = {why for why in report.floats.values() if not why.startswith("torch.float32 in the file")}
    assert floats <= {f"a {kind} computes with floats of its own" for kind in ROUTERS}
    blocks = [q for q in gq.open(path).values() if q.format.block_size > 1]
    assert report.packed_bytes == sum(q.nbytes for q in blocks)
    assert {*report.packed.values()} == {q.format.name for q in blocks}
    again = gt.load_(model, path)  # into a model that is packed already
    assert not [name for name in again.left if "rope_f" not in name]
    assert np.array_equal(logits_of(model, ids), y)


def decoded(model):
    """A model with the same weights as floats; experts are stacked as transformers has them."""
    plain = type(model)(model.config).eval()
    state = dict(model.state_dict())
    for path, part in model.named_modules():
        if isinstance(part, gt.GatedExperts):
            for role in ("gate", "up", "down"):
                state.pop(f"{path}.{role}.weight")
            gate, up, down = (getattr(part, role).dequantize() for role in ("gate", "up", "down"))
            state |= {f"{path}.gate_up_proj": torch.cat([gate, up], 1), f"{path}.down_proj": down}
        elif hasattr(part, "dequantize") and f"{path}.weight" in state:
            state[f"{path}.weight"] = part.dequantize()
    plain.load_state_dict(state)
    return plain


def test_a_shared_expert_beside_the_chosen(fresh, tmp_path):
    path = tiny_model(tmp_path / "m.gguf", shape=Shape(experts=4, shared=True))
    model, _ = from_gguf(path)
    plain, ids = decoded(model), ids_of(fresh, 12)
    pairs = zip(logits_of(model, ids), logits_of(plain, ids), strict=True)
    assert np.mean([gq.nmse(*pair) < 5e-3 for pair in pairs]) > 0.6


def test_text_goes_in_and_comes_out(fresh, tmp_path):
    """The tokenizer, the chat template and generation, with a static cache too, are the file's."""
    template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    words = pairs_vocabulary("llama-bpe") | {"tokenizer.chat_template": template}
    path = family_model(tmp_path / "m.gguf", "llama", types=TYPES, vocabulary=words)
    model, tokenizer = from_gguf(path)
    ids = tokenizer("a line of text", return_tensors="pt").input_ids
    ours = gq.model.Tokenizer(gq.open(path).metadata)
    assert ids[0].tolist() == [int(token) for token in ours.encode("a line of text")]
    said = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
    assert said == "user: Hi\n"
    assert model.generation_config.eos_token_id == words["tokenizer.ggml.eos_token_id"]
    options = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    out = model.generate(ids, **options)
    assert out.shape == (1, ids.shape[1] + 6)
    fixed = model.generate(ids, cache_implementation="static", disable_compile=True, **options)
    assert fixed.shape == out.shape


def test_it_compiles_whole_and_takes_other_dtypes(fresh, tmp_path):
    path = family_model(tmp_path / "m.gguf", "qwen3moe", types=TYPES)
    model, _ = from_gguf(path, dtype=torch.bfloat16, attn_implementation="eager")
    assert model.dtype == torch.bfloat16
    assert model.config._attn_implementation == "eager"
    ids = torch.tensor([ids_of(fresh, 9)])
    with torch.no_grad():
        want = model(ids, use_cache=False).logits
        assert want.dtype == torch.bfloat16
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        y = compiled(ids, use_cache=False).logits
    assert gq.nmse(y.float().numpy(), want.float().numpy()) < 1e-3


def test_adapters_learn_beside_experts(fresh, tmp_path):
    path = family_model(tmp_path / "m.gguf", "mixtral", types=TYPES)
    model, _ = from_gguf(path)
    assert gt.lora_(model, rank=4, include="*.q_proj")
    loss = model(torch.tensor([ids_of(fresh, 9)]), labels=torch.tensor([ids_of(fresh, 9)])).loss
    loss.backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


def test_what_cannot_be_opened(fresh, tmp_path, monkeypatch):
    path = family_model(tmp_path / "m.gguf", "llama", types=TYPES)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        tokenizer = from_gguf(path).tokenizer  # bytes alone: transformers wants sentencepiece for it
    assert (tokenizer is None) == any("cannot read the tokenizer" in str(each.message) for each in said)
    for family in ("granite-nope", "glm4-sections"):
        with pytest.raises(errors.UnsupportedError, match=r"another RoPE.*ggmlq\.torch\.model"):
            from_gguf(family_model(tmp_path / "n.gguf", family, types=TYPES))
    for family, key, value, said in (
        ("gemma4", "attention.sliding_window_pattern", [True] * 4, r"blk\.1\.attn_q_norm"),
        ("granitehybrid", "ssm.time_step_rank", 0, "time_step_rank"),
        ("deepseek-lite", "expert_weights_norm", True, "softmax of experts"),
    ):
        if (architecture := family.replace("-lite", "2")) in known()[0]:
            f = gq.open(family_model(tmp_path / "n.gguf", family, types=TYPES))
            gq.save(tmp_path / "o.gguf", dict(f), f.metadata | {f"{architecture}.{key}": value})
            with pytest.raises(errors.GGMLQError, match=said):
                from_gguf(tmp_path / "o.gguf")
    f = gq.open(path)
    gq.save(tmp_path / "n.gguf", dict(f), f.metadata | {"general.architecture": "flux"})
    with pytest.raises(errors.ConvertError, match="'flux' has no names here"):
        from_gguf(tmp_path / "n.gguf")
    gq.save(tmp_path / "n.gguf", dict(f), f.metadata | {"llama.rope.dimension_count": 32})
    with pytest.raises(errors.UnsupportedError, match="rotates 32 of 64 columns"):
        from_gguf(tmp_path / "n.gguf")
    gq.save(tmp_path / "n.gguf", dict(f), f.metadata | {"llama.block_count": 2**31 - 1})
    with pytest.raises(errors.ConvertError, match="block_count 2147483647 and tensors of 2 layers"):
        from_gguf(tmp_path / "n.gguf")
    missing = {name: q for name, q in f.items() if name != "blk.1.ffn_up.weight"}
    gq.save(tmp_path / "n.gguf", missing, f.metadata)
    with pytest.raises(errors.GGMLQError, match=re.escape("model.layers.1.mlp.up_proj.weight")):
        from_gguf(tmp_path / "n.gguf")
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(__version__="4.57.6"))
    with pytest.raises(errors.UnsupportedError, match="fills models from version 5 on"):
        from_gguf(path)
