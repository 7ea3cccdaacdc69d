"""The bridge on a library of our own, which misbehaves in every way we thought of."""

from __future__ import annotations

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.arrays.rows import rows
from ggmlq.errors import DeviceError, LibraryFailedError, MissingDependencyError, ShapeError, UnsupportedError
from ggmlq.llama import Bridge
from ggmlq.llama.guards import UNWRITTEN

X = rows("normal", 9, 96, 1)
W = gq.quantize(rows("normal", 7, 96, 2), "q4_0")


def test_a_product(fake):
    bridge = fake()
    assert bridge.version == "fake"
    assert bridge.types == {"f32", "q4_0"}
    (device,) = bridge.devices()
    assert (device.name, device.backend, device.kind) == ("FAKE0", "Fake", "GPU")
    got = bridge.measure(X, W, "fake0", repeats=3, time_runs=4)
    assert gq.nmse(got.y, gq.reference.linear(X, W), axis=0).max() < 1e-11
    assert got.same
    assert len(got.repeats) == 2
    assert len(got.seconds) == 4
    assert 0 < got.fastest <= got.median
    assert got.buffer == "FAKE"


def test_types_beyond_the_librarys_count_are_not_asked_for(fake):
    assert max(fmt.id for fmt in gq.formats.values()) >= 30, "the fake dies where it is asked for type 30"
    assert fake().types == {"f32", "q4_0"}


def test_shapes_follow_x(fake):
    bridge = fake()
    assert bridge.mul_mat(X[0], W, "FAKE0").shape == (7,)
    assert bridge.mul_mat(X.reshape(3, 3, 96).astype(np.float16), W, "FAKE0").shape == (3, 3, 7)
    assert np.isnan(bridge.measure(X, W, "FAKE0").median)


@pytest.mark.parametrize(
    ("fault", "how"), [("abort", "SIGABRT"), ("crash", "SIGSEGV"), ("exit", "exit status 3")]
)
def test_a_death_is_told_and_survived(fake, fault, how):
    bridge = fake(fault)
    for _ in range(2):
        with pytest.raises(LibraryFailedError, match=rf"mul_mat\(x, <QuantArray q4_0.* died: {how}"):
            bridge.mul_mat(X, W, "FAKE0")
    assert bridge.devices()
    if fault == "crash":
        assert bridge.mul_mat(X[:8], W, "FAKE0").shape == (8, 7)


def test_the_last_words(fake):
    with pytest.raises(LibraryFailedError) as told:
        fake("abort").mul_mat(X, W, "FAKE0")
    assert told.value.tail == "FAKE_ASSERT(k > 0) failed"


def test_a_library_that_prints(fake):
    got = fake("print").mul_mat(X, W, "FAKE0")
    np.testing.assert_array_equal(got, fake().mul_mat(X, W, "FAKE0"))


def test_what_is_not_written_is_nan(fake):
    got = fake("unwritten").mul_mat(X, W, "FAKE0")
    assert (got.view(np.uint32)[:, -1] == UNWRITTEN).all()
    assert np.isfinite(got[:, :-1]).all()


@pytest.mark.parametrize(
    ("fault", "strays"),
    [
        ("", []),
        ("behind", [("behind y", 8, 0, 8)]),
        ("before", [("before y", 4, 4, 4)]),
        ("inputs", [("in x", 2, 6, 7)]),  # 1.0 and 2.0 differ in their higher bytes
    ],
)
def test_what_is_written_beside_the_result(fake, fault, strays):
    x = np.ones_like(X)
    found = fake(fault).measure(x, W, "FAKE0", repeats=2)
    assert [(s.place, s.bytes, s.first, s.last) for s in found.strays] == strays
    assert not found.leaked.any()
    assert gq.nmse(found.y, gq.reference.linear(x, W), axis=0).max() < 1e-11


def test_what_is_read_beside_the_activations(fake):
    found = fake("reads").measure(X, W, "FAKE0")
    assert found.leaked[-1].all()
    assert not found.leaked[:-1].any()
    assert not found.strays


