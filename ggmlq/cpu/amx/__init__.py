"""Products on the matrix unit of Intel's CPUs (AMX): weights are decoded to tiles between the products.

    permission.py    the conditions of the unit: its CPU, Numba's settings, a permission of Linux
    unit.py          the instructions on its eight tiles, and their shapes
    activations.py   rows of x to tiles of bfloat16
    weights.py       a run of a panel (``cpu/panels``) to one such tile
    operands.py      the arguments of kernels, by name
    instructions.py  steps of kernels on tiles: sums of 32 × 32
    product.py       the kernel: loops around the tiles; the next weights are decoded between products
    results.py       sums to results of 32 or 16 bits
    multiply.py      a product: tiles, kernel, threads
    peak.py          the unit's own rate, for the roofs of a ladder

``codes8/int_amx.py`` multiplies 8-bit codes with scales on it, by the same instructions.

The unit multiplies 16 rows of 32 activations with 16 rows of 32 weights in 16 clocks, and adds to 256 sums of
float32 that stay in it.
"""
