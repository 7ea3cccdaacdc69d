"""A Llama in torch with GGUF weights.

The model is 60 lines of torch. ggmlq.torch.load_ fills it from a GGUF file and keeps the weights in their
blocks; Hugging Face's names are known, and the rows of q and k come back in order. The script makes a small
file, compares logits with those of decoded weights, and times both. Pass the path of a Llama to use it.
"""

import os
import sys
import tempfile
import time

import numpy as np
import torch

import ggmlq as gq
import ggmlq.torch

torch.manual_seed(0)


def a_small_model(path):
    """Four layers of width 512, in q4_K."""
    rng, width, feed, words, layers = np.random.default_rng(0), 512, 1536, 256, 4

    def matrix(n, k):
        return gq.quantize(rng.standard_normal((n, k), np.float32) / k**0.5, "q4_K")

    ones = np.ones(width, np.float32)
    tensors = {"token_embd.weight": matrix(words, width), "output.weight": matrix(words, width)}
    tensors["output_norm.weight"] = ones
    for layer in range(layers):
        shapes = {"attn_q": (width, width), "attn_k": (width // 4, width), "attn_v": (width // 4, width)}
        shapes |= {"attn_output": (width, width), "ffn_gate": (feed, width), "ffn_up": (feed, width)}
        shapes |= {"ffn_down": (width, feed)}
        tensors |= {f"blk.{layer}.{name}.weight": matrix(*shape) for name, shape in shapes.items()}
        tensors |= {f"blk.{layer}.{name}.weight": ones for name in ("attn_norm", "ffn_norm")}
    facts = {"block_count": layers, "embedding_length": width, "feed_forward_length": feed}
    facts |= {"attention.head_count": 8, "attention.head_count_kv": 2, "rope.freq_base": 10000.0}
    metadata = {f"llama.{name}": value for name, value in facts.items()}
    gq.save(path, tensors, {"general.architecture": "llama", **metadata})
    return path


class Attention(torch.nn.Module):
    def __init__(self, width, heads, kv, base):
        super().__init__()
        self.heads, self.kv, self.size, self.base = heads, kv, width // heads, base
        self.q_proj = torch.nn.Linear(width, width, bias=False)
        self.k_proj = torch.nn.Linear(width, kv * self.size, bias=False)
        self.v_proj = torch.nn.Linear(width, kv * self.size, bias=False)
        self.o_proj = torch.nn.Linear(width, width, bias=False)

    def turned(self, x):
        half = self.size // 2
        angles = torch.arange(x.shape[-2])[:, None] * self.base ** (-torch.arange(half) / half)
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)

    def forward(self, x):
        split = [(self.q_proj, self.heads), (self.k_proj, self.kv), (self.v_proj, self.kv)]
        q, k, v = (layer(x).unflatten(-1, (n, self.size)).transpose(-2, -3) for layer, n in split)
        k, v = (part.repeat_interleave(self.heads // self.kv, -3) for part in (k, v))
        y = torch.nn.functional.scaled_dot_product_attention(
            self.turned(q), self.turned(k), v, is_causal=True
        )
        return self.o_proj(y.transpose(-2, -3).flatten(-2))


class FeedForward(torch.nn.Module):
    def __init__(self, width, feed):
        super().__init__()
        self.gate_proj = torch.nn.Linear(width, feed, bias=False)
        self.up_proj = torch.nn.Linear(width, feed, bias=False)
        self.down_proj = torch.nn.Linear(feed, width, bias=False)

    def forward(self, x):
        return self.down_proj(torch.nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(torch.nn.Module):
    def __init__(self, width, feed, heads, kv, base):
        super().__init__()
        self.self_attn, self.mlp = Attention(width, heads, kv, base), FeedForward(width, feed)
        self.input_layernorm, self.post_attention_layernorm = (
            torch.nn.RMSNorm(width, 1e-5) for _ in range(2)
        )

    def forward(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(torch.nn.Module):
    def __init__(self, facts, words):
        super().__init__()
        width, feed = facts["llama.embedding_length"], facts["llama.feed_forward_length"]
        heads, kv = facts["llama.attention.head_count"], facts["llama.attention.head_count_kv"]
        layer = (width, feed, heads, kv, facts.get("llama.rope.freq_base", 10000.0))
        self.model = torch.nn.Module()
        self.model.embed_tokens = torch.nn.Embedding(words, width)
        self.model.layers = torch.nn.Sequential(*(Layer(*layer) for _ in range(facts["llama.block_count"])))
        self.model.norm = torch.nn.RMSNorm(width, 1e-5)
        self.lm_head = torch.nn.Linear(width, words, bias=False)

    def forward(self, ids):
        return self.lm_head(self.model.norm(self.model.layers(self.model.embed_tokens(ids))))


folder = tempfile.mkdtemp()
path = sys.argv[1] if len(sys.argv) > 1 else a_small_model(os.path.join(folder, "llama.gguf"))
file = gq.open(path)
words = file["token_embd.weight"].shape[0]
with torch.device("meta"):  # no memory yet
    model, dense = Llama(file.metadata, words), Llama(file.metadata, words)
ggmlq.torch.load_(model, file)
decoded = ((name, torch.from_numpy(np.array(q, np.float32))) for _, name, q in gq.checkpoint.packed(file))
dense.load_state_dict(dict(decoded), assign=True)
print(model.model.layers[0].mlp.up_proj)
floats = sum(p.numel() * p.element_size() for p in dense.parameters())
print(f"weights: {ggmlq.torch.packed_bytes(model) >> 10} KiB packed, {floats >> 10} KiB in float32")

ids = torch.arange(48)[None] % words
with torch.inference_mode():
    a, b = model(ids), dense(ids)
    print(f"logits: nmse {float(((a - b) ** 2).sum() / (b**2).sum()):.1e} against decoded weights")
    print("the same best token:", f"{float((a.argmax(-1) == b.argmax(-1)).float().mean()):.0%}")
    for name, one in (("packed", model), ("float32", dense)):
        for what, part, tokens in (("prefill", ids, ids.shape[1]), ("one token", ids[:, :1], 1)):
            times = []
            for _ in range(12):
                start = time.perf_counter()
                one(part)
                times.append(time.perf_counter() - start)
            print(f"{name:8}{what:10}{tokens / min(times):8.0f} tokens/s")
if len(sys.argv) == 1:
    os.remove(path)
os.rmdir(folder)
