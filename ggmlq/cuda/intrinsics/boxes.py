"""Hopper's copy engine: boxes of matrices, fetched and stored by one thread.

A map, 128 bytes of memory that driver/tensor_maps.py makes, describes a matrix and its boxes. The part of
a box that reaches over an edge comes as zeros, and is not written. The barrier counts the bytes of the
whole box in every case.

Coordinates are (column, row) in elements. The bytes left of the column are a multiple of 16, as pitches
are; otherwise the copy is an illegal instruction, and the context is lost. Rows may be any. Swizzled boxes
have rows of 128 bytes, chunk c of row r at c ^ (r % 8), and begin at multiples of 1024. The engine takes r
from the address, so boxes of one row may be put together to larger ones.
"""

from __future__ import annotations

from typing import Any

from .assembly import instruction, only_on_a_gpu, u32, u64

PARAMETERS = 0x210  # where the parameters of a kernel begin in its constants, on Hopper
ROWS, BUFFER = 16, 2048  # rows of a box that a warp writes, 128 bytes each; bytes of a box
ENGINE = "cp.async.bulk.tensor.2d."
FETCH = ENGINE + "shared::cluster.global.mbarrier::complete_tx::bytes"
LINE = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
PUT = ENGINE + "global.shared::cta.bulk_group"
COMMIT, UNTIL_READ = "cp.async.bulk.commit_group;", "cp.async.bulk.wait_group.read 0;"


@instruction(FETCH + " [$0], [$1, {$2, $3}], [$4];", None, u32, u64, u32, u32, u32, effect=True)
def fetch(shared: Any, map: Any, column: Any, row: Any, barrier: Any) -> Any:
    """Start to copy a box to shared memory."""
    only_on_a_gpu()


@instruction(LINE + " [$0], [$1], $2, [$3];", None, u32, u64, u32, u32, effect=True)
def fetch_line(shared: Any, source: Any, size: Any, barrier: Any) -> Any:
    """Start to copy ``size`` neighbouring bytes to shared memory, without a map; addresses and size are
    multiples of 16.
    """
    only_on_a_gpu()


@instruction("fence.proxy.async.global;", None, effect=True)
def publish_to_copy_engine() -> Any:
    """Make the threads' writes to memory visible to the copy engine; both sides of a hand-over call it."""
    only_on_a_gpu()


@instruction("prefetch.tensormap [$0];", None, u64, effect=True)
def prefetch(map: Any) -> Any:
    """Prefetch a map that will be used soon."""
    only_on_a_gpu()


def parameter_map(number: int) -> Any:
    """The instruction for the address of a map that is itself a kernel's parameters, from that number on.

    Its 128 bytes begin at a multiple of 64 where PARAMETERS and the bytes of the parameters before add up to
    one.
    """

    @instruction(f"{{.reg .b64 there; mov.b64 there, kernel_param_{number}; cvta.param.u64 $0, there;}}", u64)
    def address() -> Any:
        only_on_a_gpu()

    return address


@instruction("cp.async.bulk.wait_group 0;", None, effect=True)
def wait_until_written() -> Any:
    """Wait until all boxes that this thread stored are in memory."""
    only_on_a_gpu()


@instruction(
    "{.reg .b16 blocks; cvt.u16.u32 blocks, $5; " + FETCH + ".multicast::cluster "
    "[$0], [$1, {$2, $3}], [$4], blocks;}",
    None, u32, u64, u32, u32, u32, u32, effect=True,
)  # fmt: skip
def fetch_for_all(shared: Any, map: Any, column: Any, row: Any, barrier: Any, blocks: Any) -> Any:
    """Start to copy a box to the same place in each block of the cluster whose bit is set in ``blocks``.

    Each of these blocks' own barriers, at the same place too, counts the bytes.
    """
    only_on_a_gpu()
