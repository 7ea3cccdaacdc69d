"""The doctor of products with blocks: their mistakes, and the right kernels beside them.

    Blocks         examine.py        the way from the survey of y to a verdict
    telling_input  telling_input.py  activations on which mistakes differ

First, what is right: inputs.py checks the operands, readings.py lists the ways in which kernels round
activations, right.py the right kernels that this could be, scene.py predicts them all on a few rows and
survey.py judges the whole of y by the best.

Then, what is wrong. nonfinite.py looks for the origin of NaN and infinities. replay.py computes the product
again with each mistake:

    misread.py          mistakes in the operand (operand.py): in orders.py (of codes), subscales.py (of bits,
                        by subscale_rules.py), terms.py (in one term of the product), strides.py (of rows)
    products.py         mistakes in the sums; between_blocks.py: where blocks meet
    assignment.py       an order of codes that no list has, found by linear algebra

formulas.py puts a mistake into the letters of the format; packed.py finds where codes lie in bytes for that.
"""
