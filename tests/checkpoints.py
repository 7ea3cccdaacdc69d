"""Small random checkpoints as Hugging Face keeps them, the same bytes on every machine. Knows nothing of
ggmlq.

``tools/table.py checkpoints`` has llama.cpp's converter convert them and keeps what it made as figures.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np

H, F, HEADS, KV, LAYERS, E = 64, 96, 4, 2, 2, 4  # hidden, feed-forward, heads, of keys, layers, experts
VOCAB = 320
SIZES = {"F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "I8": 1}

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
MERGES = ["\u0120 t", "h e", "i n", "\u0120t he", "o n", "r e", "3 3"]


def letters():
    """The characters that stand for bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(spare)) for b in range(256)]


def encoded(x, dtype):
    """Numbers as bytes of a type."""
    if dtype == "BF16":
        bits = np.ascontiguousarray(x, "<f4").view("<u4")
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2").tobytes()
    return np.asarray(x).astype({"F32": "<f4", "F16": "<f2", "F8_E4M3": "u1", "I8": "i1"}[dtype]).tobytes()


def safetensors(tensors, metadata=None):
    """A file: name -> (type, array)."""
    header, data = ({"__metadata__": metadata} if metadata else {}), b""
    for name, (dtype, x) in tensors.items():
        raw = encoded(x, dtype)
        header[name] = {
            "dtype": dtype,
            "shape": list(x.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def bpe(case):
    """tokenizer.json and tokenizer_config.json of a byte-level tokenizer."""
    vocab = {c: i for i, c in enumerate(sorted(letters()))}
    for merge in MERGES:
        vocab[merge.replace(" ", "")] = len(vocab)
    names = {"llama3": ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]}.get(
        case, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    )
    added = [
        {"id": len(vocab) + i, "content": name, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": name != "<tool>"} for i, name in enumerate([*names, "<tool>"])
    ]  # fmt: skip
    split = SPLIT % ("{1,3}" if case == "llama3" else "")
    post = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    if case == "llama3":
        first = {"SpecialToken": {"id": names[0], "type_id": 0}}
        a, b = ({"Sequence": {"id": x, "type_id": i}} for i, x in enumerate("AB"))
        special = {names[0]: {"id": names[0], "ids": [added[0]["id"]], "tokens": [names[0]]}}
        template = {
            "type": "TemplateProcessing",
            "single": [first, a],
            "pair": [first, a, first, b],
            "special_tokens": special,
        }
        post = {"type": "Sequence", "processors": [post, template]}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": None if case == "llama3" else {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]},
        "post_processor": post,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "ignore_merges": case == "llama3", "vocab": vocab,
                  "merges": [m.split() for m in MERGES] if case == "llama3" else MERGES},
    }  # fmt: skip
    said = {
        "tokenizer_class": "PreTrainedTokenizerFast" if case == "llama3" else "Qwen2Tokenizer",
        "eos_token": names[1] if case == "llama3" else names[2],
        "chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
    }
    said |= (
        {"bos_token": names[0]}
        if case == "llama3"
        else {"pad_token": names[0], "add_bos_token": False, "bos_token": None}
    )
    return {"tokenizer.json": tokenizer, "tokenizer_config.json": said}


def field(number, kind, value):
    """A field of a protobuf."""
    if kind == 0:
        return bytes([number << 3]) + bytes([value]) if value < 128 else None
    if kind == 5:
        return bytes([number << 3 | 5]) + struct.pack("<f", value)
    size, head = len(value), b""
    while size > 127:
        head += bytes([size & 127 | 128])
        size >>= 7
    return bytes([number << 3 | 2]) + head + bytes([size]) + value


