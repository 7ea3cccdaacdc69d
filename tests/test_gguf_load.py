"""A model on its way to a GPU, without one: which tensors, in which portions, by which threads."""

from __future__ import annotations

import _thread
import os
import signal
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from fake_link import FakeLink

import ggmlq as gq
from ggmlq.arrays.blocks import random_blocks
from ggmlq.errors import DeviceError, DeviceMemoryError
from ggmlq.formats import FORMATS
from ggmlq.gguf import file, load
from ggmlq.gguf.load import ALIGN, portions

SEED = int(np.random.default_rng().integers(1 << 31))


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Buffers so small that a few tensors need many of them, and more threads than this machine may have."""
    monkeypatch.setattr(load, "BUFFER_BYTES", 1 << 17)
    monkeypatch.setattr(load, "num_threads", lambda: 5)


@pytest.fixture
def fake(monkeypatch):
    """``f.to("cuda")`` goes to this link."""
    link = FakeLink()
    monkeypatch.setattr(file, "cuda_module", lambda name: SimpleNamespace(Link=lambda device: link))
    return link


@cache
def tensors():
    """Every format; scalars, empty ones, small and large ones in a random order."""
    rng = np.random.default_rng(SEED)
    found = {"scalar": np.float32(2.5), "empty": np.zeros((0, 32), np.float32), "none": np.zeros((3, 0))}
    for fmt in FORMATS.values():
        rows = int(rng.choice([1, 3, 700]))
        blocks = random_blocks(fmt, rows, 2, SEED)
        found[f"blk.{fmt.name}"] = gq.QuantArray.from_bytes(blocks, fmt, (rows, 2 * fmt.block_size))
    large = rng.integers(0, 256, 3_000_000 // 18 * 18, np.uint8)
    found["large"] = gq.QuantArray.from_bytes(large, "q4_0", (large.size // 18, 32))
    return {name: found[name] for name in rng.permutation(list(found))}


def saved(folder, **options):
    (path, *_) = gq.save(folder / "m.gguf", tensors(), **options)
    return gq.open(path)


def assert_loaded(got, f):
    assert list(got) == list(f)
    for name, q in got.items():
        assert (q.format, q.shape) == (f[name].format, f[name].shape)
        assert q.raw.shape == f[name].raw.shape, name
        assert np.array_equal(q.raw, f[name].raw), f"{name}, seed {SEED}"


# --- portions -------------------------------------------------------------------------------


@pytest.mark.parametrize("room", [1 << 16, 100_000, 1 << 23])
def test_portions_hold_every_byte_once(room):
    rng = np.random.default_rng(SEED)
    blocks = rng.choice([1, 2, 18, 34, 84, 144, 210], 60)
    sizes = [(int(b) * int(10 ** rng.uniform(0, 4.5)) * int(rng.random() > 0.1), int(b)) for b in blocks]
    found = portions(sizes, room)
    reached = [0] * len(sizes)
    for portion in found:
        end = 0
        for tensor, start, nbytes, at in portion:
            assert start == reached[tensor]
            assert all(reached[i] == sizes[i][0] for i in range(tensor)), "in the order of the file"
            assert start % ALIGN == at % ALIGN == start % sizes[tensor][1] == 0
            assert end <= at
            assert at + nbytes <= room
            assert nbytes > 0
            reached[tensor], end = start + nbytes, at + nbytes
    assert reached == [nbytes for nbytes, _ in sizes]
    slack = max(np.lcm(b, ALIGN) for b in blocks)
    for portion in found[:-1]:
        assert portion[-1].at + portion[-1].nbytes > room - slack - ALIGN, "no buffer leaves half empty"


def test_nothing_makes_no_portion():
    assert portions([], 1 << 16) == portions([(0, 18), (0, 1)], 1 << 16) == []


# --- loading --------------------------------------------------------------------------------


@pytest.mark.parametrize("byteorder", ["little", "big"])
@pytest.mark.parametrize("threads", [1, 2, 16])
def test_everything_arrives(tmp_path, monkeypatch, fake, threads, byteorder):
    monkeypatch.setattr(load, "num_threads", lambda: threads)
    fake.delay = 1e-4
    f = saved(tmp_path, byteorder=byteorder)
    got = f.to("cuda")
    assert_loaded(got, f)
    assert len(fake.users) == threads
    assert len(fake.buffers) <= threads + load.FETCHED
    assert not any(thread.is_alive() for thread in fake.users)


def test_parts_of_a_model(tmp_path, fake):
    f = saved(tmp_path, split_max_bytes=1 << 16)
    assert len(f.paths) > 2
    assert_loaded(f.to("cuda"), f)


def test_without_tensors(tmp_path, fake):
    gq.save(tmp_path / "m.gguf", {})
    assert dict(gq.open(tmp_path / "m.gguf").to("cuda", filter="x")) == {}


def test_empty_tensors_alone_and_last(tmp_path, fake):
    empty = {"e": np.zeros((0, 32), np.float32), "n": np.zeros((3, 0), np.float32)}
    gq.save(tmp_path / "m.gguf", empty)
    assert {name: q.raw.shape for name, q in gq.open(tmp_path / "m.gguf").to("cuda").items()} == {
        "e": (0, 128),
        "n": (3, 0),
    }
    gq.save(tmp_path / "m.gguf", {"a": np.ones(4, np.float32), **empty})
    fake.__init__()
    assert_loaded(gq.open(tmp_path / "m.gguf").to("cuda"), gq.open(tmp_path / "m.gguf"))


def test_little_takes_one_buffer_and_one_thread(tmp_path, fake):
    gq.save(tmp_path / "m.gguf", {"a": np.ones(4, np.float32), "b": np.ones(4, np.float32)})
    gq.open(tmp_path / "m.gguf").to("cuda")
    assert (len(fake.buffers), len(fake.users)) == (1, 1)


def test_a_file_that_was_replaced(tmp_path, fake):
    f = saved(tmp_path)
    gq.save(tmp_path / "m.gguf", {"other": np.zeros(4000, np.float32)})
    assert_loaded(f.to("cuda"), f)


@pytest.mark.parametrize("fault", ["missing", "refused", "short"])
def test_systems_that_do_not_read_into_memory(tmp_path, monkeypatch, fake, fault):
    read = getattr(os, "preadv", None)

    def preadv(fd, buffers, offset):
        if fault == "refused":
            raise OSError(5, "Input/output error")
        return read(fd, [buffers[0][:1000]], offset) if offset % 3 else 0

    monkeypatch.delattr(os, "preadv", raising=False)
    if fault != "missing":
        monkeypatch.setattr(os, "preadv", preadv, raising=False)
    f = saved(tmp_path)
    assert_loaded(f.to("cuda"), f)


def test_the_result_outlives_the_file(tmp_path, fake):
    with saved(tmp_path) as f:
        want, got = f.to("cpu"), f.to("cuda")
    assert_loaded(got, want)
    with pytest.raises(TypeError):
        got["large"] = None
    with pytest.raises(gq.GGUFError, match="is closed"):
        f.to("cuda")


def test_the_host_has_it_already(tmp_path):
    f = saved(tmp_path)
    got = f.to("cpu")
    assert list(got) == list(f)
    assert all(got[name] is f[name] for name in f)


def test_progress(tmp_path, fake, capsys, monkeypatch):
    f = saved(tmp_path)
    f.to("cuda", progress=False)
    assert not capsys.readouterr().err
    counted = []
    monkeypatch.setattr(load.Progress, "advance", lambda self, n: counted.append(n))
    fake.__init__()
    f.to("cuda")
    assert sum(counted) == sum(q.nbytes for q in f.values())


def test_a_bar_that_is_asked_for(tmp_path, fake, capsys):
    saved(tmp_path).to("cuda", progress=True)
    said = capsys.readouterr().err
    assert "to cuda:7: 100%" in said
    assert "B/s" in said


# --- what goes wrong ------------------------------------------------------------------------


def test_too_little_memory(tmp_path, fake):
    fake.left = 600_000
    f = saved(tmp_path)
    with pytest.raises(DeviceMemoryError) as caught:
        f.to("cuda")
    said = str(caught.value)
    total = sum(q.nbytes for q in f.values())
    assert f"m.gguf', {len(f)} tensors" in said
    assert f"to('cuda'): {len(f)} tensors need {total / 2**20:.1f} MiB, cuda:7 has 585.9 KiB" in said
    assert "filter=" in said
    assert fake.left == 600_000, "all is given back, though the error is still held"
    assert not any(thread.is_alive() for thread in fake.users)


@pytest.mark.parametrize("place", ["use", "buffer", "send", "sent", "finish"])
def test_what_fails_in_a_thread_is_told(tmp_path, monkeypatch, fake, place):
    calls, work = [], getattr(fake, place)

    def fails(*args):
        calls.append(place)
        if len(calls) > 2 or place in ("use", "finish"):
            monkeypatch.setattr(fake, place, work)
            raise DeviceError("no more")
        return work(*args)

    monkeypatch.setattr(fake, place, fails)
    before = fake.left
    with pytest.raises(DeviceError, match="no more") as caught:
        saved(tmp_path).to("cuda")
    assert fake.left == before, "all is given back, though the error is still held"
    del caught
    assert not any(thread.is_alive() for thread in fake.users)


@pytest.fixture
def interruptible():
    """Python's own handler of SIGINT, which shells let background jobs ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("after", [1, 7])
