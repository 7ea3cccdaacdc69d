"""The doctor for products with a matrix of blocks: right kernels, and mistakes that are imitated.

examine.py          the way from the survey of y to a verdict
inputs.py           operands, checked and brought to the host
readings.py         the ways in which kernels round activations
right.py            the right kernels that this could be
scene.py            their predictions on a few rows
survey.py           the whole of y, judged by the best of them
nonfinite.py        the origin of NaN and infinities
replay.py           the product computed again with each mistake
operand.py          weights opened up, so that mistakes can be put in
misread.py          mistakes in reading them: nibbles, high bits, constants
orders.py           mistakes in the order of codes
subscales.py        sub-scales from the wrong bits
subscale_rules.py   rules by which sub-scales may be put together
strides.py          rows from the wrong address
terms.py            mistakes in one term of the product alone
products.py         mistakes in the sums
between_blocks.py   mistakes where blocks meet
assignment.py       an order of codes that no list has, by linear algebra
formulas.py         a mistake in the letters of the format
packed.py           the places of codes in the bytes of a block, for formulas
telling_input.py    activations on which mistakes differ
"""
