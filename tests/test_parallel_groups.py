"""Groups of processes over engines of other packages: sums, gathered arrays, parts, and what goes wrong."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from engines import Backend, Card, Communicator, Meeting, needs, put_card, together, two_processes

import ggmlq as gq
from ggmlq.errors import DeviceError, GroupError, ShapeError
from ggmlq.parallel import engines


@pytest.mark.parametrize(("engine", "words"), [("gloo", "torch.distributed with gloo"), ("MPI", "MPI")])
def test_two_processes_multiply(engine, words, tmp_path, fresh):
    needs(engine)
    (one, two), (h, y), said = two_processes(engine, tmp_path, fresh)
    assert {f"<Group rank {rank} of 2, cpu, {words}>" for rank in range(2)} == {*said.splitlines()}
    assert one["y"].tobytes() == two["y"].tobytes()
    assert np.allclose(one["y"], y, rtol=1e-4, atol=1e-3)
    for each in (one, two):
        assert np.allclose(each["h"], h, rtol=1e-5, atol=1e-4)
        assert each["told"].tolist() == [[0] * 2 + [1] * 5]


@pytest.mark.parametrize("kind", [Communicator, Backend])
def test_sums_and_gathered_arrays(kind, monkeypatch, fresh, rounds):
    put_card(monkeypatch)
    where = Card if kind is Backend else np.ndarray
    for _ in rounds(0.3):
        world = int(fresh.integers(1, 5))
        dtype = fresh.choice(["f4", "f8", "i4", "i8", "u1", *(["f2"] if kind is Communicator else [])])
        shape = tuple(int(n) for n in fresh.integers(0, 5, int(fresh.integers(0, 4))))
        drawn = [np.asarray(fresh.standard_normal(shape) * 100) for _ in range(world)]
        terms = [each.astype(dtype).T.view(where) for each in drawn]
        made = together(world, lambda group, terms=terms: group.sum(terms[group.rank]), kind)
        total = np.sum([np.asarray(term, "f4" if dtype == "f2" else dtype) for term in terms], 0)
        for y in made:
            assert type(y) is where
            assert y.dtype == dtype
            assert np.allclose(y, total.astype(dtype), rtol=1e-3 if dtype == "f2" else 1e-5, atol=1e-3)
        lengths, axis = fresh.integers(0, 4, world).tolist(), int(fresh.integers(-2, 2))
        shapes = [(n, 2) if axis in (0, -2) else (2, n) for n in lengths]
        parts = [fresh.standard_normal(each).astype(dtype).view(where) for each in shapes]
        for sizes in (None, lengths):
            work = lambda group, p=parts, a=axis, s=sizes: group.gather(p[group.rank], a, s)
            for y in together(world, work, kind):
                assert type(y) is where
                assert np.array_equal(y, np.concatenate(parts, axis))
                assert y.dtype == dtype


def test_products_of_parts_add_up(fresh):
    """And the arrays that were passed are as they were."""
    up = gq.quantize(fresh.standard_normal((200, 64), np.float32), "q8_0")
    down = gq.quantize(fresh.standard_normal((32, 200 // 32 * 32 + 32), np.float32), "q4_0")
    x = fresh.standard_normal((3, 64), np.float32)
    x.flags.writeable = False

    def work(group):
        h = np.pad(group.gather(x @ group.shard_of(up).T), [(0, 0), (0, 24)])
        part = group.shard_of(down, 1)
        first = sum(group.gather(np.array([part.shape[1]]))[: group.rank])
        return group.sum(h[:, first : first + part.shape[1]] @ part.T), group.sum(x)

    h = np.pad(x @ up.T, [(0, 0), (0, 24)])
    for y, doubled in together(2, work):
        assert np.allclose(y, h @ down.T, rtol=1e-4, atol=1e-2)
        assert np.array_equal(doubled, 2 * x)


def test_what_an_engine_refuses_is_an_error_of_the_group():
    """And it is shown as text, whatever it holds."""
    for error in together(2, lambda group: group.sum(np.ones(2 + group.rank))):
        assert isinstance(error, GroupError), error
        assert "in the same order" in str(error)
        assert "\x1b" not in str(error)
    assert isinstance(error.__cause__, RuntimeError)

    def work(group):
        if group.rank == 1:
            raise ZeroDivisionError
        return group.sum(np.ones(1 << 16))

    found = together(3, work)
    assert isinstance(found[1], ZeroDivisionError)
    assert all(isinstance(found[rank], GroupError) for rank in (0, 2)), found


def test_what_a_group_does_not_take(fresh, monkeypatch):
    put_card(monkeypatch)
    group = gq.parallel.group(Communicator(Meeting(1), 0))
    for wrong in (np.array(["a"]), np.ones(2, bool), np.ones(2, complex), np.ones(2, ">f4")):
        with pytest.raises(ShapeError, match="floats or integers"):
            group.sum(wrong)
    with pytest.raises(DeviceError, match="x is on cuda:1; arrays of this process are on cpu"):
        group.sum(np.ones(2).view(Card))
    with pytest.raises(ShapeError, match="axis=2"):
        group.gather(np.ones(2), axis=2)
    for sizes in ([3], [2, 2], []):
        with pytest.raises(ShapeError, match="sizes"):
            group.gather(np.ones(2), sizes=sizes)
    q = gq.quantize(fresh.standard_normal((4, 64), np.float32), "q8_0")
    assert gq.equal(group.shard_of(q, 1), q)
    for rank, world in ((2, 2), (-1, 2), (0, 0)):
        with pytest.raises(GroupError, match="numbered"):
            gq.parallel.shard_of(q, rank, world)
    for wrong in (None, gq, group, "nccl"):
        with pytest.raises(GroupError, match=r"connects no processes; .*COMM_WORLD"):
            gq.parallel.group(wrong)

    class Freed(Communicator):
        def Get_size(self):
            raise RuntimeError("MPI_ERR_COMM: invalid communicator")

    with pytest.raises(GroupError, match="invalid communicator; an engine runs"):
        gq.parallel.group(Freed(Meeting(1), 0))


@pytest.mark.parametrize("axis", [0, 1])
def test_parts_of_ranks_are_those_of_shard(axis, fresh):
    q = gq.quantize(fresh.standard_normal((300, 768), np.float32), "q4_K")
    s = gq.parallel.shard(q, ["cpu"] * 3, axis)
    for rank, part in enumerate(s.parts):
        assert gq.equal(gq.parallel.shard_of(q, rank, 3, axis), part)


def test_torch_works_on_the_stream_of_the_arrays(monkeypatch):
    """``ExternalStream`` of the address 0, the default stream's, would be a stream of its own."""
    engine, address = object.__new__(engines.Torch), 0
    external = lambda ptr, device: ("external", ptr, device)
    cuda = SimpleNamespace(
        stream=lambda stream: stream,
        default_stream=lambda device: ("default", device),
        ExternalStream=external,
    )
    engine.device, engine._torch = "cuda:1", SimpleNamespace(cuda=cuda)
    streams = SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=address))
    monkeypatch.setattr(
        engines, "cuda_device", lambda: SimpleNamespace(cupy=lambda: SimpleNamespace(cuda=streams))
    )
    assert engine._stream() == ("default", "cuda:1")
    address = 12345
    assert engine._stream() == ("external", 12345, "cuda:1")