def test_an_interrupt_ends_everything(tmp_path, monkeypatch, fake, after):
    send, calls = fake.send, []

    def interrupted(*args):
        calls.append(None)
        if len(calls) == after:
            _thread.interrupt_main()
        send(*args)

    monkeypatch.setattr(fake, "send", interrupted)
    fake.delay = 0.002
    before, f = fake.left, saved(tmp_path)
    plan = portions([(q.nbytes, q.format.dtype.itemsize) for q in f.values()], load.BUFFER_BYTES)
    with pytest.raises(KeyboardInterrupt) as caught:
        f.to("cuda")
    assert fake.left == before
    assert len(calls) < sum(map(len, plan)), "the rest is not read"
    del caught
    assert not any(thread.is_alive() for thread in fake.users)


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "cpu:0", 0, None])
def test_devices_that_there_are_not(tmp_path, device):
    with pytest.raises(DeviceError, match='devices are "cpu", "cuda"'):
        saved(tmp_path).to(device)


# --- which tensors --------------------------------------------------------------------------


def test_filters(tmp_path, fake):
    f = saved(tmp_path)
    names = list(f)
    for filter, takes in (
        ("blk.*", lambda name: name.startswith("blk.")),
        ("blk.q[45]_?", lambda name: name[4:6] in ("q4", "q5") and name[6] == "_"),
        ("large", lambda name: name == "large"),
        (("scalar", "empty").__contains__, lambda name: name in ("scalar", "empty")),
        (lambda name: len(name) > 9, lambda name: len(name) > 9),
    ):
        assert list(f.to("cpu", filter)) == [name for name in names if takes(name)]
    some = f.to("cuda", filter="blk.q4_*")
    assert all(np.array_equal(q.raw, f[name].raw) for name, q in some.items())
    assert len(some) == 3


@pytest.mark.parametrize("filter", ["BLK.*", "blk", "", lambda name: False])
def test_a_filter_that_takes_nothing(tmp_path, filter):
    f = saved(tmp_path)
    with pytest.raises(gq.errors.GGUFKeyError, match=r"takes none of \d+ tensors, '\S+', .*…; .*list\(f\)"):
        f.to("cpu", filter=filter)


@pytest.mark.parametrize("filter", [["large"], 3, b"large"])
def test_a_filter_that_is_none(tmp_path, filter):
    with pytest.raises(gq.errors.DTypeError, match=r"a filter is a pattern like .*names\.__contains__"):
        saved(tmp_path).to("cpu", filter=filter)
