"""What takes long and cannot be counted says so once, on a terminal, and nowhere else."""

from __future__ import annotations

import io
import time
from types import SimpleNamespace

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.base import progress
from ggmlq.commands import show


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    found = Terminal()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=found))  # pytest changes that of sys
    monkeypatch.setattr(progress, "AFTER", 0.05)
    return found


def wait_for(text, stream):
    end = time.monotonic() + 20
    while text not in stream.getvalue() and time.monotonic() < end:
        time.sleep(0.01)


def test_a_line_once_it_takes_long(terminal):
    with progress.long_work("counting sheep"):
        wait_for("sheep", terminal)
    assert terminal.getvalue() == "ggmlq: counting sheep …\n"


def test_nothing_of_what_is_quick_or_fails_quickly(terminal):
    with progress.long_work("counting sheep"):
        pass
    with pytest.raises(ValueError, match="wolf"), progress.long_work("counting sheep"):
        raise ValueError("wolf")
    time.sleep(0.15)
    assert terminal.getvalue() == ""


def test_nothing_where_nobody_looks(terminal):
    with progress.quiet(), progress.long_work("counting sheep"):
        time.sleep(0.15)
    progress.sys.stderr = piped = io.StringIO()
    with progress.long_work("counting sheep"):
        time.sleep(0.15)
    progress.sys.stderr = None
    with progress.long_work("counting sheep"):
        pass
    assert (terminal.getvalue(), piped.getvalue()) == ("", "")


def test_a_kernel_for_the_cpu_says_that_it_is_compiled(terminal, monkeypatch):
    from ggmlq.cpu.machine import disk_cache, jit

    monkeypatch.setattr(disk_cache, "load", lambda entry, context: None)
    monkeypatch.setattr(disk_cache, "save", lambda entry, result: None)
    monkeypatch.setattr(progress, "AFTER", 0.0)

    def sheep(x):
        return x + 1

    assert jit.jit(sheep)(1) == 2
    wait_for("sheep", terminal)
    assert "ggmlq: compiling sheep" in terminal.getvalue()
    assert "for this CPU, once …" in terminal.getvalue()


def test_statistics_of_a_tensor_count_its_bytes(monkeypatch):
    q, counted = gq.quantize(np.ones((300, 1024), np.float32), "q4_0"), []
    monkeypatch.setattr(progress.Progress, "advance", lambda self, n: counted.append(n))
    show._counted(q)
    assert len(counted) > 1
    assert sum(counted) == q.nbytes
