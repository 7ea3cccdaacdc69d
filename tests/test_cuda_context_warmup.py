"""A context that is made while CuPy is imported: the calls of the driver, and their time."""

from __future__ import annotations

import ctypes
import sys
from types import SimpleNamespace

import pytest

import ggmlq as gq
from ggmlq.cuda.driver import device


class Driver:
    """Three functions of libcuda, which record their arguments."""

    def __init__(self, devices=2):
        self.asked, self.devices = [], devices

    def cuInit(self, flags):
        self.asked.append(("init", flags))
        return 0

    def cuDeviceGet(self, at, index):
        self.asked.append(("device", index))
        at._obj.value = 70 + index
        return 0 if index < self.devices else 101

    def cuDevicePrimaryCtxRetain(self, at, own):
        self.asked.append(("context", own.value))
        return 0


@pytest.fixture
def driver(monkeypatch):
    found = Driver()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: found if name == device.CUDA else None)
    return found


def test_the_context_of_a_gpu(driver):
    device.warm_up(1).join()
    assert driver.asked == [("init", 0), ("device", 1), ("context", 71)]


def test_a_gpu_that_is_not_there_is_left_to_cupy(driver, monkeypatch):
    device.warm_up(2).join()
    assert driver.asked == [("init", 0), ("device", 2)]

    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    device.warm_up(0).join()


def test_only_who_has_yet_to_import_cupy(monkeypatch):
    woken = []
    monkeypatch.setattr(device, "warm_up", woken.append)
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    monkeypatch.setattr(device, "cupy", lambda: pytest.fail("imported"))
    with pytest.raises(pytest.fail.Exception):
        device.named("cuda:1")
    assert woken == [1]
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace())
    with pytest.raises(pytest.fail.Exception):
        device.named("cuda")
    assert woken == [1]
    with pytest.raises(gq.GGMLQError, match="devices are"):
        device.named("gpu")
