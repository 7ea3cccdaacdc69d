"""Weights 16 rows at a time, so that one vector of 64 bytes serves 16 dot products at once.

    layout.py     the layout of a panel, derived for a format from ``ggmlq/formats/packing.py``; arguments
    multiply.py   a product: panels of an array, laid out once, rows of codes, kernel, threads
    make.py       kernels: x to rows of codes, 8 bits with a scale for 32 and sums; blocks to panels
    product.py    kernels: the loops around the tile, for panels as they are stored, expanded to bytes when
                  many rows share that work, or made of blocks during the product, for any format
    tile.py       the product of one panel with a few rows of codes, in registers
    lines.py      no panel at all: a row of blocks at a time, for a few rows of x

A kernel is compiled for a layout, a number of rows at once and a target (``machine/target.py``).
"""
