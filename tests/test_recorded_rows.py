"""Templates of recorded products: for other rows and weights they say what a recording of those says."""

from __future__ import annotations

import gc
import threading
import weakref
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")

from at_once import at_once

import ggmlq as gq
from ggmlq.base.slots import Rows, Slot, all_following, following, labelled, rows_of
from ggmlq.cuda.driver import recorded, submit, tensor_maps
from ggmlq.cuda.driver.launch import RECORDING, Kernel, Launch
from ggmlq.cuda.kernels.cost import mma as cost_mma
from ggmlq.cuda.kernels.cost.gemv import GemvSplit
from ggmlq.cuda.kernels.cost.mma import MmaSplit
from ggmlq.cuda.kernels.cost.warp_specialized import TILES
from ggmlq.cuda.kernels.gemv import launch as _gemv
from ggmlq.cuda.kernels.gemv.stages import TWO, SplitBlocks
from ggmlq.cuda.kernels.mma.kernel import TILES as MMA_TILES
from ggmlq.cuda.ladder.linear import r16_warp_specialized
from ggmlq.cuda.layouts import x_tiles
from ggmlq.cuda.layouts.pack import fragments_of
from ggmlq.dispatch import ladder
from ggmlq.dispatch.card import card_named
from ggmlq.dispatch.epilogue import PLAIN
from ggmlq.dispatch.problems import Linear
from ggmlq.ops import dry_run

CARDS = "NVIDIA H200", "NVIDIA A100-SXM4-80GB"
TYPES = "q4_0", "q8_0", "q4_K", "q5_K", "q6_K", "iq4_xs", "mxfp4", "q2_K", "iq3_s"
FLOATS = np.float32, np.float16, np.uint16  # the last are bits of bfloat16
ENDS = "", "bias", "residual", "bias, residual", "silu", "gelu"


@pytest.fixture(params=CARDS)
def card(request):
    """A card on paper, whose driver is told nothing; maps of matrices have words that tell them apart."""
    numbers = {}

    def load(kernel, index):
        return (
            SimpleNamespace(ptr=numbers.setdefault(kernel.name, len(numbers) + 1)),
            kernel.shared,
            kernel.early,
        )

    def call(kernel, grid, block, *arguments, cluster=1, max_blocks=0):
        if RECORDING.launches is not None:
            RECORDING.launches.append(Launch(kernel, grid, block, arguments, cluster, max_blocks))

    card = card_named("a card", request.param)
    with dry_run.on_paper(card), pytest.MonkeyPatch.context() as patch:  # which is undone first
        patch.setattr(Kernel, "_load", load)
        patch.setattr(Kernel, "__call__", call)
        patch.setattr(submit, "driver_launch", lambda: lambda *places: 0)
        patch.setattr(tensor_maps, "words_behind_address", words_of)
        patch.setattr(dry_run._Cupy.cuda, "alloc", lambda size: SimpleNamespace(ptr=0), raising=False)
        yield card


