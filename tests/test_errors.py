"""Bad input: an error says what was asked, the values, the rule and the way out."""

from __future__ import annotations

import sys
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.arrays.rows import rows
from ggmlq.errors import MissingDependencyError

X = rows("normal", 4, 64)


def bad(value, *at):
    x = X.copy()
    x[at] = value
    return x


@pytest.mark.parametrize(
    ("x", "format", "error", "words"),
    [
        (X[:, :50], "q4_0", ValueError, "rows have 50 elements, q4_0 blocks hold 32; pad .* to 64"),
        (rows("normal", 1, 300), "q8_K", ValueError, "300 elements, q8_K blocks hold 256.*pad .* to 512"),
        (np.float32(1), "q4_0", ValueError, "scalar"),
        (np.arange(32), "q4_0", TypeError, r"x is int64.*x\.astype\(np\.float32\)"),
        (np.ones(32, complex), "q4_0", TypeError, "x is complex128"),
        (np.array(["a"] * 32), "q4_0", TypeError, "x is <U1"),
        (np.array([None] * 32), "q4_0", TypeError, "x is object"),
        (np.ones(32, np.longdouble), "q4_0", TypeError, "x is float128|x is longdouble"),
        (gq.quantize(X, "q8_0"), "q4_0", TypeError, "QuantArray q8_0.*x.dequantize"),
        (bad(np.nan, 2, 40), "q4_0", ValueError, r"x\[2, 40\] is nan"),
        (bad(-np.inf, 0, 3), "f16", ValueError, r"x\[0, 3\] is -inf"),
        (bad(np.inf, 3, 63).reshape(2, 2, 64), "mxfp4", ValueError, r"x\[1, 1, 63\] is inf"),
        (bad(np.nan, 0, 7)[0], "q8_0", ValueError, r"x\[7\] is nan"),
        (X.astype(np.float64) * 1e300, "q8_0", ValueError, r"x\[0, 0\] is .*e\+299.*finite float32"),
        (np.ma.array(X, mask=X > 0), "q4_0", TypeError, "mask.*filled"),
        ([[1.0], [1.0, 2.0]], "q4_0", TypeError, "x is no array"),
        (X, "q4_K", ValueError, "rows have 64 elements, q4_K blocks hold 256; pad .* to 256, or take q5_0"),
        (X, "iq4_xs", ValueError, "pad .* to 256, or take iq4_nl, as llama.cpp does"),
        (X[:, :50], "q6_K", ValueError, "pad .* to 256, or take f16, as llama.cpp does"),
        (X, "q1_0", ValueError, "pad the last axis to 128$"),
        (X, "i32", NotImplementedError, "decodes i32 but cannot encode it; it encodes f32, f16, q4_0"),
        (X, "i64", NotImplementedError, "from_bytes"),
        (X, "q4", KeyError, "did you mean q4_0"),
        (X, "int4", KeyError, "did you mean q4_0[?]"),
        (X, "4-bit", KeyError, "did you mean q4_0[?]"),
        (X, "NF4", KeyError, "did you mean iq4_nl[?]"),
        (X, "fp4", KeyError, "did you mean mxfp4[?]"),
        (X, "int8", KeyError, "gq.quantize_scaled"),
        (X, 31, KeyError, "removed"),
    ],
)  # fmt: skip
def test_quantize_refuses(x, format, error, words):
    with pytest.raises(gq.GGMLQError, match=words) as caught:
        gq.quantize(x, format)
    assert isinstance(caught.value, error)


def test_the_place_of_a_nan_is_right_in_a_later_slab(monkeypatch):
    monkeypatch.setattr(import_module("ggmlq.ops.quantize"), "SLAB", 64)
    with pytest.raises(gq.GGMLQError, match=r"x\[3, 1\] is nan"):
        gq.quantize(bad(np.nan, 3, 1), "q4_0")


