"""The epilogue of a product: from sums in registers to results in memory.

mma_sums.py       ``mma`` on 8-bit codes: scales and zero points of a stage, stores of a tile
wgmma_sums.py     sums of ``wgmma``: integers to floats, boxes or elements of results, exchange in a
                  cluster
codes8/epilogue.py    steps on a tuple of such sums: add a bias, stage patches for conversions
thread_sums.py    a thread's sums of ``wgmma`` of packed weights: written, stored as partial sums, or sent
results.py        results of float32 or 16 bits, with a bias
results.py       the residual of a product, added to a thread's sums of packed weights
gates.py   the function of a gate, which multiplies such sums
results.py     the kernel that adds partial sums of columns that were split among blocks
wgmma_sums.py    results that go to rows named by a list: the uses of experts
gates.py          the kernel of a gate behind two products
results.py           the kernel that adds a bias where no epilogue does
"""
