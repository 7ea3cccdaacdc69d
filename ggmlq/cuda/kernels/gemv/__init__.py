"""The parts of cuda:gemv and cuda:gemv_int16, kernels for few rows of activations; both read packed weights.

    stages.py     a warp's stages in shared memory: sizes, copies into them, activations out of them; small
                  blocks that split the columns of a tile among the blocks of a cluster
    by_runs.py    up to four rows of activations: the spare columns of ``mma`` serve other runs
    digits.py     one row of activations as integers of two bytes each
    gated.py      rows of two matrices side by side, and the gate between them in the epilogue  The kernels
                  are ladder/linear/r13_gemv.py, r17_gemv_int16.py, gated.py and kernels/mma/transposed.py,
                  ladder/expert_linear/r4_gemv.py
and r8_gemv_int16.py; cost/gemv.py estimates how long those of ``x @ q.T`` take.
"""
