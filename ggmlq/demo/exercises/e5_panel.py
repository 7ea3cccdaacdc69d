"""Lay sixteen rows of weights side by side.

A vector register holds a number for each of 16 rows of weights. So a panel has the codes of 16 rows column
by column: panel[k, r] is row r's code of column k, and one load gives a column. The last panel may have
fewer rows: fill it with 0.

Run this file with Python or with pytest: the doctor judges what you wrote. The rung that does it:
ggmlq/cpu/linear/r6_panels.py.
"""

import numpy as np

from ggmlq.demo import exercises

ROWS = 16


def panels(values):
    """Weights [N, K] as panels [ceil(N / 16), K, 16]."""
    raise NotImplementedError("panels")


def linear(x, blocks):
    """X [M, K] times the weights: a column of a panel times one activation, added to 16 sums."""
    q = np.concatenate([blocks["qs"] & 15, blocks["qs"] >> 4], axis=-1).astype(np.float32) - 8
    values = (q * blocks["d"].astype(np.float32)[..., None]).reshape(len(blocks), -1)
    y = np.concatenate([x @ panel for panel in panels(values)], axis=1)
    return y[:, : len(blocks)]


def test_linear():
    exercises.check(linear, "f32")


if __name__ == "__main__":
    exercises.main(linear, "f32")
