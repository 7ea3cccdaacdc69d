"""Few rows of x by packed weights: cuda:gemv and cuda:gemv_int16, whose warps stream weights for themselves.

stages.py     a warp's stages in shared memory: sizes, copies into them, activations out of them; small blocks
              that split the columns of a tile among the blocks of a cluster
linear.py     the kernel of r13 and r17, and its launch; cost/gemv.py estimates how long it takes
by_runs.py    up to four rows of activations: the spare columns of ``mma`` serve other runs
digits.py     one row of activations as integers of two bytes each
gated.py      rows of two matrices side by side, and the gate between them in the epilogue
"""
