"""Strips, an operand: weights with the file's bits, in the order in which tensor cores take them.

    layout.py      what the records of a format look like: StripLayout, derived from the format
    pack.py        the picture of a record, and how records are made of blocks
    codes.py       a lane's words as pairs of bfloat16
    scales.py      halves and bytes as float32 scales and offsets
    operand.py     both together, as the wide operand of ``mma``
    weights.py     both together, scaled in pairs of bfloat16, as ``wgmma`` takes them
    to_bf16.py     back to a matrix, for cuBLAS
    to_blocks.py   back to the file's bytes

Rungs from r12 on read them, and r11 where they are made already.
"""
