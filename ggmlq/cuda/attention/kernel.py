"""Attention in one pass: tiles of keys and values in a ring of shared memory, a softmax that runs along.

A block has rows of queries that share their keys, of all heads of a group, and goes over a part of the
positions. Where there are few rows the parts of all blocks together fill the card, and merge.py adds what
they found. Rows of blocks are decoded once for all rows of a block.

With few rows it is limited by memory; with many by ``mma.sync``, which reaches under two thirds of what wgmma
does on Hopper.
"""

from __future__ import annotations

from typing import Any

from ..intrinsics import bf16x2, dependent_launch, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.lane import g_and_t, warp_and_lane
from ..intrinsics.language import cuda, float32, int32, types, uint32, uint64
from ..machine.launch import Kernel, family
from .plan import EDGE, Plan, plans, row_bytes
from .problem import limits, part_of, seen_by
from .products import clearer, key_place, mixer, query_place, scorer
from .results import writer
from .rows import copier, query_loader, tile_decoder
from .softmax import LOG2_E, NEVER, changer, hider, shrinker, weigher

LEAST = (8, 0)
ADDRESSES = types.UniTuple(uint64, 9)  # q k v y, parts, mask, lengths, sinks, slopes
STRIDES = types.UniTuple(uint64, 10)  # of k and v: sequence, head, position; of the mask: [B, H, T, S]
SIZES = types.UniTuple(uint32, 11)


