"""GGUF weights in torch: operators, modules and the hosts that people use. It needs torch.

library.py     the operators torch.ops.ggmlq, with gradients, autocast and stand-ins for tracing
products.py    the operators on a CPU and a GPU; products of torch with decoded weights
checks.py      their arguments, checked, and the shapes of results
blocks.py      arrays for kernels over the memory of tensors
modules.py     Linear, Embedding, Experts; words whose rows are multiplied by a number
adapters.py    LoRA beside a packed layer
replacing.py   quantize_: the layers of a model, picked by their names, become packed ones
loading.py     load_: a model is filled from a GGUF file, and its layers become packed ones
joins.py       a matrix of a host that is several in a file, or has other columns
mixtures.py    the experts of a layer, in place of those of transformers
reporting.py   report: which weights are packed, which are floats, and why
whole.py       model: a module of parts of this package from a GGUF file
steps.py       what its layers, which are gq.model's families, are computed by
hosts/         programs that hold GGUF weights, switched on and off

>>> import torch, ggmlq.torch
>>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
>>> print(ggmlq.torch.quantize_(model, "q8_0", exclude="2"))
1 layers packed, 1 left
  0: q8_0
  2: left, its name was not picked
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import ggmlq as gq

if find_spec("torch") is None:
    raise gq.errors.MissingDependencyError(
        'import ggmlq.torch: torch is not installed; pip install "torch>=2.11" (the extra torch)'
    )

import torch

from ..port import compare
from . import hosts, library
from .adapters import LoRA, lora_, merge_
from .blocks import forget
from .checks import PREPARED
from .loading import load_
from .mixtures import GatedExperts
from .modules import Embedding, Experts, Linear, packed_bytes
from .replacing import Replaced, quantize_
from .reporting import Report, report
from .whole import Model, model

__all__ = [
    "PREPARED",
    "Embedding",
    "Experts",
    "GatedExperts",
    "Linear",
    "LoRA",
    "Model",
    "Replaced",
    "Report",
    "compare",
    "fake_quantize",
    "forget",
    "hosts",
    "library",
    "load_",
    "lora_",
    "merge_",
    "model",
    "packed_bytes",
    "quantize_",
    "report",
]


def fake_quantize(
    x: torch.Tensor, type: str | int | gq.Format, imatrix: torch.Tensor | None = None
) -> torch.Tensor:  # fmt: skip
    """The values that blocks of x would have, in its dtype; the gradient goes straight through to x.

    To the bit what ``gq.quantize(x, type, imatrix).dequantize()`` gives, so weights that were trained with it
    lose nothing when they are written.

    >>> import torch, ggmlq.torch
    >>> x = torch.linspace(-1, 1, 32, requires_grad=True)
    >>> y = ggmlq.torch.fake_quantize(x, "q4_0")
    >>> y.sum().backward()
    >>> y[31].item(), x.grad[31].item()
    (0.875, 1.0)
    """
    y: torch.Tensor = torch.ops.ggmlq.fake_quantize(x, _number(type), imatrix)
    return y


def _number_of(type: str | int | gq.Format) -> int:
    return gq.formats[type].id


_number: Callable[..., int] = torch.compiler.assume_constant_result(_number_of)  # which is not typed
