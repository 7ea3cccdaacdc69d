"""Take the constant inside the codes off through a sum.

Kernels multiply codes from 0 to 15 as they are, since (q - 8) costs an instruction for each weight. What is
missing is the same for all rows of weights: 8 times the sum of a run's activation codes. Write the product
with it.

Run this file with Python or with pytest: the doctor judges what you wrote. The rung that does it:
ggmlq/cpu/linear/r4_tiles.py.
"""

import numpy as np

from ggmlq.demo import exercises


def run_sums(a, q):
    """Sums [M, N, K / 32] of a [M, K / 32, 32] times (q - 8), from q [N, K / 32, 32] as it is, 0 to 15."""
    raise NotImplementedError("run_sums")


def linear(x, blocks):
    """X [M, K] times the weights: integer products of each run, times both scales."""
    runs = x.reshape(len(x), -1, 32)
    most = np.abs(runs).max(axis=-1)
    inverse = np.divide(np.float32(127), most, out=np.zeros_like(most), where=most > 0)
    a = np.rint(runs * inverse[..., None]).astype(np.int32)
    q = np.concatenate([blocks["qs"] & 15, blocks["qs"] >> 4], axis=-1).astype(np.int32)
    d = blocks["d"].astype(np.float32)
    return np.einsum("mnk,mk,nk->mn", run_sums(a, q).astype(np.float32), most / np.float32(127), d)


def test_linear():
    exercises.check(linear, "q8")


if __name__ == "__main__":
    exercises.main(linear, "q8")
