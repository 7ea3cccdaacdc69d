"""The doctor for GRUs in integers: which stage of a step went wrong, and why.

    diagnose_gru   examine.py     the way from codes to a verdict
    GRU_FAULTS     catalogue.py   every mistake by name

inputs.py makes one run a direction: the codes of x and the states that were observed before and after every
step. machine.py is a step with mistakes in it: the oracle's stages, a few of their parts replaced by
settings. The settings of each mistake stand in

    shifts.py   rounding, exponents, zero points, saturation
    parts.py    gates, tables, biases, terms, the reset
    update.py   1 - z, the new state, stages that are skipped or rounded together
    flow.py     products, x and states: of the wrong step, sequence, order; what does not fit an integer

candidates.py puts them together, search.py tries them. Since every step is judged from the states that were
observed before it, an error does not spread, all steps are examined at once, and a mistake that explains a
run gives its codes exactly.
"""

from .catalogue import GRU_FAULTS
from .examine import diagnose_gru

__all__ = ["GRU_FAULTS", "diagnose_gru"]
