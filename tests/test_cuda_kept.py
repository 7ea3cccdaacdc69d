"""Machine code on the disk: one entry for one kernel, sealed, and no folder where it is switched off."""

from __future__ import annotations

import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")
pytest.importorskip("cuda.core", reason="cuda-core is not installed (extra test-cuda)")

from ggmlq.cuda.driver.coverage import families
from ggmlq.cuda.driver.launch import Kernel, array
from ggmlq.cuda.intrinsics.language import cuda, float32
from ggmlq.cuda.layouts import floats
from ggmlq.store.store import key_of


def double(x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = x[i] + x[i]


def kernel(function=double, element=float32, **more):
    return Kernel("double it", function, array(element, 1), array(element, 1), **{"threads": 32, **more})


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("GGMLQ_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_code_is_kept_on_disk(place, monkeypatch):
    code = floats.kernel(True).cubin((7, 5))
    assert code.startswith(b"\x7fELF")
    monkeypatch.setattr(Kernel, "assemble", None)
    assert floats.kernel(True).cubin((7, 5)) == code


def test_a_kernel_that_no_family_makes_is_not_stored(place):
    assert kernel().cubin((7, 5)).startswith(b"\x7fELF")
    assert not [*place.glob("compiled/kernels/*.code")]


def test_every_case_of_every_family_has_a_key_of_its_own():
    keys = {}
    for name, family in families().items():
        if not name.startswith("ggmlq."):  # a benchmark's, where one was collected
            continue
        for case in family.cases[:: max(1, len(family.cases) // 12)]:
            for machine in ("sm_80", "sm_90"):
                key = key_of(family.make(*case).origin, machine, "a compiler 1.0")
                assert keys.setdefault(key, (name, case, machine)) == (name, case, machine)
    origin = floats.kernel(True).origin
    assert len({key_of(origin, "sm_90", compilers) for compilers in ("a 1.0", "a 1.1")}) == 2
