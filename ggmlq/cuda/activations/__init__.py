"""What rungs make of rows of activations.

    floats.py   other floats: bfloat16, halves, and the order of columns that ``wgmma`` is given
    sixteen.py  floats as others: halves and bfloat16 as what a kernel reads, and back
    x_tiles.py   pieces of memory that are there as ``wgmma`` wants them; expert_x_tiles.py: sorted by expert
    int8.py     codes in planes with a scale for each 32, and their sums

FP8 codes with their scales would be a file beside these.
"""
