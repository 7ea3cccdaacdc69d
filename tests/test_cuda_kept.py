"""Machine code on the disk: one entry for one kernel, sealed, and no folder where it is switched off."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test or cuda)")
pytest.importorskip("cuda.core", reason="cuda-core is not installed (extra test or cuda)")

from ggmlq.cuda.intrinsics.language import cuda, float32, int32
from ggmlq.cuda.machine import launch
from ggmlq.cuda.machine.coverage import families
from ggmlq.cuda.machine.launch import Kernel, array


def double(x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = x[i] + x[i]


def times(n):
    def scale(x, y):
        i = cuda.grid(1)
        if i < x.size:
            y[i] = x[i] * n

    return scale


def kernel(function=double, element=float32, **more):
    return Kernel("double it", function, array(element, 1), array(element, 1), **{"threads": 32, **more})


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("GGMLQ_CACHE_DIR", str(tmp_path))
    launch.generation.cache_clear()
    yield tmp_path
    launch.generation.cache_clear()


def test_code_is_kept_on_disk(place, monkeypatch):
    code = kernel().cubin((7, 5))
    assert code.startswith(b"\x7fELF")
    monkeypatch.setattr(Kernel, "assemble", None)
    launch.generation.cache_clear()
    assert kernel().cubin((7, 5)) == code


@pytest.mark.parametrize("content", [b"", b"junk" * 1000])
def test_an_emptied_or_foreign_file_is_made_again(place, content):
    kernel().cubin((7, 5))
    (file,) = place.glob("compiled/cuda-*/double-it-*")
    file.write_bytes(content)
    code = kernel().cubin((7, 5))  # not the same bytes: the compiler numbers its functions
    assert code.startswith(b"\x7fELF")
    assert kernel().cubin((7, 5)) == code


def test_switched_off_it_leaves_nothing(place, monkeypatch):
    monkeypatch.setenv("GGMLQ_CACHE_DIR", "off")
    monkeypatch.setattr("tempfile.tempdir", str(place))
    launch.generation.cache_clear()
    assert kernel().cubin((7, 5)).startswith(b"\x7fELF")
    assert os.listdir(place) == []


def test_two_functions_of_one_name_have_two_entries():
    def double(x, y):
        y[0] = x[0]

    different = [
        kernel(), kernel(double), kernel(times(2)), kernel(times(3)), kernel(element=int32),
        kernel(threads=64), kernel(blocks=2), kernel(exact=True), kernel(early=True),
    ]  # fmt: skip
    entries = [each.entry((9, 0)) for each in different] + [kernel().entry((8, 0))]
    assert len(set(entries)) == len(entries)
    assert kernel(times(2)).entry((9, 0)) == kernel(times(2)).entry((9, 0))


def test_every_case_of_every_family_has_an_entry_of_its_own():
    entries = {}
    for name, family in families().items():
        for case in family.cases[:: max(1, len(family.cases) // 12)]:
            entry = family.make(*case).entry((9, 0))
            assert " " not in entry
            assert entries.setdefault(entry, (name, case)) == (name, case)
