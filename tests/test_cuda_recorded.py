"""Recorded launches: products that repeat them call the driver as products that compute everything anew."""

from __future__ import annotations

import threading

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")

from at_once import at_once
from fake_cupy import on_device
from told_driver import K, N, aligned, ends, multiply, put_driver, said, weights

import ggmlq as gq
from ggmlq.arrays.prepared import MOST_RECORDINGS
from ggmlq.base.slots import Slot, slot_of
from ggmlq.cuda.driver import device, recorded
from ggmlq.cuda.kernels.cost.warp_specialized import TILES
from ggmlq.cuda.ladder.linear import r13_gemv, r16_warp_specialized
from ggmlq.ops import plan


@pytest.fixture
def card(monkeypatch):
    """An H200 that remembers launches."""
    return put_driver(monkeypatch)


@pytest.mark.parametrize("kernel", ["auto", "cuda:gemv", "cuda:mma_bf16"])
@pytest.mark.parametrize("name", ["q4_0", "q4_K"])
def test_a_repeated_product_says_the_same(name, kernel, card, fresh):
    for m in (
        1,
        int(fresh.integers(2, 9)),
        int(fresh.integers(9, 33)),
        *([64, 100] * (kernel != "cuda:gemv")),
    ):
        q, before = weights(name), None
        for round in range(4):  # packs the weights; is written down; repeated twice
            x, out = aligned((m, K)), aligned((m, N))
            multiply(x, q, out, kernel)
            assert (q.recording((m, kernel, None)) is not None) is (round > 0)
            packed, *maps = q.prepared_copies()
            known = ends(x=x, y=out, w=packed.fragments, raw=q.memory)
            known += [
                each for made in maps for each in ends(w=made[0])
            ]  # cuda:warp_specialized takes a map of packed weights
            now = [each for each in said(card, known) if "packed weights" not in each[0]]
            if round > 1:
                assert now == before
            before = now
        assert any("x" in words for *_, words in now)
        assert any("y" in words for *_, words in now)
        assert any("w" in words for *_, words in now)


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("name", ["q4_0", "q6_K", "tq1_0"])
def test_no_more_blocks_fit_beside_each_other_than_a_tile_is_made_for(name, tile, card):
    """Blocks of the next product start early: if more fitted, all of them would sit on the idle
    multiprocessors.
    """
    q = weights(name)
    r16_warp_specialized.launch.launch(aligned((tile.columns, K)), q, aligned((tile.columns, N)), tile=tile)
    (shared,) = (facts[6] for _, name, facts, _ in card.launches if name.startswith("warp_specialized"))
    each, room = shared + device.RESERVED, 228 << 10
    assert tile.blocks * each <= room < (tile.blocks + 1) * each


def test_memory_between_kernels_is_each_calls_own(card):
    q = weights("q4_0")
    for _ in range(2):
        multiply(aligned((20, K)), q, aligned((20, N)), "cuda:mma_bf16")
    card.launches.clear()
    x, out = aligned((20, K)), aligned((20, N))
    multiply(x, q, out, "cuda:mma_bf16")
    (_, _, _, first), (_, _, _, second), *_ = card.launches
    (memory,) = card.memory
    assert first[:2] == [x.data.ptr, memory.ctypes.data]
    assert second[1] == memory.ctypes.data
    assert memory.size - 256 >= 20 * K * 2


def test_other_rows_streams_and_strange_operands(card):
    q, out = weights("q4_0"), aligned((2, N))
    for _ in range(3):
        multiply(aligned((2, K)), q, out)
    card.launches.clear()
    card.stream.ptr = 7
    multiply(aligned((2, K)), q, out)
    assert [facts[7] for _, _, facts, _ in card.launches] == [7]
    card.launches.clear()
    odd = on_device(np.zeros(2 * K + 8, np.float32))
    first = -odd.data.ptr % 16 // 4 + 1
    multiply(odd[first : first + 2 * K].reshape(2, K), q, out)  # unaligned: it is copied
    assert card.launches[0][3][1] % 16 == 0
    card.launches.clear()
    wide = aligned((2, 2 * K))
    multiply(wide[:, :K], q, out)
    assert wide.data.ptr not in card.launches[0][3][1:2]
    assert gq.linear(aligned((0, K)), q).shape == (0, N)
    assert gq.linear(aligned((2, 1, K)), q).shape == (2, 1, N)
    assert card.launches[-1][3][7] == 2


