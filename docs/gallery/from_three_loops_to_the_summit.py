"""From three loops to the summit.

A notebook as text: editors and Jupytext open it in cells, and Python runs it as it is. It builds a product
with quantized weights from three loops up, shows why each step helps, climbs the ladder of this machine's
CPU, and does by hand what the summit of the GPU's ladder does: swizzles, equal shares, a softmax in parts.
"""

# %% [markdown]
# ## Three loops
# 32 weights of q4_0 are 18 bytes: a scale as a half, and codes of 4 bits, 8 more than their value.

# %%
import time

import numpy as np

import ggmlq as gq
from ggmlq.demo import climb

rng = np.random.default_rng(7)
w = rng.standard_normal((48, 256), np.float32)
x = rng.standard_normal((8, 256), np.float32)
q = gq.quantize(w, "q4_0")
decoded = []


def weight(n, k):
    """One weight, from its block."""
    decoded.append((n, k))
    block, i = q.blocks[n, k // 32], k % 32
    code = block["qs"][i] & 15 if i < 16 else block["qs"][i - 16] >> 4
    return float(block["d"]) * (int(code) - 8)


def loops(x):
    """The product: for each output a sum over K."""
    return np.array([[sum(float(row[k]) * weight(n, k) for k in range(256)) for n in range(48)] for row in x])


start = time.perf_counter()
y = loops(x)
exact = gq.reference.linear(x, q)
print(f"three loops: {1e3 * (time.perf_counter() - start):.0f} ms, {len(decoded)} weights decoded")
print("the oracle's result:", np.allclose(y, exact))

# %% [markdown]
# ## Decode once, for all rows of activations
# The loops decoded each weight eight times, once for each row of x. Rung `cpu:blocked` decodes it once.

# %%
decoded.clear()
rows = np.array([[weight(n, k) for k in range(256)] for n in range(48)])
print(f"decoded once: {len(decoded)} weights; the same result: {np.allclose(x @ rows.T, exact)}")

# %% [markdown]
# ## Integers
# With 8-bit codes on both sides a run of 32 columns is a sum of integers, which vector units and tensor
# cores add many at a time. The 8 comes off through the sum of the activations' codes: Σ a (c - 8) = Σ a c -
# 8 Σ a.

# %%
runs = x.reshape(8, 8, 32)
step = np.abs(runs).max(-1) / 127
a = np.rint(runs / step[..., None]).astype(np.int32)
c = np.concatenate([q.blocks["qs"] & 15, q.blocks["qs"] >> 4], -1).astype(np.int32)
sums = np.einsum("mri,nri->mnr", a, c) - 8 * a.sum(-1)[:, None]
y8 = (sums * step[:, None] * q.blocks["d"].astype(np.float64)).sum(-1)
print(f"in integers: the worst row of weights is off by {gq.nmse(y8, exact, axis=0).max():.1e} of its size")

# %% [markdown]
# ## Two floors
# No product is faster than its weights can be read, nor than its multiplications can be done. Both are
# measured here. For one row the memory limits, for many rows the products do.

# %%
q = climb.weights("q4_0", 1024, 1024, "cpu")
roof = climb.roofs_over(q, lambda what: None)
print(climb.head(roof, "q4_0"))
bend = roof.products["q8"] / roof.read * 4.5 / 16
print(f"from {bend:.0f} rows of activations on the products limit, and not the memory")

# %% [markdown]
# ## The ladder of this CPU
# Each rung is judged in float64, then timed. `ggmlq ladder page cpu:tiles` says what a rung changed.

# %%
steps = []
for step in climb.climb(q, (1, 16), [], roof, lambda what: None):
    if not steps or steps[-1].rows != step.rows:
        print("\n" + climb.columns(step.rows, False))
    steps.append(step)
    print(climb.line(step, climb.below(step, steps)))
print(f"\n{sum(step.right for step in steps)} products are right")

# %% [markdown]
# ## Towards the summit: swizzles
# Shared memory of a GPU has 32 banks of 4 bytes. Eight lanes read 16 bytes of eight rows of 128 bytes: in
# plain rows all want the same four banks, and wait. With chunk c of row r at c ^ (r % 8) no two meet.

# %%
chunks = {"plain": [0] * 8, "swizzled": [0 ^ row for row in range(8)]}  # where chunk 0 of each row lies
for layout, places in chunks.items():
    banks = [(128 * row + 16 * place) // 4 % 32 for row, place in enumerate(places)]
    print(f"{layout}: rows begin in banks {banks}, so clocks of a read: {max(map(banks.count, banks))}")

# %% [markdown]
# ## Equal shares
# 140 tiles on 132 multiprocessors are two waves, the second nearly empty. Stream-K cuts the steps of all
# tiles into 132 equal parts; sums of a tile that several blocks share are added up.

# %%
tiles, blocks, steps_each = 140, 132, 112
waves = -(-tiles // blocks)
shares = [(i + 1) * tiles * steps_each // blocks - i * tiles * steps_each // blocks for i in range(blocks)]
print(f"a block for each tile: {waves * steps_each} steps; equal shares: {max(shares)} steps")

# %% [markdown]
# ## A softmax in parts
# Attention reads long caches: positions are split, and each part keeps its maximum, its sum and its output.

# %%
logits, v = 30 * rng.standard_normal(1000), rng.standard_normal((1000, 64))
parts = []
for some, values in zip(np.split(logits, 8), np.split(v, 8), strict=True):
    p = np.exp(some - some.max())
    parts.append((some.max(), p.sum(), p @ values))
most = max(m for m, _, _ in parts)
whole = sum(np.exp(m - most) * o for m, _, o in parts) / sum(np.exp(m - most) * s for m, s, _ in parts)
p = np.exp(logits - logits.max())
print("softmax in eight parts is the whole one:", np.allclose(whole, p @ v / p.sum()))

# %% [markdown]
# What comes next: `ggmlq/cuda/ladder/chapters` has each of these as a kernel, and `ggmlq ladder --device
# cuda` climbs a GPU's ladder. `gq.kernels()` lists all rungs; `ggmlq ladder exercise` has holes to fill.
