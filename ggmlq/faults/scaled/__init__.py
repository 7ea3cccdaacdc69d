"""The doctor for products of scaled arrays: codes of 8 bits with scales beside them.

    Scaled      examine.py     the way from the survey of y to a verdict, and its words
    SCALED      catalogue.py   every mistake by name

inputs.py checks the operands and lists how a right kernel may take x; scene.py holds y beside the right
results, all of it and a part to look at closely; terms.py takes the product apart by the groups of K that
share their scales, so that most mistakes cost no new product, and bounds how far float32 sums may stray.

replay.py tries every mistake (mistake.py), one family a file:

    scales.py   forgotten, of another group, applied once, of another row, transposed
    zeros.py    zero points forgotten, with the wrong sign, times the wrong sum
    codes.py    signed for unsigned, one float for another, codes that did not saturate
    sums.py     integers that overflow, sums that are not promoted, a tail of K left out

wild.py explains NaN and infinities in y, moved.py finds columns that hold others.
"""

from .catalogue import SCALED

__all__ = ["SCALED"]
