"""Many rows on Hopper: scores and results by wgmma, the products of two steps at the same time.

A block has 128 rows of queries, 64 for each of its two warpgroups. While the weights of a step are multiplied
with values the scores of the next one are made, and their exponentials taken: products and exponentials
share the time. Keys and values are in 16 bits; blocks are decoded before the launch, once for all rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from ..intrinsics import bf16x2, dependent_launch, halves, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.lane import g_and_t, warp_and_lane
from ..intrinsics.language import cuda, float32, int32, uint32, uint64
from ..intrinsics.warpgroup import publish
from ..intrinsics.wgmma16 import PART, mix_starter, score_starter, settler
from ..machine.launch import Kernel, family
from .floats import pair_loader
from .kernel import ADDRESSES, SIZES, STRIDES
from .plan import EDGE, LANES, SIXTEEN
from .problem import limits, part_of, seen_by
from .products import clearer
from .results import rows_writer
from .rows import CHUNK
from .softmax import LOG2_E, NEVER, hider, shrinker, weigher
from .unrolled import unrolled

HOPPER, MOST = (9, 0), 256  # its capability; columns
WARPS, STAGES, LINE = 8, 2, 128  # of a block; of keys and of values; bytes of a swizzled row


@dataclass(frozen=True)
class WidePlan:
    """The block of 128 rows for keys and values of 16 bits."""

    k: str
    v: str
    width: int  # columns of a key, a multiple of 64
    width_v: int
    by_rows, shared, resident = True, False, 1

    def __str__(self) -> str:
        return f"{self.k}, {self.v}, {self.width}/{self.width_v}, by wgmma"

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return LANES * WARPS

    @property
    def rows(self) -> int:
        """Rows of queries of a block."""
        return EDGE * WARPS

    @property
    def positions(self) -> int:
        """Positions of a step."""
        return 128 if self.width <= 192 and self.width_v <= 128 else 64

    @property
    def span(self) -> int:
        """Positions of a step that a warp has: all."""
        return self.positions

    @property
    def keys_at(self) -> int:
        """Offset of the stages of keys."""
        return 2 * self.rows * self.width

    @property
    def values_at(self) -> int:
        """Offset of the stages of values."""
        return self.keys_at + 2 * STAGES * self.positions * self.width

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory; tiles begin at a multiple of 1024."""
        return 1024 + self.values_at + 2 * STAGES * self.positions * self.width_v


def takes(k: str, v: str, width: int, width_v: int) -> bool:
    """True if there is a plan for keys and values of these types and widths."""
    fits = all(n in (64, 128, MOST) for n in (width, width_v))
    return fits and k in SIXTEEN and v in SIXTEEN


@inlined
def swizzled(row: Any, chunk: Any, rows: Any) -> Any:
    """The offset of 16 bytes of a tile: parts of 64 columns, chunks of a row exchanged."""
    part, within = chunk >> uint32(3), chunk & uint32(7)
    return (part * uint32(rows) + row) * uint32(LINE) + ((within ^ (row & uint32(7))) << uint32(4))


