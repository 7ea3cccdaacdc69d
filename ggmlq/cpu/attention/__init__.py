"""Attention over rows of blocks or floats: softmax(scale·q·kᵀ + mask)·v, with a running maximum.

    call.py       attend: from checked operands to the driver
    drive.py      the driver: arguments, memory between kernels, work units
    units.py      kernels: rows of queries over a stretch of positions, in vectors; their stretches merged
    matrix.py     kernels: the same by tiles of bfloat16 on Intel's matrix unit
    softmax.py    in units.py, the step from scores of a tile to weights, with the running maximum
    tile.py       in units.py, the products: queries times keys, weights times values, in registers
    rows.py       rows of keys and values to floats, some positions at a time
    oracle.py     the same in float64, of one stream: the oracle of attention in a trace

Queries of all heads that share keys are rows of one matrix, so that keys and values are decoded once for all
of them. Each sum has one order, whatever other rows there are and however many threads.
"""
