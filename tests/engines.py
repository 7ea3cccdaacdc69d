"""Engines for the tests of groups: those that exist, in processes, and stand-ins whose ranks are threads."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest

import ggmlq as gq

BEGIN = {
    "gloo": """
import torch.distributed as engine_of
engine_of.init_process_group("gloo", init_method=f"file://{made}.meeting", rank=int(rank), world_size=2)
engine = engine_of.group.WORLD
""",
    "MPI": "from mpi4py.MPI import COMM_WORLD as engine\n",
    "nccl by torch": """
import torch, torch.distributed as engine_of, cupy
torch.cuda.set_device(int(rank)); cupy.cuda.Device(int(rank)).use()
engine_of.init_process_group("nccl", init_method=f"file://{made}.meeting", rank=int(rank), world_size=2)
engine = engine_of.group.WORLD
""",
    "nccl by cupyx": """
import cupy, cupyx.distributed
cupy.cuda.Device(int(rank)).use()
engine = cupyx.distributed.init_process_group(2, int(rank), port=int(port))
""",
}
PRODUCT = """
with gq.open(path) as f:
    group = gq.parallel.group(engine)
    up, down = group.shard_of(f["up"], 0), group.shard_of(f["down"], 1)
    x = np.asarray(f["x"])
    if group.device != "cpu":
        x = cupy.asarray(x)
    h = x @ up.T
    y, whole = group.sum(h @ down.T), group.gather(h)
    told = group.gather((x[:1, : 2 + 3 * group.rank] * 0 + group.rank).astype(np.float16))
    y, whole, told = (each if group.device == "cpu" else each.get() for each in (y, whole, told))
    np.savez(f"{made}.{group.rank}.npz", y=y, h=whole, told=told)
    print(group)
if "engine_of" in globals():
    engine_of.destroy_process_group()
"""
HEAD = "import sys, numpy as np, ggmlq as gq\npath, made, port, rank = sys.argv[1:]\n"


def two_processes(engine, folder, fresh):
    """What two of them found, what they should have, and what they printed."""
    tensors = {
        "up": gq.quantize(fresh.standard_normal((224, 64), np.float32), "q8_0"),
        "down": gq.quantize(fresh.standard_normal((32, 224), np.float32), "q8_0"),
        "x": fresh.standard_normal((3, 64), np.float32),
    }
    gq.save(folder / "in.gguf", tensors)
    code, port = HEAD + BEGIN[engine] + PRODUCT, str(int(fresh.integers(20000, 30000)))
    words = [sys.executable, "-c", code, str(folder / "in.gguf"), str(folder / "made"), port]
    env = os.environ | {
        "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }  # fmt: skip
    commands = [[*words, str(rank)] for rank in range(2)]
    if engine == "MPI":
        commands = [["mpiexec", "-n", "2", *words, "none"]]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = [subprocess.Popen(command, env=env, **pipes) for command in commands]
    said = [process.communicate(timeout=240) for process in started]
    assert not any(process.returncode for process in started), said
    found = [dict(np.load(folder / f"made.{rank}.npz")) for rank in range(2)]
    h = tensors["x"] @ tensors["up"].T
    return found, (h, h @ tensors["down"].T), "".join(out for out, _ in said)


def needs(engine):
    """Skip where an engine is not installed."""
    if engine != "MPI":
        pytest.importorskip("torch", reason="torch is not installed")
    elif find_spec("mpi4py") is None or shutil.which("mpiexec") is None:
        pytest.skip("MPI is not installed: apt install openmpi-bin, pip install mpi4py")


class Meeting:
    """Ranks in threads: each lays an array down and sees those of all."""

    def __init__(self, world):
        self.world, self.laid = world, [None] * world
        self.barrier = threading.Barrier(world, timeout=20)

    def exchange(self, rank, array):
        self.laid[rank] = array.copy()
        self.barrier.wait()
        every = list(self.laid)
        self.barrier.wait()
        return every


class Communicator:
    """A communicator as mpi4py's."""

    __module__ = "mpi4py.MPI"

    def __init__(self, meeting, rank):
        self.meeting, self.rank = meeting, rank

    def Get_rank(self):
        return self.rank

    def Get_size(self):
        return self.meeting.world

    def Allreduce(self, x, total):
        every = self.meeting.exchange(self.rank, x)
        assert total.flags.c_contiguous
        if x.dtype == np.float16 or len({(each.shape, each.dtype) for each in every}) > 1:
            raise RuntimeError("MPI_ERR_TYPE\x1b")
        total[...] = every[0]
        for term in every[1:]:
            total += term

    def Allgather(self, x, every):
        every[...] = self.meeting.exchange(self.rank, x)


class Backend(Communicator):
    """A backend as cupyx.distributed's, for arrays on GPU 1."""

    __module__ = "cupyx.distributed._nccl_comm"

    def all_reduce(self, x, total):
        assert isinstance(x, Card)
        self.Allreduce(x, total)

    def all_gather(self, x, every, count):
        assert isinstance(x, Card)
        assert x.shape == (count,)
        self.Allgather(x, every)


class Gpu:
    """GPU 1, which is always current."""

    id = 1

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


class Card(np.ndarray):
    """An array on a GPU that is not there."""

    __module__ = "cupy"
    device = Gpu()


def put_card(monkeypatch):
    """A CuPy whose arrays are NumPy's."""
    from ggmlq.cuda.driver import device

    def on_card(function):
        return lambda *given, **named: function(*given, **named).view(Card)

    names = ("array", "ascontiguousarray", "concatenate", "empty", "empty_like", "moveaxis", "ones", "zeros")
    cupy = SimpleNamespace(**{name: on_card(getattr(np, name)) for name in names})
    cupy.cuda = SimpleNamespace(runtime=SimpleNamespace(getDevice=lambda: 1))
    monkeypatch.setattr(device, "cupy", lambda: cupy)


def together(world, work, kind=Communicator):
    """``work(group)`` of each rank, in a thread; what they gave or raised."""
    found, meeting = [None] * world, Meeting(world)

    def run(rank):
        try:
            found[rank] = work(gq.parallel.group(kind(meeting, rank)))
        except Exception as error:
            found[rank] = error
            meeting.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found
