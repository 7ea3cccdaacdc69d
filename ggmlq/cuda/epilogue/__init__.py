"""The epilogue of a product: from sums in registers to results in memory.

mma_sums.py      ``mma`` on 8-bit codes: scales and zero points of a stage, stores of a tile
wgmma_sums.py    sums of ``wgmma``: integers to floats, boxes or elements of results, exchange in a cluster;
                 results that go to rows named by a list: the uses of experts
thread_sums.py   a thread's sums of ``wgmma`` of packed weights: written, stored as partial sums, or sent
results.py       results of float32 or 16 bits, with a bias and a residual; the kernels that add a bias where
                 no epilogue does, and partial sums of columns that were split among blocks
gates.py         the function of a gate, which multiplies such sums; the kernel of a gate behind two products
"""
