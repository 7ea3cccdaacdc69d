"""The launches of some work, made again for other arrays: with a driver that notes what it is handed."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

from ggmlq.cuda.driver import calls, device, submit, tape
from ggmlq.cuda.driver.submit import SHAPE, LoadedLaunch, PreparedLaunches


@pytest.fixture
def launched(monkeypatch):
    """Launches as the driver reads them: function, grid, shared memory and stream, three words."""
    seen = []

    def launch(shape_at, function, pointers_at, extra):
        shape = SHAPE.unpack(ctypes.string_at(shape_at, SHAPE.size))
        pointers = ctypes.cast(pointers_at, ctypes.POINTER(ctypes.c_void_p * 3)).contents
        words = [ctypes.c_uint64.from_address(at).value for at in pointers]
        seen.append((function, shape[:3], shape[6], shape[7], words))
        return 0

    monkeypatch.setattr(submit, "driver_launch", lambda: launch)
    return seen


def one(function, *words):
    return LoadedLaunch(function, (2, 3), (32,), words, 64, True, 1, False)


def test_again_for_other_arrays(launched):
    """Words in a span follow it, with their offsets; no other word changes."""
    prepared = PreparedLaunches([one(7, submit.Slot(0, 8), 5, 1 << 50), one(8, submit.Slot(1), 6, 2)])
    with tape.taped() as steps:
        submit.submit(1, (4,), (32,), (1000, 3, 2064), 0, 99, early=True)
        prepared.launch((1000, 3000), 99)
    submit.submit(2, (4,), (32,), (0, 0, 0), 0, 99, early=False)
    assert len(steps) == 3, "what comes behind is not on the tape"
    spans = [tape.Span(1000, 64), tape.Span(2000, 100), tape.Span(5000, 8)]
    copy = tape.Tape(steps, spans)
    assert (copy.used, sorted(copy.words)) == ({0, 1}, [2, 3, 5, 6, 3000, 1 << 50])
    launched.clear()
    for first, second in ((1 << 46, 1 << 45), (4096, 8192)):
        copy.repeat([first, second, 0], 77)
        assert launched[-3:] == [
            (1, (4, 1, 1), 0, 77, [first, 3, second + 64]),
            (7, (2, 3, 1), 64, 77, [first + 8, 5, 1 << 50]),
            (8, (2, 3, 1), 64, 77, [3000, 6, 2]),
        ]
    assert copy.strangers([*spans], [])
    assert not copy.strangers([*spans], [(2990, 20)])
    assert not copy.strangers([tape.Span(1000, 64)], [(0, 1)]), "3000 is no address among these"


def test_a_tape_ends_where_work_fails(launched):
    with pytest.raises(ValueError, match="broken"), tape.taped():
        raise ValueError("broken")
    assert submit.TAPING.steps is None


def test_the_memory_of_an_array():
    memory = np.zeros((4, 6), np.float32)
    array = SimpleNamespace(
        shape=(3, 2), strides=memory[::1, ::3].strides, itemsize=4, data=SimpleNamespace(ptr=640)
    )
    assert tape.span_of(array) == (640, 2 * 24 + 12 + 4)


def test_nodes_of_a_graph(monkeypatch):
    """The driver's count; None where it does not tell."""

    def call(name, graph, nodes, count):
        assert (name, graph, nodes) == ("cuGraphGetNodes", 5, None)
        count._obj.value = 17

    monkeypatch.setattr(device, "capture_of", lambda stream: (1, 5))
    monkeypatch.setattr(calls, "call", call)
    assert tape.nodes(3) == 17

    def refuse(*operands):
        raise OSError("no driver")

    monkeypatch.setattr(calls, "call", refuse)
    assert tape.nodes(3) is None
