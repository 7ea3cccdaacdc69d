"""One GGUF file into another of other types: what each tensor becomes, and the making of it.

rules.py      which tensors llama.cpp quantizes, and to what where rows do not fit: its choices as data
mixes.py      its mixes of types, as a table; mixing.py applies them to the tensors of a model
keep.py       exceptions that a user states: names by pattern, and a type for each
weights.py    the importance matrix as each tensor needs it
plan.py       every tensor's way, with its reason, decided before a byte is written
stream.py     a tensor converted a few rows at a time, its error measured on the way
report.py     what came of it
run.py        the file written by a plan
"""

from .plan import Plan, Step, plan_dequantize, plan_quantize
from .report import Done, Report
from .run import dequantize, quantize, run

__all__ = [
    "Done",
    "Plan",
    "Report",
    "Step",
    "dequantize",
    "plan_dequantize",
    "plan_quantize",
    "quantize",
    "run",
]
