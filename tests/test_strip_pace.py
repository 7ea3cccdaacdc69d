"""What ``kernel="auto"`` takes of blocks on Hopper: estimates from the shape and the card."""

from __future__ import annotations

import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test or cuda)")

from test_choice import H200, ROOM, problem

from ggmlq.card import Card
from ggmlq.cuda import choice
from ggmlq.ladder import choose, reasoned


def test_hopper_is_estimated():
    for name in ("q4_0", "q6_K", "iq1_s"):
        rung, why = reasoned(problem(name))
        assert (rung.name, why) == ("cuda:gemv", "estimated from its shape")
        for m, n, k in ((200, 5120, 13824), (777, 3584, 14336), (4096, 4096, 4096), (64, 151936, 4096)):
            assert choose(problem(name, m, n, k)).name == "cuda:roles"
            order = choice.preference(problem(name, m, n, k)).kernels
            assert not any("cublas" in each or "dequant" in each for each in order), "cannot be captured"
    half = Card("half of an H200", (9, 0), 66, ROOM)
    taken = {card: choose(problem(m=16, n=16384, k=8192, card=card)).name for card in (H200, half)}
    assert taken == {H200: "cuda:gemv", half: "cuda:roles"}, "large for that card"
