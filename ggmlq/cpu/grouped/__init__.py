"""Many products at once: groups of rows, each with a matrix of its own, in one job of the threads.

    multiply.py     all products: rows of codes, uses sorted by expert, panels of all experts
    operands.py     the arguments of the kernels, by name
    sort.py         kernel: the uses of each expert together, in work units of equal cost
    product.py      kernels: panels of all groups counted through, as they are kept or made meanwhile
    scattered.py    in them, tile and loops for rows that lie anywhere, as those of an expert's tokens do

Rows are quantized once, whatever number of experts uses them, and stay where they are: a group is a list of
addresses. Panels, rows of codes and the tile are those of ``panels/``. This is a room of its own
because its code comes in a pack of its own, which a first product with one matrix has no need to unpack.
"""
