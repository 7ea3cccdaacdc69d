"""The doctor of ports: a module of torch held against a GGUF file of the same model, and the mistake by name.

compare.py    compare: the places of a model, each right or with its mistake
watched.py    a call of the module with hooks: inputs and outputs of the parts that have tensors
judge.py      the judge of places, who tries mistakes
parts.py      a part by itself: its output from its own input and the file's tensor, and what may be wrong
orders.py     orders of rows: of heads for RoPE, of a delta net's value heads
between.py    what lies between parts, each stretch computed from the module's own numbers
attention.py  RoPE and attention, and their mistakes

torch is never imported: hooks are methods of the module.
"""

from .compare import Comparison, compare
from .judge import Place

__all__ = ["Comparison", "Place", "compare"]
