"""Weights 16 rows at a time, so that one vector of 64 bytes serves 16 dot products at once.

    layout.py        the layout of a panel, derived for a format from ``ggmlq/formats/packing.py``
    operands.py      the arguments of a kernel, by name
    prepare.py       panels from the blocks of an array, laid out once
    assemble.py      kernels for that: rows split into codes and scales, codes laid into panels
    activations.py   rows of x as rows of codes: 8-bit codes, a scale for 32, and sums of the codes
    read.py          codes and scales out of a panel, as vectors
    tile.py          the product of one panel with a few rows of codes, in registers
    product.py       kernels: the loops around the tile, for panels as they are stored
    expand.py        a stored panel to one of bytes, when many rows share that work
    gather.py        panels of bytes straight from blocks, for any format; nothing is stored
    lines.py         no panel at all: a row of blocks at a time, for a few rows of x
    multiply.py      a product: rows of codes, kernel, threads

A kernel is compiled for a layout, a number of rows at once and a target (``machine/target.py``).
"""
