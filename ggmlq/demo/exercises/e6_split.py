"""Sum in parts, as threads do.

With one row of activations and few rows of weights there is too little work for all threads, so the columns
are divided: part p of ``parts`` sums its own blocks, and the sums of all parts are added at the end. Blocks
are not to be cut, no block may be left out, and none may be summed twice.

Run this file with Python or with pytest: the doctor judges what you wrote. The rung that does it:
ggmlq/cpu/linear/r6_panels.py.
"""

from itertools import pairwise

import numpy as np

from ggmlq.demo import exercises


def bounds(blocks, parts):
    """The first block of each part and the end of the last: parts + 1 numbers from 0 to ``blocks``."""
    raise NotImplementedError("bounds")


def linear(x, blocks):
    """X [M, K] times the weights, in three parts along K."""
    edges = bounds(blocks.shape[1], 3)
    assert len(edges) == 4, "three parts have four edges"
    q = np.concatenate([blocks["qs"] & 15, blocks["qs"] >> 4], axis=-1).astype(np.float32) - 8
    values = q * blocks["d"].astype(np.float32)[..., None]
    runs = x.reshape(len(x), -1, 32)
    return sum(
        np.einsum("mki,nki->mn", runs[:, first:stop], values[:, first:stop])
        for first, stop in pairwise(edges)
    )


def test_linear():
    exercises.check(linear, "f32")


if __name__ == "__main__":
    exercises.main(linear, "f32")
