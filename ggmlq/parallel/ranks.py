"""The rank of a process among those started together, from torchrun's, MPI's or Slurm's environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..errors import GroupError
from . import cuts
from .sharded import checked_axis

STARTERS = (
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)
REQUEST = "Group.from_environment()"
PORT = 29511  # where nobody names one


class Rank(NamedTuple):
    """The number of a process among several, and the address at which all of them connect."""

    rank: int
    world: int
    local: int  # among those of its machine
    address: str = "127.0.0.1"
    port: int = PORT

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world} at {self.address}:{self.port}"


def rank_of(environment: Mapping[str, str] | None = None) -> Rank:
    """The rank of this process, by the first starter whose variables are set.

    Rank 0 listens at MASTER_ADDR, or on this machine if that is not set, at GGMLQ_PORT, or at the port after
    MASTER_PORT, for that one is torch's.
    """
    variables = os.environ if environment is None else environment
    for starter, rank, world, local in STARTERS:
        if rank in variables and world in variables:
            rank_here, count = (_number(variables, name, 0) for name in (rank, world))
            here = _number(variables, local, rank_here if "MASTER_ADDR" not in variables else 0)
            if rank_here >= count:
                raise GroupError(
                    f"{REQUEST}: {starter} says {rank}={variables[rank]}, {world}={variables[world]}; ranks "
                    "are numbered from 0 to one less than all; start the processes again, or set both"
                )
            port = _number(variables, "MASTER_PORT", PORT - 1) + 1
            address = variables.get("MASTER_ADDR", "127.0.0.1")
            return Rank(rank_here, count, here, address, _number(variables, "GGMLQ_PORT", port))
    starters = ", ".join(f"{starter} ({rank}, {world})" for starter, rank, world, _ in STARTERS)
    raise GroupError(
        f"{REQUEST}: nothing in the environment says which process this is; what starts several does: "
        f"{starters}; start it with torchrun --nproc-per-node 2, or mpirun -n 2"
    )


def _number(variables: Mapping[str, str], name: str, otherwise: int) -> int:
    text = variables.get(name)
    if text is None:
        return otherwise
    if not text.isdecimal() or int(text) > 65535:
        raise GroupError(
            f"{REQUEST}: {name}={text!r}; it is a number from 0 to 65535; set it, or leave it out"
        )
    return int(text)


def shard_of(q: Any, rank: int, world: int, axis: Any = 0, *, cuts: Any = None) -> Any:
    """The part of weights that one process of several has, cut as :func:`ggmlq.parallel.shard` cuts them.

    A view where slices are views: of an open file only this part is ever read.

    >>> import numpy as np, ggmlq as gq
    >>> q = gq.quantize(np.eye(96, 64, dtype=np.float32), "q8_0")
    >>> gq.parallel.shard_of(q, rank=2, world=3)
    <QuantArray q8_0 (32, 64), ne [64, 32], 2.1 KiB, cpu>
    """
    return _part(f"shard_of(q, rank={rank}, world={world}, axis={axis!r})", q, rank, world, axis, cuts)


def _part(request: str, q: Any, rank: int, world: int, axis: Any, limits: Any) -> Any:
    way = checked_axis(request, axis, q.ndim)
    if not 0 <= rank < world:
        raise GroupError(f"{request}: ranks are numbered from 0 to one less than world; pass rank < world")
    if way is None:
        return q
    return cuts.piece(q, way, *cuts.spans(request, q, world, way, limits)[rank])
