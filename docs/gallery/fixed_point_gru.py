"""A fixed-point GRU.

A GRU in floats runs once on typical input, which gives the range of every tensor. Then it is converted to a
GRU that computes only in integers: products, shifts that round, and tables for sigmoid and tanh. The codes
are the same in every kernel and on every device.
"""

import numpy as np

import ggmlq as gq

rng = np.random.default_rng(0)
inputs, units = 16, 32
W = rng.uniform(-0.4, 0.4, (3 * units, inputs)).astype(np.float32)
R = rng.uniform(-0.4, 0.4, (3 * units, units)).astype(np.float32)
bx, br = rng.uniform(-0.2, 0.2, (2, 3 * units)).astype(np.float32)
typical, x = rng.uniform(-1, 1, (2, 100, 8, inputs)).astype(np.float32)  # 100 steps of 8 sequences

g = gq.GRU(W, R, bx, br)  # from torch: gq.GRU.from_torch(module), from ONNX: gq.GRU.from_onnx(path)
g.observe(typical)
exact, _ = g(x)

print("widths   mean error   largest   bytes of W and R")
for widths in ("int8", "mixed", "int16"):
    f = g.fixed(widths)
    y, h = f(x)
    size = f.codes["W"].nbytes + f.codes["R"].nbytes
    print(f"{widths:8} {np.abs(y - exact).mean():10.1e}   {np.abs(y - exact).max():7.1e}   {size:,}")

# The format of each tensor, and a comparison of the codes with the oracle, which computes in int64.
f = g.fixed("int8")
for name in ("x", "h", "z_out"):
    p = f.parameters[name]
    print(f"\n{name}: value = 2^{-p.exponent} · (code - {p.zero}), {p.bits} bits", end="")
codes, _ = f(x, return_codes=True)
oracle = gq.reference.gru(f, x)["h"]
print(f"\n\nthe codes are those of the oracle in int64: {np.array_equal(codes, oracle)}")
print(f"the last state begins with {codes[-1, 0, :10]}")
