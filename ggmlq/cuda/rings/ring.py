"""A ring of stages in shared memory: filled once before the first product, then one stage a step.

``fetchers`` are a rung's two device functions, which start the copies of one stage:

    fetch_weights(at, of_w, apart, step)        of_w: the block's packed weights, ``apart`` bytes between
                                                fragments
    fetch_activations(at, x, m0, step, m, k)    m0: the block's first row of activations

Weights do not change, so their copies start while the predecessor of the kernel still runs.
"""

from __future__ import annotations

from typing import Any

from ..intrinsics import dependent_launch, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, uint32

Fetchers = tuple[Any, Any]


def prologue(fetchers: Fetchers, ahead: int, length: int) -> Any:
    """The device function that fills the first ``ahead`` stages, of ``length`` bytes each."""
    fetch_weights, fetch_activations = fetchers
    commit, wait_for_predecessor = ptx.commit, dependent_launch.wait_for_predecessor

    @inlined
    def start(
        ring: Any, weights_at: Any, apart: Any, x: Any, m0: Any, first: Any, last: Any, m: Any, k: Any
    ) -> None:
        for i in range(ahead):
            if first + uint32(i) < last:
                fetch_weights(ring + uint32(i * length), weights_at, apart, first + uint32(i))
        wait_for_predecessor()  # the predecessor may have made x, or read y
        for i in range(ahead):
            if first + uint32(i) < last:
                fetch_activations(ring + uint32(i * length), x, m0, first + uint32(i), m, k)
            commit()

    return start


@inlined
def nothing() -> None:
    """Do nothing, in place of a fence: for instructions that read shared memory as all others do."""


def refiller(fetchers: Fetchers, wait: Any, publish: Any = nothing) -> Any:
    """The device function that waits for the next stage, and starts to fill the one that is free.

    ``publish``: makes copied bytes visible to instructions that read shared memory through another proxy.
    """
    fetch_weights, fetch_activations = fetchers
    commit = ptx.commit

    @inlined
    def refill(
        to: Any, weights_at: Any, apart: Any, x: Any, m0: Any, step: Any, last: Any, m: Any, k: Any
    ) -> None:
        wait()
        publish()
        cuda.syncthreads()  # all see the stage, and nobody reads the one to fill
        if step < last:
            fetch_weights(to, weights_at, apart, step)
            fetch_activations(to, x, m0, step, m, k)
        commit()

    return refill


def offset_advancer(count: int, length: int) -> Any:
    """The device function for the next stage, as its offset in the ring."""
    end = (count - 1) * length

    @inlined
    def after(stage: Any) -> Any:
        return uint32(0) if stage == uint32(end) else uint32(stage + uint32(length))

    return after
