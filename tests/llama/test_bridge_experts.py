"""mul_mat_id by a real libggml: the same numbers, to its arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.check import batches
from ggmlq.check.cases import Case
from ggmlq.check.plan import Settings
from ggmlq.check.run import run_case
from ggmlq.errors import GGMLQError
from ggmlq.llama import Bridge


@pytest.fixture(scope="module")
def bridge():
    try:
        with Bridge(timeout=60) as found:
            if not found.devices():
                pytest.skip("this libggml has no backend")
            yield found
    except GGMLQError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", ["q4_0", "q6_K", "mxfp4", "f16"])
@pytest.mark.parametrize("apart", [False, True])
def test_mul_mat_id(name, apart, bridge, fresh):
    e, u, n, k, t = 5, 3, 34, 256, int(fresh.integers(1, 40))
    q = gq.quantize(fresh.standard_normal((e, n, k), np.float32), name)
    x = fresh.standard_normal((t, u, k) if apart else (t, k)).astype(np.float32)
    ids = fresh.integers(0, e, (t, u))
    y = bridge.mul_mat_id(x, q, ids)
    ways = ["ggml-cpu", "ggml-cpu-fp16"] if name == "f16" else ["ggml-cpu"]  # as the library was built
    assert y.shape == (t, u, n)
    assert min(gq.nmse(y, gq.reference.expert_linear(x, q, ids, way)) for way in ways) <= 1e-10
    found = gq.diagnose(y, x, q, ids=ids)
    assert found.ok, found.text


def test_cases_of_check(bridge, fresh):
    seed = int(fresh.integers(1 << 30))
    for case in batches.default_cases(gq.formats["q5_0"], seed):
        outcome = run_case(bridge, case, Settings("CPU", "CPU"))
        assert outcome.verdict == "ok", outcome.text
        assert outcome.facts()["experts"] == case.experts


def test_wrong_results_are_named_saved_and_replayed(bridge, fresh, tmp_path, capsys):
    """A library whose mul_mat_id takes the next expert."""
    from ggmlq.check import report
    from ggmlq.cli import main

    case = batches.with_experts(
        Case(gq.formats["q4_0"], 9, 33, 64, seed=3), (6, 2), "duplicate", row_per_use=False
    )

    class Wrong:
        reports = ""

        def measure(self, x, q, *given, ids, **more):
            return bridge.measure(x, q, *given, ids=(ids + 1) % 6, **more)

    outcome = run_case(Wrong(), case, Settings("CPU", "CPU"))
    assert (outcome.verdict, outcome.fault) == ("wrong", "expert-wrong")
    saved = report.save(tmp_path, outcome, None).saved
    assert batches.load_mixture(saved).lengths == [6, 33, 64]
    assert main(["diagnose", saved]) == 1
    assert "expert-wrong" in capsys.readouterr().out
    assert main(["check", "--replay", saved]) == 0, "the library itself is right"
