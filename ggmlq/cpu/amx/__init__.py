"""Products on the matrix unit of Intel's CPUs (AMX): weights are decoded to tiles between the products.

    permission.py    the conditions of the unit: its CPU, Numba's settings, a permission of Linux
    unit.py          the instructions on its eight tiles, and their shapes
    instructions.py  steps of kernels on tiles: sums of 32 × 32; rows of x to tiles; the unit's own rate
    product.py       the kernel: loops around the tiles; the next weights are decoded between products
    multiply.py      a product: tiles, kernel, threads; the arguments of kernels

``codes8/int_amx.py`` multiplies 8-bit codes with scales on it, by the same instructions.

The unit multiplies 16 rows of 32 activations with 16 rows of 32 weights in 16 clocks, and adds to 256 sums of
float32 that stay in it.
"""
