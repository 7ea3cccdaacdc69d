"""What kernels that fill the card share.

    ring.py      stages of shared memory that are filled ahead
    parts.py     columns divided among blocks, and parts added up in a fixed order
    product.py   which problems they take, which tile serves how many rows, and the launch

``cuda:mma_bf16`` and ``cuda:wgmma`` are such kernels.
"""
