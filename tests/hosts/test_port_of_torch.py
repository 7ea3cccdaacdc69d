"""The doctor of ports on modules of transformers, converted by ours and by hand."""

from __future__ import annotations

import json

import checkpoints
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: tools/test --hosts")

import ggmlq as gq  # noqa: E402
import ggmlq.torch as gt  # noqa: E402
from ggmlq import cli  # noqa: E402

pytestmark = [pytest.mark.hosts, pytest.mark.filterwarnings("ignore")]  # warnings of others

SIZES = {"vocab_size": 320, "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 3,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
         "rms_norm_eps": 1e-5, "head_dim": 32}  # fmt: skip
GEMMA = {"sliding_window": 12, "query_pre_attn_scalar": 20}  # which no size of theirs is: no file says it
CASES = {
    "llama": ("Llama", {"rope_theta": 5e5, "rope_scaling": checkpoints.SLOW}),
    "mistral": ("Mistral", {"sliding_window": None}), "qwen2": ("Qwen2", {"rope_theta": 1e6}),
    "qwen3": ("Qwen3", {"tie_word_embeddings": True}), "gemma2": ("Gemma2", GEMMA),
    "gemma3": ("Gemma3", GEMMA), "phi3": ("Phi3", {"pad_token_id": 0}),
}  # fmt: skip
PHI = {"input_layernorm": "attn_norm", "self_attn.qkv_proj": "attn_qkv", "self_attn.o_proj": "attn_output",
       "post_attention_layernorm": "ffn_norm", "mlp.gate_up_proj": "ffn_up",
       "mlp.down_proj": "ffn_down", "embed_tokens": "token_embd", "norm": "output_norm",
       "lm_head": "output"}  # fmt: skip
FACTS = {
    "block_count": 3, "context_length": 256, "embedding_length": 128, "feed_forward_length": 192,
    "attention.head_count": 4, "attention.head_count_kv": 2, "attention.layer_norm_rms_epsilon": 1e-5,
}  # fmt: skip


def drawn(model, seed):
    """A module with weights of which every one counts."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "A_log" in name:
                p.copy_(torch.log(0.5 + 8 * torch.rand(p.shape)))
            elif p.dim() == 1:
                shifted = "Gemma" in type(model).__name__ or "Qwen3_5" in type(model).__name__
                one = 0.0 if "bias" in name or (shifted and "linear_attn" not in name) else 1.0
                p.copy_(one + 0.2 * torch.randn(p.shape))
            else:
                p.copy_(torch.randn(p.shape) / p.shape[-1] ** 0.5)
    model.tie_weights()
    return model.eval()


@pytest.fixture
def module(fresh):
    """``module(case)``: a tiny module of transformers."""

    def make(case):
        name, more = CASES[case]
        kind = "Gemma3Text" if name == "Gemma3" else name
        config = getattr(transformers, f"{kind}Config")(**SIZES | more)
        return drawn(getattr(transformers, f"{name}ForCausalLM")(config), int(fresh.integers(1 << 30)))

    return make


def renamed(name, table):
    """A name of a checkpoint as GGUF's."""
    stem, _, end = name.removeprefix("model.").rpartition(".")
    if not stem.startswith("layers."):
        return f"{table[stem]}.{end}"
    _, layer, inner = stem.split(".", 2)
    return f"blk.{layer}.{table[inner]}.{end}"


def converted(model, case, folder, change=None, kind="f32"):
    """The file of a module, with a mistake."""
    folder.mkdir(exist_ok=True)
    if case == "phi3":
        tensors = {renamed(name, PHI): x.numpy() for name, x in model.state_dict().items()}
        metadata = {"general.architecture": "phi3"} | {f"phi3.{key}": value for key, value in FACTS.items()}
    else:
        model.save_pretrained(folder)
        words = checkpoints.bpe(case) if case in checkpoints.PRE else checkpoints.spm(case)
        for name, content in words.items():
            raw = content if isinstance(content, bytes) else json.dumps(content).encode()
            (folder / name).write_bytes(raw)
        gq.checkpoint.to_gguf(folder, folder / "right.gguf", "f32")
        with gq.open(folder / "right.gguf") as file:
            tensors = {name: np.array(file[name], np.float32) for name in file}
            metadata = dict(file.metadata)
    if change is not None:
        change(tensors)
    blocks = {name: gq.quantize(x, kind) if x.ndim > 1 else x for name, x in tensors.items()}
    gq.save(folder / "model.gguf", blocks, metadata)
    return folder / "model.gguf"


def names(comparison):
    """The mistakes of a comparison."""
    return {place.mistake for place in comparison.mistakes}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", ["f32", "q4_0"])
