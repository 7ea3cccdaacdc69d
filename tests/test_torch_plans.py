"""Products of tensors that were done before: what the driver is told, whose memory is taken. No torch."""

from __future__ import annotations

import weakref
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")

from fake_cupy import on_device
from fake_torch import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, Other, Tensor, aligned, put_torch
from told_driver import K, N, ends, multiply, of_bits, put_driver, said, weights

import ggmlq as gq
from ggmlq.cuda.driver import device
from ggmlq.cuda.layouts import floats
from ggmlq.ops import plan

KINDS = {"f": FLOAT32, "e": FLOAT16, "H": BFLOAT16}


@pytest.fixture
def card(monkeypatch):
    """An H200 that remembers launches."""
    return put_driver(monkeypatch)


@pytest.fixture
def torch(card, monkeypatch):
    """A torch beside a card that remembers launches."""
    forget()
    yield put_torch(monkeypatch)
    forget()


def forget():
    """Ask torch for its members anew."""
    plan.FACES.clear()
    plan.WARM.clear()
    plan._tensors.cache_clear()


def arrays(x):
    """A tensor as CuPy's array."""
    return x.data.view(type(on_device(np.zeros(1))))


def planned(q, m, kind=FLOAT32, kernel="auto"):
    """Products of CuPy's arrays, until there is a plan."""
    letter = next(letter for letter, each in KINDS.items() if each is kind)
    for _ in range(2):
        x, out = arrays(aligned((m, K), kind)), arrays(aligned((m, N), FLOAT32))
        multiply(x, q, out, kernel, letter)
    launches = q.recording(plan.key_of(m, kernel, None, letter + "f"))
    assert launches is not None
    return launches


def linear(x, q, kernel="auto", arithmetic=None, out=None, bias=None, dtype=np.float32, residual=None):
    return plan.of_tensors(x, q, kernel, arithmetic, out, bias, dtype, residual)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kernel", ["cuda:gemv", "cuda:mma_bf16", "cuda:warp_specialized"])
def test_kernels_alone_read_what_is_given(kernel, kind, card, monkeypatch):
    """What CuPy or torch converted would be missing in a plan."""
    monkeypatch.setattr(floats, "converted", None)
    monkeypatch.setattr(device.cupy(), "ascontiguousarray", as_it_is)
    for m in (1, 7, 8, 9, 20, *([70, 300] * (kernel != "cuda:gemv"))):
        q = weights("q4_0")
        launches = planned(q, m, KINDS[kind], kernel)
        x, out = aligned((m, K), KINDS[kind]), arrays(aligned((m, N), FLOAT32))
        multiply(arrays(x), q, out, kernel, kind)
        places = ends(x=arrays(x), y=out, w=q.prepared_copies()[0].fragments)
        repeated = said(card, places)[-len(launches.prepared.launches) :]
        q.keep_recording(plan.key_of(m, kernel, None, kind + "f"), None)
        multiply(arrays(x), q, out, kernel, kind)
        assert said(card, places) == repeated
        assert "x" in repeated[0][2]
        reads_itself = kernel in ("cuda:gemv", "cuda:warp_specialized")
        assert not any("x" in words for *_, words in repeated[1:]) or reads_itself


def as_it_is(array, dtype=None):
    assert dtype in (None, array.dtype)
    assert array.flags.c_contiguous
    return array


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("m", [1, 8, 20, 64])
def test_the_driver_is_told_what_it_is_told_of_arrays(m, kind, card, torch):
    q, x = weights("q4_0"), aligned((m, K), KINDS[kind])
    launches, out = planned(q, m, KINDS[kind]), aligned((m, N), FLOAT32)
    card.launches.clear()
    card.memory.clear()
    multiply(arrays(x), q, arrays(out), kind=kind)
    places = ends(x=arrays(x), y=arrays(out), w=q.prepared_copies()[0].fragments)
    of_arrays = said(card, [*places, *(("between", *bounds(each)) for each in card.memory)])
    card.memory.clear()
    torch.stream = device.driver().stream(0).ptr
    y = linear(x, q)
    assert (y.dtype, y.shape) == (FLOAT32, (m, N))
    y_and, between = torch.given[0], torch.given[1:]
    assert y is y_and
    assert [each.data.nbytes for each in between] == [launches.workspace] * bool(launches.workspace)
    assert not card.memory  # nothing of CuPy's
    places = [places[0], places[2], ("y", *bounds(y.data)), *(("between", *bounds(b.data)) for b in between)]
    assert said(card, places) == of_arrays
    torch.stream = 1234
    assert linear(x, q, out=out) is out
    assert {facts[7] for _, _, facts, _ in card.launches} == {1234}