@pytest.mark.parametrize(
    ("format", "imatrix", "words"),
    [
        ("q8_0", np.ones(63, np.float32), r"imatrix has shape \(63,\), rows have 64 elements"),
        ("q8_0", np.ones((1, 64), np.float32), r"shape \(1, 64\)"),
        ("q8_0", np.full(64, np.nan, np.float32), r"imatrix\[0\] is nan"),
        ("q4_0", np.ones(63, np.float32), r"imatrix has shape \(63,\)"),
        ("q4_0", np.zeros(64, np.float32), "0 everywhere.*imatrix=None"),
        ("q5_1", -np.ones(64, np.float32), r"imatrix\[0\] is -1.0; .*never negative"),
        ("q8_0", -np.eye(1, 64, 5, dtype=np.float32)[0], r"imatrix\[5\] is -1.0"),
        ("iq4_nl", np.full(64, np.inf), r"imatrix\[0\] is inf"),
        ("q8_0", np.ones(64, int), "imatrix is int64"),
    ],
)
def test_quantize_refuses_an_imatrix(format, imatrix, words):
    with pytest.raises(gq.GGMLQError, match=words):
        gq.quantize(X, format, imatrix=imatrix)


Q = gq.quantize(X, "q4_0")


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: gq.linear(X[:, :32], Q), ValueError, r"x has shape \(4, 32\), q \(4, 64\).*\[..., 64\]"),
        (lambda: gq.linear(np.float32(1), Q), ValueError, "last axis"),
        (lambda: gq.linear(X.astype(int), Q), TypeError, "x is int64"),
        (lambda: gq.linear(Q, Q), TypeError, "floats are expected"),
        (lambda: gq.linear(X, X), TypeError, "must be a QuantArray"),
        (lambda: gq.linear(X, Q.T), ValueError, r"y has shape \(4, 64\).*write x @ q\.T"),
        (lambda: gq.linear(X, Q, residual=X), ValueError, r"residual has shape \(4, 64\), the result \("),
        (lambda: gq.linear(X, Q, residual=[1]), TypeError, "residual is int64"),
        (lambda: gq.linear(X, X.T, residual=X), TypeError, "must be a QuantArray"),
        (lambda: X @ Q, ValueError, r"write x @ q\.T"),
        (lambda: Q @ X, ValueError, r"q @ x with .*write x @ q\.T"),
        (lambda: gq.linear(X, gq.quantize(X.reshape(2, 2, 64), "q4_0")), ValueError, r"3-D.*q\[e\]"),
        (lambda: gq.linear(X, Q[0]), ValueError, r"1-D.*q\[i:i\+1\]"),
        (lambda: gq.linear(X, Q, bias=np.ones(3, np.float32)), ValueError, r"bias has shape \(3,\)"),
        (lambda: gq.linear(X, Q, out=np.ones((4, 5), np.float32)), ValueError, r"out has shape \(4, 5\)"),
        (lambda: gq.linear(X, Q, out=np.ones((4, 4), int)), TypeError, "values are floats"),
        (lambda: gq.linear(X, Q, dtype=np.int32), TypeError, "values are floats"),
        (lambda: gq.reference.linear(X[:, :32], Q), ValueError, "last axis"),
        (lambda: gq.reference.linear(X, X), TypeError, "must be a QuantArray"),
        (lambda: gq.linear(X, Q, out=[0.0]), TypeError, "out is a list"),
        (lambda: gq.linear(X, Q, out=Q), TypeError, "out is a QuantArray"),
        (lambda: gq.linear(X, Q, out=True), TypeError, "out is a bool"),
        (lambda: gq.linear(X, Q, out=np.ma.zeros((4, 4))), TypeError, "mask"),
        (lambda: gq.linear(X, Q, out=np.broadcast_to(np.float32(0), (4, 4))), ValueError, "read-only"),
        (lambda: gq.linear(X, Q, dtype="foo"), TypeError, "'foo' is no dtype"),
        (lambda: gq.linear(X, Q, dtype=np.longdouble), TypeError, "values are floats"),
        (lambda: gq.linear([[1.0], [1.0, 2.0]], Q), TypeError, "x is no array"),
        (lambda: gq.linear(np.ma.array(X, mask=X > 0), Q), TypeError, "mask"),
        (lambda: gq.linear(X, Q, bias=np.ones(4, int)), TypeError, "bias is int64"),
        (lambda: gq.linear(X, Q, kernel="cpu:magic"), NotImplementedError, "no such kernel; those for"),
        (lambda: gq.linear(X, Q, kernel="cpu:panel"), NotImplementedError, "mean 'cpu:panels'"),
        (lambda: gq.linear(X, Q, kernel="cuda:dp4a"), NotImplementedError, "for cuda arrays, x and q are"),
        (lambda: gq.linear(X, gq.QuantArray.from_bytes(bytes(4), "f32", ())), ValueError, "0-D"),
        (lambda: Q.T @ X.T, ValueError, r"q\.T @ x with .*write x @ q, which takes rows"),
        (lambda: gq.kernels("sort"), NotImplementedError, "this version has expert_linear"),
        (lambda: gq.kernels("foo.bar"), NotImplementedError, "no such operation"),
        (lambda: gq.kernels("features"), NotImplementedError, "no such operation"),
        (lambda: gq.kernels(device="tpu"), RuntimeError, "no such device"),
        (lambda: gq.kernels(device=1), RuntimeError, "no such device"),
        (lambda: gq.formats["i32"].encode(X), NotImplementedError, "stored as it is"),
        (lambda: gq.nmse(X, X[:1]), ValueError, "shapes"),
        (lambda: gq.nmse(X * 1j, X), TypeError, "complex"),
        (lambda: gq.nmse(["a"], ["a"]), TypeError, "real numbers"),
        (lambda: gq.nmse(None, None), TypeError, "real numbers"),
        (lambda: gq.nmse([[1], [1, 2]], X), ValueError, "no array"),
        (lambda: gq.nmse(X, X, axis=5), ValueError, "axis=5"),
        (lambda: gq.nmse(np.ma.array(X, mask=X > 0), X), TypeError, "mask"),
        (lambda: gq.dequantize(X), TypeError, "takes a QuantArray"),
        (lambda: gq.dequantize(Q, np.int8), TypeError, "values are floats"),
    ],
)  # fmt: skip
def test_linear_refuses(call, error, words):
    with pytest.raises(gq.GGMLQError, match=words) as caught:
        call()
    assert isinstance(caught.value, error)


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "cuda:", "CPU", "cuda0", "cuda:²", None, 0])
def test_unknown_devices(device):
    with pytest.raises(gq.GGMLQError, match='devices are "cpu", "cuda"'):
        Q.to(device)


