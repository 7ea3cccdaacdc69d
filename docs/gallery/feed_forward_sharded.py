"""A feed-forward block on several devices.

The two wide matrices are cut by rows, the last one by columns: what the first leave on a device is what the
last one reads there, so the block needs one sum. Here devices are parts of the host; name GPUs to use them:

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

# Each device gets its part only. Columns of `down` are cut where rows of `gate` and `up` are.
a, b = (gq.parallel.shard(q, devices, axis=0) for q in (gate, up))
c = gq.parallel.shard(down, devices, axis=1, cuts=a.cuts)
for name, s in (("gate", a), ("up", b), ("down", c)):
    print(f"{name:5} {s}")

if devices[0] != "cpu":
    import cupy

    with cupy.cuda.Device(int(devices[0].partition(":")[2])):
        x = cupy.asarray(x)
silu = gq.parallel.silu

# One run: devices wait for each other in the sum, and at the end.
with gq.parallel.together(a, b, c, x=x):
    every = gq.parallel.replicate(x, devices)
    h = gq.parallel.linear(every, a).map(lambda g, u: silu(g) * u, gq.parallel.linear(every, b))
    y = gq.parallel.linear(h, c)
print(f"\nbetween: {h}\nresult:  {y}")

# The same on one device.
gate, up, down = (q.to(devices[0]) for q in (gate, up, down))
single = (silu(x @ gate.T) * (x @ up.T)) @ down.T
error = gq.nmse(y.gather("cpu"), single.get() if devices[0] != "cpu" else single)
print(f"against one device: nmse {error:.0e}, {'the same product' if error < 1e-4 else 'WRONG'}")
