"""Barriers in shared memory: how warps and the copy engine tell each other that a stage is full, or free.

A barrier has 8 bytes and counts down: arrivals of threads, and bytes of copies that were announced. When
both are at nothing its phase ends and the next one begins. A thread waits for the end of a phase by its
parity: 0 for the first; of a fresh barrier the phase before, of parity 1, counts as ended.

A wait for what never comes hangs the GPU. With GGMLQ_GUARD_WAITS=1 in the environment, set before kernels
are made, waits look again and again and stop the kernel with a trap after about a second.
"""

from __future__ import annotations

import os
from typing import Any

from .assembly import f32, i32, instruction, only_on_a_gpu, u32, u64

GUARDED = os.environ.get("GGMLQ_GUARD_WAITS") == "1"
TRIES = 1 << 24  # looks of some 30 clocks each
SLEEPING = "again: mbarrier.try_wait.parity.shared::cta.b64 done, [{}], {}; @done bra over; bra again; over:"
LOOKING = (
    f"mov.b32 left, {TRIES}; again: mbarrier.test_wait.parity.shared::cta.b64 done, [{{}}], {{}}; "
    "@done bra over; sub.u32 left, left, 1; setp.ne.u32 done, left, 0; @done bra again; trap; over:"
)
NEEDS = ".reg .pred done; .reg .b32 left;"  # what a text with a wait declares


def waiting(barrier: str, parity: str) -> str:
    """Assembly that waits, for a text in braces that has declared what it needs; it has labels of its own."""
    return (LOOKING if GUARDED else SLEEPING).format(barrier, parity)


@instruction("mbarrier.init.shared::cta.b64 [$0], $1;", None, u32, u32, effect=True)
def init(barrier: Any, arrivals: Any) -> Any:
    """Make one that so many threads arrive at in each phase."""
    only_on_a_gpu()


@instruction("fence.mbarrier_init.release.cluster;", None, effect=True)
def publish_barriers() -> Any:
    """Those that were made are there for the copy engine and for other blocks of the cluster."""
    only_on_a_gpu()


@instruction("mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", None, u32, u32, effect=True)
def expect(barrier: Any, size: Any) -> Any:
    """Arrive, and announce so many bytes of copies."""
    only_on_a_gpu()


@instruction("mbarrier.arrive.shared::cta.b64 _, [$0];", None, u32, effect=True)
def arrive(barrier: Any) -> Any:
    """One of the arrivals."""
    only_on_a_gpu()


@instruction("{" + NEEDS + waiting("$0", "$1") + "}", None, u32, u32, effect=True)
def wait(barrier: Any, parity: Any) -> Any:
    """Until the phase of that parity has ended."""
    only_on_a_gpu()


# --- warps and blocks ---------------------------------------------------------------------------


@instruction("bar.warp.sync -1;", None, effect=True)
def sync_warp() -> Any:
    """All lanes, and what they wrote to shared memory."""
    only_on_a_gpu()


@instruction("shfl.sync.idx.b32 $0, $1, 0, 31, -1;", u32, u32, effect=True)
def from_first_lane(value: Any) -> Any:
    """What lane 0 has: tells the assembler that a warp has it in common."""
    only_on_a_gpu()


@instruction("shfl.sync.idx.b32 $0, $1, $1, 31, -1;", u32, u32, effect=True)
def pinned(lane: Any) -> Any:
    """A lane's own number: the assembler keeps it, where it would read it anew in every round of a loop."""
    only_on_a_gpu()


@instruction("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;", None, effect=True)
def sync_cluster() -> Any:
    """All threads of all blocks of the cluster, and what they wrote to shared memory."""
    only_on_a_gpu()


@instruction("barrier.cluster.arrive.aligned;", None, effect=True)
def arrive_at_cluster() -> Any:
    """Tell the other blocks that this one runs; :func:`wait_for_cluster` follows."""
    only_on_a_gpu()


@instruction("barrier.cluster.arrive.relaxed.aligned;", None, effect=True)
def arrive_at_cluster_relaxed() -> Any:
    """The same of a block that wrote nothing that others read: it waits for none of its own writes."""
    only_on_a_gpu()


