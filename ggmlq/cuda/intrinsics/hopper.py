"""Hopper's asynchronous instructions: barriers, clusters, the copy engine, dependent launches.

Barriers. By barriers in shared memory warps and the copy engine tell each other that a stage is full or free.
Such a barrier has 8 bytes and counts down: arrivals of threads, and announced bytes of copies. When both
reach zero its phase ends and the next one begins. A thread waits for the end of a phase by its parity: 0 for
the first; for a fresh barrier the phase before, of parity 1, counts as ended.

A wait for something that never comes hangs the GPU. With GGMLQ_GUARD_WAITS=1 in the environment, set before
kernels are made, waits try again and again and stop the kernel with a trap after about a second.

The copy engine fetches and stores boxes of matrices; one thread tells it to. A map, 128 bytes of memory that
driver/tensor_maps.py makes, describes a matrix and its boxes. The part of a box that reaches over an edge
comes as zeros, and is not written. The barrier counts the bytes of the whole box in every case. Coordinates
are (column, row) in elements. The bytes left of the column are a multiple of 16, as pitches are; otherwise
the copy is an illegal instruction, and the context is lost. Rows may be any. Swizzled boxes have rows of 128
bytes, chunk c of row r at c ^ (r % 8), and begin at multiples of 1024. The engine takes r from the address,
so boxes of one row may be put together to larger ones.

Dependent launches. A kernel that is ``early`` (driver/launch.py) starts as soon as all blocks of its
predecessor run and have allowed it. It can fetch weights, which nothing changes, while the last of those
blocks work. Memory that the predecessor may read or write it touches only after it has waited. Between
products of a few microseconds this saves a third of the time. For GPUs before capability 9.0 driver/launch.py
removes these instructions, and each kernel waits.

Named barriers, counters of a grid and exchanges within a warp work on all cards.
"""

from __future__ import annotations

import os
from typing import Any

from .assembly import f32, gpu_only, i32, instruction, only_on_a_gpu, u32, u64
from .atoms import inlined

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


# Make a barrier that ``arrivals`` threads arrive at in each phase.
init_barrier = gpu_only("init_barrier", "mbarrier.init.shared::cta.b64 [$0], $1;", None, u32, u32)
# Make new barriers visible to the copy engine and to other blocks of the cluster.
publish_barriers = gpu_only("publish_barriers", "fence.mbarrier_init.release.cluster;", None)
# Arrive, and announce ``size`` bytes of copies.
expect = gpu_only("expect", "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", None, u32, u32)
# Arrive at a barrier once.
arrive = gpu_only("arrive", "mbarrier.arrive.shared::cta.b64 _, [$0];", None, u32)
# Arrive once at the barrier at this address in a block of the cluster.
arrive_in_block = gpu_only("arrive_in_block",
    "{.reg .b32 there; mapa.shared::cluster.u32 there, $0, $1; "
    "mbarrier.arrive.shared::cluster.b64 _, [there];}",
    None, u32, u32,
)  # fmt: skip
# Wait until the phase of that parity has ended.
wait = gpu_only("wait", "{" + NEEDS + waiting("$0", "$1") + "}", None, u32, u32)

# --- warps, blocks and clusters ---------------------------------------------------------------------------


# Wait for all lanes of the warp, and for what they wrote to shared memory.
sync_warp = gpu_only("sync_warp", "bar.warp.sync -1;", None)
# The value of lane 0; tells the assembler that the whole warp has the same value.
from_first_lane = gpu_only("from_first_lane", "shfl.sync.idx.b32 $0, $1, 0, 31, -1;", u32, u32)
# A lane's own number, kept in a register: otherwise the assembler reads it again in every round of a
# loop.
pinned = gpu_only("pinned", "shfl.sync.idx.b32 $0, $1, $1, 31, -1;", u32, u32)
# Wait for all threads of all blocks of the cluster, and for what they wrote to shared memory.
sync_cluster = gpu_only("sync_cluster", "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;", None)
# Tell the other blocks that this one has come here; :func:`wait_for_cluster` follows.
arrive_at_cluster = gpu_only("arrive_at_cluster", "barrier.cluster.arrive.aligned;", None)
# Arrive without waiting for one's own writes: for a block that wrote nothing that others read.
arrive_at_cluster_relaxed = gpu_only(
    "arrive_at_cluster_relaxed", "barrier.cluster.arrive.relaxed.aligned;", None
)
# Wait until all threads of all blocks of the cluster have arrived.
wait_for_cluster = gpu_only("wait_for_cluster", "barrier.cluster.wait.aligned;", None)


@instruction("mov.u32 $0, %cluster_ctarank;", u32)
def rank_in_cluster() -> Any:
    """The number of this block in its cluster."""
    only_on_a_gpu()


@instruction("mov.u32 $0, %cluster_nctarank;", u32)
def cluster_size() -> Any:
    """Blocks of this block's cluster; 1 where the launch named none."""
    only_on_a_gpu()


