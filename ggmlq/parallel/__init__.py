"""Several GPUs: weights in parts, products that use all of them, and groups of processes.

>>> import numpy as np, ggmlq as gq
>>> q = gq.quantize(np.eye(128, 64, dtype=np.float32), "q8_0")
>>> s = gq.parallel.shard(q, ["cpu", "cpu"])     # ["cuda:0", "cuda:1"] where there are two
>>> (np.ones(64, np.float32) @ s.T).shape        # gathered on the device of x
(128,)
>>> gq.parallel.linear(np.ones(64, np.float32), s)  # left where it is
<Parts (128,) in 64 + 64, float32, cpu, cpu>

team.py      devices as callers name them, that work together; cuda/driver/parallel has those on GPUs
parts.py     where arrays are cut; Parts: floats on several devices, and their way back to one
sharded.py   Sharded: weights on several devices; shard; a model straight to its devices
product.py   products with them, their arguments checked
heads.py     heads of attention on several devices; KVCache
groups.py    Group: several processes, the part of each, and what connects them: torch.distributed,
             cupyx.distributed, MPI
"""

from __future__ import annotations

from typing import Any

from .groups import Group, group, shard_of
from .heads import KVCache
from .parts import Parts, replicate, silu
from .product import left
from .sharded import Sharded, shard, tensor_parallel
from .team import together

__all__ = [
    "Group",
    "KVCache",
    "Parts",
    "Sharded",
    "expert_linear",
    "group",
    "linear",
    "replicate",
    "scaled_linear",
    "shard",
    "shard_of",
    "silu",
    "tensor_parallel",
    "together",
]


def linear(x: Any, s: Sharded, **options: Any) -> Parts:
    """:func:`ggmlq.linear` whose result stays on the devices: of rows their columns, of columns the sum."""
    return left("linear", s, x, (), options)


def scaled_linear(x: Any, s: Sharded, **options: Any) -> Parts:
    """:func:`ggmlq.scaled_linear` whose result stays on the devices."""
    return left("scaled_linear", s, x, (), options)


def expert_linear(x: Any, s: Sharded, ids: Any, **options: Any) -> Parts:
    """:func:`ggmlq.expert_linear` whose result stays on the devices."""
    return left("expert_linear", s, x, (ids,), options)
