"""The kernel of cuda:widen with the tile of a configuration, as in the documents' tuned files (functions/).

    BLOCK_SIZE_M, BLOCK_SIZE_N    outputs of a block of threads
    BLOCK_SIZE_K                  columns of a stage; it divides the columns that share a scale
    GROUP_SIZE_M                  tiles that blocks go down before they take the next column of tiles
    num_warps                     warps of a block; each makes an equal part of its outputs
    num_stages                    stages in shared memory; all but one are being copied

Each combination is a kernel of its own, compiled at its first use and stored on disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...arrays.scaled import ScaledArray
from ...dispatch.problems import ScaledLinear
from ...errors import UnsupportedError
from ..codes8.mma_tiles import is_uniform, launch_split
from ..codes8.rows import STEPS, operand_pair
from ..machine import device
from ..rings.shape import MOST_SHARED, ByteTile
from . import r5_widen

BLOCKS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K")
NAMES = (*BLOCKS, "GROUP_SIZE_M", "num_warps", "num_stages")
MOST_SUMS, MOST_WARPS = 64, 16  # outputs of a thread, with two sums in registers each; warps of a block
REGISTERS = 65536  # of a multiprocessor

Config = Mapping[str, int]


def refuses(problem: ScaledLinear, config: Config) -> str | None:
    """The reason why no kernel fits a configuration, or why it does not take the problem; or None."""
    missing = [name for name in NAMES if not isinstance(config.get(name), int) or config[name] < 1]
    if missing:
        return f"the configuration needs positive integers for {', '.join(missing)}"
    if reason := r5_widen.refuses(problem):
        return reason
    step = config["BLOCK_SIZE_K"]
    if step not in STEPS:
        return f"BLOCK_SIZE_K is {step}; a stage is {', '.join(map(str, sorted(STEPS)))} columns"
    if problem.varies and problem.group % step:
        return f"BLOCK_SIZE_K is {step}; it must divide the {problem.group} columns that share a scale"
    if config["num_stages"] < 2:
        return "num_stages is 1; one stage is copied while another is multiplied, so there are two at least"
    return _no_tile(problem, config)


def _no_tile(problem: ScaledLinear, config: Config) -> str | None:
    tile = _tile(config)
    if tile is None:
        m, n, _ = (config[name] for name in BLOCKS)
        return (
            f"{config['num_warps']} warps do not make {m} × {n} outputs: an equal part each, multiples of 16 "
            f"rows and columns, with up to {MOST_SUMS} outputs a thread"
        )
    room = MOST_SHARED if problem.card is None else problem.card.shared
    if tile.shared > room:
        return f"{tile} need {-(-tile.shared >> 10)} KB of shared memory, a block may have {room >> 10}"
    return None


def _tile(config: Config) -> ByteTile | None:
    """The tile with the squarest warps, which read the least for what they make."""
    m, n, step = (config[name] for name in BLOCKS)
    warps, tiles = config["num_warps"], []
    for down in range(1, min(warps, MOST_WARPS) + 1):
        across = warps // down
        if warps <= MOST_WARPS and warps % down == 0 and m % (16 * down) == 0 and n % (16 * across) == 0:
            tile = ByteTile(m, n, m // down, n // across, step, config["num_stages"])
            tiles.append(tile)
    tiles = [tile for tile in tiles if tile.sums <= min(MOST_SUMS, REGISTERS // (4 * tile.threads))]
    return min(tiles, key=lambda tile: tile.warp_rows + tile.warp_columns, default=None)


def launch(x: ScaledArray, w: ScaledArray, out: Any, config: Config) -> None:
    """``out = x @ w.T`` by the kernel of a configuration; float32 [M, N], C-contiguous."""
    if not (out.size and w.shape[1]):
        out.fill(0)
        return
    tile = _tile(config)
    if tile is None or tile.shared > device.most_shared():
        raise UnsupportedError(
            f"a product with the configuration {dict(config)}: no kernel can be made of it; "
            "cuda.scaled_linear.tuned.refuses(problem, config) says why; take another configuration"
        )
    operands = operand_pair(x, w, tile.step)
    run = r5_widen.kernel(
        tile, x.code.name, w.code.name, is_uniform(operands, tile), r5_widen.converts_here()
    )
    launch_split(run, tile, operands, out, 1, raster_height=config["GROUP_SIZE_M"])
