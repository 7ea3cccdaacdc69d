"""Work on several GPUs that are not there: the order of streams, memory, and graphs that hold all of it."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import numpy as np
import pytest
from fake_cards import Array, made, plain, put_cards
from fake_link import FakeLink

import ggmlq as gq
from ggmlq.arrays.protocols import OPERATIONS
from ggmlq.cuda.driver import device
from ggmlq.cuda.driver.parallel.team import Streams
from ggmlq.errors import DeviceError, GGMLQError, MissingDependencyError
from ggmlq.parallel import heads, team
from ggmlq.parallel import sharded as loading
from ggmlq.parallel.parts import Parts, piece


@pytest.fixture(scope="module", autouse=True)
def spared():
    """Leave what other files left out of the garbage that is looked for after each test."""
    gc.collect()
    gc.freeze()


@pytest.fixture(params=[False, True], ids=["apart", "linked"])
def world(monkeypatch, request):
    """Three cards, and products that NumPy makes on the stream that they are asked for on."""
    found = put_cards(monkeypatch, 3, request.param)

    def upload(array, name):
        with found.cupy.cuda.Device(int(name[5:])):
            return made(found, np.ascontiguousarray(plain(array)))

    def linear(x, q, *, dtype=np.float32, bias=None, **options):
        decoded = gq.QuantArray(q.format, q.shape, np.array(plain(q.raw))).dequantize()
        assert x.buffer.device == q.raw.buffer.device == found.device
        y = made(found, plain(x).astype(np.float32) @ decoded.T, x)
        return (y if bias is None else y + bias).astype(dtype, copy=False)

    def expert_linear(x, q, ids, *, dtype=np.float32, check=None, **options):
        decoded = gq.QuantArray(q.format, q.shape, np.array(plain(q.raw))).dequantize()
        y = np.stack([[decoded[e] @ row if e >= 0 else np.full(q.shape[1], np.nan) for e in chosen]
                      for row, chosen in zip(plain(x), plain(ids).tolist(), strict=True)])  # fmt: skip
        return made(found, y.astype(dtype), x, ids)

    monkeypatch.setattr(device, "upload", upload)
    monkeypatch.setitem(OPERATIONS, "linear", linear)
    monkeypatch.setitem(OPERATIONS, "expert_linear", expert_linear)
    yield found
    gc.collect()
    team.team_of.cache_clear()
    assert not found.faults


def give_nccl(world):
    """A library that adds where everyone has come so far, and lets nobody go on before."""
    calls = []

    class Communicator:
        def __init__(self, rank):
            self.rank = rank

        @staticmethod
        def initAll(numbers):
            world.made = [Communicator(rank) for rank in range(len(numbers))]
            return world.made

        def allReduce(self, source, target, count, kind, how, stream):
            assert (source, kind, how) == (target, 7, 0)
            calls.append((source, count, stream, world.device))

        def abort(self):
            world.aborted = True

    class NcclError(RuntimeError):
        pass

    def end():
        if getattr(world, "broken", False):
            calls.clear()
            raise NcclError("unhandled system error")
        every = {}
        for lane in world.lanes:
            every |= {n: max(every.get(n, 0), d) for n, d in lane.seen.items()}
        arrays = [np.ctypeslib.as_array((np.ctypeslib.ctypes.c_float * count).from_address(at))
                  for at, count, _, _ in calls]  # fmt: skip
        total = sum(array.copy() for array in arrays)
        for array in arrays:
            array[:] = total
        for lane in world.lanes:
            lane.seen |= every
        calls.clear()

    world.nccl = SimpleNamespace(
        NcclCommunicator=Communicator, NcclError=NcclError, NCCL_SUM=0, NCCL_FLOAT32=7,
        groupStart=lambda: None, groupEnd=end, get_version=lambda: 22707,
    )  # fmt: skip


def on(world, values, number=0):
    with world.cupy.cuda.Device(number):
        return made(world, values)


def products(world, x, q, home, count, sums=None):
    """Each axis, gathered and left."""
    names = [f"cuda:{n}" for n in range(count)]
    single = plain(x) @ q.dequantize().T
    for axis in (0, 1):
        s = gq.parallel.shard(q, names, axis, sums=sums)
        with world.cupy.cuda.Device(home):
            y = gq.linear(x, s)
            z = gq.parallel.linear(x, s)
        assert y.device.id == home
        assert [part.device.id for part in z.parts] == list(range(count))
        assert np.allclose(plain(y), single, rtol=1e-4, atol=1e-3)
        assert np.allclose(plain(z.gather()), single, rtol=1e-4, atol=1e-3)
        assert np.allclose(z.gather("cpu"), single, rtol=1e-4, atol=1e-3)
        z.map(gq.parallel.silu)
        with world.cupy.cuda.Device(home):
            every = gq.parallel.replicate(x, names) if home < count else x
            assert np.allclose(plain(gq.linear(every, s)), single, rtol=1e-4, atol=1e-3)
        bias = on(world, np.arange(len(q), dtype=np.float32), home)
        with world.cupy.cuda.Device(home):
            half = gq.parallel.linear(x, s, dtype=np.float16, bias=bias)
        assert [part.buffer.arena for part in half.parts] == [world.current[n] for n in range(count)]
        assert half.dtype == np.float16
        assert np.allclose(half.gather("cpu"), single + np.arange(len(q)), rtol=1e-2, atol=0.2)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("home", [0, 2])
def test_everyone_waits_for_what_it_reads(world, count, home, fresh):
    q = gq.quantize(fresh.standard_normal((96, 96), np.float32), "q8_0")
    x = on(world, fresh.standard_normal((5, 96), np.float32), home)
    products(world, x, q, home, count)


@pytest.mark.parametrize("left_out", ["after", "meet"])
def test_the_judge_sees_what_is_left_out(world, left_out, fresh, monkeypatch):
    q = gq.quantize(fresh.standard_normal((96, 96), np.float32), "q8_0")
    x = on(world, fresh.standard_normal((5, 96), np.float32))
    monkeypatch.setattr(Streams, left_out, lambda self, *given: None)
    products(world, x, q, 0, 3)
    del x
    gc.collect()
    assert world.faults
    world.faults.clear()
    monkeypatch.undo()


def test_sums_by_copies_are_the_same_everywhere(world, fresh):
    q = gq.quantize(fresh.standard_normal((7, 96), np.float32), "q8_0")
    x = on(world, fresh.standard_normal((3, 96), np.float32))
    for names in (["cuda:0", "cuda:1", "cuda:2"], ["cuda:0", "cuda:1", "cuda:0"], ["cuda:1"] * 3):
        s = gq.parallel.shard(q, names, 1)
        y = gq.parallel.linear(x, s)
        host = [
            plain(x)[:, a:b] @ part.to("cpu").dequantize().T
            for (a, b), part in zip(s.spans, s.parts, strict=True)
        ]
        want = (host[0] + host[1]) + host[2]
        assert all(np.array_equal(plain(part), want) for part in y.parts)


def test_a_graph_holds_all_of_it(world, fresh):
    q = gq.quantize(fresh.standard_normal((96, 96), np.float32), "q8_0")
    x = on(world, fresh.standard_normal((2, 96), np.float32))
    a, b = (gq.parallel.shard(q, ["cuda:0", "cuda:1"], axis) for axis in (0, 1))
    gq.linear(gq.parallel.linear(x, a), b)
    stream = world.cupy.cuda.Stream()
    for each in world.current.values():  # as after a synchronization
        stream.seen |= each.seen
    with stream:
        stream.begin_capture()
        for _ in range(3):
            y = gq.linear(gq.parallel.linear(x, a), b)
        with gq.parallel.together(a, b, x=x):
            h = gq.parallel.linear(gq.parallel.linear(x, a).map(gq.parallel.silu), b)
        stream.end_capture()
    assert world.kept
    for part in (y, *h.parts):
        assert stream.knows(part.buffer.last())
    world.current[0].seen |= stream.seen
    world.current[1].seen |= stream.seen


def test_one_run_for_several_products(world, fresh):
    q = gq.quantize(fresh.standard_normal((96, 96), np.float32), "q8_0")
    s = gq.parallel.shard(q, ["cuda:0", "cuda:1"])
    x = on(world, fresh.standard_normal((2, 96), np.float32))
    with gq.parallel.together(s, x=x):
        every = gq.parallel.replicate(x, ["cuda:0", "cuda:1"])
        steps = world.current[0].seen.get(world.current[1].number, 0)
        y = gq.parallel.linear(every, s)
        assert world.current[0].seen.get(world.current[1].number, 0) == steps  # nobody waits yet
    assert world.current[0].knows(y.parts[1].buffer.last())
    other = on(world, np.ones((1, 96), np.float32), 2)
    with gq.parallel.together(s), pytest.raises(DeviceError, match="pass x= to together"):
        gq.linear(other, s)
    assert gq.linear(other, s).device.id == 2


@pytest.mark.parametrize("axis", [0, 1, "experts", None])
def test_experts_on_cards(world, axis, fresh):
    q = gq.quantize(fresh.standard_normal((4, 64, 64), np.float32), "q8_0")
    ids = fresh.integers(0, 4, (5, 2))
    x = fresh.standard_normal((5, 64), np.float32)
    s = gq.parallel.shard(q, ["cuda:0", "cuda:1"], axis)
    y = gq.expert_linear(on(world, x), s, on(world, ids))
    want = np.einsum("tk,tunk->tun", x, q.dequantize()[ids])
    assert np.allclose(plain(y), want, rtol=1e-4, atol=1e-3)


def test_codes_with_scales_travel_whole(world, fresh, monkeypatch):
    w = gq.quantize_scaled(fresh.standard_normal((64, 256), np.float32), "e4m3", (64, 128))
    x = gq.quantize_scaled(fresh.standard_normal((3, 256), np.float32), "e4m3", (1, 128))
    there = gq.ScaledArray(on(world, x.codes), on(world, x.scales), "e4m3", (1, 128))

    def scaled_linear(x, w, *, dtype=np.float32, **options):
        a, b = (
            gq.ScaledArray(np.array(plain(s.codes)), np.array(plain(s.scales)), s.code, s.tile)
            for s in (x, w)
        )
        return made(world, (a.dequantize() @ b.dequantize().T).astype(dtype), x.codes, x.scales)

    monkeypatch.setitem(OPERATIONS, "scaled_linear", scaled_linear)
    monkeypatch.setattr(gq.ScaledArray, "to", lambda self, name: gq.ScaledArray(
        device.upload(self.codes, name), device.upload(self.scales, name), self.code, self.tile))  # fmt: skip
    for axis in (0, 1):
        s = gq.parallel.shard(w, ["cuda:0", "cuda:1"], axis)
        y = gq.scaled_linear(there, s)
        assert np.allclose(plain(y), x.dequantize() @ w.dequantize().T, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("byteorder", ["little", "big"])
def test_a_file_by_parts(world, byteorder, fresh, tmp_path, monkeypatch):
    """Each device is sent the bytes of its parts, and no others."""
    tensors = {
        "blk.0.ffn_up.weight": gq.quantize(fresh.standard_normal((512, 256), np.float32), "q4_K"),
        "blk.0.ffn_down.weight": gq.quantize(fresh.standard_normal((256, 512), np.float32), "q4_K"),
        "blk.0.ffn_up_exps.weight": gq.quantize(fresh.standard_normal((3, 64, 64), np.float32), "q8_0"),
        "norm.weight": fresh.standard_normal(256, np.float32),
    }
    gq.save(tmp_path / "a.gguf", tensors, byteorder=byteorder)
    links = []

    def link(name):
        links.append(FakeLink(name))
        return links[-1]

    monkeypatch.setattr(loading, "cuda_module", lambda name: SimpleNamespace(Link=link))
    with gq.open(tmp_path / "a.gguf") as f:
        for axis in (0, 1, "experts", gq.parallel.tensor_parallel):
            made = f.to(["cuda:0", "cuda:1"], axis=axis)
            for name, s in made.items():
                assert len({*s.devices}) == len(s.parts) == 2
                for part, (first, end) in zip(s.parts, s.spans or ((0, 0),) * 2, strict=True):
                    want = f[name] if s.spans is None else piece(f[name], s.axis, first, end)
                    assert np.array_equal(plain(part.raw), want.raw)
    assert {each.name for each in links} == {"cuda:0", "cuda:1"}


def test_sums_by_nccl(world, fresh):
    give_nccl(world)
    world.lanes = [world.current[0], world.current[1]]
    q = gq.quantize(fresh.standard_normal((96, 96), np.float32), "q8_0")
    x = on(world, fresh.standard_normal((5, 96), np.float32))
    s = gq.parallel.shard(q, ["cuda:0", "cuda:1"], 1, sums="nccl")
    assert repr(s).endswith("sums by NCCL 2.27.7>")
    y = gq.linear(x, s)
    assert np.allclose(plain(y), plain(x) @ q.dequantize().T, rtol=1e-4, atol=1e-3)
    world.broken = True
    with pytest.raises(DeviceError, match="NCCL failed on GPUs"):
        gq.linear(x, s)
    assert world.aborted
    world.broken = False
    assert np.array_equal(plain(gq.linear(x, s)), plain(y))  # with new communicators


def test_words_about_devices(world, fresh):
    q = gq.quantize(fresh.standard_normal((96, 96), np.float32), "q8_0")
    with pytest.raises(MissingDependencyError, match="NCCL is not installed"):
        gq.parallel.shard(q, [0, 1], 1, sums="nccl")
    with pytest.raises(DeviceError, match="this machine has 3 GPU"):
        gq.parallel.shard(q, ["cuda:7"])
    with pytest.raises(DeviceError, match="mixes the host with GPUs"):
        gq.parallel.shard(q, ["cpu", 0])
    s = gq.parallel.shard(q, [0, 1], 1)
    assert "NCCL is not installed" in repr(s)
    assert "on one GPU" in gq.parallel.shard(q, [0, 0], 1).sums
    with pytest.raises(DeviceError, match="x is on cpu, s on cuda:0 and cuda:1"):
        gq.linear(np.ones((1, 96), np.float32), s)
    with pytest.raises(DeviceError, match="not on the host"):
        np.asarray(gq.parallel.linear(on(world, np.ones((1, 96), np.float32)), s))
    give_nccl(world)
    team.team_of.cache_clear()
    with pytest.raises(DeviceError, match="NCCL takes each GPU once"):
        gq.parallel.shard(q, [1, 1], 1, sums="nccl")


def test_a_device_that_fails(world, fresh, monkeypatch):
    q = gq.quantize(fresh.standard_normal((96, 96), np.float32), "q8_0")
    s = gq.parallel.shard(q, [0, 1])
    x = on(world, fresh.standard_normal((2, 96), np.float32))

    def lost(*given, **options):
        if world.device == 1:
            raise world.cupy.cuda.runtime.CUDARuntimeError("cudaErrorDeviceUnavailable")
        return made(world, np.zeros((2, 64), np.float32))

    monkeypatch.setitem(OPERATIONS, "linear", lost)
    with pytest.raises(DeviceError, match=r"cuda:1 failed .*shard them again"):
        gq.linear(x, s)
    monkeypatch.setitem(
        OPERATIONS, "linear", lambda *given, **options: (_ for _ in ()).throw(MemoryError("1 GB"))
    )
    with pytest.raises(GGMLQError, match="cuda:0 is out of memory"):
        gq.linear(x, s)
    monkeypatch.undo()


def attend_on_the_device(world, q, k, v, dtype=np.float32, **options):
    """Attention by the oracle, where all operands are."""
    assert {x.buffer.device for x in (q, k.raw, v.raw)} == {world.device}
    for option in options.values():
        if isinstance(option, Array):
            assert option.buffer.device == world.device
            option.buffer.use(option, False)
    rows = (gq.QuantArray(x.format, x.shape, np.array(plain(x.raw))) for x in (k, v))
    more = {name: plain(option) for name, option in options.items() if name not in ("kernel", "arithmetic")}
    more.pop("invariant", None)
    return made(world, gq.reference.attention(plain(q), *rows, **more).astype(dtype), q)


@pytest.mark.parametrize("home", [0, 2])
def test_heads_of_attention(world, home, fresh, monkeypatch):
    """Keys of some heads on each card: queries, masks and lengths go there, results come back."""
    monkeypatch.setattr(
        heads, "attention", lambda *given, **options: attend_on_the_device(world, *given, **options)
    )
    k, v = (gq.quantize(fresh.standard_normal((2, 3, 7, n), np.float32), "f16") for n in (32, 64))
    sharded = [gq.parallel.shard(x, ["cuda:0", "cuda:1"], "heads") for x in (k, v)]
    q, lengths = fresh.standard_normal((2, 6, 2, 32), np.float32), np.array([7, 4])
    mask, sinks = fresh.standard_normal((6, 2, 7)), fresh.standard_normal(6).astype(np.float32)
    there = [on(world, x, home) for x in (q, mask, sinks, lengths)]
    with world.cupy.cuda.Device(home):
        y = gq.attention(there[0], *sharded, mask=there[1], sinks=there[2], lengths=there[3], causal=True)
    want = gq.reference.attention(q, k, v, mask=mask, sinks=sinks, lengths=lengths, causal=True)
    assert y.device.id == home
    assert np.allclose(plain(y), want, atol=1e-5)
    with pytest.raises(DeviceError, match="q is on cpu, heads lie on cuda:0, cuda:1"):
        gq.attention(q, *sharded)


class Shelf:
    """A cache that keeps rows as they come, on a card."""

    def __init__(self, count, width, positions, device, world):
        self.number, self.world, self.rows = int(device[5:]), world, []

    def append(self, k, v, lengths=None):
        for x in (k, v, lengths):
            assert x.buffer.device == self.world.device == self.number
            x.buffer.use(x, False)
        self.rows = [gq.quantize(plain(x), "f16") for x in (k, v)]
        self.rows = [gq.QuantArray(x.format, x.shape, made(self.world, x.raw)) for x in self.rows]

    def attend(self, q, **options):
        return attend_on_the_device(self.world, q, *self.rows, **options)

    def truncate(self, n):
        assert n.buffer.device == self.world.device == self.number


@pytest.mark.parametrize("stay", [False, True])
def test_a_cache_on_cards(world, stay, fresh, monkeypatch):
    """Rows that come from one card, and rows that are where their heads are."""
    monkeypatch.setattr(heads, "Cache", lambda *given, **options: Shelf(*given, **options, world=world))
    c = gq.parallel.KVCache(4, 32, 9, [0, 1])
    monkeypatch.setattr(gq.parallel.KVCache, "__repr__", lambda self: "a cache")
    q, k, v = (fresh.standard_normal((1, n, 3, 32), np.float32) for n in (8, 4, 4))
    if stay:
        operands = []
        for x in (q, k, v):
            flat, half = x.swapaxes(1, 2).reshape(3, -1), x.shape[1] * 16
            parts = [on(world, flat[:, n * half : (n + 1) * half], n) for n in range(2)]
            operands.append(Parts(parts, ((0, half), (half, 2 * half)), c._division.team))
    else:
        operands = [on(world, x) for x in (q, k, v)]
    c.append(*operands[1:], lengths=on(world, np.array([3])))
    y = c.attend(operands[0], causal=True)
    c.truncate(on(world, np.array([2])))
    want = gq.reference.attention(q, *(gq.quantize(x, "f16") for x in (k, v)), causal=True)
    if stay:
        assert [part.device.id for part in y.parts] == [0, 1]
        y, want = y.gather(), want.swapaxes(1, 2).reshape(3, -1)
    assert np.allclose(plain(y), want, atol=1e-5)
