"""Is my kernel right.

Three kernels for q4_0, written as in C or CUDA, are judged. The first is right, although its numbers differ
from float64: it rounds activations to 8 bits, as llama.cpp does. The others have common mistakes, and
gq.diagnose names them from the result alone.
"""

import numpy as np

import ggmlq as gq

rng = np.random.default_rng(0)
q = gq.quantize(rng.standard_normal((96, 512), np.float32), "q4_0")
x = rng.standard_normal((8, 512), np.float32)


def unpacked(blocks):
    """Codes of q4_0: the low halves of 16 bytes are weights 0 … 15 of a block, the high halves 16 … 31."""
    return np.concatenate([blocks["qs"] & 15, blocks["qs"] >> 4], axis=-1).astype(np.int32)


def interleaved(blocks):
    """Codes in the order of many other formats: weights 2j and 2j + 1 from byte j. This is wrong for q4_0."""
    return (
        np.stack([blocks["qs"] & 15, blocks["qs"] >> 4], axis=-1).reshape(*blocks.shape, 32).astype(np.int32)
    )


def kernel(x, blocks, codes, offset=8):
    """Integer dot products of 32, each times the scales of both blocks."""
    groups = x.reshape(len(x), -1, 32)
    scale = np.abs(groups).max(-1) / np.float32(127)
    a = np.rint(groups / scale[..., None]).astype(np.int32)
    dots = np.einsum("mbi,nbi->mnb", a, codes(blocks) - offset)
    return (dots * scale[:, None] * blocks["d"].astype(np.float32)).sum(-1, dtype=np.float32)


results = {
    "right": kernel(x, q.blocks, unpacked),
    "wrong order": kernel(x, q.blocks, interleaved),
    "no offset": kernel(x, q.blocks, unpacked, offset=0),
}
for name, y in results.items():
    found = gq.diagnose(y, x, q)
    print(f"--- {name}: nmse against float64 {gq.nmse(y, gq.reference.linear(x, q)):.1e}")
    print(f"ok: {found.ok}, fault: {found.fault}, confidence: {found.confidence:.2f}\n{found.text}\n")

# A difference of 1e-5 is not a mistake but the arithmetic: in the same arithmetic almost nothing is left.
print(f"against the oracle in 'q8': {gq.nmse(results['right'], gq.reference.linear(x, q, 'q8')):.1e}")
