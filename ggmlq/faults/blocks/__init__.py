"""The doctor for products with a matrix of blocks: right kernels, and mistakes that are imitated.

examine.py      the way from the survey of y to a verdict; the origin of NaN; input that tells mistakes apart
survey.py       operands, checked; the whole of y, judged by the best right kernel
scene.py        the right kernels that this could be, and their predictions on a few rows
readings.py     the ways in which kernels round activations
replay.py       the product computed again with each mistake; an order that no list has, by linear algebra
operand.py      weights opened up, so that mistakes can be put in
weights.py      mistakes in reading them: nibbles, high bits, constants, scales, addresses
books.py        with grids: signs, numbers of rows, orders, entries
tables.py       with tables of levels, shared exponents, halves that are read as another type
matrix.py       weights that a kernel shows as they are: a decoder's values, y of unit vectors
readback.py     the mistake that gives such weights; codes, scales and tables read back from them
rounding.py     errors that right kernels may make in one weight
orders.py       wrong orders of codes, high bits and scales
subscales.py    sub-scales from the wrong bits, and rules by which they may be put together
sums.py         mistakes in the sums, and between blocks
formulas.py     a mistake in the letters of the format, and in the bytes of a block
"""