def test_what_is_dropped_is_dropped_with_its_plans(card):
    q, out = weights("q4_0"), aligned((2, N))
    for _ in range(3):
        multiply(aligned((2, K)), q, out)
    assert q.recording((2, "auto", None)) is not None
    q.drop_prepared()
    assert q.recording((2, "auto", None)) is None
    card.launches.clear()
    multiply(aligned((2, K)), q, out)
    assert "packed weights" in card.launches[0][1]


def test_plans_of_many_shapes_are_not_kept_for_good(card, monkeypatch):
    monkeypatch.setitem(MOST_RECORDINGS, "cuda", 20)
    q = weights("q4_0")
    for m in range(1, 40):
        multiply(aligned((m, K)), q, aligned((m, N)), "cuda:mma_bf16")
        multiply(aligned((m, K)), q, aligned((m, N)), "cuda:mma_bf16")
    kept = [m for m in range(1, 40) if q.recording((m, "cuda:mma_bf16", None)) is not None]
    assert kept == [*range(40 - len(kept), 40)]  # the last ones; the oldest quarter goes at a time
    assert 15 < len(kept) <= 20


def test_threads_share_a_plan(card):
    q = weights("q4_K")
    for _ in range(2):
        multiply(aligned((3, K)), q, aligned((3, N)))
    card.launches.clear()
    begin, wrong = threading.Barrier(6), []

    def work(i):
        begin.wait()
        for _ in range(50):
            x, out = aligned((3, K)), aligned((3, N))
            multiply(x, q, out)
            mine = [words for own, *_, words in list(card.launches) if own == threading.get_ident()]
            if [mine[-1][1], mine[-1][3]] != [x.data.ptr, out.data.ptr]:
                wrong.append(mine[-1])

    at_once(work, 6)
    assert not wrong
    assert len(card.launches) == 300


def test_plans_go_that_were_not_used_for_longest_and_all_with_the_bytes():
    q = weights("q4_0")
    most = MOST_RECORDINGS["cuda"]
    for i in range(most):
        q.keep_recording(("product", i), i)
    assert q.recording(("product", 0)) == 0  # now 1 was not used for longest
    q.keep_recording(("product", most), most)
    last = most // 4  # a quarter goes at a time
    assert [q.recording(("product", i)) for i in (0, 1, last, last + 1, most)] == [
        0, None, None, last + 1, most,
    ]  # fmt: skip
    q.drop_recordings()
    assert q.recording(("product", 2)) is None


@pytest.mark.parametrize("kernel", ["cuda:gemv", "cuda:warp_specialized"])
@pytest.mark.parametrize("bias", [None, np.float32, np.float16])
def test_results_as_halves(kernel, bias, card):
    """The kernel of the product writes them and adds the bias; an odd number of rows takes kernels behind."""
    q, odd = weights("q4_0"), weights("q4_0")[: N - 1]
    for array, alone in ((q, True), (odd, False)):
        n = array.shape[0]
        b = None if bias is None else on_device(np.zeros(n, bias))
        for _ in range(3):
            y = gq.linear(aligned((2, K)), array, kernel=kernel, bias=b, dtype=np.float16)
            assert (y.dtype, y.shape) == (np.float16, (2, n))
        card.launches.clear()
        x = aligned((2, K))
        y = gq.linear(x, array, kernel=kernel, bias=b, dtype=np.float16)
        words = card.launches[-1][3]
        written = [word for word in words if word == y.data.ptr]
        assert bool(written) is alone
        if alone:
            assert card.launches[-1][1].startswith(("gemv of", "warp_specialized of"))
            assert (bias is not None) is (b is not None and b.data.ptr in words)