def bounds(array):
    at = array.ctypes.data
    return at, at + array.nbytes


def test_memory_between_kernels_is_there_until_all_are_launched(card, torch, monkeypatch):
    """Later it may go: torch gives it to the same stream only."""
    q, alive = weights("q4_0"), set()
    launches, empty = planned(q, 64), torch.torch.empty

    def watched(shape, dtype, device):
        empty(shape, dtype, device)
        found = torch.given.pop()
        alive.add(found.data_ptr())
        weakref.finalize(found, alive.discard, found.data_ptr())
        return found

    torch.torch.empty = watched
    forget()
    call, seen = launches.__class__.__call__, []

    def launched(self, x, y, stream, between=0, *addends):
        call(self, x, y, stream, between, *addends)
        seen.append({y, between} <= alive)

    monkeypatch.setattr(launches.__class__, "__call__", launched)
    y = linear(aligned((64, K), FLOAT32), q)
    assert seen == [True]
    assert alive == {y.data_ptr()}


def test_results(card, torch):
    q, x = weights("q4_0"), aligned((3, K), FLOAT32)
    planned(q, 3)
    for kind in (FLOAT32, FLOAT16, BFLOAT16, FLOAT64):
        assert linear(x, q, dtype=kind).dtype is kind
    assert linear(x, q, dtype=np.float16).dtype is FLOAT16
    assert linear(x, q, dtype=None).dtype is FLOAT32
    torch.given.clear()
    assert linear(x, q, dtype=FLOAT64).dtype is FLOAT64
    assert torch.given[-1].dtype is FLOAT32, "no kernel writes float64"
    for kind in (FLOAT16, BFLOAT16, FLOAT32):
        out = aligned((3, N), kind)
        assert linear(x, q, out=out) is out
    cube = Tensor(x.data.reshape(3, 1, K), FLOAT32)
    assert linear(cube, q).shape == (3, 1, N)
    planned(q, 1)
    assert linear(Tensor(x.data[0], FLOAT32), q).shape == (N,)
    assert gq.linear(x, q).dtype is FLOAT32  # by the public way


@pytest.mark.parametrize("kind", KINDS)
def test_a_bias_is_added_by_a_kernel(kind, card, torch):
    """Right after those of the product, on their stream; by that of CuPy's arrays too."""
    q, x, bias, out = weights("q4_0"), *(aligned(size, FLOAT32) for size in ((3, K), (N,), (3, N)))
    bias = aligned((N,), KINDS[kind])
    planned(q, 3)
    card.launches.clear()
    torch.stream = 99
    for _ in range(2):
        assert linear(x, q, out=out, bias=bias) is out
    if kind != "H":
        multiply(arrays(x), q, arrays(out), bias=arrays(bias))
    kernels = {"f": "float32", "e": "float16", "H": "bfloat16"}
    added = [each for each in card.launches if each[1] == f"add a bias of {kernels[kind]}"]
    assert len(added) == len(card.launches) // 2 == 3 - (kind == "H")
    assert all(each is card.launches[2 * i + 1] for i, each in enumerate(added))
    for _, _, facts, words in added:
        assert (facts[:3], facts[7], words) == ((2, 3, 1), 99, [bias.data_ptr(), out.data_ptr(), 3, N])


def test_out_that_overlaps(card, torch):
    q = weights("q4_0")
    planned(q, 3)
    memory = aligned((3 * K + 3 * N,), FLOAT32)
    x = Tensor(memory.data[: 3 * K].reshape(3, K), FLOAT32)
    for first, direct in ((0, False), (3 * K - 4, False), (3 * K, True)):
        out = Tensor(memory.data[first : first + 3 * N].reshape(3, N), FLOAT32)
        card.launches.clear()
        torch.given.clear()
        assert linear(x, q, out=out) is out
        assert bool(torch.given) is not direct
    bias = Tensor(memory.data[3 * K + 5 :][:N], FLOAT32)
    out = Tensor(memory.data[3 * K :].reshape(3, N), FLOAT32)
    torch.given.clear()
    assert linear(x, q, out=out, bias=bias) is out
    assert torch.given