def test_without_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)  # an import of it now fails
    with pytest.raises(MissingDependencyError, match=r"pip install .cupy-cuda\d\dx") as caught:
        Q.to("cuda")
    assert isinstance(caught.value, ImportError)


@pytest.mark.parametrize("count", [0, None])
def test_cupy_without_a_gpu(monkeypatch, count):
    class CUDARuntimeError(RuntimeError):
        pass

    def get_device_count():
        if count is None:
            raise CUDARuntimeError("cudaErrorInsufficientDriver")
        return count

    runtime = SimpleNamespace(CUDARuntimeError=CUDARuntimeError, getDeviceCount=get_device_count)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)))
    with pytest.raises(gq.GGMLQError, match=r'(no usable GPU|no GPU found).*device "cpu"') as caught:
        Q.to("cuda")
    assert isinstance(caught.value, RuntimeError)


class StrangerOnDevice:
    """Looks like a CuPy array as far as the checks look."""

    __module__ = "cupy"
    dtype = np.dtype(np.float32)
    shape, strides, ndim = (4, 64), (256, 4), 2
    data = SimpleNamespace(ptr=0, device_id=0)

    class device:  # noqa: N801
        id = 0


class OnOtherDevice(StrangerOnDevice):
    """The same, elsewhere."""

    __module__ = "cupy"
    nbytes, flags = 0, np.empty(0).flags

    class device:  # noqa: N801
        id = 1


def test_two_devices():
    q = gq.QuantArray(Q.format, Q.shape, OnOtherDevice())
    with pytest.raises(gq.GGMLQError, match="x is on cuda:0, q on cuda:1"):
        gq.linear(StrangerOnDevice(), q)


def test_a_host_array_against_a_device_one():
    with pytest.raises(gq.GGMLQError, match="x is on cuda:0, q on cpu; both must be on one device"):
        gq.linear(StrangerOnDevice(), Q)
    with pytest.raises(gq.GGMLQError, match="bias is not on cpu"):
        gq.linear(X, Q, bias=StrangerOnDevice())
    with pytest.raises(gq.GGMLQError, match="out is not on cpu"):
        gq.linear(X, Q, out=StrangerOnDevice())


def test_every_error_is_one_of_ours_and_one_of_pythons():
    from ggmlq import errors

    ours = [thing for thing in vars(errors).values() if isinstance(thing, type)]
    assert len(ours) > 5
    for error in ours:
        assert issubclass(error, gq.GGMLQError)
        if error is not gq.GGMLQError:
            assert any(base.__module__ == "builtins" for base in error.__mro__[2:-3])
            assert str(error("a 'quoted' message")) == "a 'quoted' message"
