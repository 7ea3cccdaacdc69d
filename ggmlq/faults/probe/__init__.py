"""The probe of ``ggmlq check``: it feeds a kernel unit vectors, so that y is the weights that it really uses.

feeding.py    one-hot activations have exact codes, so y is the weights in use; and pairs of blocks
patterns.py   places along an axis in words: ranges, or what repeats
instead.py    what stands in the place of the right weights: others, a factor, scales, minima, codes
reading.py    all of it put together: where, and what instead
"""

from .feeding import Multiply
from .reading import Reading, read

__all__ = ["Multiply", "Reading", "read"]
