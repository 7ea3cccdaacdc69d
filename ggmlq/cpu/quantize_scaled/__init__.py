"""Floats to codes with scales, compiled: the bits of ``ggmlq/codes/scaling.py`` at the speed of memory.

    driver.py    quantize, encode, zeros_of: a whole array in units, whole tiles that the cache holds or parts
                 of large ones, by threads
    kernels.py   the loops over the tiles of a unit
    vectors.py   16 numbers at a time: widened, divided, encoded; the extremes of numbers in a row

A tile that the second cache holds is read from memory once: its largest magnitude first, its codes
while it is still near. Larger ones (a tensor, long columns) are read twice, there is no other way: all of
a tile must be seen before the first code. What memory then carries is 9 bytes for a float32, not 5.

NumPy quantizes tiles that are narrower than 16 columns, and empty arrays.
"""

from .driver import at_hand, encode, quantize, zeros_of

__all__ = ["at_hand", "encode", "quantize", "zeros_of"]
