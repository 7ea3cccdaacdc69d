"""The doctor (``gq.diagnose``) says whether a kernel is right, and if not, which mistake it makes.

It compares y with the results of right kernels. Then it imitates known mistakes, one after the other, and
names the one that gives the same y.

    examine.py      diagnose: the choice of the kind of product by its operands
    frame.py        the one way of every diagnosis: results, survey, mistakes, verdict, report
    survey.py       all of y beside the best right kernel, slab by slab
    places.py       places of wrong elements: last rows, tiles, moved columns, blocks of K, NaN
    findings.py     a mistake that is tried, the part of y that it explains, and how sure the finding is
    diagnosis.py    Diagnosis: the answer
    catalogue.py    Fault: every mistake of every kind by name, with its formula and where it happened
    numbers.py      the types and limits that all kinds of products share
    blocks/         a product with a matrix of blocks, and a matrix of weights alone
    scaled/         a product of 8-bit codes with scales
    experts/        a product with experts: tokens, experts, and the places of results
    nodes.py        diagnose_node: an operation that is no product
    imitations.py   mistakes of such operations, as other operands, parameters or operations
    gru/            a GRU in integers: the first stage, step and unit that went wrong
    probe.py        the weights that a kernel multiplies with, read by unit vectors

Each kind of product brings its oracle, and the way to replay a product with a mistake.
"""

from .blocks.examine import telling_input, unit_input
from .catalogue import CATALOGUE, NODES, Fault
from .diagnosis import Diagnosis
from .examine import diagnose
from .gru import diagnose_gru
from .nodes import diagnose_node

__all__ = [
    "CATALOGUE", "NODES", "Diagnosis", "Fault", "diagnose", "diagnose_gru", "diagnose_node", "telling_input",
    "unit_input",
]  # fmt: skip
