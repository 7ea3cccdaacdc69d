"""The doctor: is a kernel right, and if not, which mistake is it?

    diagnose       examine.py          the way through all of this, from a result to a verdict
    Diagnosis      diagnosis.py        what it answers; report.py puts a finding into words,
                                       formulas.py gives them the letters of the format
    Fault          catalogue.py        every mistake by name: its formula, where to look, where it happened
    telling_input  telling_input.py    activations on which mistakes differ

First, what is right: inputs.py checks what was given, readings.py lists the ways in which kernels round
activations, right.py the right kernels that this could be, scene.py predicts them all on a few rows and
survey.py judges the whole of y by the best. Where all is within rounding, that is the verdict.
What is known then is said in judged.py.

Then, what is wrong, by what it shows:

    places.py      which elements: last rows, a tile, blocks of K; moved.py finds columns elsewhere, by the
                   distances of nearest.py
    nonfinite.py   NaN and infinities
    replay.py      the product computed again with each mistake that can be made in the operands:
                   operand.py opens weights up, misread.py makes mistakes in them, in orders.py (of codes),
                   subscales.py (of bits, by subscale_rules.py), terms.py (in one term of the product) and
                   strides.py (of rows); products.py has those of the sums, between_blocks.py where
                   blocks meet. packed.py finds where codes lie in bytes, for formulas
    assignment.py  an order of codes that no list has, found by linear algebra

What explains y is an explanation (explanation.py); verdicts.py makes the finding of it, report.py the words.

    probe/         the weights that a kernel multiplies with, where it can be run: unit vectors
    experts/       products with experts: which token met which expert, and where its result went
    gru/           GRUs in integers: the first stage, step and unit that went wrong
    scaled/        the same for products of arrays with scales: its own mistakes, and these machines
"""

from .catalogue import CATALOGUE, Fault
from .diagnosis import Diagnosis
from .examine import diagnose
from .gru import diagnose_gru
from .telling_input import telling_input

__all__ = ["CATALOGUE", "Diagnosis", "Fault", "diagnose", "diagnose_gru", "telling_input"]
