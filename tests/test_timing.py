"""Time on a GPU's clock, with a card that is not there: what is run when, and what is not counted."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from scripts import load

from ggmlq.roofs import timing

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")

replays = load("bench", "replays")


class Card:
    """In place of CuPy: each piece of work takes 100 µs of the card and is written down."""

    def __init__(self, capturable=True, us=100.0):
        self.said, self.now, self.us, self.capturable, self.capturing = [], 0.0, us, capturable, False
        card = self

        class Stream:
            def __init__(self, non_blocking):
                assert non_blocking

            def __enter__(self):
                return self

            def __exit__(self, *error):
                pass

            def synchronize(self):
                pass

            def begin_capture(self):
                card.capturing, card.captured = True, 0

            def end_capture(self):
                card.capturing = False
                return SimpleNamespace(launch=lambda stream, count=card.captured: card.run("graph", count))

        class Event:
            def record(self):
                self.at = card.now

            def synchronize(self):
                pass

        device = SimpleNamespace(synchronize=lambda: None)
        elapsed = lambda start, end: (end.at - start.at) * 1e-3
        self.cuda = SimpleNamespace(
            Stream=Stream, Event=Event, Device=lambda: device, get_elapsed_time=elapsed
        )

    def run(self, word, count=1):
        self.said.append(word)
        self.now += self.us * count

    def work(self):
        if not self.capturing:
            self.run("work")
        elif not self.capturable:
            raise NotImplementedError
        self.captured = getattr(self, "captured", 0) + self.capturing


def replayed(card, count):
    said = lambda word: lambda: card.said.append(word)
    return replays.replayed(card, [card.work] * count, said("before"), said("after"))


def test_a_graph_is_replayed_and_judged_once():
    card = Card()
    found = replayed(card, 5)
    assert card.said == ["work"] * 10 + ["before", "graph", "after"] + ["graph"] * 12
    assert (found.us, found.least, found.graph) == (pytest.approx(100), pytest.approx(100), True)


def test_what_cannot_be_captured_is_launched_behind_a_sleep(monkeypatch):
    card = Card(capturable=False)
    monkeypatch.setattr(replays, "sleep", lambda us: card.run("sleep", us >= 50))
    found = replayed(card, 2)
    assert (
        card.said
        == ["work"] * 4 + ["before", "sleep", "work", "work", "after"] + ["sleep", "work", "work"] * 12
    )
    assert (found.us, found.graph) == (pytest.approx(100), False)


def test_long_work_is_repeated_less():
    card = Card(us=1e5)
    replayed(card, 1)
    assert card.said.count("graph") == 4


def test_a_capture_that_fails_is_ended():
    card = Card()
    with pytest.raises(ZeroDivisionError):
        timing.captured(card.cuda.Stream(True), [card.work, lambda: 1 // 0])
    assert not card.capturing


def test_plain_calls():
    card = Card()
    found = replays.called(card, [card.work] * 3)
    assert card.said == ["work"] * 3 * 13
    assert (found.us, found.graph) == (pytest.approx(100), False)


def test_reading():
    """Whole steps of all threads are counted, not what is left."""
    from ggmlq.cuda.driver import device
    from ggmlq.roofs import probes

    step = 16 * probes.THREADS * probes.LOADS * probes.BLOCKS * 10
    launched = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "multiprocessors", lambda: 10)
        patch.setattr(
            probes, "reader", lambda: lambda grid, block, *more: launched.append((grid, block, more[2]))
        )
        assert probes.read(SimpleNamespace(nbytes=3 * step + 5)) == 3 * step
    assert launched == [((40,), (256,), 3)]


def test_probes_become_machine_code():
    pytest.importorskip("cuda.core", reason="cuda-core is not installed (extra test-cuda)")
    from ggmlq.roofs import probes

    for kernel, word in ((probes.reader(), "ld.global.nc.v4"), (replays.sleeper(), "globaltimer")):
        text = kernel.ptx((9, 0))
        assert word in text
        code, used = kernel.assemble((9, 0), text)
        assert code[:4] == b"\x7fELF"
        assert used.stack == 0
        assert used.registers <= 65536 // (kernel.threads * kernel.blocks)
