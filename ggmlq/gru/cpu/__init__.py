"""A GRU in integers on the CPU: the rungs, and what the fast one is made of.

    r0_naive.py   every number after the other, in int64
    r1_tiles.py   weights in the order of the dot product, a step of 32 units in vectors
    encode.py     floats x to codes
    layout.py     weights, constants and activations as the fast rung reads them
    vectors.py    the atoms of ``ggmlq/gru/step.py``, compiled for vectors
    step_loop.py  the loops over steps, blocks of units and sequences; the tile of dot products

``ggmlq/gru/step.py`` and ``ggmlq/gru/plan.py`` say once what is computed; both rungs compile that.
"""