def test_right_ports_are_silent(case, kind, module, tmp_path):
    """Gemma's scale of scores, which no file says, is in the queries."""
    model = module(case)
    comparison = gt.compare(model, converted(model, case, tmp_path, kind=kind))
    assert comparison.ok, str(comparison)
    assert not comparison.notes
    if kind == "f32":
        assert gt.compare(model.bfloat16(), tmp_path / "model.gguf").ok


def ends(end, change):
    """A mistake in all tensors whose names end so."""

    def plant(tensors):
        for name in [name for name in tensors if name.endswith(end)]:
            tensors[name] = np.ascontiguousarray(change(tensors[name]))

    return plant


def apart(w):
    """Rows of heads of 32, neighbours as halves."""
    return w.reshape(-1, 16, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def of_layers(change):
    """A mistake in all layers of a module."""
    return lambda model: [change(layer) for layer in model.model.layers]


FILES = [
    ("rope-order", "llama", lambda t: (ends("attn_q.weight", apart)(t), ends("attn_k.weight", apart)(t))),
    ("rope-order", "mistral", ends("attn_k.weight", apart)),
    ("norm-plus-one", "gemma2", ends("norm.weight", lambda w: w - 1)),
    ("transposed", "llama", ends("attn_output.weight", lambda w: w.T)),
    ("bias-missing", "qwen2", lambda t: [t.pop(f"blk.{i}.attn_q.bias") for i in range(3)]),
    ("rope-scaling", "llama", lambda t: t.pop("rope_freqs.weight")),
    ("swapped", "phi3", ends("ffn_up.weight", lambda w: np.roll(w, len(w) // 2, 0))),
]
MODULES = [
    ("attention-scale", "gemma3", of_layers(lambda layer: setattr(layer.self_attn, "scaling", 32**-0.5))),
    ("embedding-scale", "gemma3", lambda model: model.model.embed_tokens.embed_scale.fill_(1.0)),
    ("head-norms", "qwen3", of_layers(lambda layer: setattr(layer.self_attn, "q_norm", torch.nn.Identity()))),
    ("activation", "gemma2", of_layers(lambda layer: setattr(layer.mlp, "act_fn", torch.nn.GELU()))),
    ("window", "mistral", lambda model: setattr(model.config, "sliding_window", 8)),
    ("not-loaded", "llama", lambda model: model.model.embed_tokens.weight.data.normal_(std=0.02)),
    ("norm-missing", "llama", lambda model: model.model.norm.weight.data.fill_(1)),
    ("layer-swapped", "qwen3", lambda model: model.model.layers[0].mlp.load_state_dict(
        model.model.layers[1].mlp.state_dict())),
]  # fmt: skip


@pytest.mark.parametrize(("mistake", "case", "plant"), FILES)
@pytest.mark.parametrize("kind", ["f32", "q4_0"])
def test_mistakes_in_the_file(mistake, case, plant, kind, module, tmp_path):
    model = module(case)
    comparison = gt.compare(model, converted(model, case, tmp_path, plant, kind))
    assert names(comparison) == {mistake}, str(comparison)


@pytest.mark.parametrize(("mistake", "case", "plant"), MODULES)
@torch.no_grad()
def test_mistakes_in_the_module(mistake, case, plant, module, tmp_path):
    model = module(case)
    path = converted(model, case, tmp_path)
    plant(model)
    assert names(comparison := gt.compare(model, path)) == {mistake}, str(comparison)


# --- the four silent ones of a loader of Qwen 3.5 ------------------------------------------------

QWEN = {"input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm",
        "linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate",
        "linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_a": "ssm_alpha",
        "linear_attn.out_proj": "ssm_out", "linear_attn.norm": "ssm_norm", "linear_attn.conv1d": "ssm_conv1d",
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
        "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
        "embed_tokens": "token_embd", "norm": "output_norm", "linear_attn": "ssm"}  # fmt: skip
KEYS, VALUES, COLUMNS = 2, 4, 16  # heads of the delta net


def tiled(w, axis=0):
    """Value heads one after another for all key heads, as llama.cpp repeats keys."""
    w = np.moveaxis(w, axis, 0)
    y = w.reshape(KEYS, VALUES // KEYS, -1, *w.shape[1:]).swapaxes(0, 1).reshape(w.shape)
    return np.ascontiguousarray(np.moveaxis(y, 0, axis))


def qwen35(model, path, plus=1.0, tile=tiled, decay=lambda x: -np.exp(x)):
    """The file of a Qwen 3.5; the arguments are what a loader forgets."""
    tensors = {}
    for name, value in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        new, w, before = renamed(name, QWEN), value.numpy(), 2 * KEYS * COLUMNS
        inner = new.split(".")[-2]
        if inner == "ssm":
            new = new.replace("ssm.A_log", "ssm_a").replace("ssm.dt_bias", "ssm_dt.bias")
            w = tile(decay(w) if new.endswith("ssm_a") else w)
        elif inner in ("attn_gate", "ssm_alpha", "ssm_beta", "ssm_out"):
            w = tile(w, int(inner == "ssm_out"))
        elif inner in ("attn_qkv", "ssm_conv1d"):
            w = w.reshape(len(w), -1)
            w = np.concatenate([w[:before], tile(w[before:])])
        elif inner.endswith("norm") and inner != "ssm_norm":
            w = w + np.float32(plus)
        tensors[new] = w
    facts = {"attention.head_count": 4, "attention.head_count_kv": 2,
             "attention.layer_norm_rms_epsilon": 1e-5, "ssm.group_count": KEYS,
             "ssm.time_step_rank": VALUES, "ssm.state_size": COLUMNS}  # fmt: skip
    metadata = {"general.architecture": "qwen35"} | {f"qwen35.{key}": value for key, value in facts.items()}
    gq.save(path, tensors, metadata)
    return path


def test_the_four_of_a_loader(fresh, tmp_path):
    more = {"linear_num_key_heads": KEYS, "linear_num_value_heads": VALUES, "linear_key_head_dim": COLUMNS,
            "linear_value_head_dim": COLUMNS, "tie_word_embeddings": True,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"]}  # fmt: skip
    config = transformers.Qwen3_5TextConfig(**SIZES | more)
    model, path = (
        drawn(transformers.Qwen3_5ForCausalLM(config), int(fresh.integers(1 << 30))),
        tmp_path / "m.gguf",
    )
    comparison = gt.compare(model, qwen35(model, path))
    assert comparison.ok, str(comparison)
    assert comparison.notes == ["RoPE, attention and sums: no layers of qwen35 are known here"]
    for mistake, wrong in (
        ("norm-plus-one", {"plus": 0.0}), ("value-heads", {"tile": lambda w, _=0: w}),
        ("decay", {"decay": lambda x: x}),
    ):  # fmt: skip
        assert names(gt.compare(model, qwen35(model, path, **wrong))) == {mistake}
    qwen35(model, path)
    with torch.no_grad():
        model.model.embed_tokens.weight.normal_(std=0.02)
    assert names(gt.compare(model, path)) == {"not-loaded"}


MIXTURE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True,
           "decoder_sparse_step": 1, "mlp_only_layers": []}  # fmt: skip


@torch.no_grad()
def test_experts(fresh, tmp_path):
    """A mixture is judged by its choice, its weights and its matrices, packed ones too."""
    config = transformers.Qwen3MoeConfig(**SIZES | MIXTURE)
    model = drawn(transformers.Qwen3MoeForCausalLM(config), int(fresh.integers(1 << 30)))
    model.save_pretrained(tmp_path)
    for name, content in checkpoints.bpe("qwen3").items():
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        (tmp_path / name).write_bytes(raw)
    gq.checkpoint.to_gguf(tmp_path, tmp_path / "f32.gguf", "f32")
    with gq.open(tmp_path / "f32.gguf") as file:
        arrays = {name: np.asarray(file[name]) for name in file}
        blocks = {name: gq.quantize(x, "q4_0") if x.ndim > 1 else x for name, x in arrays.items()}
        gq.save(tmp_path / "q4_0.gguf", blocks, dict(file.metadata))

    def every(name, value):
        for part in model.modules():
            if hasattr(part, name):
                setattr(part, name, value)

    def exchange():
        for name, p in model.named_parameters():
            if name.endswith("gate_up_proj"):
                p.copy_(torch.cat(p.chunk(2, 1)[::-1], 1))

    for mistake, plant, mend in (
        ("", lambda: None, lambda: None),
        ("expert-weights", lambda: every("norm_topk_prob", False), lambda: every("norm_topk_prob", True)),
        ("expert-count", lambda: every("top_k", 3), lambda: every("top_k", 2)),
        ("swapped", exchange, exchange),
    ):
        plant()
        for kind in ("f32", "q4_0"):
            comparison = gt.compare(model, tmp_path / f"{kind}.gguf")
            assert kind == "q4_0" or not comparison.notes
            if mistake != "expert-weights" or kind == "f32":  # in blocks they are as far off as blocks are
                assert names(comparison) == ({mistake} - {""}), str(comparison)
        mend()


def test_the_command(module, tmp_path, capsys):
    model = module("llama")
    path = str(converted(model, "llama", tmp_path))
    assert cli.main(["compare", path, "--torch", f"transformers:{tmp_path}", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["ok"], facts["first"], facts["mistakes"]) == (True, None, [])
    assert cli.main(["compare", path, "--torch", f"transformers:{tmp_path / 'none'}"]) == 2
    assert "could not be loaded" in capsys.readouterr().err
