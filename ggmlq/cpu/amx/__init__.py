"""Products on the matrix unit of Intel's CPUs (AMX): weights become tiles as they are multiplied.

    permission.py    whether this process may use the unit: Linux is asked once
    unit.py          the instructions on its eight tiles, and their shapes
    activations.py   rows of x to tiles of bfloat16
    weights.py       a run of a panel (``cpu/panels``) to one such tile
    operands.py      the arguments of kernels, by name
    instructions.py  what kernels do with tiles: sums of 32 × 32
    product.py       the kernel: loops around the tiles; the next weights are decoded between products
    multiply.py      the walk: tiles, kernel, threads
    codes8/int_amx.py         the same for codes of 8 bits with scales beside them (``cpu/slabs``)

The unit multiplies 16 rows of 32 activations with 16 rows of 32 weights in 16 clocks, and adds to 256 sums of
float32 that stay in it.
"""