def words_of(box):
    return tuple(box.rows * i + box.columns for i in range(tensor_maps.SIZE // 8 - 1))


class Case(NamedTuple):
    """A product without its rows."""

    fmt: object
    n: int
    k: int
    x: type
    y: type
    end: str

    def weights(self):
        return dry_run.weights(self.fmt, self.n, self.k)

    def record(self, rung, q, m):
        """The template of a rung for m rows; the weights, and what is prepared for these rows, are ready."""
        end, gate = PLAIN, self.end in ("silu", "gelu")
        if "bias" in self.end:
            end = end._replace(bias=aligned((self.n,), np.float32))
        if "residual" in self.end or gate:
            end = end._replace(residual=aligned((m, self.n), np.float32 if gate else np.float16))
        end = end._replace(gate=self.end if gate else None)
        for _ in range(3):
            x, y = aligned((m, self.k), self.x), aligned((m, self.n), self.y)
            if (template := recorded.record(rung.launch, x, q, y, end)) is not None:
                return template
        raise AssertionError("weights are prepared by then")


def aligned(shape, kind):
    """An array on paper at a multiple of 16 bytes, as CuPy's are."""
    size = int(np.prod(shape)) * np.dtype(kind).itemsize
    memory = dry_run.paper((size + 16,), np.uint8)
    first = -memory.ctypes.data % 16
    return memory[first : first + size].view(kind).reshape(shape)


def drawn(fresh, rung, x):
    """A product that a rung takes; one that does not round its sums has no end but these."""
    n = int(fresh.choice([1024, 4096, 14336, 2 * fresh.integers(32, 3000)]))
    k = 256 * int(fresh.choice([4, 16, fresh.integers(1, 40)]))
    y = FLOATS[fresh.integers(3)]
    end = ENDS[fresh.integers(len(ENDS) if rung.gates else 4)]
    if not rung.ends:
        y, end = np.float32, ""
    return Case(gq.formats[str(fresh.choice(TYPES))], n, k, x, y, end)


def said(launches):
    """Facts for the driver: words with grids and clusters, slots, functions; bytes of the workspace."""
    prepared = launches.prepared
    functions = [facts[:3] for facts in prepared.launches]
    return prepared.words.tolist(), prepared.slots, functions, launches.workspace


def rungs():
    return [rung for rung in ladder.rungs("linear", "cuda") if rung.repeats]


def takes(rung, case, card, rows):
    facts = case.fmt, rows, case.n, case.k, case.x is not np.float32
    return rung.refuses(Linear(*facts, device="cuda", card=card)) is None


def test_each_row_of_a_bucket_has_its_own_words(card, fresh):
    """A template of any row of a bucket, filled in for any other and for other weights, is the recording of
    those; or it does not serve them.
    """
    served = 0
    for rung in rungs():
        for x in FLOATS:
            case, m = drawn(fresh, rung, x), round(2 ** fresh.uniform(0, 5 if "gemv" in rung.name else 12))
            rows = [r for r in recorded.bucket(m) if takes(rung, case, card, r)]
            q, other = case.weights(), case.weights()
            for weights in (q, other):
                for r in rows:
                    case.record(rung, weights, r)
            own = {(r, i): case.record(rung, w, r) for r in rows for i, w in enumerate((q, other))}
            for (r, i), template in own.items():
                assert r in template.rows
                for s in recorded.bucket(m):
                    for j, weights in enumerate((q, other)):
                        launches = template.launches(weights, s)
                        assert (launches is not None) is (s in template.rows)
                        if launches is not None:
                            want = own[s, j]
                            assert want.rows == template.rows, (rung.name, case, r, s)
                            assert said(launches) == said(want.launches(weights, s)), (rung.name, case, r, s)
                            served += (r, i) != (s, j)
    assert served


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("card", CARDS[:1], indirect=True)
def test_each_tile(tile, kind, card, fresh):
    """The estimate chooses few of them: here each makes its x_tiles, or reads x as it lies."""
    rung = next(rung for rung in rungs() if rung.name == "cuda:warp_specialized")
    case = Case(gq.formats["q4_K"], 4096, 2048, kind, np.float16, "")
    named = SimpleNamespace(launch=lambda *a, **more: rung.launch(*a, tile=tile, **more))
    first = recorded.bucket(int(fresh.integers(1, 600)))
    q = case.weights()
    for _ in range(2):
        for r in first:
            case.record(named, q, r)
    own = {r: case.record(named, q, r) for r in first}
    for template in own.values():
        for r in template.rows:
            assert said(template.launches(q, r)) == said(own[r].launches(q, r))


# By rung: the function that decides, the place of a fact that says how, and two ways.
WAYS = {
    "cuda:gemv": (_gemv, "plan_for", -1, [GemvSplit(TWO, SplitBlocks(1, most)) for most in (1, 2)]),
    "cuda:mma_bf16": (cost_mma, "plan_tiles", -1, [MmaSplit(MMA_TILES[0], s) for s in (1, 2)]),
    "cuda:warp_specialized": (r16_warp_specialized, "plan_for", -1, TILES[:2]),
}


@pytest.mark.parametrize("card", CARDS[:1], indirect=True)
@pytest.mark.parametrize("name", WAYS)
def test_what_a_rung_decides_parts_a_bucket(name, card, monkeypatch):
    """Its plan is another one from 13 rows on."""
    owner, word, place, ways = WAYS[name]
    decide = getattr(owner, word)

    def parted(m, *facts):
        facts = [*facts]
        facts[place] = ways[m > 12]
        return decide(m, *facts)

    monkeypatch.setattr(owner, word, parted)
    rung = next(rung for rung in rungs() if rung.name == name)
    case = Case(gq.formats["q4_0"], 1024, 1024, np.float16, np.float16 if rung.ends else np.float32, "")
    q = case.weights()
    assert [case.record(rung, q, m).rows for m in (9, 12)] == [range(9, 13)] * 2
    assert [case.record(rung, q, m).rows for m in (13, 16)] == [range(13, 17)] * 2


def test_a_limit_of_blocks_follows_from_the_rows(card):
    """The kernel that makes x_tiles spreads few blocks evenly: here one or two of them from row to row."""
    steps = 64 * card.multiprocessors // 12 + 1
    case = Case(gq.formats["q4_0"], 16, 64 * steps, np.float16, np.float32, "")
    q, own = case.weights(), SimpleNamespace()
    own.launch = lambda x, q, out: x_tiles.x_tiles_of(x, steps, 16, recorded.between((1,), "u4"), evenly=True)
    fragments_of(q)
    templates = {m: case.record(own, q, m) for m in range(9, 17)}
    assert len({said(templates[m].launches(q, m))[0][3] for m in templates}) == 2
    for template in templates.values():
        for m in range(9, 17):
            assert said(template.launches(q, m)) == said(templates[m].launches(q, m))


def test_decisions_that_differ_part_a_bucket(card):
    """A rung that does one thing up to 12 rows and another above."""

    def few(m, most):
        return m <= most

    def launch(x, q, out):
        recorded.decided(few, rows_of(x), 12)
        rung.launch(x, q, out)

    rung = next(rung for rung in rungs() if rung.name == "cuda:mma_bf16")
    case = Case(gq.formats["q4_0"], 1024, 1024, np.float16, np.float16, "")
    q, own = case.weights(), SimpleNamespace(launch=launch)
    served = {m: case.record(own, q, m).rows for m in range(9, 17)}
    assert {m: rows for m, rows in served.items() if m <= 12} == dict.fromkeys(range(9, 13), range(9, 13))
    assert {m: rows for m, rows in served.items() if m > 12} == dict.fromkeys(range(13, 17), range(13, 17))


def test_buckets():
    assert [recorded.bucket(m) for m in (0, 1, 2)] == [range(1), range(1, 2), range(2, 3)]
    assert [recorded.bucket(m) for m in (3, 8, 9)] == [range(3, 5), range(5, 9), range(9, 17)]
    for m in range(1, 300):
        rows = recorded.bucket(m)
        assert m in rows
        assert all(recorded.bucket(r) == rows for r in rows)
        assert -(-rows[0] // 8) == -(-rows[-1] // 8)


def test_what_a_template_serves(card):
    """Its rows, its type and its shape; weights that nobody has used yet are prepared."""
    rung = next(rung for rung in rungs() if rung.name == "cuda:mma_bf16")
    case = Case(gq.formats["q4_0"], 1024, 1024, np.float16, np.float16, "")
    q = case.weights()
    assert recorded.record(rung.launch, aligned((20, 1024), "e"), q, aligned((20, 1024), "e")) is None
    template = case.record(rung, q, 20)
    assert template.rows == range(17, 25)
    new = case.weights()
    launches = template.launches(new, 24)
    assert fragments_of(new).ctypes.data in launches.prepared.words.tolist()
    assert fragments_of(q).ctypes.data not in launches.prepared.words.tolist()
    assert template.launches(new, 16) is template.launches(new, 25) is None
    assert template.launches(case._replace(n=1040).weights(), 20) is None
    assert template.launches(case._replace(fmt=gq.formats["q8_0"]).weights(), 20) is None


def test_launches_keep_their_memory_and_templates_none(card):
    rung = next(rung for rung in rungs() if rung.name == "cuda:mma_bf16")
    case = Case(gq.formats["q4_0"], 1024, 1024, np.float16, np.float16, "")
    q, new = case.weights(), case.weights()
    template = case.record(rung, q, 20)
    launches, gone = template.launches(new, 18), [weakref.ref(fragments_of(each)) for each in (q, new)]
    del q, new
    gc.collect()
    assert [ref() is None for ref in gone] == [True, False]
    del launches
    gc.collect()
    assert gone[1]() is None
    assert template.launches(case.weights(), 20) is not None


def test_threads_share_launches(card, monkeypatch):
    """Each call's words are its own."""
    found = []

    def driver(shape_at, function, pointers_at, extra):
        words = (submit.ctypes.c_void_p * 5).from_address(pointers_at)
        found.append(tuple(submit.ctypes.c_uint64.from_address(at).value for at in words[1:4:2]))
        return 0

    monkeypatch.setattr(submit, "driver_launch", lambda: driver)
    rung = next(rung for rung in rungs() if rung.name == "cuda:gemv")
    case = Case(gq.formats["q4_0"], 1024, 1024, np.float16, np.float16, "")
    q = case.weights()
    launches, begin = case.record(rung, q, 5).launches(q, 7), threading.Barrier(6)

    def work(i):
        begin.wait()
        for j in range(200):
            launches(1000 * i + j, 1000 * i + j + 1, 0)

    at_once(work, 6)
    assert sorted(found) == [(1000 * i + j, 1000 * i + j + 1) for i in range(6) for j in range(200)]


def test_numbers_that_follow_from_rows():
    rows = Rows(12)
    third = following(following(rows, lambda m: -(-m // 8)), lambda eights: 10 * eights)
    assert (third, type(third), third.of(17)) == (20, Rows, 30)
    assert type(rows + 1) is type(rows * 2) is int
    assert following(12, lambda m: -(-m // 8)) == 2
    pair = all_following(following(rows, lambda m: 2 * m), lambda twice: (twice, twice + 1))
    assert [(each, each.of(5)) for each in pair] == [(24, 10), (25, 11)]
    assert all_following(3, lambda m: (m, -m)) == (3, -3)


def test_rows_of_labelled_arrays():
    x = np.zeros((12, 4), np.float32)
    view = labelled(x, Slot(0), Rows(12))
    assert type(rows_of(view)) is type(rows_of(view.view(np.uint16))) is Rows
    assert type(rows_of(x)) is type(rows_of(labelled(x, Slot(0)))) is int
    with pytest.raises(AssertionError, match="other rows"):
        rows_of(view[1:])
