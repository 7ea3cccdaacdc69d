"""A GRU in integers on a GPU: the rungs, and their parts.

    r2_graph.py    a step in one launch, 32 of them as a CUDA graph
    r3_grid.py     all steps in one kernel, whose blocks meet at a counter in memory
    r4_cluster.py  all steps in one kernel of clusters, whose blocks meet in hardware

    call.py        the work around the steps: codes, input terms, counts
    prepared.py    the launches of r3 and r4, recorded once for a shape; both directions beside each other
    encode.py      the kernels before and after the steps: floats to codes, last states and counts
    layout.py      weights, constants and tables as kernels read them
    atoms.py       the atoms of ``ggmlq/gru/step.py``, compiled for the GPU
    plain.py       the kernels of r2, for any widths
    project.py     the input terms of the gates, by tensor cores
    tile.py        16 units of 8 rows: weights in registers, products by tensor cores
    steps.py       the kernel of r3 and r4, around such tiles: from sums to gates, states and outputs

``ggmlq/gru/step.py`` and ``ggmlq/gru/plan.py`` say what is computed: codes are those of the CPU and of the
oracle, to the bit.
"""
