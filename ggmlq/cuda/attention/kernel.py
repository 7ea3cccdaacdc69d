"""Attention in one pass: tiles of keys and values in a ring of shared memory, a softmax that runs along.

A block has rows of queries that share their keys, of all heads of a group, and goes over a part of the
positions. Where there are few rows the parts of all blocks together fill the card, and results.py adds what
they found. Rows of blocks are decoded once for all rows of a block.

With few rows it is limited by memory; with many by ``mma.sync``, which reaches under two thirds of what wgmma
does on Hopper.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ..intrinsics import dependent_launch, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.lane import g_and_t, warp_and_lane
from ..intrinsics.language import cuda, float32, int32, uint32, uint64
from ..machine.launch import Kernel, family
from .plan import EDGE, Plan, plans
from .problem import ADDRESSES, SIZES, STRIDES, block_finder, look, placer, queries_of, rows_finder
from .products import (
    block_row_mixer,
    block_row_scorer,
    clearer,
    key_place,
    mixer,
    no_place,
    query_place,
    scorer,
)
from .results import writer
from .rows import copier, query_loader, tile_decoder
from .softmax import LOG2_E, NEVER, changer, read_options, shrinker, weights_maker

LEAST = (8, 0)


@cache
def fetcher(plan: Plan) -> Any:
    """The device function that starts the copies of a stage: all of a team's keys and values."""
    copy_keys, copy_values = copier(plan, plan.k, plan.width), copier(plan, plan.v, plan.width_v)
    keys_at, values_at = plan.keys_at, plan.values_at
    stage_k, stage_v = plan.stage(plan.k, plan.width), plan.stage(plan.v, plan.width_v)
    length_k, length_v = plan.length(plan.k, plan.width), plan.length(plan.v, plan.width_v)
    step, shared, commit = plan.positions, plan.shared, ptx.commit

    @inlined
    def fetch(
        at: Any, stage: Any, keys: Any, values: Any, strides: Any, tile: Any, last: Any, end: Any,
        offset_row: Any, rank: Any,
    ) -> None:  # fmt: skip
        if tile < last:
            first, to = uint32(tile * int32(step)) + offset_row, uint32(end)
            place = at + uint32(keys_at) + stage * uint32(stage_k) + offset_row * uint32(length_k)
            copy_keys(place, keys, strides[2], first, to, rank)
            if not shared:
                place = at + uint32(values_at) + stage * uint32(stage_v) + offset_row * uint32(length_v)
                copy_values(place, values, strides[5], first, to, rank)
        commit()

    return fetch


@cache
def tile_finder(plan: Plan, values: bool) -> Any:
    """The device function that gives the offset of a step's tile of keys, or values, decoded if need be."""
    name, width = (plan.v, plan.width_v) if values else (plan.k, plan.width)
    decodes = plan.decodes(name)
    stages_at, tile_at = (
        (plan.values_at, plan.value_tile_at) if values else (plan.keys_at, plan.key_tile_at)
    )  # fmt: skip
    stage_bytes, length, pitch = plan.stage(name, width), plan.length(name, width), plan.pitch(width)
    decode: Any = tile_decoder(plan, name, width) if decodes else None

    @inlined
    def find(at: Any, stage: Any, offset_row: Any, rank: Any) -> Any:
        offset = uint32(stages_at) + stage * uint32(stage_bytes)
        if decodes:
            tile = at + uint32(tile_at) + offset_row * uint32(pitch)
            decode(at + offset + offset_row * uint32(length), tile, rank)
            offset = uint32(tile_at)
        return offset

    return find


def meeting(plan: Plan) -> Any:
    """The device function that waits for the threads of a team."""
    by_rows = plan.by_rows

    @inlined
    def meet() -> None:
        if by_rows:
            cuda.syncthreads()
        else:
            cuda.syncwarp()

    return meet


@cache
def stepper(plan: Plan) -> Any:
    """The device function that makes the scores of a step and gives the offset of its values.

    It starts the copies of a later step where a stage is free: as soon as that is decoded, or behind the
    products with it.
    """
    by_rows, shared, stages, ahead = plan.by_rows, plan.shared, plan.stages, plan.ahead
    decodes_k, decodes_v = plan.decodes(plan.k), plan.decodes(plan.v) and not plan.shared
    find_keys, find_values = tile_finder(plan, False), tile_finder(plan, True)
    early = by_rows or not decodes_v  # values are decoded before the scores are made
    fetch, meet = fetcher(plan), meeting(plan)
    score = block_row_scorer(plan) if plan.in_registers else scorer(plan)

    @inlined
    def make(
        s: Any, at: Any, q_at: Any, k_at: Any, stage: Any, keys: Any, values: Any, strides: Any,
        tile: Any, last: Any, end: Any, offset_row: Any, rank: Any, first_column: Any,
    ) -> Any:  # fmt: skip
        k_offset, v_offset = find_keys(at, stage, offset_row, rank), uint32(0)
        if early and not shared:
            v_offset = find_values(at, stage, offset_row, rank)
        if decodes_k or (decodes_v and early):
            meet()
        free = stage + uint32(ahead)
        free = free - uint32(stages) if free >= uint32(stages) else free
        if early:
            fetch(at, free, keys, values, strides, tile + int32(ahead), last, end, offset_row, rank)
        score(q_at, k_at + k_offset, s)
        if not early:  # over the keys
            meet()
            v_offset = find_values(at, stage, offset_row, rank)
            meet()
            fetch(at, free, keys, values, strides, tile + int32(ahead), last, end, offset_row, rank)
        if shared:
            v_offset = k_offset + uint32(2) * first_column
        return v_offset

    return make


