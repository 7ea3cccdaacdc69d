"""The doctor: is a kernel right, and if not, which mistake is it?

    diagnose       examine.py      the operands, handed to the kind of product that they make
    Diagnosis      diagnosis.py    its answer
    Fault          catalogue.py    every mistake by name: its formula, where to look, where it happened

Each diagnosis goes one way, that of frame.py:

    inputs.py       results, checked once and brought to the host
    survey.py       all of y beside the best right kernel, slab by slab
    explanation.py  a mistake that is tried, how much of y it explains, and the finding that comes of it
    verdicts.py     how sure that is, which others explain as much; races and factors
    report.py       a finding in words and figures

Wrong elements show something by their places: places.py knows last rows, tiles and NaN, moved.py finds
columns elsewhere, and k_blocks.py blocks of K that are missing. numbers.py has the types and limits that
all share.

Kinds of products bring their catalogue, their oracle, and how the product is replayed with a mistake:

    blocks/        a matrix of blocks
    scaled/        codes of 8 bits with scales beside them
    experts/       which token met which expert, and where its result went
    gru/           GRUs in integers: the first stage, step and unit that went wrong

probe/ reads the weights that a kernel multiplies with, where it can be run, by unit vectors.
"""

from .blocks.telling_input import telling_input
from .catalogue import CATALOGUE, Fault
from .diagnosis import Diagnosis
from .examine import diagnose
from .gru import diagnose_gru

__all__ = ["CATALOGUE", "Diagnosis", "Fault", "diagnose", "diagnose_gru", "telling_input"]
