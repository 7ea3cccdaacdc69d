"""Codes with scales to floats: value = scale · (code - zero), sixteen at a time.

driver.py    decode, decode_into: a whole matrix, by threads
kernels.py   codes in a row to float32, compiled
"""

from .driver import at_hand, decode, decode_into

__all__ = ["at_hand", "decode", "decode_into"]
