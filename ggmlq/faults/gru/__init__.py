"""The doctor for GRUs in integers: ``gq.diagnose_gru`` names the first stage that went wrong, and why.

    examine.py      diagnose_gru: the way from codes to a verdict
    inputs.py       one run a direction: codes of x, and states observed before and after every step
    machine.py      a step with mistakes in it: the oracle's stages, some parts replaced by settings
    candidates.py   all mistakes that are tried
    search.py       the trials, one by one and several at once
    catalogue.py    every mistake by name
    shifts.py       rounding, exponents, zero points, saturation
    parts.py        gates, tables, biases, terms, the reset
    update.py       1 - z, the new state, stages that are skipped or rounded together
    flow.py         products, x and states: of the wrong step, sequence or order; overflows

Every step is judged from the states observed before it. So an error does not spread, all steps are examined
at once, and a mistake that explains a run gives its codes exactly.
"""

from ..catalogue import GRU_FAULTS
from .examine import diagnose_gru

__all__ = ["GRU_FAULTS", "diagnose_gru"]
