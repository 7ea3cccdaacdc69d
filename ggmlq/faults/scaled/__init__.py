"""The doctor for products of scaled arrays: codes of 8 bits with scales beside them.

    diagnose    examine.py     the way through all of this, from a result to a verdict
    SCALED      catalogue.py   every mistake by name

inputs.py checks what was given and lists how a right kernel may take x; scene.py holds y beside the right
results, all of it and a part to look at closely; terms.py takes the product apart by the groups of K that
share their scales, so that most mistakes cost no new product, and says how far float32 sums may stray.

replay.py tries every mistake (mistake.py), one family a file:

    scales.py   forgotten, of another group, applied once, of another row, transposed
    zeros.py    zero points forgotten, with the wrong sign, times the wrong sum
    codes.py    signed for unsigned, one float for another, codes that did not saturate
    sums.py     integers that overflow, sums that are not promoted, a tail of K left out

wild.py says what NaN and infinities in y show, moved.py finds columns that hold others. Which rows, columns
and tiles are wrong, races, factors and words are those of the rooms above; report.py adds what is to be said
of scaled products.
"""

from .catalogue import SCALED
from .examine import diagnose

__all__ = ["SCALED", "diagnose"]
