"""A libllama beside ``gq.model``: where it is, its runs, and the same tokens by ours."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.errors import GGMLQError, LibraryFailedError
from ggmlq.llama import Bridge
from ggmlq.llama.process import cause_of
from ggmlq.trace.libllama import locate_llama
from ggmlq.trace.session import Run
from ggmlq.trace.settings import settings


def located(layouts=False):
    """The libllama of this machine; a test is skipped where there is none, or one with layouts that die."""
    try:
        build, path = locate_llama()
    except GGMLQError as error:
        pytest.skip(str(error))
    if layouts:
        with Bridge(build.named) as bridge:
            refuse_known_crashes(bridge)
    return path


def refuse_known_crashes(bridge):
    """A build that its compiler made die in AMX would take down the process that runs tests."""
    if any("AMX" in device.layouts for device in bridge.devices()):
        w, x = gq.quantize(np.ones((32, 256), np.float32), "q8_0"), np.ones((8, 256), np.float32)
        try:
            bridge.measure(x, w, repack="AMX")
        except LibraryFailedError as error:
            if cause := cause_of(error.how, ["AMX"], bridge.libraries):
                pytest.skip(f"libllama of {bridge.path}: {error.how} in AMX. {cause}")


@contextmanager
def running(path, **how):
    """A run with one thread and weights in their plain layout."""
    run = Run(settings(path, threads=1, without="AMX,CPU_REPACK", verify=False, **how))
    try:
        yield run
    finally:
        run.close()


def beside(path, tokens, generate=0, cache="f16"):
    """The logits behind some tokens and of those that libllama adds, and these tokens."""
    with running(path, tokens=tokens, generate=generate, cache=cache) as run:
        (end,) = run.nodes(traced=False)
    return np.stack(end["logits"]), end["then"]


def replayed(path, tokens, then, cache="f16", arithmetic=None):
    """The same logits by gq.model: the tokens at once, the others one by one."""
    m = gq.model.load(path, arithmetic=arithmetic, cache=cache)
    held = m.cache(len(tokens) + len(then))
    rows = [m.run(np.array(tokens), held, last=True)[0]]
    return np.stack(rows + [m.run(np.array([token]), held)[0] for token in then])


def check_tokens(path, texts):
    """Hold the tokens of texts against the library's."""
    tokenizer = gq.model.load(path).tokenizer
    with running(path, tokens=1) as run:
        for text in texts:
            assert tokenizer.encode(text) == run.tokens_of(text)[0], repr(text)
