"""Barriers of GPU kernels: in shared memory, for the stages of a ring, and of warps, clusters and grids.

By barriers in shared memory warps and the copy engine tell each other that a stage is full or free. Such a
barrier has 8 bytes and counts down: arrivals of threads, and announced bytes of copies. When both reach zero
its phase ends and the next one begins. A thread waits for the end of a phase by its parity: 0 for the first;
for a fresh barrier the phase before, of parity 1, counts as ended.

A wait for something that never comes hangs the GPU. With GGMLQ_GUARD_WAITS=1 in the environment, set before
kernels are made, waits try again and again and stop the kernel with a trap after about a second.
"""

from __future__ import annotations

import os
from typing import Any

from .assembly import f32, i32, instruction, only_on_a_gpu, u32, u64

GUARDED = os.environ.get("GGMLQ_GUARD_WAITS") == "1"
TRIES = 1 << 24  # tries of some 30 clocks each
SLEEPING = "again: mbarrier.try_wait.parity.shared::cta.b64 done, [{}], {}; @done bra over; bra again; over:"
LOOKING = (
    f"mov.b32 left, {TRIES}; again: mbarrier.test_wait.parity.shared::cta.b64 done, [{{}}], {{}}; "
    "@done bra over; sub.u32 left, left, 1; setp.ne.u32 done, left, 0; @done bra again; trap; over:"
)
NEEDS = ".reg .pred done; .reg .b32 left;"  # declarations that a text with a wait needs


def waiting(barrier: str, parity: str) -> str:
    """The assembly of a wait for a barrier, with labels; the text around it has braces, and NEEDS first."""
    return (LOOKING if GUARDED else SLEEPING).format(barrier, parity)


@instruction("mbarrier.init.shared::cta.b64 [$0], $1;", None, u32, u32, effect=True)
def init(barrier: Any, arrivals: Any) -> Any:
    """Make a barrier that ``arrivals`` threads arrive at in each phase."""
    only_on_a_gpu()


@instruction("fence.mbarrier_init.release.cluster;", None, effect=True)
def publish_barriers() -> Any:
    """Make new barriers visible to the copy engine and to other blocks of the cluster."""
    only_on_a_gpu()


@instruction("mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", None, u32, u32, effect=True)
def expect(barrier: Any, size: Any) -> Any:
    """Arrive, and announce ``size`` bytes of copies."""
    only_on_a_gpu()


@instruction("mbarrier.arrive.shared::cta.b64 _, [$0];", None, u32, effect=True)
def arrive(barrier: Any) -> Any:
    """Arrive at a barrier once."""
    only_on_a_gpu()


@instruction(
    "{.reg .b32 there; mapa.shared::cluster.u32 there, $0, $1; "
    "mbarrier.arrive.shared::cluster.b64 _, [there];}",
    None, u32, u32, effect=True,
)  # fmt: skip
def arrive_in_block(barrier: Any, rank: Any) -> Any:
    """Arrive once at the barrier at this address in a block of the cluster."""
    only_on_a_gpu()


@instruction("{" + NEEDS + waiting("$0", "$1") + "}", None, u32, u32, effect=True)
def wait(barrier: Any, parity: Any) -> Any:
    """Wait until the phase of that parity has ended."""
    only_on_a_gpu()


# --- warps and blocks ---------------------------------------------------------------------------


@instruction("bar.warp.sync -1;", None, effect=True)
def sync_warp() -> Any:
    """Wait for all lanes of the warp, and for what they wrote to shared memory."""
    only_on_a_gpu()


@instruction("shfl.sync.idx.b32 $0, $1, 0, 31, -1;", u32, u32, effect=True)
def from_first_lane(value: Any) -> Any:
    """The value of lane 0; tells the assembler that the whole warp has the same value."""
    only_on_a_gpu()


@instruction("shfl.sync.idx.b32 $0, $1, $1, 31, -1;", u32, u32, effect=True)
def pinned(lane: Any) -> Any:
    """A lane's own number, kept in a register: otherwise the assembler reads it again in every round of a
    loop.
    """
    only_on_a_gpu()


@instruction("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;", None, effect=True)
def sync_cluster() -> Any:
    """Wait for all threads of all blocks of the cluster, and for what they wrote to shared memory."""
    only_on_a_gpu()


@instruction("barrier.cluster.arrive.aligned;", None, effect=True)
def arrive_at_cluster() -> Any:
    """Tell the other blocks that this one has come here; :func:`wait_for_cluster` follows."""
    only_on_a_gpu()


@instruction("barrier.cluster.arrive.relaxed.aligned;", None, effect=True)
def arrive_at_cluster_relaxed() -> Any:
    """Arrive without waiting for one's own writes: for a block that wrote nothing that others read."""
    only_on_a_gpu()


@instruction("barrier.cluster.wait.aligned;", None, effect=True)
def wait_for_cluster() -> Any:
    """Wait until all threads of all blocks of the cluster have arrived."""
    only_on_a_gpu()


