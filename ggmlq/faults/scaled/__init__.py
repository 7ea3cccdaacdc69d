"""The doctor for products of scaled arrays: 8-bit codes, and scales in arrays of their own.

examine.py   the way from the survey of y to a verdict, and its words; every mistake tried; NaN and infinities
scene.py     operands, checked; y beside the right results, all of it and a part to examine closely
terms.py     the product by groups of K that share their scales, so that most mistakes need no new product
scales.py    scales forgotten, of another group or row, transposed; zero points forgotten, times another sum
codes.py     signed for unsigned, one float for another, codes that did not saturate; sums that overflow,
             are not promoted, or lack a tail of K
"""