@pytest.mark.parametrize(("x", "q"), [((3, 2), ()), ((2, 3, 2), ()), ((3, 2), (3,)), ((6, 2), (3,))], ids=str)
def test_batches(fake, x, q):
    rows_of_x = X[: int(np.prod(x)) % 9 + 1].repeat(9, axis=0)[: int(np.prod(x))].reshape(*x, 96)
    w = gq.quantize(rows("normal", int(np.prod(q)) * 7, 96, 2), "q4_0")
    w = gq.QuantArray.from_bytes(w.raw, w.format, (*q, 7, 96))
    found = fake().measure(rows_of_x, w, "FAKE0", batched=True)
    values = np.asarray(w).repeat(x[0] // q[0], axis=0) if q else np.asarray(w)
    np.testing.assert_allclose(found.y, rows_of_x @ values.swapaxes(-1, -2), atol=1e-4)
    assert not found.strays
    assert not found.forced


def test_batches_that_are_written_too_far(fake):
    """The live bug of ggml 0.25.3's AMX: offsets in bytes are added to pointers to floats."""
    x, size = np.stack([X] * 3), 4 * 9 * 7
    found = fake("batches").measure(x, W, "FAKE0", batched=True)
    assert not found.unwritten[0].any()
    assert found.unwritten[1:].all()
    (stray,) = found.strays
    assert (stray.place, stray.bytes, stray.first, stray.last) == ("behind y", 2 * size, size, 6 * size - 4)


def test_batches_that_do_not_fit(fake):
    with pytest.raises(ShapeError, match="each axis of x is a multiple of that of q"):
        fake().measure(X, gq.QuantArray.from_bytes(W.raw, W.format, (7, 1, 96)), "FAKE0", batched=True)


def test_a_race(fake):
    got = fake("race").measure(X, W, "FAKE0", repeats=3)
    assert not got.same
    assert set(np.argwhere(got.y != got.repeats[1])[:, 1].tolist()) == {3}


@pytest.mark.parametrize(
    ("fault", "error", "says"),
    [
        ("unsupported", UnsupportedError, "device FAKE0 does not multiply it"),
        ("memory", DeviceError, "could not allocate"),
        ("driver", DeviceError, "its backend did not start.*; it said: no such driver"),
        ("status", LibraryFailedError, "returned status -1"),
    ],
)
def test_refusals_are_sentences(fake, fault, error, says):
    with pytest.raises(error, match=says):
        fake(fault).mul_mat(X, W, "FAKE0")


def test_types_of_another_size(fake):
    with pytest.raises(UnsupportedError, match="q4_0 as 32 weights in 20 bytes"):
        fake("abi")


def test_bad_requests(fake):
    bridge = fake()
    with pytest.raises(DeviceError, match=r"'CUDA0': .* has FAKE0"):
        bridge.mul_mat(X, W, "CUDA0")
    with pytest.raises(UnsupportedError, match="no repacked layout"):
        bridge.mul_mat(X, W, "FAKE0", repack=True)
    with pytest.raises(UnsupportedError, match=r"has no type q8_0 \(id 8\)"):
        bridge.mul_mat(X, gq.quantize(X, "q8_0"), "FAKE0")
    with pytest.raises(UnsupportedError, match="no weights of type q8_1"):
        bridge.mul_mat(X, gq.quantize(X, "q8_1"), "FAKE0")
    with pytest.raises(ShapeError, match="last axis of both is K"):
        bridge.mul_mat(X[:, :64], W, "FAKE0")
    with pytest.raises(ShapeError, match="at least one row"):
        bridge.mul_mat(X[:0], W, "FAKE0")
    with pytest.raises(ShapeError, match="threads=0"):
        bridge.mul_mat(X, W, "FAKE0", threads=0)
    with pytest.raises(UnsupportedError, match="has no dequantize_row_q4_0"):
        bridge.dequantize(W)


def test_a_build_without_registry(compile_fake, tmp_path):
    compile_fake(tmp_path / "libggml.so", "NO_REGISTRY")
    with Bridge(tmp_path) as bridge:
        assert [device.name for device in bridge.devices()] == ["FAKE0"]
        assert bridge.mul_mat(X, W, "FAKE0").shape == (9, 7)


def test_backends_that_load_at_run_time(compile_fake, tmp_path):
    compile_fake(tmp_path / "build/src/libggml-base.so", "LOADS")
    with Bridge(tmp_path) as bridge:
        assert bridge.quantize(X, "q4_0").shape == (9, 96)
        with pytest.raises(MissingDependencyError, match="has no backend that loads"):
            bridge.devices()
    (tmp_path / "build/bin").mkdir()
    (tmp_path / "build/bin/libggml-cpu.so").write_text("only its folder matters here")
    with Bridge(tmp_path) as bridge:
        assert [device.name for device in bridge.devices()] == ["FAKE0"]


def test_a_backend_that_does_not_load_is_named(compile_fake, tmp_path):
    compile_fake(tmp_path / "libggml-base.so")
    (tmp_path / "libggml-cuda.so").write_text("broken")
    with Bridge(tmp_path) as bridge, pytest.raises(DeviceError, match=r"cannot load .*libggml-cuda.so"):
        bridge.mul_mat(X, W, "CUDA0")


def test_a_forgotten_bridge_ends_its_process(fake_library):
    bridge = Bridge(fake_library)
    process = bridge._child._process
    del bridge
    assert process.returncode is not None


def test_not_a_library(tmp_path):
    (tmp_path / "libggml.so").write_text("not one")
    with pytest.raises(MissingDependencyError, match="cannot load"):
        Bridge(tmp_path)