@instruction("mov.u32 $0, %cluster_ctarank;", u32)
def rank_in_cluster() -> Any:
    """The number of this block in its cluster."""
    only_on_a_gpu()


@instruction("mov.u32 $0, %cluster_nctarank;", u32)
def cluster_size() -> Any:
    """Blocks of this block's cluster; 1 where the launch named none."""
    only_on_a_gpu()


@instruction(
    "{.reg .b32 there; mapa.shared::cluster.u32 there, $0, $1; "
    "st.shared::cluster.v4.b32 [there], {$2, $3, $4, $5};}",
    None, u32, u32, i32, i32, i32, i32, effect=True,
)  # fmt: skip
def put16_in_block(address: Any, rank: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Store four words at an address in the shared memory of another block of the cluster."""
    only_on_a_gpu()


@instruction(
    "{.reg .b32 there; mapa.shared::cluster.u32 there, $0, $1; st.shared::cluster.f32 [there], $2;}",
    None, u32, u32, f32, effect=True,
)  # fmt: skip
def put_float_in_block(address: Any, rank: Any, value: Any) -> Any:
    """Store one float at an address in the shared memory of another block of the cluster."""
    only_on_a_gpu()


@instruction(
    "{.reg .b32 there; mapa.shared::cluster.u32 there, $0, $1; st.shared::cluster.v2.f32 [there], {$2, $3};}",
    None, u32, u32, f32, f32, effect=True,
)  # fmt: skip
def put_pair_in_block(address: Any, rank: Any, a: Any, b: Any) -> Any:
    """Store two floats at an address in the shared memory of another block of the cluster."""
    only_on_a_gpu()


# --- all blocks of a grid -----------------------------------------------------------------------

UNTIL = "setp.lt.u32 early, seen, $1; @early bra again; over:"
UNTIL_TIRED = (
    "setp.lt.u32 early, seen, $1; @!early bra over; sub.u32 left, left, 1; setp.ne.u32 early, left, 0; "
    "@early bra again; trap; over:"
)


@instruction("red.release.gpu.global.add.u32 [$0], $1;", None, u64, u32, effect=True)
def add_release(counter: Any, blocks: Any) -> Any:
    """Add to a counter, after a barrier of the block: who sees the sum sees this block's writes, too."""
    only_on_a_gpu()


@instruction("atom.global.add.u32 $0, [$1], 1;", u32, u64, effect=True)
def take_ticket(counter: Any) -> Any:
    """Add 1 to a counter; returns the count before."""
    only_on_a_gpu()


@instruction(
    f"{{.reg .pred early; .reg .b32 seen, left; mov.b32 left, {TRIES}; "
    f"again: ld.acquire.gpu.global.u32 seen, [$0]; {UNTIL_TIRED if GUARDED else UNTIL}}}",
    None, u64, u32, effect=True,
)  # fmt: skip
def wait_for_sum(counter: Any, blocks: Any) -> Any:
    """Make one thread wait until a counter has reached ``blocks``; a barrier of its block follows."""
    only_on_a_gpu()


@instruction(
    f"{{.reg .pred early; .reg .b32 seen, left; mov.b32 left, {TRIES}; "
    f"again: ld.acquire.gpu.global.u32 seen, [$1]; {(UNTIL_TIRED if GUARDED else UNTIL).replace('$1', '1')} "
    "mov.b32 $0, seen;}",
    u32, u64, effect=True,
)  # fmt: skip
def wait_for_any(counter: Any) -> Any:
    """Make one thread wait until a counter is not 0; returns the counter."""
    only_on_a_gpu()


@instruction("ld.relaxed.gpu.global.u32 $0, [$1];", u32, u64, effect=True)
def load_relaxed(counter: Any) -> Any:
    """The present value of a counter."""
    only_on_a_gpu()


# --- parts of a block ---------------------------------------------------------------------------


def named_barrier(number: int, threads: int) -> Any:
    """The instruction by which ``threads`` threads of a block wait for each other; barriers count from 1."""

    @instruction(f"bar.sync {number}, {threads};", None, effect=True)
    def meet() -> Any:
        only_on_a_gpu()

    return meet


def ping_pong(threads: int) -> Any:
    """Two instructions for a barrier by its number: half of ``threads`` wait for the others, which arrive."""

    @instruction(f"bar.sync $0, {threads};", None, u32, effect=True)
    def wait_for_other(number: Any) -> Any:
        only_on_a_gpu()

    @instruction(f"bar.arrive $0, {threads};", None, u32, effect=True)
    def let_other_start(number: Any) -> Any:
        only_on_a_gpu()

    return wait_for_other, let_other_start


def registers(verb: str, count: int) -> Any:
    """The instruction by which a warpgroup changes the number of registers of its threads.

    ``verb``: "inc" or "dec". The assembler obeys only in code that comes by way of LTO IR (``Kernel(...,
    lto=True)``).
    """

    @instruction(f"setmaxnreg.{verb}.sync.aligned.u32 {count};", None, effect=True)
    def change() -> Any:
        only_on_a_gpu()

    return change
