"""Conversion of a GGUF file into one of other types (``ggmlq quantize``): first its plan, then its run.

rules.py      which tensors llama.cpp quantizes, and to what where rows do not fit: its choices as data
mixing.py     its mixes of types, from the table in ggmlq/base/mixes.py, applied to the tensors of a model
keep.py       exceptions that a user states: names by pattern, and a type for each
typefile.py   files of patterns and types, as llama-quantize takes them
model.py      the model to convert: a file, or one without some of its layers
weights.py    the importance matrix as each tensor needs it
step.py       the plan of a conversion as data; plan.py makes it, before a byte is written
checks.py     checks of a plan, and notes for the user
recipe.py     types with the least error within a size: measure.py measures errors, on the rows that
              sample.py draws, objective.py weighs them, and knapsack.py chooses
stream.py     a tensor converted a few rows at a time, its error measured on the way
report.py     the table of a finished conversion, tensor by tensor
tasks.py      a conversion in tasks for workers, who write their parts of the file themselves
run.py        the new file, written by a plan
"""

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
