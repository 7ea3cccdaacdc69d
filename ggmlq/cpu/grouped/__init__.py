"""Products with the experts of a mixture (``expert_linear``), all in one job of the threads.

A *use* is a row of activations with one of its experts; a *group* is some uses of one expert.

    multiply.py    the driver: rows of codes, uses sorted by expert, panels of all experts
    product.py     kernels: the uses of each expert together, in work units of equal cost; panels of all
                   groups counted through, as stored or made in the product, times rows that lie anywhere

Rows are quantized once, whatever number of experts uses them, and stay where they are: a group is a list of
addresses. Panels, rows of codes and the tile are those of ``panels/``. This is a room of its own
because its code comes in a pack of its own, which a first product with one matrix has no need to unpack.
"""
