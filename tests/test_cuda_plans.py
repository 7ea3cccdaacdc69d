"""Plans: products that repeat launches say the same to the driver as products that find all out anew."""

from __future__ import annotations

import ctypes
import threading
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test or cuda)")

from fake_cupy import on_device
from launched_kernels import put_card

import ggmlq as gq
from ggmlq import ladder
from ggmlq.cuda.machine import device, launch, submit
from ggmlq.cuda.machine.launch import Kernel
from ggmlq.formats import FORMATS
from ggmlq.ops import fast_path

CALL, N, K = Kernel.__call__, 384, 1024


@pytest.fixture
def card(monkeypatch):
    """An H200 that remembers launches: grid, block, shared memory, stream, all words of the arguments."""
    put_card(monkeypatch, "NVIDIA H200")
    state = SimpleNamespace(launches=[], memory=[], stream=device.driver().stream(0), lock=threading.Lock())
    kernels = []

    def load(kernel, index):
        with state.lock:
            kernels.append(kernel)
            return SimpleNamespace(ptr=len(kernels)), kernel.shared, kernel.early

    def driver(shape_at, function, pointers_at, extra):
        facts = submit.SHAPE.unpack(ctypes.string_at(shape_at, submit.SHAPE.size))
        kernel = kernels[function - 1]
        count = sum(map(launch._words, kernel.parameters))
        words = [
            int.from_bytes(ctypes.string_at(at, 8), "little")
            for at in (ctypes.c_void_p * count).from_address(pointers_at)
        ]
        state.launches.append((threading.get_ident(), kernel.name, facts[:8], words))
        return 0

    def alloc(size):
        state.memory.append(np.empty(size + 256, np.uint8))
        return SimpleNamespace(ptr=state.memory[-1].ctypes.data)

    monkeypatch.setattr(Kernel, "__call__", CALL)
    monkeypatch.setattr(Kernel, "_load", load)
    monkeypatch.setattr(submit, "_launch", lambda: driver)
    device.cupy().cuda.alloc = alloc
    gpu = device.driver()
    gpu.array = lambda shape, dtype: on_device(np.empty(shape, dtype))
    gpu.share = np.may_share_memory
    monkeypatch.setattr(fast_path, "cuda_driver", lambda: gpu)
    ladder.chosen.cache_clear()
    return state


def aligned(shape):
    """Floats on the device at a multiple of 16 bytes, as CuPy's are."""
    size = int(np.prod(shape))
    memory = on_device(np.zeros(size + 4, np.float32))
    first = -memory.data.ptr % 16 // 4
    return memory[first : first + size].reshape(shape)


