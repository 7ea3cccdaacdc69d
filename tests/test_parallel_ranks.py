"""Processes that were started together: they find each other, add up, and say who is missing."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.errors import DeviceError, GroupError, ShapeError
from ggmlq.parallel.ranks import rank_of

PRODUCT = """
import sys, numpy as np, ggmlq as gq
path, made = sys.argv[1:]
with gq.open(path) as f, gq.parallel.Group.from_environment("cpu", timeout=60) as group:
    up, down = group.shard_of(f["up"], 0), group.shard_of(f["down"], 1)
    x = np.asarray(f["x"])
    h = x @ up.T
    y = group.all_reduce(h @ down.T)
    whole = group.all_gather(h)
    told = group.broadcast(np.full(3, group.rank, np.int64), root=group.world - 1)
    group.barrier()
    np.savez(f"{made}.{group.rank}.npz", y=y, h=whole, told=told)
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def environment(starter, rank, world, port):
    """What it sets for a process."""
    plain = {
        k: v for k, v in os.environ.items() if not k.startswith(("RANK", "WORLD", "MASTER", "OMPI", "PMI"))
    }
    names = {
        "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
        "mpirun": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    }[starter]
    said = dict(zip(names, map(str, (rank, world, rank)), strict=True))
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port - 1)}
    return plain | said | (meeting if starter == "torchrun" else {"GGMLQ_PORT": str(port)})


