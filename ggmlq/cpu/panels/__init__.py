"""Weights 16 rows at a time, so that one vector of 64 bytes serves 16 dot products at once.

    layout.py        how a panel lies, derived for a format from ``ggmlq/formats/packing.py``
    prepare.py       panels from the blocks of an array, made once
    lay.py           kernels for that: rows taken apart, codes laid into panels
    activations.py   rows of x to records: 8-bit codes, a scale for 32, and sums of the codes
    read.py          codes and scales out of a panel, as vectors
    tile.py          the product of one panel with a few records, in registers
    operands.py      the arguments of a kernel, by name
    product.py       kernels: the loops around the tile, for panels as they are kept
    expand.py        a panel as it is kept to one of bytes, when many rows share that work
    gather.py        panels of bytes straight from blocks, for any format; nothing is kept
    lines.py         no panel at all: a row of blocks at a time, for a few rows of x
    multiply.py      the walk: records, kernel, threads

A kernel is compiled for a layout, a number of rows at once and a target (``machine/target.py``).
"""
