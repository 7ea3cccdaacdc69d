"""The epilogue of a product: from sums in registers to results in memory.

mma_sums.py      ``mma`` on 8-bit codes: scales and zero points of a stage, stores of a tile
results.py       results of packed weights, float32 or 16 bits: a bias, a residual or a gate, a thread's sums
                 of ``wgmma`` written, stored as partial sums or sent, rows that a list names; the kernels
                 that add a bias where no epilogue does, and partial sums
gates.py         the kernel of a gate behind two products
"""
