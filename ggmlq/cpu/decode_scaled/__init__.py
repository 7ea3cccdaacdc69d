"""Codes with scales to floats: value = scale · (code - zero), sixteen at a time.

operands.py   what they are given
kernels.py    codes in a row to float32, compiled
driver.py       decode, decode_into: how a whole matrix goes through, with threads
"""

from .driver import at_hand, decode, decode_into

__all__ = ["at_hand", "decode", "decode_into"]
