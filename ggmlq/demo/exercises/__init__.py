"""Exercises of `ggmlq ladder exercise`: files with a hole, which the doctor of wrong kernels judges.

judge.py        a solution on seeded cases: right, or the mistake by name; and its time
e1_decode.py    blocks of q4_0 to floats
e2_codes.py     activations to 8-bit codes
e3_sums.py      the constant inside the codes, taken off through a sum
e4_reuse.py     each weight decoded once for all rows of activations
e5_panel.py     sixteen rows of weights side by side
e6_split.py     a sum in parts, for threads
"""

from .judge import check, main, source, titles

__all__ = ["check", "main", "source", "titles"]
