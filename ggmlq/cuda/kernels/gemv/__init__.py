"""Few rows of x by packed weights: cuda:gemv and cuda:gemv_int16, whose warps stream weights for themselves.

stages.py    a warp's stages in shared memory, the warps and blocks that have them, and the kernels there are
kernel.py    the kernel from its first copy to its stores: of a layer, with a gate, of experts
products.py  the products of a stage: by rows of x, by runs of few rows, by digits of one row
launch.py    which stage and split serve a product, and the launch; cost/gemv.py estimates how long it takes
"""
