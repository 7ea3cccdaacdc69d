"""K split among blocks by the grid, where there are few tiles, and the kernel that adds the partial sums."""

from __future__ import annotations

from typing import Any

from ..intrinsics import dependent_launch, ptx
from ..intrinsics.address import address
from ..intrinsics.language import cuda, float32, uint32, uint64
from ..machine import device
from ..machine.launch import Kernel, family

SHORTEST = 6  # steps of a part of K


def split_of(tiles: int, blocks: int, steps: int) -> int:
    """The number of parts of K with which the blocks fill the card once.

    ``blocks``: how many a multiprocessor holds.
    """
    return max(1, min(device.multiprocessors() * blocks // tiles, steps // SHORTEST))


ADDERS = 256  # threads of a block


@family()
def adder() -> Kernel:
    """The kernel that adds the partial sums of each output, the first part first."""
    load_float, store_float = ptx.load_float, ptx.store_float
    take_turn = dependent_launch.take_turn

    def add(
        partials: Any,  # float32 [count, length]
        y: Any,  # float32 [length]
        count: Any, length: Any,
    ) -> None:  # fmt: skip
        take_turn()
        i = uint64(cuda.blockIdx.x) * uint64(ADDERS) + uint64(cuda.threadIdx.x)
        if i < length:
            total = float32(0)
            for p in range(count):
                total += load_float(address(partials, p, length, i, 4))
            store_float(y + i * uint64(4), total)

    return Kernel("add partial sums", add, uint64, uint64, uint32, uint64, threads=ADDERS, early=True)
