"""The doctor for products of scaled arrays: 8-bit codes, and scales in arrays of their own.

examine.py     the way from the survey of y to a verdict, and its words
inputs.py      operands, checked; the ways in which a right kernel may take x
scene.py       y beside the right results, all of it and a part to examine closely
terms.py       the product by groups of K that share their scales, so that most mistakes need no new product
replay.py      every mistake tried
mistake.py     the result with a mistake, and how far float32 sums may stray
catalogue.py   every mistake by name
scales.py      scales forgotten, of another group, applied once, of another row, transposed
zeros.py       zero points forgotten, with the wrong sign, times the wrong sum
codes.py       signed for unsigned, one float for another, codes that did not saturate
sums.py        integers that overflow, sums that are not promoted, a tail of K left out
wild.py        NaN and infinities in y
moved.py       columns that hold others
"""

from ..catalogue import SCALED

__all__ = ["SCALED"]
