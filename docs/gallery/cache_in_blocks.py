"""A cache in blocks.

While a model generates, its keys and values grow with every token; in blocks they take a half or a quarter
of the memory. The script fills caches of several types with the same rows, attends with queries behind them,
and compares with attention in float64 over the rows as they were: without and with the rotation that spreads
a column of outliers over the others. Pass `cuda` to do it on a GPU.
"""

import sys
import time

import numpy as np

import ggmlq as gq

HEADS, KV_HEADS, WIDTH, POSITIONS, QUERIES = 32, 8, 128, 2048, 4
device = sys.argv[1] if len(sys.argv) > 1 else "cpu"

if device == "cpu":
    there, back = np.asarray, np.asarray
else:
    import cupy

    there, back = cupy.asarray, cupy.asnumpy

rng = np.random.default_rng(11)
k, v = (rng.standard_normal((1, KV_HEADS, POSITIONS, WIDTH), np.float32) for _ in "kv")
k[..., 7] *= 12  # keys of models have such columns
q = rng.standard_normal((1, HEADS, QUERIES, WIDTH), np.float32)
q[..., 7] /= 12
exact = gq.reference.attention(q, k, v, causal=True)

print(
    f"{POSITIONS} positions, {HEADS} heads over {KV_HEADS} of {WIDTH} columns, {QUERIES} queries, {device}\n"
)
print("cache        MiB    error of the result    rotated    ms")
for kind in ("f16", "q8_0", "q5_1", "q4_0"):
    errors, times, size = [], [], 0.0
    for rotate in (False, True):
        cache = gq.KVCache(KV_HEADS, WIDTH, POSITIONS, k=kind, v=kind, rotate=rotate, device=device)
        for part in np.split(np.arange(POSITIONS), 4):  # as a prompt comes in parts
            cache.append(there(k[:, :, part]), there(v[:, :, part]))
        cache.attend(there(q), causal=True)  # the first call loads kernels
        begun = time.perf_counter()
        y = back(cache.attend(there(q), causal=True))
        times.append(1e3 * (time.perf_counter() - begun))
        errors.append(gq.nmse(y, exact))
        size = cache.nbytes / 2**20
    print(f"{kind:8} {size:7.1f} {errors[0]:22.1e} {errors[1]:10.1e} {times[0]:5.1f}")

print("\nA rotation takes back two thirds of what a column of outliers costs in q8_0 and q4_0. For rows of a")
print("model of yours: gq.cache_error(q, k, v), `ggmlq cache-error MODEL --file TEXT`.")
