"""Attention over rows of blocks or floats: softmax(scale·q·kᵀ + mask)·v, with a running maximum.

    operands.py   the arguments of the kernels, by name
    drive.py      the driver: arguments, memory between kernels, work units
    units.py      kernels: rows of queries over a stretch of positions, in vectors; their stretches merged
    matrix.py     kernels: the same by tiles of bfloat16 on Intel's matrix unit
    stretch.py    in them, the steps of a stretch that both share
    powers.py     in matrix.py, the step from scores to tiles of weights
    softmax.py    in the others, the step from scores of a tile to weights, with the running maximum
    rows.py       in them, rows of keys and values to floats, some positions at a time
    tile.py       in them, the products: queries times keys, weights times values, in registers
    exponent.py   in them, exp and tanh of vectors, and the largest lane
    oracle.py     the same in float64, of one stream: the oracle of attention in a trace

Queries of all heads that share keys are rows of one matrix, so that keys and values are decoded once for all
of them. Each sum has one order, whatever other rows there are and however many threads.
"""
