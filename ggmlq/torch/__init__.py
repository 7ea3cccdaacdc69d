"""GGUF weights in torch: operators, modules and the hosts that people use. It needs torch.

library.py     the operators torch.ops.ggmlq, with gradients, autocast and stand-ins for tracing
products.py    the operators on a CPU and a GPU; products of torch with decoded weights
checks.py      their arguments, checked, and the shapes of results
blocks.py      arrays for kernels over the memory of tensors
modules.py     Linear, Embedding, Experts; words whose rows are multiplied by a number
adapters.py    LoRA beside a packed layer
replacing.py   quantize_: the layers of a model, picked by their names, become packed ones
loading.py     load_: a model is filled from a GGUF file, and its layers become packed ones
hosts/         programs that hold GGUF weights, switched on and off

>>> import torch, ggmlq.torch
>>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
>>> print(ggmlq.torch.quantize_(model, "q8_0", exclude="2"))
1 layers packed, 1 left
  0: q8_0
  2: left, its name was not picked
"""

from __future__ import annotations

from importlib.util import find_spec

import ggmlq as gq

if find_spec("torch") is None:
    raise gq.errors.MissingDependencyError(
        'import ggmlq.torch: torch is not installed; pip install "torch>=2.11" (the extra torch)'
    )

from . import hosts, library
from .adapters import LoRA, lora_
from .blocks import forget
from .checks import PREPARED
from .loading import load_
from .modules import Embedding, Experts, Linear, packed_bytes
from .replacing import Replaced, quantize_

__all__ = [
    "PREPARED",
    "Embedding",
    "Experts",
    "Linear",
    "LoRA",
    "Replaced",
    "forget",
    "hosts",
    "library",
    "load_",
    "lora_",
    "packed_bytes",
    "quantize_",
]
