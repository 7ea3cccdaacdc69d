"""Packed weights: the file's bits, in the order in which the lanes of a warp give them to tensor cores.

    layout.py      PackedLayout: how a format's fragments look, derived from the format
    pack.py        the picture of a fragment, and the kernel that packs blocks
    codes.py       a lane's words as pairs of bfloat16, as pairs of float16, as bytes; the picture of a word
    scales.py      a fragment's halves and bytes as float32 scales and offsets
    operand.py     codes and scales together, as the wide operand of ``mma``; for activations in the order of
                   their columns, too
    weights.py     codes times scales in pairs of bfloat16 or of float16, as ``wgmma`` takes them; in pairs of
                   rows, and a warp's columns below each other, for sums over rows
    to_bf16.py     packed weights back to a matrix, for cuBLAS: bfloat16, or float16 times a power of two
    x_tiles.py     activations in bfloat16, swizzled as ``wgmma`` reads them
    code_tiles.py  activations as int8 codes with scales and sums, in the order of ``mma``
    floats.py      activations as other floats
    groups.py      the plan of the uses of experts, which rows lie together, and the kernels that gather them
    unpacked.py    weights and activations as int8 codes in one array, float32 scales in another, for r2 to
                   r5, r8
    to_blocks.py   packed weights back to the file's bytes, on the card and on the host

A *fragment* is 16 rows × 64 columns of weights. A *fragment row* is the fragments of the same 16 rows, one
for each 64 columns, a *step*. A *sixteen* is 16 columns of a step: those of one ``mma`` of pairs. Rungs from
r13 on read packed weights, and r11 where an array has them already.
"""
