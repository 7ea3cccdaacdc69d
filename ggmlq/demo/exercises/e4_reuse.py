"""Decode each weight once for all rows of activations.

The product of one row with one row decodes every weight M times. Decode a stretch of STRETCH columns of a
row of weights, multiply it with all rows of x, add to the sums, go on. Mind a last stretch that is shorter.

Run this file with Python or with pytest: the doctor judges what you wrote. The rung that does it:
ggmlq/cpu/linear/r1_blocked.py.
"""

import numpy as np

from ggmlq.demo import exercises

STRETCH = 96  # columns: whole blocks


def stretch(row, first, stop):
    """Columns ``first`` to ``stop`` of a row of blocks [K / 32], as float32."""
    part = row[first // 32 : stop // 32]
    q = np.concatenate([part["qs"] & 15, part["qs"] >> 4], axis=-1).astype(np.float32) - 8
    return (q * part["d"].astype(np.float32)[:, None]).reshape(-1)


def linear(x, blocks):
    """X [M, K] times the weights, [M, N]; each stretch is decoded once."""
    raise NotImplementedError("linear")


def test_linear():
    exercises.check(linear, "f32")


if __name__ == "__main__":
    exercises.main(linear, "f32")
