"""A link to a GPU that is not there, for tests of loading."""

from __future__ import annotations

import gc
import queue
import threading
import time
import weakref

import numpy as np

from ggmlq.errors import DeviceMemoryError


class FakeBuffer:
    def __init__(self, nbytes):
        self.data = np.full(nbytes, 0xBB, np.uint8)
        self.fetched = threading.Event()
        self.fetched.set()

    def wait(self):
        self.fetched.wait()


class FakeLink:
    """A GPU that fetches late: a buffer that is filled again too early arrives wrong."""

    device = "cuda:7"

    def __init__(self, name="cuda:7", room=1 << 40, delay=0.0):
        self.name, self.left, self.delay = name, room, delay
        self.buffers, self.users = [], set()
        self._stream = queue.SimpleQueue()
        self._gpu = threading.Thread(target=self._serve, daemon=True)

    def _serve(self):
        while (work := self._stream.get()) is not None:
            time.sleep(self.delay)
            work()

    def __enter__(self):
        self._gpu.start()
        return self

    def __exit__(self, *error):
        self._stream.put(None)  # what is on its way goes on, as on a GPU

    def use(self):
        self.users.add(threading.current_thread())

    def empty(self, shape):
        made = np.full(shape, 0xEE, np.uint8)
        if made.nbytes > self.left:
            raise DeviceMemoryError("out of memory")
        self.left -= made.nbytes
        weakref.finalize(made, self._free, made.nbytes)
        return made

    def _free(self, nbytes):
        self.left += nbytes

    def buffer(self, nbytes):
        self.buffers.append(FakeBuffer(nbytes))
        return self.buffers[-1]

    def send(self, buffer, at, nbytes, target, start):
        assert threading.current_thread() in self.users
        assert buffer.fetched.is_set()

        def fetch():
            target.reshape(-1)[start : start + nbytes] = buffer.data[at : at + nbytes]

        self._stream.put(fetch)

    def sent(self, buffer):
        buffer.fetched.clear()
        self._stream.put(buffer.fetched.set)

    def finish(self):
        reached = threading.Event()
        self._stream.put(reached.set)
        reached.wait()

    def drop(self, arrays):
        self.finish()
        arrays.clear()

    def room(self):
        gc.collect()
        return self.left, 1 << 40
