"""A feed-forward block on several devices.

The two wide matrices are split by rows, the last one by columns. The results of the first two stay on their
devices, where the last one reads them, so the block needs only one sum. By default the devices are parts of
the host. Name GPUs to use them:

    python docs/gallery/feed_forward_sharded.py cuda:0 cuda:1
"""

import sys

import numpy as np

import ggmlq as gq

devices = sys.argv[1:] or ["cpu", "cpu"]
rng = np.random.default_rng(0)
narrow, wide = 512, 1536
gate, up = (gq.quantize(rng.normal(0, 0.05, (wide, narrow)).astype(np.float32), "q4_0") for _ in range(2))
down = gq.quantize(rng.normal(0, 0.05, (narrow, wide)).astype(np.float32), "q4_K")
x = rng.standard_normal((16, narrow), np.float32)

# Each device gets only its part. Columns of `down` are split where rows of `gate` and `up` are split.
a, b = (gq.parallel.shard(q, devices, axis=0) for q in (gate, up))
c = gq.parallel.shard(down, devices, axis=1, cuts=a.cuts)
for name, s in (("gate", a), ("up", b), ("down", c)):
    print(f"{name:5} {s}")

if devices[0] != "cpu":
    import cupy

    with cupy.cuda.Device(int(devices[0].partition(":")[2])):
        x = cupy.asarray(x)
silu = gq.parallel.silu

# One run: devices wait for each other only in the sum and at the end.
with gq.parallel.together(a, b, c, x=x):
    every = gq.parallel.replicate(x, devices)
    h = gq.parallel.linear(every, a).map(lambda g, u: silu(g) * u, gq.parallel.linear(every, b))
    y = gq.parallel.linear(h, c)
print(f"\nbetween: {h}\nresult:  {y}")

# The same block on one device.
gate, up, down = (q.to(devices[0]) for q in (gate, up, down))
single = (silu(x @ gate.T) * (x @ up.T)) @ down.T
error = gq.nmse(y.gather("cpu"), single.get() if devices[0] != "cpu" else single)
print(f"against one device: nmse {error:.0e}, {'the same product' if error < 1e-4 else 'WRONG'}")