@pytest.mark.parametrize("starter", ["torchrun", "mpirun"])
def test_two_processes_multiply(starter, tmp_path, fresh):
    tensors = {
        "up": gq.quantize(fresh.standard_normal((224, 64), np.float32), "q8_0"),
        "down": gq.quantize(fresh.standard_normal((32, 224), np.float32), "q8_0"),
        "x": fresh.standard_normal((3, 64), np.float32),
    }
    gq.save(tmp_path / "in.gguf", tensors)
    port = free_port()
    command = [sys.executable, "-c", PRODUCT, str(tmp_path / "in.gguf"), str(tmp_path / "made")]
    started = [
        subprocess.Popen(command, env=environment(starter, rank, 2, port), stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    said = [process.communicate(timeout=120)[1] for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    one, two = (np.load(tmp_path / f"made.{rank}.npz") for rank in range(2))
    h = tensors["x"] @ tensors["up"].T
    assert one["y"].tobytes() == two["y"].tobytes()
    assert np.allclose(one["y"], h @ tensors["down"].T, rtol=1e-4, atol=1e-3)
    for each in (one, two):
        assert np.allclose(each["h"], h, rtol=1e-5, atol=1e-4)
        assert each["told"].tolist() == [1, 1, 1]


# --- in threads: the same connections ---------------------------------------------------------


def together(world, work, timeout=20.0, port=None):
    """``work(group)`` of each rank, in a thread; what they gave or raised."""
    found, port = [None] * world, port or free_port()

    def run(rank):
        try:
            me = gq.parallel.Rank(rank, world, rank, "127.0.0.1", port)
            with gq.parallel.Group(me, "cpu", timeout) as group:
                found[rank] = work(group)
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


def test_sums_are_in_the_order_of_the_ranks(fresh, rounds):
    for _ in rounds(0.5):
        world = int(fresh.integers(1, 5))
        dtype = fresh.choice(["f4", "f8", "f2", "i4", "i8"])
        shape = tuple(int(n) for n in fresh.integers(0, 5, int(fresh.integers(0, 4))))
        terms = [(fresh.standard_normal(shape) * 100).astype(dtype) for _ in range(world)]
        total = terms[0].copy()
        for term in terms[1:]:
            total += term
        made = together(world, lambda group, terms=terms: group.all_reduce(terms[group.rank]))
        assert all(np.array_equal(y, total) and y.dtype == total.dtype for y in made), made
    lengths = [2, 0, 3]
    parts = [fresh.standard_normal((4, n)) for n in lengths]
    for sizes in (None, lengths):
        for y in together(3, lambda group, sizes=sizes: group.all_gather(parts[group.rank], sizes=sizes)):
            assert np.array_equal(y, np.concatenate(parts, -1))


def test_in_place(fresh):
    def work(group):
        x = np.ones((2, 3), np.float32) * (group.rank + 1)
        y = group.all_reduce(x, out=x)
        return y is x and bool((x == 3).all())

    assert together(2, work) == [True, True]


def test_who_calls_something_else():
    def shapes(group):
        return group.all_reduce(np.ones(2 + group.rank))

    for error in together(2, shapes):
        assert isinstance(error, GroupError)
        assert "in the same order" in str(error)
    other = together(
        2, lambda group: group.all_reduce(np.ones(2)) if group.rank else group.broadcast(np.ones(2), root=1)
    )
    assert all(isinstance(each, GroupError) for each in other)
    late = together(2, lambda group: group.barrier() if group.rank else None, timeout=5)
    assert late[0] is None
    assert "rank 0" in str(late[1])


def test_who_dies_in_the_middle():
    def work(group):
        if group.rank == 1:
            raise RuntimeError("killed")
        return group.all_reduce(np.ones(1 << 16))

    found = together(3, work)
    assert isinstance(found[1], RuntimeError)
    assert all(isinstance(found[rank], GroupError) for rank in (0, 2)), found


# --- words ----------------------------------------------------------------------------------


def test_the_environment():
    assert rank_of({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_PORT": "400"})[:5] == (
        1, 4, 1, "127.0.0.1", 401,
    )  # fmt: skip
    assert rank_of({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"})[:3] == (3, 4, 3)
    assert rank_of({"PMI_RANK": "0", "PMI_SIZE": "1", "MPI_LOCALRANKID": "0"}).world == 1
    assert (
        rank_of({"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "MASTER_ADDR": "a"}).local
        == 1
    )
    one = {"RANK": "0", "WORLD_SIZE": "1"}
    for wrong in ({"WORLD_SIZE": "-1"}, {"RANK": "1"}, {"RANK": "x"}, {"GGMLQ_PORT": "70000"}):
        with pytest.raises(GroupError):
            rank_of(one | wrong)
    for wrong in ({}, {"RANK": "0"}):
        with pytest.raises(GroupError):
            rank_of(wrong)


def test_what_a_group_does_not_take(fresh):
    with gq.parallel.Group(gq.parallel.Rank(0, 1, 0), "cpu") as group:
        for wrong in (np.array(["a"]), np.ones(2, bool), np.ones(2, complex)):
            with pytest.raises(ShapeError, match="floats or integers"):
                group.all_reduce(wrong)
        with pytest.raises(ShapeError, match="out is"):
            group.all_reduce(np.ones(2), out=np.ones(3))
        with pytest.raises(ShapeError, match="axis=2"):
            group.all_gather(np.ones(2), axis=2)
        with pytest.raises(ShapeError, match="sizes"):
            group.all_gather(np.ones(2), sizes=[3])
        with pytest.raises(ShapeError, match="root=1"):
            group.broadcast(np.ones(2), root=1)
        readonly = np.ones(2)
        readonly.flags.writeable = False
        with pytest.raises(ShapeError, match="read-only"):
            group.broadcast(readonly)
        q = gq.quantize(fresh.standard_normal((4, 64), np.float32), "q8_0")
        assert gq.equal(group.shard_of(q, 1), q)
    with pytest.raises(DeviceError, match="devices are"):
        gq.parallel.Group(gq.parallel.Rank(0, 1, 0), "gpu")
    for rank, world in ((2, 2), (-1, 2), (0, 0)):
        with pytest.raises(GroupError, match="numbered"):
            gq.parallel.shard_of(q, rank, world)


@pytest.mark.parametrize("axis", [0, 1])
def test_parts_of_ranks_are_those_of_shard(axis, fresh):
    q = gq.quantize(fresh.standard_normal((300, 768), np.float32), "q4_K")
    s = gq.parallel.shard(q, ["cpu"] * 3, axis)
    for rank, part in enumerate(s.parts):
        assert gq.equal(gq.parallel.shard_of(q, rank, 3, axis), part)