# Store four words at an address in the shared memory of another block of the cluster.
put16_in_block = gpu_only("put16_in_block",
    "{.reg .b32 there; mapa.shared::cluster.u32 there, $0, $1; "
    "st.shared::cluster.v4.b32 [there], {$2, $3, $4, $5};}",
    None, u32, u32, i32, i32, i32, i32,
)  # fmt: skip
# Store one float at an address in the shared memory of another block of the cluster.
put_float_in_block = gpu_only("put_float_in_block",
    "{.reg .b32 there; mapa.shared::cluster.u32 there, $0, $1; st.shared::cluster.f32 [there], $2;}",
    None, u32, u32, f32,
)  # fmt: skip
# Store two floats at an address in the shared memory of another block of the cluster.
put_pair_in_block = gpu_only("put_pair_in_block",
    "{.reg .b32 there; mapa.shared::cluster.u32 there, $0, $1; st.shared::cluster.v2.f32 [there], {$2, $3};}",
    None, u32, u32, f32, f32,
)  # fmt: skip

# --- all blocks of a grid -----------------------------------------------------------------------

UNTIL = "setp.lt.u32 early, seen, $1; @early bra again; over:"
UNTIL_TIRED = (
    "setp.lt.u32 early, seen, $1; @!early bra over; sub.u32 left, left, 1; setp.ne.u32 early, left, 0; "
    "@early bra again; trap; over:"
)


# Add to a counter, after a barrier of the block: who sees the sum sees this block's writes, too.
add_release = gpu_only("add_release", "red.release.gpu.global.add.u32 [$0], $1;", None, u64, u32)
# Add 1 to a counter; returns the count before.
take_ticket = gpu_only("take_ticket", "atom.global.add.u32 $0, [$1], 1;", u32, u64)
# Make one thread wait until a counter has reached ``blocks``; a barrier of its block follows.
wait_for_sum = gpu_only("wait_for_sum",
    f"{{.reg .pred early; .reg .b32 seen, left; mov.b32 left, {TRIES}; "
    f"again: ld.acquire.gpu.global.u32 seen, [$0]; {UNTIL_TIRED if GUARDED else UNTIL}}}",
    None, u64, u32,
)  # fmt: skip
# Make one thread wait until a counter is not 0; returns the counter.
wait_for_any = gpu_only("wait_for_any",
    f"{{.reg .pred early; .reg .b32 seen, left; mov.b32 left, {TRIES}; "
    f"again: ld.acquire.gpu.global.u32 seen, [$1]; {(UNTIL_TIRED if GUARDED else UNTIL).replace('$1', '1')} "
    "mov.b32 $0, seen;}",
    u32, u64,
)  # fmt: skip
# The present value of a counter.
load_relaxed = gpu_only("load_relaxed", "ld.relaxed.gpu.global.u32 $0, [$1];", u32, u64)

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


# --- the copy engine --------------------------------------------------------------------------

PARAMETERS = 0x210  # where the parameters of a kernel begin in its constants, on Hopper
BOX_ROWS, BOX_BYTES = 16, 2048  # rows of a box that a warp writes, 128 bytes each; bytes of a box
ENGINE = "cp.async.bulk.tensor.2d."
FETCH = ENGINE + "shared::cluster.global.mbarrier::complete_tx::bytes"
LINE = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
PUT = ENGINE + "global.shared::cta.bulk_group"
COMMIT, UNTIL_READ = "cp.async.bulk.commit_group;", "cp.async.bulk.wait_group.read 0;"


# Start to copy a box to shared memory.
fetch = gpu_only("fetch", FETCH + " [$0], [$1, {$2, $3}], [$4];", None, u32, u64, u32, u32, u32)
# Start to copy ``size`` neighbouring bytes to shared memory, without a map; addresses and size are
# multiples of 16.
fetch_line = gpu_only("fetch_line", LINE + " [$0], [$1], $2, [$3];", None, u32, u64, u32, u32)
# Make the threads' writes to memory visible to the copy engine; both sides of a hand-over call it.
publish_to_copy_engine = gpu_only("publish_to_copy_engine", "fence.proxy.async.global;", None)
# Prefetch a map that will be used soon.
prefetch_map = gpu_only("prefetch_map", "prefetch.tensormap [$0];", None, u64)


def parameter_map(number: int) -> Any:
    """The instruction for the address of a map that is itself a kernel's parameters, from that number on.

    Its 128 bytes begin at a multiple of 64 where PARAMETERS and the bytes of the parameters before add up to
    one.
    """

    @instruction(f"{{.reg .b64 there; mov.b64 there, kernel_param_{number}; cvta.param.u64 $0, there;}}", u64)
    def address() -> Any:
        only_on_a_gpu()

    return address


# Wait until all boxes that this thread stored are in memory.
wait_until_written = gpu_only("wait_until_written", "cp.async.bulk.wait_group 0;", None)
# Start to copy a box to the same place in each block of the cluster whose bit is set in ``blocks``. Each
# of these blocks' own barriers, at the same place too, counts the bytes.
fetch_for_all = gpu_only("fetch_for_all",
    "{.reg .b16 blocks; cvt.u16.u32 blocks, $5; " + FETCH + ".multicast::cluster "
    "[$0], [$1, {$2, $3}], [$4], blocks;}",
    None, u32, u64, u32, u32, u32, u32,
)  # fmt: skip


# --- dependent launches -----------------------------------------------------------------------


@instruction("griddepcontrol.launch_dependents;", None, effect=True)
def let_successor_start() -> Any:
    """Allow the next kernel to start beside this one, as far as this block is concerned."""


@instruction("griddepcontrol.wait;", None, effect=True)
def wait_for_predecessor() -> Any:
    """Wait until the kernel before has ended and all its writes are visible."""


@inlined
def take_turn() -> None:
    """The start of a kernel that fetches nothing early: the next one may start, this one waits."""
    let_successor_start()
    wait_for_predecessor()
