"""Arrays that several threads and processes prepare: none waits for another, nothing is made twice."""

from __future__ import annotations

import os
import threading
import time

import numpy as np
import pytest

import ggmlq as gq

PATIENCE = 200  # seconds, for a loaded machine


def weights():
    return gq.quantize(np.ones((2, 32), np.float32), "q4_0")


class Slow:
    """Makes something, and takes as long as it is let."""

    def __init__(self):
        self.begun, self.go, self.made = threading.Event(), threading.Event(), 0

    def __call__(self, q):
        self.made += 1
        self.begun.set()
        assert self.go.wait(PATIENCE)
        return self.made


def in_thread(work):
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_one_array_does_not_stall_another():
    slow, q = Slow(), weights()
    first = in_thread(lambda: q.prepared(slow))
    assert slow.begun.wait(PATIENCE)
    done = threading.Event()
    in_thread(lambda: (weights().prepared(len), done.set()))
    assert done.wait(PATIENCE)
    slow.go.set()
    first.join(PATIENCE)
    assert q.prepared(slow) == 1


def test_threads_prepare_an_array_once():
    slow, q, found = Slow(), weights(), []
    threads = [in_thread(lambda: found.append(q.prepared(slow))) for _ in range(8)]
    assert slow.begun.wait(PATIENCE)
    slow.go.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert (found, slow.made) == ([1] * 8, 1)


def test_what_is_made_may_prepare_and_drop():
    q = weights()
    assert q.prepared(lambda array: array.prepared(len)) == 2
    q.drop_prepared()
    assert q.prepared_copy(len) is None


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_child_forked_while_a_thread_prepares(rounds):
    """The lock's owner is not there in the child: it takes a new one, and the array is whole."""
    for _ in rounds(1):
        slow, q = Slow(), weights()
        thread = in_thread(lambda slow=slow, q=q: q.prepared(slow))
        assert slow.begun.wait(PATIENCE)
        child = os.fork()
        if child == 0:
            ok = q.prepared(len) == 2 and weights().prepared(len) == 2 and not q.prepared_copy(slow)
            os._exit(0 if ok else 1)
        slow.go.set()
        assert ended(child) == 0
        thread.join(PATIENCE)
        assert q.prepared_copy(slow) == 1


def ended(child):
    """The status of a child; one that hangs is ended."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return "it hung"
