"""The doctor for products with experts: wrong rows, wrong experts, lost results, or a wrong product.

A *line* is one row of y: the product of one token with one of its experts.

    catalogue.py   the mistakes of these products, beside all those of a single matrix
    inputs.py      the operands as lines: one for each use of an expert
    right.py       the product of each line, in the arithmetic that fits best, and how far it may be
    sources.py     the row of activations and the expert that a wrong line is really made of
    orders.py      ids read in another order, lines that lie at the edge of a tile
    examine.py     the way from a result to a verdict

A wrong line that is the product of another row or of another expert tells where a kernel looked. One that
is no such product is wrong within its expert: then the doctor of single matrices examines that expert.
"""

from ..catalogue import EXPERTS

__all__ = ["EXPERTS"]
