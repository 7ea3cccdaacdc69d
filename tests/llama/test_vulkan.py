"""A build with Vulkan, where GGMLQ_VULKAN names one: right shaders are right, mistakes beside them are wrong.

Mesa's lavapipe runs it on a CPU (docs/check.md); it compiles each shader when it is first used.
"""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.arrays.array import QuantArray
from ggmlq.check.batches import in_batches, with_experts
from ggmlq.check.cases import Case
from ggmlq.check.plan import Settings
from ggmlq.check.run import run_case
from ggmlq.llama import Bridge

BUILD = os.environ.get("GGMLQ_VULKAN", "")
DEVICE = "Vulkan0"
HOW = Settings(DEVICE, "Vulkan", repeats=2)
pytestmark = pytest.mark.skipif(not BUILD, reason="GGMLQ_VULKAN names no build of ggml with Vulkan")


@pytest.fixture(scope="module")
def shaders():
    """The build's first device of Vulkan; a CPU's counts where GGML_VK_VISIBLE_DEVICES names it."""
    with pytest.MonkeyPatch.context() as patch:
        if "GGML_VK_VISIBLE_DEVICES" not in os.environ:
            patch.setenv("GGML_VK_VISIBLE_DEVICES", "0")
        with Bridge(BUILD, timeout=600) as bridge:
            yield bridge


class Mistaken:
    """A library whose shaders are fed with other operands than those that they are judged by."""

    reports = ""

    def __init__(self, bridge, change):
        self.bridge, self.change = bridge, change

    def measure(self, x, q, *args, **how):
        return self.bridge.measure(*self.change(x, q), *args, **how)


@pytest.mark.parametrize("name", ["q4_0", "q4_K", "f16", "bf16", "f32"])
def test_products_of_right_shaders(shaders, name, fresh):
    fmt, seed = gq.formats[name], int(fresh.integers(1 << 16))
    plain = [Case(fmt, m, 33, 1024, data, seed) for m in (1, 8, 9) for data in ("normal", "outliers")]
    batched = in_batches(Case(fmt, 3, 17, 256, seed=seed), (3,))
    tokens = [Case(fmt, m, 17, 256, seed=seed) for m in (3, 33)]
    experts = [with_experts(case, (6, 2), "uniform", row_per_use=False) for case in tokens]
    for case in (*plain, batched, *experts):
        outcome = run_case(shaders, case, HOW)
        assert outcome.verdict == "ok", (str(case), outcome.text)


def tail_dropped(x, q):
    return np.where(np.arange(x.shape[-1]) < x.shape[-1] - 32, x, 0).astype(x.dtype), q


def rows_exchanged(x, q):
    raw = np.array(q.raw)
    raw[[4, 5]] = raw[[5, 4]]
    return x, QuantArray.from_bytes(raw, q.format, q.shape)


def scale_of_a_block(x, q):
    """One block of one row has a scale that is 16 times too large."""
    raw = np.array(q.raw)
    raw[3, 1] += 4  # the exponent of a half, in its upper byte
    return x, QuantArray.from_bytes(raw, q.format, q.shape)


@pytest.mark.parametrize("change", [tail_dropped, rows_exchanged, scale_of_a_block])
@pytest.mark.parametrize("m", [8, 9])
def test_mistakes_beside_right_shaders(shaders, change, m, fresh):
    case = Case(gq.formats["q4_0"], m, 33, 1024, "normal", int(fresh.integers(1 << 16)))
    outcome = run_case(Mistaken(shaders, change), case, replace(HOW, repeats=1))
    assert outcome.verdict == "wrong", outcome.arithmetic