@cache
def tile_copier(plan: WidePlan, width: int) -> Any:
    """The device function ``copy(to, rows, apart, first, end)``: positions ``first`` … as a swizzled tile."""
    threads, positions, per_row = plan.threads, plan.positions, 2 * width // CHUNK
    together = threads // per_row  # rows that all threads copy at once
    copy16 = bf16x2.copy16_or_zeros

    @inlined
    def copy(to: Any, rows: Any, apart: Any, first: Any, end: Any) -> None:
        number = uint32(cuda.threadIdx.x)
        row, chunk = number // uint32(per_row), number % uint32(per_row)
        to += swizzled(row, chunk, positions)
        position = first + row
        source = rows + uint64(position) * apart + uint64(chunk * uint32(CHUNK))
        for _ in range(positions // together):
            copy16(to, source, uint32(CHUNK) if position < end else uint32(0))
            to += uint32(together * LINE)  # a multiple of eight rows: chunks are exchanged alike
            source += uint64(together) * apart
            position += uint32(together)

    return copy


@cache
def query_loader(plan: WidePlan) -> Any:
    """The device function ``load(to, rows, kind, count)``: queries as a swizzled tile of 16-bit floats."""
    threads, rows_count, pairs = plan.threads, plan.rows, plan.width // 2
    load_pair, put4 = pair_loader(), halves.put4
    narrowed = bf16x2.narrowed if plan.k == "bf16" else halves.narrowed

    @inlined
    def load(to: Any, rows: Any, kind: Any, count: Any) -> None:
        for i in range(rows_count * pairs // threads):
            number = uint32(cuda.threadIdx.x) + uint32(i * threads)
            row, pair = number // uint32(pairs), number % uint32(pairs)
            word = uint32(0)
            if row < count:
                low, high = load_pair(rows, uint64(row) * uint64(pairs) + uint64(pair), kind)
                word = narrowed(low, high)
            put4(to + swizzled(row, pair >> uint32(2), rows_count) + (pair & uint32(3)) * uint32(4), word)

    return load


def packer(plan: WidePlan) -> Any:
    """The device function that rounds weights to pairs of 16 bits."""
    narrowed = bf16x2.narrowed if plan.v == "bf16" else halves.narrowed

    @inlined
    def four(j: Any, s: Any, pairs: Any, _: Any, __: Any, ___: Any, ____: Any) -> None:
        for i in range(4):
            pairs[4 * j + i] = narrowed(s[8 * j + 2 * i], s[8 * j + 2 * i + 1])

    return unrolled(plan.span // 16, four)


@family(
    (WidePlan(kind, kind, width, width),) for kind in ("f16", "bf16") for width in (64, 128, 256)
)
def kernel(plan: WidePlan) -> Kernel:
    """The kernel: block (part of the positions, rows of a head of keys, head of keys of a sequence)."""
    rows_count, step, width, width_v = plan.rows, plan.positions, plan.width, plan.width_v
    keys_at, values_at = plan.keys_at, plan.values_at
    tile_k, tile_v = 2 * step * width, 2 * step * width_v
    group_rows = 64 * LINE  # bytes of the rows of a warpgroup, in a part
    part_rows = rows_count * LINE
    copy_keys, copy_values, load_queries = tile_copier(plan, width), tile_copier(plan, width_v), query_loader(plan)
    start_scores, start_mix = score_starter(step, width, plan.k), mix_starter(step, width_v, plan.v)
    settle_scores, settle_first = settler(step // 2, 1), settler(step // 2, 0)
    settle_sums = settler(width_v // 2, 0)
    hide, weigh, shrink, pack = hider(plan), weigher(plan), shrinker(plan), packer(plan)
    write, clear, base, commit = rows_writer(plan), clearer(width_v // 16), ptx.shared_base, ptx.commit
    wait, load8, float_of, take_turn = ptx.wait_for_all_but(0), bf16x2.load8, ptx.float_of, dependent_launch.take_turn
    o_count, s_count, pair_count = width_v // 2, step // 2, step // 4

    @inlined
    def fetch_keys(at: Any, keys: Any, strides: Any, tile: Any, last: Any, end: Any) -> None:
        if tile < last:
            to = at + uint32(keys_at) + uint32(tile & int32(1)) * uint32(tile_k)
            copy_keys(to, keys, strides[2], uint32(tile * int32(step)), uint32(end))

    @inlined
    def fetch_values(at: Any, values: Any, strides: Any, tile: Any, end: Any) -> None:
        to = at + uint32(values_at) + uint32(tile & int32(1)) * uint32(tile_v)
        copy_values(to, values, strides[5], uint32(tile * int32(step)), uint32(end))

    @inlined
    def arrive() -> None:
        wait()
        publish()
        cuda.syncthreads()

    def attend(
        addresses: Any,  # q k v y, parts, mask, lengths, sinks, slopes; 0 for what there is not
        strides: Any,  # of k and v: sequence, head, position in bytes; then those of a mask
        sizes: Any,  # queries, group, positions, heads of keys, window, causal, kinds of q and y, fixed, columns
        scale: Any, cap: Any,  # bits of floats
    ) -> None:  # fmt: skip
        take_turn()
        warp, lane = warp_and_lane()
        g, t = g_and_t(lane)
        queries, group, kv_heads, window, causal = sizes[0], sizes[1], sizes[3], sizes[4], sizes[5]
        unit = uint32(cuda.blockIdx.z)
        sequence = unit // kv_heads
        kv_head = unit - sequence * kv_heads
        rows = queries * group
        start = uint32(cuda.gridDim.y - cuda.blockIdx.y - 1) * uint32(rows_count)
        count = min(uint32(rows_count), rows - start)
        length = int32(sizes[2])
        if addresses[6] != uint64(0):
            length = max(int32(0), min(length, int32(load8(addresses[6] + uint64(sequence) * uint64(8))[0])))
        begin, begin_of_all, end_of_all, end = limits(
            start, start + count - uint32(1), queries, causal, window, length
        )
        end_of_all = min(end_of_all, end)
        first, last = part_of(
            begin, end, int32(step), uint32(cuda.blockIdx.x), uint32(cuda.gridDim.x), sizes[8]
        )
        keys = addresses[1] + uint64(sequence) * strides[0] + uint64(kv_head) * strides[1]
        values = addresses[2] + uint64(sequence) * strides[3] + uint64(kv_head) * strides[4]
        at = (base() + uint32(1023)) & uint32(0xFFFFFC00)
        fetch_keys(at, keys, strides, first, last, end)
        commit()
        width_bytes = uint64(4 * width) if sizes[6] == uint32(0) else uint64(2 * width)
        first_row = uint64(unit) * uint64(rows) + uint64(start)
        load_queries(at, addresses[0] + first_row * width_bytes, sizes[6], count)
        begins, ends = cuda.local.array(2, int32), cuda.local.array(2, int32)
        for r in range(2):
            row = uint32(min(start + warp * uint32(EDGE) + g + uint32(8 * r), rows - uint32(1)))
            begins[r], ends[r] = seen_by(row % queries, queries, causal, window, length)
        tops, totals, ratios = (
            cuda.local.array(2, float32), cuda.local.array(2, float32), cuda.local.array(2, float32),
        )  # fmt: skip
        o, s = cuda.local.array(o_count, float32), cuda.local.array(s_count, float32)
        pairs = cuda.local.array(pair_count, uint32)
        clear(0, o, 0, 0, 0, 0, 0)
        for r in range(2):
            tops[r], totals[r] = NEVER, float32(0)
        factor = ptx.mul(float_of(scale), LOG2_E)
        q_at = at + (warp >> uint32(2)) * uint32(group_rows)
        column = int32(t) * int32(2)
        if first < last:
            arrive()
            fetch_keys(at, keys, strides, first + int32(1), last, end)
            fetch_values(at, values, strides, first, end)
            commit()
            start_scores(s, q_at, at + uint32(keys_at) + uint32(first & int32(1)) * uint32(tile_k), uint32(part_rows))
            settle_first(s)
            origin = first * int32(step)
            if origin < begin_of_all or origin + int32(step) > end_of_all:
                hide(0, s, origin + column, begins, ends, 0, 0)
            weigh(s, factor, tops, totals, ratios)
            pack(0, s, pairs, 0, 0, 0, 0)
            for tile in range(first + int32(1), last):
                arrive()
                fetch_keys(at, keys, strides, tile + int32(1), last, end)
                fetch_values(at, values, strides, tile, end)
                commit()
                k_at = at + uint32(keys_at) + uint32(tile & int32(1)) * uint32(tile_k)
                v_at = at + uint32(values_at) + uint32((tile + int32(1)) & int32(1)) * uint32(tile_v)
                start_scores(s, q_at, k_at, uint32(part_rows))
                start_mix(o, pairs, v_at)
                settle_scores(s)
                origin = tile * int32(step)
                if origin < begin_of_all or origin + int32(step) > end_of_all:
                    hide(0, s, origin + column, begins, ends, 0, 0)
                grown = weigh(s, factor, tops, totals, ratios)
                settle_sums(o)
                if grown:
                    shrink(0, o, ratios, 0, 0, 0, 0)
                pack(0, s, pairs, 0, 0, 0, 0)
            arrive()
            start_mix(o, pairs, at + uint32(values_at) + uint32((last + int32(1)) & int32(1)) * uint32(tile_v))
            settle_sums(o)
        write(o, tops, totals, start, count, rows, addresses, sizes)

    return Kernel(
        f"attention of {plan}", attend, ADDRESSES, STRIDES, SIZES, uint32, uint32, threads=plan.threads,
        shared=plan.shared_bytes, least=HOPPER, exact=True, early=True,
    )  # fmt: skip
