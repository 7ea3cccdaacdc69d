"""An FP8 product.

Activations and weights are e4m3, 8 bits per number, with a scale for every tile. The script shows how tiles
help if activations have outliers, how far a product is from float64, and how single numbers are rounded.
"""

import numpy as np

import ggmlq as gq

rng = np.random.default_rng(0)
w = rng.normal(0, 0.02, (256, 512)).astype(np.float32)
x = rng.standard_normal((32, 512), np.float32)
x[:, 100] *= 200  # a channel of outliers, as in language models; its weights are small
w[:, 100] /= 200

# One scale for a tensor, for a token, or for 128 numbers of a token; weights have blocks of 128 × 128.
weights = gq.quantize_scaled(w, "e4m3", (128, 128))
tiles = {"tensor": (None, None), "token": (1, None), "group": (1, 128)}
print(f"{weights}\n\nactivations   bytes   int8 error   e4m3 error   one scale per")
for name, tile in tiles.items():
    errors = []
    for code in ("int8", "e4m3"):
        a, b = gq.quantize_scaled(x, code, tile), gq.quantize_scaled(w, code, (128, 128))
        errors.append(gq.nmse(a @ b.T, x.astype(np.float64) @ w.T))
    print(f"{tile!s:13} {a.nbytes:6,}   {errors[0]:10.1e}   {errors[1]:10.1e}   {name}")

# The rounding to codes is most of the error: the product itself is right.
a = gq.quantize_scaled(x, "e4m3", (1, 128))
exact = gq.reference.scaled_linear(a, weights)
print(f"\nproduct against the float64 oracle on the same codes: nmse {gq.nmse(a @ weights.T, exact):.1e}")

# A product with floats first quantizes them, to tiles of (1, 128).
print(f"x @ weights.T is the same: {np.array_equal(x @ weights.T, a @ weights.T)}\n")

# The rounding of single numbers, with one scale for all of them.
print(gq.error_table([0.01, 0.1, 1.0, 17.3, 500.0], scale=1.0, formats=("e4m3", "e5m2", "int8")))
