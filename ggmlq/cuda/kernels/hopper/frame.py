"""The frame of Hopper's warp-specialised kernels: ``kernel(consumers, schedule, epilogue)``, and its ring.

    producers   the last warps of a block: they keep a ring of stages full, across the end of a tile too
    consumers   the first warps: they wait for full stages, multiply them, and give sums to the epilogue
    schedule    the tiles of a block, the steps of them, where these lie, and the producers: one product, or
                that of experts, with or without a split along K
    epilogue    from sums to results

Packed weights (kernel.py, experts.py) and 8-bit codes (codes8/kernel.py, codes8/small_m.py) fill it in.
The rungs warp_specialized, persistent, split_k and small_m, and of experts grouped, grouped_codes and
small_m_codes, are calls of ``kernel``.

The ring is a piece of shared memory, and two barriers a stage tell who may touch it:

    full [stage]    the copy engine counts the bytes that it has written; consumers wait
    empty [stage]   each consumer warp arrives when it has read the stage; producers wait

    producer     wait empty  ->  announce the bytes at full  ->  start copies into the stage
    consumer     wait full   ->  read and multiply           ->  arrive at empty

A stage's *phase* is the parity of its round through the ring. Consumers begin with phase 0. Producers wait
for the other one: the phase before the first counts as ended, so the first round finds all stages empty.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ...driver.launch import Kernel
from ...intrinsics import hopper
from ...intrinsics.atoms import inlined
from ...intrinsics.language import uint32

MAX_SHARED_BYTES = 227 << 10  # that a block may have on Hopper


class Frame(NamedTuple):
    """The warps of a block, and what it takes of a multiprocessor."""

    consumers: int  # warps
    threads: int
    shared: int  # bytes
    blocks: int = 1  # on a multiprocessor
    registers: tuple[int, int] | None = None  # of a producer's and of a consumer's thread, where they move
    lto: bool = True  # the assembler gets the whole kernel: driver/launch.py


class Consumers(NamedTuple):
    """The warps that multiply."""

    frame: Frame
    consumer: Callable[..., Any]  # (schedule, epilogue) -> device function (ring, full, warp, job)


class Schedule(NamedTuple):
    """The work of a kernel's blocks, and its producers.

    ``job`` is what a schedule's kernel makes of its parameters: all that producers and consumers of a block
    are told. It is a NamedTuple of each kernel: kernel.py, codes8/kernel.py.
    """

    parameters: tuple[Any, ...]  # their types
    # (run) -> the kernel's function, which calls run(ring, full, warp, job)
    enclose: Callable[..., Any]
    produce: Any  # device function (ring, full, warp, job)
    close: Any  # device function (ring, job) for the end of a block
    walk: Any = None  # device functions by which consumers go from tile to tile
    shared: int = 0  # bytes that it adds to those of the frame


def kernel(name: str, consumers: Any, schedule: Schedule, epilogue: Any) -> Kernel:
    """The kernel of consumers, a schedule and an epilogue that suit each other.

    ``consumers``: as Consumers, or with further fields for their schedules.
    """
    frame = consumers.frame
    return Kernel(
        name, schedule.enclose(roles(consumers, schedule, epilogue)), *schedule.parameters,
        threads=frame.threads, blocks=frame.blocks, shared=frame.shared + schedule.shared, least=(9, 0),
        exact=True, early=True, lto=frame.lto,
    )  # fmt: skip


@inlined
def keep_registers() -> None:
    """A beginning of warps that move no registers."""


def roles(consumers: Any, schedule: Schedule, epilogue: Any) -> Any:
    """The device function that runs each warp of a block as producer or consumer."""
    consumer_warps, give, take = consumers.frame.consumers, keep_registers, keep_registers
    if consumers.frame.registers is not None:
        of_producer, of_consumer = consumers.frame.registers
        give, take = hopper.registers("dec", of_producer), hopper.registers("inc", of_consumer)
    consume, produce, close = consumers.consumer(schedule, epilogue), schedule.produce, schedule.close

    @inlined
    def run(ring: Any, full: Any, warp: Any, job: Any) -> None:
        # setmaxnreg comes first in both branches, and whole warpgroups execute it. All threads are launched
        # with equal shares of the registers; a consumer's sums do not fit into its share, and `take` waits
        # until producers have given up theirs. Without `give` it would wait for ever.
        if warp >= consumer_warps:
            give()
            produce(ring, full, warp, job)
        else:
            take()
            consume(ring, full, warp, job)
        close(ring, job)

    return run


# --- the ring -----------------------------------------------------------------------------------


def barrier_initializer(stages: int, arrivals: int) -> Any:
    """The device function by which one thread makes the barriers; ``arrivals``: warps that empty a stage."""

    @inlined
    def start(full: Any) -> None:
        for s in range(stages):
            hopper.init_barrier(uint32(full + uint32(8 * s)), uint32(1))
            hopper.init_barrier(uint32(full + uint32(8 * stages + 8 * s)), uint32(arrivals))
        # The copy engine arrives at these barriers through another proxy: without the fence it may find
        # them as they were before.
        hopper.publish_barriers()

    return start


def stage_advancer(stages: int) -> Any:
    """The device function for the next stage, and its phase, which turns at the end of the ring."""

    @inlined
    def after(stage: Any, phase: Any) -> Any:
        stage = uint32(stage + 1)
        return (uint32(0), uint32(phase ^ 1)) if stage == stages else (stage, phase)

    return after
