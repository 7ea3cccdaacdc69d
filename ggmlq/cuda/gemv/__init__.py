"""What ``cuda:gemv`` is made of.

    stages.py     what a warp has in shared memory, how it gets there, and activations out of it
    clusters.py   small blocks that share a tile
    cost/gemv.py       how long a product takes, by how blocks share it
    by_runs.py    with up to four rows of activations: the spare columns of ``mma`` serve other runs
    uses.py       of experts: which uses a block serves, rows from and to where they are

The kernels themselves are linear/r13_gemv.py and expert_linear/r4_gemv.py.
"""
