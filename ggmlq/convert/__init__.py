"""Conversion of a GGUF file into one of other types (``ggmlq quantize``): first its plan, then its run.

rules.py      which tensors llama.cpp quantizes, and to what where rows do not fit; its mixes of types, from
              the table in ggmlq/base/mixes.py
typefile.py   exceptions that a user states: names by pattern and a type for each, in files too
model.py      the model to convert: a file, or one without some of its layers
step.py       the plan of a conversion as data, and the report of a finished one, tensor by tensor
plan.py       the plan made and checked, before a byte is written; importance by tensor; notes
measure.py    errors of types on sampled rows, and their weights in a recipe's sum
recipe.py     types with the least error within a size; knapsack.py chooses
stream.py     a tensor converted a few rows at a time, its error measured on the way
run.py        the new file, written by a plan, here or by workers, who write their parts themselves
"""

from .measure import Sensitivity
from .model import Pruned
from .plan import plan_dequantize, plan_quantize
from .recipe import Recipe, recipe
from .run import dequantize, layout, quantize, run
from .step import Done, Plan, Report, Step
from .typefile import read as read_tensor_types
from .typefile import write as write_tensor_types

__all__ = [
    "Done",
    "Plan",
    "Pruned",
    "Recipe",
    "Report",
    "Sensitivity",
    "Step",
    "dequantize",
    "layout",
    "plan_dequantize",
    "plan_quantize",
    "quantize",
    "read_tensor_types",
    "recipe",
    "run",
    "write_tensor_types",
]
