"""8-bit floats as pairs of bfloat16: the CPU's dot product adds two products to each of 16 float32.

    needs.py        whether this CPU has it, and whether its kernels came with the package
    layout.py       how K is cut: runs of columns that share both scales
    operands.py     what kernels are given
    lookup.py       codes to bfloat16, by two tables of bytes
    activations.py  rows of bfloat16, made once in a product, with the scales of their runs
    lay.py          that, compiled
    turn.py         sixteen rows of weights side by side, decoded
    tile.py         the product of such a piece with a few rows, in registers
    product.py      the walk, compiled: a piece of weights that the second cache holds meets all rows
    few.py          up to eight rows: nothing is laid side by side, sums run along K
    multiply.py     a product: operands, kernel, threads

Every number of e4m3 and e5m2 is one of bfloat16, so nothing is rounded before it is summed. Of the weights
nothing is kept: unlike slabs (``cpu/slabs``) a piece is made anew in each product, in the time that six rows
of activations then take with it. So few rows take weights as they lie.
"""