def pieces():
    """tokenizer.model: unknown, begin, end, bytes and a few words."""
    found = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
    found += [(f"<0x{b:02X}>", 0.0, 6) for b in range(256)]
    found += [("\u2581", -1.0, 1), ("\u2581t", -2.0, 1), ("he", -3.0, 1), ("\u2581the", -4.5, 1)]
    found += [(c, -10.0 - i, 1) for i, c in enumerate("abcdefghijklmnopqrstuvwxyz")]
    found += [("<unused1>", 0.0, 4), ("[gone]", 0.0, 5)]
    raw = b"".join(
        field(1, 2, field(1, 2, t.encode()) + field(2, 5, s) + field(3, 0, k)) for t, s, k in found
    )
    trainer = field(3, 0, 2) + b"\x98\x02\x01"  # model_type BPE; byte_fallback
    return raw + field(2, 2, trainer) + field(3, 2, field(1, 2, b"identity") + field(3, 0, 0))


def spm(case):
    """tokenizer.model with what usually lies beside it."""
    added = {str(i): {"content": t, "special": True} for i, t in enumerate(["<unk>", "<s>", "</s>"])}
    if case.startswith("gemma"):
        added["300"] = {"content": "<start_of_turn>", "special": True}
        added["301"] = {"content": "\u2581\u2581", "special": False}
    said = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "unk_token": "<unk>", "add_bos_token": True,
            "add_eos_token": False, "added_tokens_decoder": added}  # fmt: skip
    return {"tokenizer.model": pieces(), "tokenizer_config.json": said}


BASE = {"hidden_size": H, "intermediate_size": F, "num_attention_heads": HEADS, "num_hidden_layers": LAYERS,
        "num_key_value_heads": KV, "vocab_size": VOCAB, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
        "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
SLOW = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
TIED = {"tie_word_embeddings": True, "bos_token_id": 263, "eos_token_id": 264}
LOCAL, SHARED = {"num_local_experts": E, "num_experts_per_tok": 2}, {"shared_expert_intermediate_size": 64}
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [32, 32]}
FP8 = {"quantization_config": FP8}
MOE = {"num_experts": E, "num_experts_per_tok": 2, "moe_intermediate_size": 32}

