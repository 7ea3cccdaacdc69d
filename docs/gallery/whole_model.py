"""Run a whole model.

The script opens a GGUF file, cuts a text into tokens, runs a Llama or a dense Qwen3, prints the best logits
and generates. Read from the top down it is the architecture: every product is ``x @ q.T`` with weights as the
file has them. Pass a file and a text; without a file the script makes a small model of random weights. With
``--device cuda`` weights are on the GPU and CuPy takes NumPy's place.

    python whole_model.py [MODEL [TEXT]] [--device cuda] [--generate N]
"""

import argparse
import math
import os
import tempfile

import numpy as np

import ggmlq as gq

options = argparse.ArgumentParser()
options.add_argument("model", nargs="?")
options.add_argument("text", nargs="?", default="Once upon a time")
options.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
options.add_argument("--generate", type=int, default=16)
args = options.parse_args()
if args.device == "cuda":
    import cupy as xp
else:
    xp = np


def a_small_model(path):
    """Two layers of Qwen3 with random weights in four types, and a vocabulary of bytes."""
    rng = np.random.default_rng(0)

    def matrix(rows, columns, kind):
        return gq.quantize(rng.standard_normal((rows, columns), np.float32) / math.sqrt(columns), kind)

    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    tensors = {"token_embd.weight": matrix(len(tokens), 256, "q8_0"), "output_norm.weight": np.ones(256)}
    for i in range(2):
        tensors |= {f"blk.{i}.{part}_norm.weight": np.ones(256) for part in ("attn", "ffn")}
        tensors |= {f"blk.{i}.attn_{part}_norm.weight": np.ones(64) for part in "qk"}
        tensors |= {f"blk.{i}.attn_{part}.weight": matrix(128, 256, "q6_K") for part in "kv"}
        tensors |= {f"blk.{i}.attn_{part}.weight": matrix(256, 256, "q4_K") for part in ("q", "output")}
        tensors |= {f"blk.{i}.ffn_{part}.weight": matrix(512, 256, "q4_K") for part in ("gate", "up")}
        tensors[f"blk.{i}.ffn_down.weight"] = matrix(256, 512, "q5_K")
    facts = {"block_count": 2, "embedding_length": 256, "context_length": 512, "feed_forward_length": 512,
             "attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 64,
             "attention.value_length": 64, "attention.layer_norm_rms_epsilon": 1e-6,
             "rope.freq_base": 1e6}  # fmt: skip
    vocabulary = {"model": "llama", "tokens": tokens, "scores": [0.0] * len(tokens),
                  "token_type": [2, 3, 3] + [6] * 256}  # fmt: skip
    metadata = {"general.architecture": "qwen3", "general.name": "small"}
    metadata |= {f"qwen3.{key}": value for key, value in facts.items()}
    metadata |= {f"tokenizer.ggml.{key}": value for key, value in vocabulary.items()}
    gq.save(path, {n: w.astype(np.float32) if n.endswith("norm.weight") else w for n, w in tensors.items()},
            metadata)  # fmt: skip
    return path


file = gq.open(args.model or a_small_model(os.path.join(tempfile.mkdtemp(), "small.gguf")))

# --- sizes, from the metadata -------------------------------------------------------------------

architecture = file.metadata["general.architecture"]
if architecture not in ("llama", "qwen3") or file.metadata.get(f"{architecture}.expert_count"):
    raise SystemExit(f"{architecture}: this script runs Llama and dense Qwen3; gq.model runs more families")


def fact(key, default=None):
    """A number of this architecture."""
    return file.metadata.get(f"{architecture}.{key}", default)


