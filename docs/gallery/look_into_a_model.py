"""Look into a model.

The script shows the contents of a GGUF file, from the table of its tensors down to one weight. Pass the
path of a file; without one the script makes a model of two layers.
"""

import os
import sys
import tempfile

import numpy as np

import ggmlq as gq


def a_small_model(path):
    """Two layers in three types, with a row of zeros and a row of large weights."""
    rng = np.random.default_rng(7)
    tensors = {"token_embd.weight": gq.quantize(rng.standard_normal((512, 256), np.float32), "q8_0")}
    for layer in range(2):
        up = rng.normal(0, 0.02, (1024, 256)).astype(np.float32)
        up[5], up[77] = 0, up[77] * 40
        tensors[f"blk.{layer}.ffn_up.weight"] = gq.quantize(up, "q4_K")
        tensors[f"blk.{layer}.ffn_norm.weight"] = gq.quantize(np.ones(256, np.float32), "f32")
    gq.save(path, tensors, {"general.architecture": "llama", "llama.block_count": 2})
    return path


path = sys.argv[1] if len(sys.argv) > 1 else a_small_model(os.path.join(tempfile.mkdtemp(), "small.gguf"))

# Opening reads the header; tensors are views on the file.
f = gq.open(path)
print(f"{f}\n{dict(list(f.metadata.items())[:4])}\n")
for name, q in f.items():
    print(f"{name:25} {q.format.name:6} {q.shape!s:12} {q.nbytes:9,} bytes")

# The largest matrix of blocks: its blocks are structured arrays with ggml's field names.
name = max((n for n in f if f[n].ndim == 2 and f[n].format.block_size > 1), key=lambda n: f[n].nbytes)
q = f[name]
print(f"\n{name}: {q.format}\nits first block:")
for field in q.blocks.dtype.names:
    print(f"  {field:7} {np.ravel(q.blocks[0, 0][field])[:12]}")
print(f"its first weights: {q[0].dequantize()[:6]}")

# Rows are arrays too: decode all of them and find the unusual ones.
loud = np.abs(np.asarray(q)).max(axis=1)
print(f"\nlargest weight of a row: the median row has {np.median(loud):.3f}")
for row in np.flatnonzero((loud == 0) | (loud > 8 * np.median(loud))):
    print(f"row {row} has {loud[row]:.3f}")

# And multiply: the activations are floats, the weights stay in blocks.
x = np.ones((1, q.shape[1]), np.float32)
print(f"\nx @ q.T: {(x @ q.T)[0, :4]}")
