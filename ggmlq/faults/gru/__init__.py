"""The doctor for GRUs in integers: ``gq.diagnose_gru`` names the first stage that went wrong, and why.

    examine.py      diagnose_gru: the way from codes to a verdict; trials of mistakes, alone and together
    machine.py      one run a direction; a step with mistakes in it: the oracle's stages, some parts replaced
    mistakes.py     all mistakes that are tried, most as formulas of stages

Every step is judged from the states observed before it. So an error does not spread, all steps are examined
at once, and a mistake that explains a run gives its codes exactly.
"""

from .examine import diagnose_gru

__all__ = ["diagnose_gru"]
