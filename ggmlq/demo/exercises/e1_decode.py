"""Decode blocks of q4_0 to floats.

A block holds 32 weights: ``d``, a scale in float16, and ``qs``, 16 bytes. Byte i has weight i in its low
four bits and weight i + 16 in its high four bits, as a code from 0 to 15; the weight is d times (code - 8).

Run this file with Python or with pytest: the doctor judges what you wrote. The rung that does it:
ggmlq/cpu/linear/r0_naive.py.
"""

from ggmlq.demo import exercises


def decode(blocks):
    """Blocks [N, K / 32] as float32 [N, K]."""
    raise NotImplementedError("decode")


def linear(x, blocks):
    """X [M, K] times the weights, [M, N]."""
    return x @ decode(blocks).T


def test_linear():
    exercises.check(linear, "f32")


if __name__ == "__main__":
    exercises.main(linear, "f32")