@family(plans)
def kernel(plan: Plan) -> Kernel:
    """The kernel: block (part of the positions, rows of a head of keys, head of keys of a sequence)."""
    rows_count, step, span, stages, by_rows = plan.rows, plan.positions, plan.span, plan.stages, plan.by_rows
    width, shared_rows, options = plan.width, plan.shared, plan.options
    decodes_k, decodes_v = plan.decodes(plan.k), plan.decodes(plan.v) and not plan.shared
    # a stage is free as soon as it is decoded, or else behind the products with it
    ahead = stages if decodes_k and (decodes_v or plan.shared) else stages - 1
    stage_k, stage_v = plan.stage(plan.k, plan.width), plan.stage(plan.v, plan.width_v)
    keys_at, values_at = plan.keys_at, plan.values_at
    key_tile_at, value_tile_at = plan.key_tile_at, plan.value_tile_at
    pitch_k = plan.pitch(plan.width)
    pitch_v = pitch_k if plan.shared else plan.pitch(plan.width_v)
    length_k = row_bytes(plan.k, plan.width) if decodes_k else pitch_k
    length_v = row_bytes(plan.v, plan.width_v) if decodes_v else pitch_v
    sums, scores = plan.width_v // 2, span // 2
    load_queries, copy_keys = query_loader(plan), copier(plan, plan.k, plan.width)
    copy_values = copier(plan, plan.v, plan.width_v)
    decode_keys = tile_decoder(plan, plan.k, plan.width) if decodes_k else None
    decode_values = tile_decoder(plan, plan.v, plan.width_v) if decodes_v else None
    score, mix, change, hide, weigh = scorer(plan), mixer(plan), changer(plan), hider(plan), weigher(plan)
    shrink = shrinker(plan)
    write, base, commit, clear = writer(plan), ptx.shared_base, ptx.commit, clearer(sums // 8)
    wait, load_float, load8 = ptx.wait_for_all_but(ahead - 1), ptx.load_float, bf16x2.load8
    take_turn = dependent_launch.take_turn

    @inlined
    def fetch(
        at: Any, stage: Any, keys: Any, values: Any, strides: Any, tile: Any, last: Any, end: Any, own: Any, rank: Any
    ) -> None:
        # a warp of its own positions copies these alone; of its own rows it shares all positions
        if tile < last:
            first, to = uint32(tile * int32(step)) + own, uint32(end)
            place = at + uint32(keys_at) + stage * uint32(stage_k) + own * uint32(length_k)
            copy_keys(place, keys, strides[2], first, to, rank)
            if not shared_rows:
                place = at + uint32(values_at) + stage * uint32(stage_v) + own * uint32(length_v)
                copy_values(place, values, strides[5], first, to, rank)
        commit()

    @inlined
    def meet() -> None:
        if by_rows:
            cuda.syncthreads()
        else:
            cuda.syncwarp()

    def attend(
        addresses: Any,  # q k v y, parts, mask, lengths, sinks, slopes; 0 for what there is not
        strides: Any,  # of k and v: sequence, head, position in bytes; of the mask [B, H, T, S] in bytes
        sizes: Any,  # queries, group, positions, heads of keys, window, causal, kinds of q and y, fixed, columns
        scale: Any, cap: Any,  # bits of floats
    ) -> None:  # fmt: skip
        take_turn()
        (warp, lane), part = warp_and_lane(), uint32(cuda.blockIdx.x)
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
        first, last = part_of(begin, end, int32(step), part, uint32(cuda.gridDim.x), sizes[8])
        keys = addresses[1] + uint64(sequence) * strides[0] + uint64(kv_head) * strides[1]
        values = addresses[2] + uint64(sequence) * strides[3] + uint64(kv_head) * strides[4]
        at, first_row = base(), uint64(unit) * uint64(rows) + uint64(start)
        own = warp * uint32(EDGE)  # first row or position of the warp
        mine = uint32(0) if by_rows else own
        rank = uint32(cuda.threadIdx.x) if by_rows else lane
        for i in range(ahead):
            fetch(at, uint32(i), keys, values, strides, first + int32(i), last, end, mine, rank)
        width_bytes = uint64(4 * width) if sizes[6] == uint32(0) else uint64(2 * width)
        load_queries(at, addresses[0] + first_row * width_bytes, sizes[6], count)
        if not by_rows:
            cuda.syncthreads()  # queries are there

        top_row = g + own - mine
        places, begins, ends = (cuda.local.array(4, int32), cuda.local.array(2, int32), cuda.local.array(2, int32))
        numbers, apart = cuda.local.array(4, float32), cuda.local.array(2, uint64)
        float_of = ptx.float_of
        numbers[0], numbers[1] = float_of(scale), float_of(cap)
        mask = addresses[5]
        for r in range(2):
            row = uint32(min(start + top_row + uint32(8 * r), rows - uint32(1)))
            head, query = row // queries, row % queries
            places[r] = length - int32(queries) + int32(query)
            begins[r], ends[r] = seen_by(query, queries, causal, window, length)
            head = kv_head * group + head
            slope = float32(0)
            if addresses[8] != uint64(0):
                slope = load_float(addresses[8] + uint64(head) * uint64(4))
            elif mask != uint64(0):
                slope = float32(1)
            numbers[2 + r] = slope
            if mask != uint64(0):
                row_at = addresses[5] + uint64(sequence) * strides[6] + uint64(head) * strides[7]
                row_at += uint64(query) * strides[8]
                if r == 0:
                    mask = row_at
                else:
                    apart[1] = row_at - mask
        places[2], apart[0] = int32(sizes[2]), strides[9]

        tops, totals, ratios = (cuda.local.array(2, float32), cuda.local.array(2, float32), cuda.local.array(2, float32))
        o, s = cuda.local.array(sums, float32), cuda.local.array(scores, float32)
        clear(0, o, 0, 0, 0, 0, 0)
        for r in range(2):
            tops[r], totals[r] = NEVER, float32(0)
        factor = LOG2_E if options else ptx.mul(float_of(scale), LOG2_E)
        q_at = at + query_place(lane, pitch_k) + (own - mine) * uint32(pitch_k)
        k_at = at + key_place(lane, pitch_k) + mine * uint32(pitch_k)
        v_at = at + query_place(lane, pitch_v) + mine * uint32(pitch_v)
        stage = uint32(0)
        for tile in range(first, last):
            wait()
            meet()
            k_stage = uint32(keys_at) + stage * uint32(stage_k)
            v_stage = uint32(values_at) + stage * uint32(stage_v)
            if decodes_k:
                tile_at = at + uint32(key_tile_at) + mine * uint32(pitch_k)
                decode_keys(at + k_stage + mine * uint32(length_k), tile_at, rank)
                k_stage = uint32(key_tile_at)
            if decodes_v and by_rows:
                decode_values(at + v_stage, at + uint32(value_tile_at), rank)
            if decodes_k or (decodes_v and by_rows):
                meet()
            free = stage + uint32(ahead)
            free = free - uint32(stages) if free >= uint32(stages) else free
            if by_rows or not decodes_v:
                fetch(at, free, keys, values, strides, tile + int32(ahead), last, end, mine, rank)
            score(q_at, k_at + k_stage, s)
            if decodes_v and not by_rows:
                meet()
                tile_at = at + uint32(value_tile_at) + mine * uint32(pitch_v)
                decode_values(at + v_stage + mine * uint32(length_v), tile_at, rank)
                meet()
                fetch(at, free, keys, values, strides, tile + int32(ahead), last, end, mine, rank)
            if decodes_v:
                v_stage = uint32(value_tile_at)
            if shared_rows:
                v_stage = k_stage + uint32(2) * sizes[10]
            origin = tile * int32(step)
            position = origin + int32(t) * int32(2) + int32(mine)
            if options:
                change(0, s, position, places, numbers, mask, apart)
            if origin < begin_of_all or origin + int32(step) > min(end_of_all, end):
                hide(0, s, position, begins, ends, 0, 0)
            if weigh(s, factor, tops, totals, ratios):
                shrink(0, o, ratios, 0, 0, 0, 0)
            mix(s, v_at + v_stage, o)
            stage = stage + uint32(1) if stage + uint32(1) < uint32(stages) else uint32(0)
        write(o, tops, totals, start, count, rows, addresses, sizes)

    return Kernel(
        f"attention of {plan}", attend, ADDRESSES, STRIDES, SIZES, uint32, uint32, threads=plan.threads,
        blocks=plan.blocks, shared=plan.shared_bytes, least=LEAST, early=True,
    )  # fmt: skip