def lane_products(plan: Plan) -> tuple[Any, Any, Any]:
    """The device functions for a lane's places in queries, also in values, and in keys; and the mixer."""
    if plan.in_registers:
        return no_place, no_place, block_row_mixer(plan)
    return query_place, key_place, mixer(plan)


@family(plans)
def kernel(plan: Plan) -> Kernel:
    """The kernel: block (part of the positions, rows of a head of keys, head of keys of a sequence)."""
    step, stages, by_rows, options, width, ahead = (
        plan.positions, plan.stages, plan.by_rows, plan.options, plan.width, plan.ahead
    )  # fmt: skip
    pitch_q, pitch_k = plan.pitch(plan.width), plan.row_pitch(plan.k, plan.width)
    pitch_v = pitch_k if plan.shared else plan.row_pitch(plan.v, plan.width_v)
    sums, scores = plan.width_v // 2, plan.span // 2
    find, fetch, load_queries, make, place = (
        block_finder(plan.rows, step), fetcher(plan), query_loader(plan), stepper(plan), placer(plan.rows),
    )  # fmt: skip
    (place_query, place_key, mix), find_keys, find_values = (
        lane_products(plan),
        rows_finder(0),
        rows_finder(3),
    )
    change, weigh, shrink = changer(plan), weights_maker(plan), shrinker(plan)
    write, base, clear, meet = writer(plan), ptx.shared_base, clearer(sums // 8), meeting(plan)
    wait, float_of, take_turn = ptx.wait_for_all_but(ahead - 1), ptx.float_of, dependent_launch.take_turn

    def attend(addresses: Any, strides: Any, sizes: Any, scale: Any, cap: Any) -> None:
        take_turn()
        (warp, lane), at, (unit, start, length) = warp_and_lane(), base(), place(addresses, sizes)
        g, t = g_and_t(lane)
        count, seen, end, first, last = find(sizes, length, start)
        keys, values = (
            find_keys(addresses[1], strides, sizes, unit), find_values(addresses[2], strides, sizes, unit)
        )  # fmt: skip
        warp_row = warp * uint32(EDGE)  # first row or position of the warp
        offset_row = uint32(0) if by_rows else warp_row
        rank = uint32(cuda.threadIdx.x) if by_rows else lane
        for i in range(ahead):
            fetch(at, uint32(i), keys, values, strides, first + int32(i), last, end, offset_row, rank)
        load_queries(at, queries_of(addresses, sizes, start, width, unit), sizes[6], count)
        if not by_rows:
            cuda.syncthreads()  # queries are there

        begins, ends, places = (
            cuda.local.array(2, int32),
            cuda.local.array(2, int32),
            cuda.local.array(3, int32),
        )
        numbers, apart, mask = cuda.local.array(4, float32), cuda.local.array(2, uint64), uint64(0)
        look(begins, ends, start + g + warp_row - offset_row, 8, sizes, length)
        if options:
            numbers[0], numbers[1] = float_of(scale), float_of(cap)
            row = start + g + warp_row - offset_row
            mask = read_options(numbers, places, apart, row, 8, addresses, strides, sizes, length)
        factor = LOG2_E if options else ptx.mul(float_of(scale), LOG2_E)
        tops, totals, ratios = (
            cuda.local.array(2, float32),
            cuda.local.array(2, float32),
            cuda.local.array(2, float32),
        )
        o, s = cuda.local.array(sums, float32), cuda.local.array(scores, float32)
        clear(0, o)
        for r in range(2):
            tops[r], totals[r] = NEVER, float32(0)
        q_at = at + place_query(lane, pitch_q) + (warp_row - offset_row) * uint32(pitch_q)
        k_at = at + place_key(lane, pitch_k) + offset_row * uint32(pitch_k)
        v_at = at + place_query(lane, pitch_v) + offset_row * uint32(pitch_v)
        stage = uint32(0)
        for tile in range(first, last):
            wait()
            meet()
            v_offset = make(
                s, at, q_at, k_at, stage, keys, values, strides, tile, last, end, offset_row, rank, sizes[10]
            )
            origin, column = tile * int32(step), int32(t) * int32(2) + int32(offset_row)
            if options:
                change(0, s, origin + column, places, numbers, mask, apart)
            if weigh(s, origin, column, seen, begins, ends, factor, tops, totals, ratios):
                shrink(0, o, ratios)
            mix(s, v_at + v_offset, o)
            stage = stage + uint32(1) if stage + uint32(1) < uint32(stages) else uint32(0)
        write(o, tops, totals, start, count, addresses, sizes)

    return Kernel(
        f"attention of {plan}", attend, ADDRESSES, STRIDES, SIZES, uint32, uint32, threads=plan.threads,
        blocks=plan.blocks, shared=plan.shared_bytes, least=LEAST, early=True,
    )  # fmt: skip