@pytest.mark.parametrize("kernel", ["cuda:gemv", "cuda:warp_specialized", "cuda:mma_bf16"])
@pytest.mark.parametrize("bias", [None, np.float32])
@pytest.mark.parametrize("m", [1, 3])
def test_a_residual_goes_to_the_kernel_that_rounds(m, bias, kernel, card):
    """It may be the result."""
    q, b = weights("q4_0"), None if bias is None else on_device(np.zeros(N, bias))
    for round in range(4):
        x, stream, more = aligned((m, K)), on_device(np.zeros((m, N), np.float16)), aligned((m, N))
        card.launches.clear()
        y = gq.linear(x, q, kernel=kernel, bias=b, residual=more, dtype=np.float16)
        assert (y.dtype, y.shape) == (np.float16, (m, N))
        words = [word for launch in card.launches for word in launch[3]]
        assert {more.data.ptr, y.data.ptr} <= set(words), round
        assert gq.linear(x, q, kernel=kernel, bias=b, residual=stream, out=stream) is stream
        words = card.launches[-1][3]
        assert list(words).count(stream.data.ptr) == 2


@pytest.mark.parametrize("shape", [(3, N), (1, N), (N,), (3, 1), (1, 3, N)])
def test_a_residual_that_no_kernel_adds(shape, card):
    """Other shapes and kinds, and one that lies in the result in another way, are added behind."""
    q, x = weights("q4_0"), aligned((1, 3, K))
    kernel = "cuda:warp_specialized"
    for kind, whole in ((np.float64, ()), (np.float32, ((1, 3, N), (3, N), (1, N), (N,)))):
        for _ in range(3):
            card.launches.clear()
            more = on_device(np.zeros(shape, kind))
            gq.linear(x, q, kernel=kernel, residual=more, dtype=np.float16)
            assert any(more.data.ptr in launch[3] for launch in card.launches) is (shape in whole), kind


def test_a_residual_between_words_is_added_behind(card):
    """Kernels read two numbers of 16 bits at a time; a warm call looks where they lie, too."""
    q, x, launched = weights("q4_0"), aligned((3, K)), []
    for start in (0, 0, 0, 1, 1):
        more = on_device(np.zeros(3 * N + 2, np.float16))[start : start + 3 * N].reshape(3, N)
        card.launches.clear()
        gq.linear(x, q, kernel="cuda:warp_specialized", residual=more, dtype=np.float16)
        launched.append(any(more.data.ptr in launch[3] for launch in card.launches))
    assert launched == [True, True, True, False, False]


def test_memory_between_kernels_has_places_of_its_own(card, monkeypatch):
    """A pool gives an address again as soon as it is free; a recording must not take it for one array."""
    memory = on_device(np.zeros(4096, np.uint8))
    pool = lambda shape, dtype: memory[: int(np.prod(shape)) * np.dtype(dtype).itemsize].view(dtype)
    monkeypatch.setattr(device.cupy(), "empty", pool)

    def run():
        slots.extend(slot_of(recorded.between(shape, np.float32)) for shape in ((10,), (300,), (4, 5)))

    slots = []
    _, nbytes = recorded.recorded_launches(run)
    assert slots == [Slot(recorded.WORKSPACE, offset) for offset in (0, 256, 1536)]
    assert nbytes == 1792
    assert slot_of(recorded.between((4,), np.float32)) is None


def test_calls_that_are_not_ordinary_keep_one_template(card):
    """A bias in float64 goes the way of all checks, for each array anew."""
    for _ in range(3):
        q = weights("q4_0")
        for _ in range(3):
            multiply(aligned((3, K)), q, aligned((3, N)), bias=on_device(np.zeros(N)))
        assert q.recording((3, "auto", None)) is not None
    assert [len(kept) for kept in plan.TEMPLATES._kept.values()] == [1]


def test_an_undeclared_array_is_not_recorded(card):
    q, y = weights("q4_0"), aligned((2, N))
    launch = r13_gemv.launch.launch
    for _ in range(2):
        multiply(aligned((2, K)), q, y)

    def copying(x, q, out):
        launch(on_device(x), q, out)

    assert recorded.recorded_product(launch, aligned((2, K)), q, y) is not None
    assert recorded.recorded_product(copying, aligned((2, K)), q, y) is None
