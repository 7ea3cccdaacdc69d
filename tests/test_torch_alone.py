"""Products of torch's tensors on a GPU without CuPy and Numba, on an emulated driver; no GPU, no torch.

With torch installed also its arrays under CuPy's names, over memory of the host.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from stale import skip_if_stale

from ggmlq.base import devices
from ggmlq.base.slots import Slot, labelled, slot_of
from ggmlq.cuda.driver import calls as driver_calls
from ggmlq.cuda.driver import served
from ggmlq.errors import DeviceError

SCRIPT = Path(__file__).with_name("torch_alone.py")


def facts(seed):
    """The facts that the script prints."""
    command = [sys.executable, str(SCRIPT), str(seed)]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=SCRIPT.parents[1], env=alone()
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def alone():
    """The environment without what makes this process compile, with the package in its path."""
    rest = {name: value for name, value in os.environ.items() if name != "GGMLQ_COMPILE_HERE"}
    return {**rest, "PYTHONPATH": os.pathsep.join([str(SCRIPT.parents[1]), *sys.path[1:]])}


def test_products_need_neither_cupy_nor_numba(request):
    """In one process, whose kernels run in NumPy. bfloat16 results are off by 2^-9 of themselves, products by
    2^-8.
    """
    skip_if_stale(served.STORE)
    result = facts(request.config.option.seed)
    assert result["modules"] == []
    assert result["products"]["far"] <= 2**-7
    assert result["products"]["equal"]
    assert result["products"]["launches"] == [1, 2]  # the first one prepares the weights as well
    assert result["experts"] <= 2**-7
    assert result["values"] == [True] * 3
    assert {"cuModuleLoadData", "cuLaunchKernelEx", "cuStreamSynchronize"} <= set(result["calls"])
    assert all(result["layers"]["equal"] + result["layers"]["none"])
    assert result["strips"] == {"wrong": [], "count": 2}
    # Pools of graphs are a thread's, and torch.compile refuses what a first run leaves in that of its graph.
    assert result["memory"] == {"lasting": [False], "result": [True]}
    arrays, function = result["refusals"]
    assert "CuPy cannot be imported" in arrays
    assert "pip install" in arrays
    assert "asks for take of CuPy's" in function


def test_an_error_of_the_driver_in_words(monkeypatch):
    class Library:
        def cuGetErrorName(self, status, at):
            at._obj.value = b"CUDA_ERROR_INVALID_IMAGE"
            return 0

        def cuGetErrorString(self, status, at):
            at._obj.value = b"device kernel image is invalid"
            return 0

        def cuModuleLoadData(self, at, code):
            return 200

    monkeypatch.setattr(driver_calls, "library", Library)
    with pytest.raises(DeviceError, match="CUDA_ERROR_INVALID_IMAGE: device kernel image is invalid"):
        driver_calls.Module().load(b"code")


# --- arrays over memory of torch, as NumPy's ------------------------------------------------------


@pytest.fixture
def pair(fresh):
    """Two arrays with one memory: torch's and NumPy's."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from ggmlq.cuda.driver.torch_library import TorchArray

    values = fresh.standard_normal((4, 6, 8)).astype(np.float32)
    return TorchArray.over(torch.from_numpy(values)), values


def same(array, values):
    """True if an array has the shape, dtype, strides and values of NumPy's."""
    assert (array.shape, array.dtype, array.ndim) == (values.shape, values.dtype, values.ndim)
    assert (array.size, array.nbytes, array.itemsize) == (values.size, values.nbytes, values.itemsize)
    assert array.flags.c_contiguous == values.flags.c_contiguous
    assert array.strides == values.strides
    assert np.array_equal(array.get(), values)
    return array.data.ptr == values.ctypes.data


def test_views(pair):
    array, values = pair
    assert not devices.is_host(array)
    assert same(array, values)
    for work in (
        lambda a: a.reshape(24, 8), lambda a: a.reshape((4, -1)), lambda a: a[1:3], lambda a: a[2],
        lambda a: a[..., 2:5], lambda a: a.view(np.uint16), lambda a: a.view(np.uint8), lambda a: a.T,
        lambda a: a.reshape(-1)[5:],
    ):  # fmt: skip
        view, wanted = work(array), work(values)
        assert same(view, wanted)
        assert view.base is array or view.base.base is array
    assert array.reshape(1, *array.shape)[0].T.reshape(8, 24).base is None  # it had to be copied
    assert len(array) == 4


def test_values(pair):
    array, values = pair
    assert same(array.astype(np.float32, copy=False), values)
    assert not same(array.astype(np.float16), values.astype(np.float16))
    assert not same(array.copy(), values.copy())
    assert not same(array.T.copy(), np.ascontiguousarray(values.T))
    array[1], array[2, ..., 3:] = 7, array[0, ..., 3:]
    array += array
    array *= np.float32(0.5)
    assert same(array, values)
    assert (values[1] == 7).all()
    assert np.array_equal(values[2, :, 3:], values[0, :, 3:])
    array.fill(0)
    assert not values.any()


def test_labels(pair):
    """Recordings know an argument's place in the memory that a call brings."""
    array, _ = pair
    view = labelled(array, Slot(1))
    assert slot_of(view) == Slot(1)
    assert slot_of(view[2].reshape(-1)[3:]) == Slot(1, 2 * 6 * 8 * 4 + 12)
    assert slot_of(view.T[1]) == Slot(1, 4)
    assert slot_of(array) is slot_of(view.copy()) is None
