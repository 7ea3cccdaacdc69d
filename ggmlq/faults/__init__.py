"""The doctor (``gq.diagnose``) says whether a kernel is right, and if not, which mistake it makes.

It compares y with the results of right kernels. Then it imitates known mistakes, one after the other, and
names the one that gives the same y.

    examine.py      diagnose: the choice of the kind of product by its operands
    frame.py        the one way of every diagnosis: survey, mistakes, verdict, report
    inputs.py       results, checked once and brought to the host
    survey.py       all of y beside the best right kernel, slab by slab
    places.py       places of wrong elements: last rows, tiles, NaN
    moved.py        columns that lie elsewhere in y
    k_blocks.py     blocks of K that are missing or scaled
    explanation.py  a mistake that is tried, the part of y that it explains, and the finding
    verdicts.py     how sure a finding is, and which others explain as much; races and factors
    report.py       a finding in words and figures
    diagnosis.py    Diagnosis: the answer
    catalogue.py    Fault: every mistake by name, with its formula and where it happened
    numbers.py      the types and limits that all kinds of products share
    blocks/         a product with a matrix of blocks
    scaled/         a product of 8-bit codes with scales
    nodes/          an operation that is no product
    experts/        a product with experts: tokens, experts, and the places of results
    gru/            a GRU in integers: the first stage, step and unit that went wrong
    probe/          the weights that a kernel multiplies with, read by unit vectors

Each kind of product brings its catalogue, its oracle, and the way to replay a product with a mistake.
"""

from .blocks.examine import telling_input
from .catalogue import CATALOGUE, NODES, Fault
from .diagnosis import Diagnosis
from .examine import diagnose
from .gru import diagnose_gru
from .nodes import diagnose_node

__all__ = [
    "CATALOGUE", "NODES", "Diagnosis", "Fault", "diagnose", "diagnose_gru", "diagnose_node", "telling_input",
]  # fmt: skip