def strange(torch):
    """Operands that are not ordinary."""
    x, q = aligned((3, K), FLOAT32), weights("q4_0")
    planned(q, 3)

    def odd(**more):
        found = aligned((3, K), FLOAT32)
        for name, value in more.items():
            setattr(found, name, value)
        return found

    shifted = Tensor(aligned((3 * K + 4,), FLOAT32).data[1 : 3 * K + 1].reshape(3, K), FLOAT32)
    out, bias = aligned((3, N), FLOAT32), aligned((N,), FLOAT32)
    out.requires_grad = True
    of_inference = aligned((3, N), FLOAT32)  # torch refuses to add to it and to copy into it
    of_inference.inference = True
    bias.requires_grad = True
    yield "no plan", lambda: linear(aligned((5, K), FLOAT32), q)
    yield "no plan of that kind", lambda: linear(aligned((3, K), FLOAT16), q)
    yield "another kernel", lambda: linear(x, q, kernel="cuda:mma_bf16")
    yield "doubles", lambda: linear(aligned((3, K), FLOAT64), q)
    yield "on the host", lambda: linear(odd(is_cuda=False), q)
    yield "elsewhere", lambda: linear(odd(number=1), q)
    yield "a subclass", lambda: linear(Other(x.data, FLOAT32), q)
    yield "a gradient", lambda: linear(odd(requires_grad=True), q)
    yield "sparse", lambda: linear(odd(layout="sparse"), q)
    yield "negated when read", lambda: linear(odd(neg=True), q)
    yield "strided", lambda: linear(Tensor(aligned((3, 2 * K), FLOAT32).data[:, ::2], FLOAT32), q)
    yield "an odd address", lambda: linear(shifted, q)
    yield "another K", lambda: linear(aligned((3, K - 32), FLOAT32), q)
    yield "a scalar", lambda: linear(aligned((), FLOAT32), q)
    yield "weights that are none", lambda: linear(x, x)
    yield "weights on the host", lambda: linear(x, gq.quantize(np.ones((N, K), np.float32), "q4_0"))
    yield "kernel no name", lambda: linear(x, q, kernel=["auto"])
    yield "arithmetic no name", lambda: linear(x, q, arithmetic=["q8"])
    yield "dtype no key", lambda: linear(x, q, dtype=[])
    yield "dtype of integers", lambda: linear(x, q, dtype=np.int8)
    yield "out an array", lambda: linear(x, q, out=np.empty((3, N), np.float32))
    yield "out of another shape", lambda: linear(x, q, out=aligned((3, N + 1), FLOAT32))
    yield "out in doubles", lambda: linear(x, q, out=aligned((3, N), FLOAT64))
    yield "out strided", lambda: linear(x, q, out=Tensor(aligned((N, 3), FLOAT32).data.T, FLOAT32))
    yield "out elsewhere", lambda: linear(x, q, out=aligned((3, N), FLOAT32, 1))
    yield "out with a gradient", lambda: linear(x, q, out=out)
    yield "out of inference mode", lambda: linear(x, q, out=of_inference)
    yield "bias an array", lambda: linear(x, q, bias=np.ones(N, np.float32))
    yield "bias of another shape", lambda: linear(x, q, bias=aligned((1, N), FLOAT32))
    yield "bias strided", lambda: linear(x, q, bias=Tensor(aligned((2 * N,), FLOAT32).data[::2], FLOAT32))
    yield "bias in doubles", lambda: linear(x, q, bias=aligned((N,), FLOAT64))
    yield "bias elsewhere", lambda: linear(x, q, bias=aligned((N,), FLOAT32, 1))
    yield "bias with a gradient", lambda: linear(x, q, bias=bias)


def test_strange_operands(card, torch):
    """All that may fail, convert or copy goes where it is checked with words."""
    for what, call in strange(torch):
        card.launches.clear()
        assert call() is None, what
        assert not card.launches, what
    torch.gradients = False
    q, x = weights("q4_0"), aligned((3, K), FLOAT32)
    planned(q, 3)
    x.requires_grad = True
    assert linear(x, q) is not None


def test_a_graph_and_another_device(card, torch, monkeypatch):
    q, x = weights("q4_0"), aligned((3, K), FLOAT32)
    planned(q, 3)
    torch.capturing = True
    assert linear(x, q) is not None  # the default stream is in no graph
    torch.stream = 77
    assert linear(x, q) is None
    torch.capturing = False
    assert linear(x, q) is not None
    torch.current = 1  # its current stream would be asked whether it records one
    assert linear(x, q) is None
    monkeypatch.setattr(plan, "cuda_driver", lambda: SimpleNamespace(device=lambda: 1))
    assert linear(x, q) is None


