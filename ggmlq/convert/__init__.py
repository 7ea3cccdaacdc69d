"""One GGUF file into another of other types: what each tensor becomes, and the making of it.

rules.py      which tensors llama.cpp quantizes, and to what where rows do not fit: its choices as data
mixing.py     its mixes of types, from the table in ggmlq/base/mixes.py, applied to the tensors of a model
keep.py       exceptions that a user states: names by pattern, and a type for each
filetype.py   the number by which a file says what most of it is
typefile.py   the same in a file, as llama-quantize takes it
model.py      what is converted: a file, or one without some of its layers
weights.py    the importance matrix as each tensor needs it
step.py       a conversion as it is decided; plan.py decides it, before a byte is written
checks.py     what must hold for a plan, and what a user should know of it
recipe.py     types that lose least within a size: measure.py measures what is lost, on the rows that
              sample.py draws, objective.py says what it counts, and knapsack.py chooses
stream.py     a tensor converted a few rows at a time, its error measured on the way
report.py     what came of it
tasks.py      the same given to workers in parts, who write them themselves
run.py        the file written by a plan
"""

from .model import Pruned
from .plan import plan_dequantize, plan_quantize
from .recipe import Recipe, recipe
from .report import Done, Report
from .run import dequantize, layout, quantize, run
from .step import Plan, Step
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