# name: architecture, model_type, what config.json says besides, type of the numbers, what to convert to
CASES = {
    "llama": ("LlamaForCausalLM", "llama", {"rope_theta": 10000.0}, "F16", "f16"),
    "llama3": ("LlamaForCausalLM", "llama", {"rope_theta": 5e5, "rope_scaling": SLOW} | TIED, "BF16", "auto"),
    "mistral": ("MistralForCausalLM", "mistral", {"head_dim": 32, "sliding_window": None}, "BF16", "q8_0"),
    "mixtral": ("MixtralForCausalLM", "mixtral", LOCAL, "BF16", "bf16"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2", {"rope_theta": 1e6, "rope_scaling": YARN}, "BF16", "f32"),
    "qwen2moe": ("Qwen2MoeForCausalLM", "qwen2_moe", MOE | SHARED, "F32", "f16"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3", {"head_dim": 32, "tie_word_embeddings": True}, "BF16", "auto"),
    "qwen3fp8": ("Qwen3ForCausalLM", "qwen3", {"head_dim": 32} | FP8, "F8_E4M3", "bf16"),
    "qwen3moe": ("Qwen3MoeForCausalLM", "qwen3_moe", MOE | {"head_dim": 32}, "BF16", "q8_0"),
    "gemma": ("GemmaForCausalLM", "gemma", {"head_dim": 32}, "BF16", "bf16"),
    "gemma2": ("Gemma2ForCausalLM", "gemma2", {"head_dim": 32, "sliding_window": 64}, "F32", "f32"),
    "gemma3": ("Gemma3ForCausalLM", "gemma3_text", {"head_dim": 32, "sliding_window": 64}, "BF16", "auto"),
}  # fmt: skip
PRE = {"llama3": "llama-bpe"} | dict.fromkeys(("qwen2", "qwen2moe", "qwen3", "qwen3fp8", "qwen3moe"), "qwen2")


def shapes(case):
    """Names and shapes of a model's tensors, in order."""
    said = BASE | CASES[case][2]
    head = said.get("head_dim", H // HEADS)
    yield "model.embed_tokens.weight", (VOCAB, H)
    for n in range(LAYERS):
        layer = f"model.layers.{n}."
        yield layer + "input_layernorm.weight", (H,)
        for part, rows in (("q", HEADS), ("k", KV), ("v", KV)):
            yield f"{layer}self_attn.{part}_proj.weight", (rows * head, H)
            if case.startswith("qwen2"):
                yield f"{layer}self_attn.{part}_proj.bias", (rows * head,)
        yield layer + "self_attn.o_proj.weight", (H, HEADS * head)
        if case.startswith(("qwen3", "gemma3")):
            yield layer + "self_attn.q_norm.weight", (head,)
            yield layer + "self_attn.k_norm.weight", (head,)
        yield from _forward(case, layer)
        yield layer + "post_attention_layernorm.weight", (H,)
        if case in ("gemma2", "gemma3"):
            yield layer + "pre_feedforward_layernorm.weight", (H,)
            yield layer + "post_feedforward_layernorm.weight", (H,)
    yield "model.norm.weight", (H,)
    if not said.get("tie_word_embeddings") and not case.startswith("gemma"):
        yield "lm_head.weight", (VOCAB, H)


def _forward(case, layer):
    if case == "mixtral":
        yield layer + "block_sparse_moe.gate.weight", (E, H)
        for e in range(E):
            for part, shape in (("w1", (F, H)), ("w2", (H, F)), ("w3", (F, H))):
                yield f"{layer}block_sparse_moe.experts.{e}.{part}.weight", shape
        return
    if case.endswith("moe"):
        yield layer + "mlp.gate.weight", (E, H)
        for e in range(E):
            for part, shape in (("gate", (32, H)), ("up", (32, H)), ("down", (H, 32))):
                yield f"{layer}mlp.experts.{e}.{part}_proj.weight", shape
        if case == "qwen2moe":
            yield layer + "mlp.shared_expert_gate.weight", (1, H)
            for part, shape in (("gate", (64, H)), ("up", (64, H)), ("down", (H, 64))):
                yield f"{layer}mlp.shared_expert.{part}_proj.weight", shape
        return
    for part, shape in (("gate", (F, H)), ("up", (F, H)), ("down", (H, F))):
        yield f"{layer}mlp.{part}_proj.weight", shape


def tensors(case):
    """The tensors of a case; old random numbers, whose stream never changes."""
    random, dtype, made = np.random.RandomState(sum(case.encode())), CASES[case][3], {}
    for name, shape in shapes(case):
        values = random.standard_normal(shape).astype(np.float32)
        if dtype == "F8_E4M3" and len(shape) == 2 and "proj" in name:
            codes = random.randint(0, 120, shape) + 128 * random.randint(0, 2, shape)
            made[name] = (dtype, codes)
            made[name + "_scale_inv"] = (
                "F32",
                random.uniform(0.001, 0.01, (-(-shape[0] // 32), -(-shape[1] // 32))).astype(np.float32),
            )
        else:
            made[name] = ("BF16" if dtype == "F8_E4M3" else dtype, values)
    return made


def write(folder, case, **changes):
    """A checkpoint as a folder; ``changes`` to config.json."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    architecture, kind, said, *_ = CASES[case]
    config = {"architectures": [architecture], "model_type": kind} | BASE | said | changes
    files = {"config.json": {k: v for k, v in config.items() if v != "absent"}}
    files |= bpe(case) if case in PRE else spm(case)
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    made = tensors(case)
    if case != "mixtral":
        (folder / "model.safetensors").write_bytes(safetensors(made, {"format": "pt"}))
        return folder
    names, weights = sorted(made), {}
    for i in range(2):
        part = names[i::2]
        path = f"model-{i + 1:05d}-of-00002.safetensors"
        (folder / path).write_bytes(safetensors({name: made[name] for name in part}))
        weights |= dict.fromkeys(part, path)
    index = {"metadata": {"total_size": 0}, "weight_map": weights}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
