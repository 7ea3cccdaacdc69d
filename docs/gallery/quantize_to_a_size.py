"""Quantize to a size.

A model shall take 5.5 bits per weight, with the least possible error. gq.convert.recipe measures the error
of each type on each tensor and chooses the types. The script compares the result with q5_0 for all tensors,
which has as many bits. The command for a recipe is `ggmlq quantize IN OUT --target 5.5bpw`. Pass the path
of a model in floats to use that model.
"""

import os
import sys
import tempfile

import numpy as np

import ggmlq as gq

folder = tempfile.mkdtemp()


def a_small_model(path):
    """Four layers; some lose more by rounding than others, because their weights have heavier tails."""
    rng = np.random.default_rng(7)
    tensors = {}
    for layer in range(4):
        for role in ("ffn_up", "ffn_down"):
            w = rng.standard_t(3 + 3 * layer, (256, 256)) * 0.02 * (1 + layer % 3)
            tensors[f"blk.{layer}.{role}.weight"] = w.astype(np.float32)
    gq.save(path, tensors, {"general.architecture": "llama", "llama.block_count": 4})
    return path


def loss(path):
    """The squared error of all weights, relative to their original values."""
    new, error, energy = gq.open(path), 0.0, 0.0
    for name, q in gq.open(model).items():
        w = np.asarray(q)
        error += float(((np.asarray(new[name]) - w) ** 2).sum(dtype=np.float64))
        energy += float((w**2).sum(dtype=np.float64))
    return error / energy


model = sys.argv[1] if len(sys.argv) > 1 else a_small_model(os.path.join(folder, "f32.gguf"))
recipe = gq.convert.recipe(model, 5.5, types=["q4_0", "q4_1", "q5_0", "q5_1", "q8_0"])
print(recipe)
for name, fmt in recipe.types.items():
    print(f"  {name:24} {fmt.name}")

small = os.path.join(folder, "recipe.gguf")
gq.convert.run(recipe.plan, small)
print(f"\n{'recipe':8} {os.path.getsize(small):9,} bytes, loss {loss(small):.2e}")
one = os.path.join(folder, "q5_0.gguf")
gq.convert.quantize(model, one, "q5_0")
print(f"{'q5_0':8} {os.path.getsize(one):9,} bytes, loss {loss(one):.2e}")