def weights(name):
    fmt = FORMATS[name]
    raw = np.zeros((N, K // fmt.block_size * fmt.dtype.itemsize), np.uint8)
    return gq.QuantArray(fmt, (N, K), on_device(raw))


def product(x, q, out, kernel="auto"):
    assert fast_path.linear(x, q, kernel, None, out, None, np.float32) is out


def said(state, known):
    """What the driver was given since, with addresses by name: the rest must be the same in each call."""
    found = [
        (name, facts, [next((n for n, at, end in known if at <= w < end), w) for w in words])
        for _, name, facts, words in state.launches
    ]
    state.launches.clear()
    assert found
    return [
        (name, facts, ["between" if type(w) is int and w >= 1 << 32 else w for w in words])
        for name, facts, words in found
    ]


def ends(**arrays):
    return [(name, array.data.ptr, array.data.ptr + array.nbytes) for name, array in arrays.items()]


@pytest.mark.parametrize("kernel", ["auto", "cuda:gemv", "cuda:wgmma", "cuda:mma_bf16"])
@pytest.mark.parametrize("name", ["q4_0", "q4_K"])
def test_a_repeated_product_says_the_same(name, kernel, card, fresh):
    for m in (
        1,
        int(fresh.integers(2, 9)),
        int(fresh.integers(9, 33)),
        *([64, 100] * (kernel != "cuda:gemv")),
    ):
        q, before = weights(name), None
        for round in range(4):  # makes strips; is written down; repeated twice
            x, out = aligned((m, K)), aligned((m, N))
            product(x, q, out, kernel)
            assert (q.plan((m, kernel, None)) is not None) is (round > 0)
            strips, *maps = q.all_kept()
            known = ends(x=x, y=out, w=strips.records, raw=q.memory)
            known += [each for made in maps for each in ends(w=made[0])]  # cuda:roles takes a map of strips
            now = [each for each in said(card, known) if "strips" not in each[0]]
            if round > 1:
                assert now == before
            before = now
        assert any("x" in words for *_, words in now)
        assert any("y" in words for *_, words in now)
        assert any("w" in words for *_, words in now)


def test_memory_between_kernels_is_each_calls_own(card):
    q = weights("q4_0")
    for _ in range(2):
        product(aligned((20, K)), q, aligned((20, N)), "cuda:wgmma")
    card.launches.clear()
    x, out = aligned((20, K)), aligned((20, N))
    product(x, q, out, "cuda:wgmma")
    (_, _, _, first), (_, _, _, second), *_ = card.launches
    (memory,) = card.memory
    assert first[:2] == [x.data.ptr, memory.ctypes.data]
    assert second[1] == memory.ctypes.data
    assert memory.size - 256 >= 20 * K * 2


def test_other_rows_streams_and_strange_operands(card):
    q, out = weights("q4_0"), aligned((2, N))
    for _ in range(3):
        product(aligned((2, K)), q, out)
    card.launches.clear()
    card.stream.ptr = 7
    product(aligned((2, K)), q, out)
    assert [facts[7] for _, _, facts, _ in card.launches] == [7]
    card.launches.clear()
    odd = on_device(np.zeros(2 * K + 8, np.float32))
    first = -odd.data.ptr % 16 // 4 + 1
    product(odd[first : first + 2 * K].reshape(2, K), q, out)  # unaligned: it is copied, not taken as it lies
    assert card.launches[0][3][1] % 16 == 0
    card.launches.clear()
    wide = aligned((2, 2 * K))
    product(wide[:, :K], q, out)
    assert wide.data.ptr not in card.launches[0][3][1:2]
    assert fast_path.linear(aligned((0, K)), q, "auto", None, None, None, np.float32).shape == (0, N)
    assert fast_path.linear(aligned((2, 1, K)), q, "auto", None, None, None, np.float32).shape == (2, 1, N)
    assert card.launches[-1][3][3] == 2


def test_what_is_dropped_is_dropped_with_its_plans(card):
    q, out = weights("q4_0"), aligned((2, N))
    for _ in range(3):
        product(aligned((2, K)), q, out)
    assert q.plan((2, "auto", None)) is not None
    q.drop_prepared()
    assert q.plan((2, "auto", None)) is None
    card.launches.clear()
    product(aligned((2, K)), q, out)
    assert "strips" in card.launches[0][1]


def test_plans_of_many_shapes_are_not_kept_for_good(card):
    q = weights("q4_0")
    for m in range(1, 100):
        product(aligned((m, K)), q, aligned((m, N)), "cuda:mma_bf16")
        product(aligned((m, K)), q, aligned((m, N)), "cuda:mma_bf16")
    assert sum(q.plan((m, "cuda:mma_bf16", None)) is not None for m in range(1, 100)) <= 64


def test_threads_share_a_plan(card):
    q = weights("q4_K")
    for _ in range(2):
        product(aligned((3, K)), q, aligned((3, N)))
    card.launches.clear()
    begin, wrong = threading.Barrier(6), []

    def work():
        begin.wait()
        for _ in range(50):
            x, out = aligned((3, K)), aligned((3, N))
            product(x, q, out)
            mine = [words for own, *_, words in list(card.launches) if own == threading.get_ident()]
            if mine[-1][1:3] != [x.data.ptr, out.data.ptr]:
                wrong.append(mine[-1])

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(card.launches) == 300