@instruction("barrier.cluster.wait.aligned;", None, effect=True)
def wait_for_cluster() -> Any:
    """Until all threads of all blocks of the cluster have greeted."""
    only_on_a_gpu()


@instruction("mov.u32 $0, %cluster_ctarank;", u32)
def rank_in_cluster() -> Any:
    """The number of this block in its cluster."""
    only_on_a_gpu()


@instruction("mov.u32 $0, %cluster_nctarank;", u32)
def cluster_size() -> Any:
    """How many blocks its cluster has; 1 where none was asked for."""
    only_on_a_gpu()


@instruction(
    "{.reg .b32 there; mapa.shared::cluster.u32 there, $0, $1; "
    "st.shared::cluster.v4.b32 [there], {$2, $3, $4, $5};}",
    None, u32, u32, i32, i32, i32, i32, effect=True,
)  # fmt: skip
def put16_in_block(address: Any, rank: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Four words to that place of the shared memory of a block of the cluster."""
    only_on_a_gpu()


@instruction(
    "{.reg .b32 there; mapa.shared::cluster.u32 there, $0, $1; st.shared::cluster.f32 [there], $2;}",
    None, u32, u32, f32, effect=True,
)  # fmt: skip
def put_float_in_block(address: Any, rank: Any, value: Any) -> Any:
    """One float to that place of the shared memory of a block of the cluster."""
    only_on_a_gpu()


# --- all blocks of a grid -----------------------------------------------------------------------

UNTIL = "setp.lt.u32 early, seen, $1; @early bra again; over:"
UNTIL_TIRED = (
    "setp.lt.u32 early, seen, $1; @!early bra over; sub.u32 left, left, 1; setp.ne.u32 early, left, 0; "
    "@early bra again; trap; over:"
)


@instruction("red.release.gpu.global.add.u32 [$0], $1;", None, u64, u32, effect=True)
def add_release(counter: Any, blocks: Any) -> Any:
    """One thread, after its block met: what the block wrote is there for who sees the sum."""
    only_on_a_gpu()


@instruction("atom.global.add.u32 $0, [$1], 1;", u32, u64, effect=True)
def take_ticket(counter: Any) -> Any:
    """How often this was done before, by whomever."""
    only_on_a_gpu()


@instruction(
    f"{{.reg .pred early; .reg .b32 seen, left; mov.b32 left, {TRIES}; "
    f"again: ld.acquire.gpu.global.u32 seen, [$0]; {UNTIL_TIRED if GUARDED else UNTIL}}}",
    None, u64, u32, effect=True,
)  # fmt: skip
def wait_for_sum(counter: Any, blocks: Any) -> Any:
    """One thread: until so many were added; others of its block meet it afterwards."""
    only_on_a_gpu()


@instruction(
    f"{{.reg .pred early; .reg .b32 seen, left; mov.b32 left, {TRIES}; "
    f"again: ld.acquire.gpu.global.u32 seen, [$1]; {(UNTIL_TIRED if GUARDED else UNTIL).replace('$1', '1')} "
    "mov.b32 $0, seen;}",
    u32, u64, effect=True,
)  # fmt: skip
def wait_for_any(counter: Any) -> Any:
    """One thread: until something was added, and what."""
    only_on_a_gpu()


@instruction("ld.relaxed.gpu.global.u32 $0, [$1];", u32, u64, effect=True)
def load_relaxed(counter: Any) -> Any:
    """A sum as it is now."""
    only_on_a_gpu()


# --- parts of a block ---------------------------------------------------------------------------


def named_barrier(number: int, threads: int) -> Any:
    """The instruction at which so many threads of a block meet; others use other numbers, from 1 on."""

    @instruction(f"bar.sync {number}, {threads};", None, effect=True)
    def meet() -> Any:
        only_on_a_gpu()

    return meet


def registers(verb: str, count: int) -> Any:
    """The instruction by which a warpgroup changes how many registers its threads have.

    ``verb``: "inc" or "dec". The assembler heeds it only in code that comes by way of LTO IR
    (``Kernel(..., lto=True)``).
    """

    @instruction(f"setmaxnreg.{verb}.sync.aligned.u32 {count};", None, effect=True)
    def change() -> Any:
        only_on_a_gpu()

    return change