def test_plans_are_made_of_bfloat16(card, torch, monkeypatch):
    """As kernels read it, where they do; else nothing is done, and it is widened."""
    q, out = weights("q4_0"), arrays(aligned((3, N), FLOAT32))
    for _ in range(2):
        assert of_bits(arrays(aligned((3, K), BFLOAT16)), q, out)
    assert q.recording((3, "auto", None, "Hf")) is not None
    card.launches.clear()
    shifted = arrays(aligned((3 * K + 4,), BFLOAT16))[1 : 3 * K + 1].reshape(3, K)
    assert not of_bits(arrays(aligned((3, K), BFLOAT16)), q, out, "cuda:dequant_bf16")
    assert not of_bits(shifted, q, out)
    assert not of_bits(arrays(aligned((3, K - 32), BFLOAT16)), q, out)
    assert not card.launches


@pytest.mark.parametrize("m", [1, 7, 20, 300])
def test_bits_of_bfloat16_in_and_out(m, card, torch):
    """One kernel reads them, adds the bias and writes them; but only an even number of rows of weights."""
    q, bias = weights("q4_0"), arrays(aligned((N,), BFLOAT16))
    for _ in range(3):
        x, out = arrays(aligned((m, K), BFLOAT16)), arrays(aligned((m, N), BFLOAT16))
        card.launches.clear()
        assert of_bits(x, q, out, bias=bias)
    words = card.launches[-1][3]
    assert {out.data.ptr, bias.data.ptr} <= {*words}
    assert len(card.launches) == 1, "nothing is before or behind the product"
    assert q.recording((m, "auto", None, "HHH")) is not None
    odd, out = q[: N - 1], arrays(aligned((m, N - 1), BFLOAT16))
    assert not of_bits(x, odd, out)


@pytest.mark.parametrize("m", [1, 7, 300])
def test_a_residual_of_tensors(m, card, torch):
    """Launches that were recorded with one add another, which may be the result; of one row it is a bias."""
    q = weights("q4_0")
    for _ in range(3):
        x, out, more = (arrays(aligned(shape, BFLOAT16)) for shape in ((m, K), (m, N), (m, N)))
        assert of_bits(x, q, out, residual=more)
    assert q.recording((m, "auto", None, "HHH" if m == 1 else "HH+H")) is not None
    card.launches.clear()
    x, y, more = (aligned(shape, BFLOAT16) for shape in ((m, K), (m, N), (m, N)))
    call = partial(plan.of_tensors, x, q, "auto", None)
    assert call(y, None, BFLOAT16, more) is y
    assert {y.data_ptr(), more.data_ptr()} <= {*card.launches[-1][3]}
    assert call(more, None, BFLOAT16, more) is more
    assert list(card.launches[-1][3]).count(more.data_ptr()) == 2
    assert len(card.launches) == 2
    other = aligned((m, N), FLOAT16)
    assert call(None, None, BFLOAT16, other) is None, "nothing was recorded with this kind"
    assert call(None, None, FLOAT32, more) is None
    memory = aligned((m * N + 8,), BFLOAT16).data
    near, far = (Tensor(memory[i : i + m * N].reshape(m, N), BFLOAT16) for i in (0, 8))
    assert call(near, None, BFLOAT16, far) is None, "it would be overwritten"
    between = Tensor(memory[1 : 1 + m * N].reshape(m, N), BFLOAT16)
    assert (call(None, None, BFLOAT16, between) is None) is (m > 1), "kernels read two numbers at a time"
    assert len(card.launches) == 2 + (m == 1)  # a bias they read one by one
    bits, place = arrays(x), arrays(y)
    assert of_bits(bits, q, place, residual=arrays(between)) == (m == 1)


@pytest.mark.parametrize("m", [1, 8, 20, 64, 300])
def test_a_graph_records_bfloat16_by_kernels_of_the_call_before(m, card, torch, monkeypatch):
    q, x, out = weights("q4_0"), aligned((m, K), BFLOAT16), arrays(aligned((m, N), FLOAT32))

    def recorded():
        multiply(arrays(x), q, out, kind="H")
        names = [name for _, name, *_ in card.launches]
        card.launches.clear()
        return names

    recorded()  # and the weights are laid out
    before, stream = recorded(), device.driver().stream(0)
    monkeypatch.setattr(stream, "ptr", 99)
    monkeypatch.setattr(stream, "is_capturing", lambda: True)
    assert recorded() == before
    x = arrays(aligned((m, K), FLOAT32))
    assert plan.on_device(x, q, "auto", None, out, None, np.float32) is None
