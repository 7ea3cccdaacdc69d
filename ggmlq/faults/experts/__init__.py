"""The doctor for products with experts: wrong rows, wrong experts, lost results, or a wrong product.

A *line* is one row of y: the product of one token with one of its experts.

    lines.py      the operands as lines; the row and the expert that a wrong line is really made of, and why
    examine.py    the way from a result to a verdict; the product of each line, in the arithmetic that fits

A wrong line that is the product of another row or of another expert tells where a kernel looked. One that
is no such product is wrong within its expert: then the doctor of single matrices examines that expert.
"""
