"""What ``cuda:gemv`` is made of.

    stages.py     what a warp has in shared memory, how it gets there, and activations out of it
    two_rows.py   with one or two rows of activations: the spare columns of ``mma`` serve other runs

The kernel itself is linear/r13_gemv.py.
"""