layers, heads = fact("block_count"), fact("attention.head_count")
kv_heads = fact("attention.head_count_kv", heads)
width = fact("attention.key_length", fact("embedding_length") // heads)  # columns of a head
epsilon = fact("attention.layer_norm_rms_epsilon")
base, stretch = fact("rope.freq_base", 10000.0), fact("rope.scaling.factor", 1.0) or 1.0
if fact("rope.scaling.type", "linear") not in ("linear", "none"):
    raise SystemExit("this script turns by plain angles; gq.model knows YaRN too")

# --- weights, packed as they are ----------------------------------------------------------------

weights = {name: q.to(args.device) for name, q in file.items() if q.ndim == 2}
vectors = {name: xp.asarray(q.dequantize()) for name, q in file.items() if q.ndim == 1}
embedding = weights["token_embd.weight"]
head = weights.get("output.weight", embedding)
frequencies = xp.asarray(base ** (-2.0 * np.arange(width // 2) / width) / stretch)
if "rope_freqs.weight" in vectors:  # Llama 3 slows some pairs down
    frequencies = frequencies / vectors["rope_freqs.weight"]


# --- the parts ----------------------------------------------------------------------------------


def norm(x, name):
    """Rows divided by the root of their mean square, times the weights."""
    return x / xp.sqrt((x * x).mean(axis=-1, keepdims=True) + epsilon) * vectors[name]


def product(x, name):
    """The product with the quantized weights, and the bias where there is one."""
    y = x @ weights[f"{name}.weight"].T
    return y + vectors[f"{name}.bias"] if f"{name}.bias" in vectors else y


def turned(x, positions):
    """Pairs of columns turned by angles that grow with the position: [T, heads, width]."""
    angle = positions[:, None, None] * frequencies
    cos, sin = xp.cos(angle).astype(x.dtype), xp.sin(angle).astype(x.dtype)
    y = xp.empty_like(x)
    if architecture == "llama":  # neighbours are a pair
        first, second = slice(0, None, 2), slice(1, None, 2)
    else:  # halves of the head apart
        first, second = slice(0, width // 2), slice(width // 2, None)
    a, b = x[..., first], x[..., second]
    y[..., first], y[..., second] = a * cos - b * sin, a * sin + b * cos
    return y


def attention(x, i, positions, cache):
    """Softmax of queries times keys, times values; each token sees those up to its own."""
    q = product(x, f"blk.{i}.attn_q").reshape(len(x), heads, width)
    k = product(x, f"blk.{i}.attn_k").reshape(len(x), kv_heads, width)
    v = product(x, f"blk.{i}.attn_v").reshape(len(x), kv_heads, width)
    if architecture == "qwen3":
        q, k = norm(q, f"blk.{i}.attn_q_norm.weight"), norm(k, f"blk.{i}.attn_k_norm.weight")
    q, k = turned(q, positions), turned(k, positions)
    if i in cache:
        k, v = xp.concatenate([cache[i][0], k]), xp.concatenate([cache[i][1], v])
    cache[i] = k, v
    k, v = (xp.repeat(part, heads // kv_heads, axis=1) for part in (k, v))
    scores = xp.einsum("thd,shd->hts", q, k) / math.sqrt(width)
    scores = xp.where(xp.arange(len(k)) <= positions[:, None], scores, -xp.inf)
    shares = xp.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    return product(xp.einsum("hts,shd->thd", shares, v).reshape(len(x), -1), f"blk.{i}.attn_output")


def feed_forward(x, i):
    """A gate, by SiLU, lets parts of a wider layer through."""
    gate, up = product(x, f"blk.{i}.ffn_gate"), product(x, f"blk.{i}.ffn_up")
    return product(gate / (1 + xp.exp(-gate)) * up, f"blk.{i}.ffn_down")


def run(tokens, cache):
    """Logits behind the last of some tokens; the cache holds keys and values of those before."""
    start = len(cache[0][0]) if cache else 0
    positions = xp.arange(start, start + len(tokens))
    x = xp.asarray(gq.take(embedding, xp.asarray(tokens)))
    for i in range(layers):
        x = x + attention(norm(x, f"blk.{i}.attn_norm.weight"), i, positions, cache)
        x = x + feed_forward(norm(x, f"blk.{i}.ffn_norm.weight"), i)
    logits = norm(x[-1:], "output_norm.weight") @ head.T
    return logits[0] if xp is np else logits[0].get()


# --- a text -------------------------------------------------------------------------------------

tokenizer = gq.model.Tokenizer(file.metadata)
tokens = tokenizer.encode(args.text)
print(f"{file.metadata.get('general.name', '')}: {architecture}, {layers} layers; tokens: {tokens}")
cache = {}
logits = run(tokens, cache)
for token in np.argsort(-logits)[:5]:
    print(f"{logits[token]:9.4f}  {token:6}  {tokenizer.piece(int(token), special=True)!r}")
answer = [int(np.argmax(logits))]
while len(answer) < args.generate and answer[-1] not in tokenizer.ends:
    answer.append(int(np.argmax(run(answer[-1:], cache))))
print(f"generated: {answer}\n{args.text + tokenizer.decode(answer)!r}")
