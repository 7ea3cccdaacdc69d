"""Chapters of the ladder: each technique of its summit alone, in a kernel that can be read in one sitting.

The summit uses all of them at once. A chapter changes one thing beside its neighbours, multiplies whole
tiles of int8 codes (or what its technique is about), and imports no kernel that ``auto`` takes and no other
chapter: instructions of ``intrinsics/``, and the host's side of its launch, operands.py. Each
has a function ``product`` (c7: ``attention``), for CuPy arrays on a Hopper card; c1 and c7 need no Hopper.

    c1_swizzle.py            rows of shared memory that are read without conflicts
    c2_boxes.py              the copy engine: boxes of matrices, a barrier that counts bytes
    c3_warp_specialized.py   a producer warp, a consumer warpgroup, a ring of stages between them
    c4_multicast.py          two blocks of a cluster, each of which fetches half for both
    c5_stream_k.py           equal shares of all steps, whatever the tiles are
    c6_epilogue.py           from sums in registers to wide stores: scale, bias, activation, rounding
    c7_split_softmax.py      attention of one query: positions in parts, softmax put together again
    c8_scaled_codes.py       FP8 with a scale for 128 columns, and sums that are promoted
    operands.py              checks of shapes, arrays for results, maps of the copy engine
"""
