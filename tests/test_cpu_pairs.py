"""Products of 8-bit floats by the dot product of bfloat16: against the oracle, and the same bits always."""

from __future__ import annotations

import math

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.base.threads import at_most
from ggmlq.codes.tiling import tiling
from ggmlq.cpu import choice
from ggmlq.cpu.amx import permission
from ggmlq.cpu.codes8 import float_layout, float_multiply
from ggmlq.cpu.codes8.float_layout import ALONG, LINE, LONG, PORTION, STEP, cut_of
from ggmlq.cpu.machine import features, recorded, served
from ggmlq.cpu.machine.features import compiled_for
from ggmlq.cpu.machine.levels import LEVELS
from ggmlq.cpu.scaled_linear import r6_pairs
from ggmlq.dispatch import ladder
from ggmlq.dispatch.ladder import choose, explain
from ggmlq.dispatch.problems import Operand, ScaledLinear
from ggmlq.errors import UnsupportedError
from ggmlq.store.origin import Origin
from ggmlq.store.store import Store

NAMES = ("e4m3", "e5m2")
HEIGHTS, WIDTHS = (None, 1, 3, 16, 128), (None, 16, 17, 32, 64, 100, 128, 500, 600, 1024)
EDGES = (1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 500, 512, 513, 1000, 2100, 4096, 9000)
pairs = pytest.mark.skipif(float_multiply.refused() is not None, reason=str(float_multiply.refused()))


def operand(fresh, rows, k, tile, name=None, finite=True):
    """Any codes in any order of rows, and scales of any strides."""
    code = gq.codes[name or str(fresh.choice(NAMES))]
    codes = fresh.integers(0, 256, (rows, k), np.uint8)
    if finite:
        codes[(codes & 0x7F) > code.largest] = 0
    if fresh.random() < 0.2:
        codes = np.ascontiguousarray(codes[::-1])[::-1]
    scales = fresh.uniform(0.01, 0.1, tiling(tile, rows, k).shape).astype(np.float32)
    if fresh.random() < 0.3:
        scales = np.asfortranarray(scales)
    return gq.ScaledArray(codes, scales, code, tile)


def two(fresh, m, n, k, **more):
    """Operands whose tiles fit along K."""
    while True:
        tiles = [(HEIGHTS[fresh.integers(len(HEIGHTS))], WIDTHS[fresh.integers(len(WIDTHS))]) for _ in "xw"]
        c = sorted(tiling(tile, 1, k).c for tile in tiles)
        if c[1] % c[0] == 0 or c[1] >= k:
            return [operand(fresh, rows, k, t, **more) for rows, t in zip((m, n), tiles, strict=True)]


def product(x, w, **more):
    return gq.scaled_linear(x, w, kernel="cpu:pairs", **more)


@pytest.fixture
def forgetful():
    """No rung is remembered before or after."""
    ladder.forget_choices()
    yield
    ladder.forget_choices()


@pytest.fixture
def portions(monkeypatch):
    """Sets the bytes of a piece of weights."""
    return lambda nbytes: monkeypatch.setattr(float_layout, "PORTION", nbytes)


# --- numbers ------------------------------------------------------------------------------------


@pairs
def test_near_the_oracle(fresh, rounds, portions):
    """All tilings, K and N that fill nothing up, portions of part of K; nothing written around the result."""
    for _ in rounds(3):
        m, n, k = int(fresh.integers(1, 40)), int(fresh.integers(1, 80)), int(fresh.choice(EDGES))
        x, w = two(fresh, m, n, k)
        portions(int(fresh.choice([1 << 10, 64 << 10, PORTION])))
        out = np.full((m + 2, n), 7, np.float32)
        y = product(x, w, out=out[1:-1])
        assert (out[[0, -1]] == 7).all()
        oracle = gq.reference.scaled_linear(x, w)
        size = np.abs(x.dequantize()).astype(np.float64) @ np.abs(w.dequantize()).T  # of what is added up
        assert (np.abs(y - oracle) <= 1e-6 * size).all(), (x, w)


@pairs
@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow")
@pytest.mark.parametrize("x_name", NAMES)
@pytest.mark.parametrize("w_name", NAMES)
def test_every_code_times_every_code(x_name, w_name, fresh):
    """Products of two codes are float32, so that they come out as they are, NaN and infinities too."""
    k, column = 40, int(fresh.integers(40))
    made = []
    for name in (x_name, w_name):
        codes = np.zeros((256, k), np.uint8)
        codes[:, column] = np.arange(256)
        made.append(gq.ScaledArray(codes, np.float32(1), name, (None, None)))
    want = np.outer(gq.codes[x_name].table, gq.codes[w_name].table)
    np.testing.assert_array_equal(product(*made), want)


@pairs
@pytest.mark.filterwarnings("ignore:invalid value")
def test_nan_and_infinities_where_the_oracle_has_them(fresh, rounds):
    for _ in rounds(2):
        x, w = two(fresh, int(fresh.choice([5, 19])), 37, int(fresh.choice([33, 130, 700])), finite=False)
        x.codes[3:] &= 0x3F  # rows without any
        y, oracle = product(x, w), gq.reference.scaled_linear(x, w)
        for same in (np.isnan, np.isposinf, np.isneginf):
            np.testing.assert_array_equal(same(y), same(oracle))
        x, w = (gq.ScaledArray(s.codes & 0x3F, s.scales, s.code, s.tile) for s in (x, w))
        assert np.isfinite(product(x, w)).all()


@pairs
def test_the_same_bits_for_any_threads_rows_and_portions(fresh, portions):
    for k, c in ((3000, None), (1024, 128), (700, 100)):
        x, w = operand(fresh, 31, k, (1, c)), operand(fresh, 170, k, (1, c))
        whole = product(x, w)
        for threads, m, nbytes in ((1, 31, PORTION), (2, 29, 8 << 10), (2, 9, PORTION), (1, 14, 64 << 10)):
            portions(nbytes)
            with at_most(threads):
                first = int(fresh.integers(31 - m + 1))
                assert (product(x[first : first + m], w) == whole[first : first + m]).all(), (k, m, threads)
        assert (product(x, w[16:57]) == whole[:, 16:57]).all()
        few = product(x[:ALONG], w)  # which are added up in another order
        for threads, m in ((1, 7), (2, 3), (2, 1)):
            with at_most(threads):
                first = int(fresh.integers(ALONG - m + 1))
                assert (product(x[first : first + m], w) == few[first : first + m]).all(), (k, m, threads)
        assert (product(x[:ALONG], w[3:57]) == few[:, 3:57]).all()


@pairs
@pytest.mark.parametrize("k", [0, 1])
def test_axes_without_length(k):
    for m, n in ((0, 3), (3, 0), (2, 5)):
        x, w = (gq.quantize_scaled(np.zeros((rows, k)), "e4m3", (1, None)) for rows in (m, n))
        assert product(x, w).tolist() == [[0] * n] * m


@pairs
def test_a_small_product_that_comes_again(fresh, monkeypatch):
    ran = []
    launches = recorded.RecordedLaunches
    monkeypatch.setattr(launches, "__call__", counted(ran, launches.__call__))
    w = gq.quantize_scaled(fresh.standard_normal((40, 300)), "e4m3", (1, 100))
    for _ in range(3):
        x = gq.quantize_scaled(fresh.standard_normal((5, 300)), "e5m2", (1, 100))
        oracle = gq.reference.scaled_linear(x, w)
        assert np.abs(product(x, w) - oracle).mean() <= 1e-6 * np.abs(oracle).mean()
    assert len(ran) == 2


def counted(found, run):
    def call(plan, *given):
        found.append(plan)
        run(plan, *given)

    return call


# --- how K is cut -------------------------------------------------------------------------------


def test_how_k_is_cut(fresh):
    for _ in range(300):
        k, c = int(fresh.integers(1, 40000)), int(fresh.integers(1, 40000))
        cut = cut_of(ScaledLinear(Operand("e4m3", 1, c), Operand("e4m3", 1, c), 1, 1, k, device="cpu"))
        assert cut.groups == math.ceil(k / cut.group)
        assert cut.run * cut.runs >= cut.group > cut.run * (cut.runs - 1)
        assert cut.width % STEP == 0
        assert cut.run <= cut.width <= LONG
        assert cut.width <= cut.span <= LONG
        assert cut.groups == 1 or cut.width in (cut.span, cut.run)
        lines, rest = divmod(cut.pitch, LINE)
        assert rest == 0
        assert lines % 2
        assert cut.pitch >= 2 * cut.width * cut.runs * cut.groups
        piece = 32 * cut.width * cut.together * cut.near
        assert piece <= PORTION or (cut.together, cut.near) == (1, 2)
        assert cut.near % 2 == 0


# --- who takes it -------------------------------------------------------------------------------


def problem(x, w, m, c=128, accumulate=None):
    return ScaledLinear(Operand(x, 1, c), Operand(w, c, c), m, 64, 256, accumulate, device="cpu")


def test_what_it_refuses_in_words(monkeypatch, forgetful, matrix_unit):
    matrix_unit(False)
    assert "8-bit floats" in r6_pairs.refuses(problem("int8", "int8", 8))
    assert "scales change every 8" in r6_pairs.refuses(problem("e4m3", "e4m3", 8, 8))
    monkeypatch.setattr(float_multiply, "compiled_for", lambda: compiled_for() - {*float_multiply.NEEDED})
    reason = r6_pairs.refuses(problem("e4m3", "e4m3", 8))
    assert "bfloat16" in reason or "has no avx512bf16 and no avx512vbmi" in reason
    with pytest.raises(UnsupportedError, match=r"bfloat16|avx512bf16"):
        product(*(gq.quantize_scaled(np.ones((3, 64)), "e4m3", (1, None)) for _ in "xw"))
    assert choose(problem("e4m3", "e4m3", 17)).name == "cpu:dequant"


@pairs
def test_auto_takes_it_where_its_code_is_there(monkeypatch, forgetful, matrix_unit):
    matrix_unit(False)
    on_a_cpu(monkeypatch, "znver4")
    monkeypatch.setattr(float_multiply, "at_hand", lambda problem: True)
    assert {choose(problem("e4m3", "e5m2", m)).name for m in (1, 2, 8, 9, 17, 512)} == {"cpu:pairs"}
    assert choose(problem("e4m3", "e5m2", 64, 8)).name == "cpu:dequant"
    assert choose(problem("int8", "int8", 64)).name == "cpu:tiles"
    ladder.forget_choices()
    monkeypatch.setattr(float_multiply, "at_hand", lambda problem: False)
    assert explain(problem("e4m3", "e5m2", 16)) == (by_name("cpu:lines"), choice.PACKED)
    assert explain(problem("e4m3", "e5m2", 17)) == (by_name("cpu:dequant"), choice.PACKED)
    assert choose(problem("e4m3", "e5m2", 17), "cpu:pairs").name == "cpu:pairs"


@pairs
def test_auto_leaves_it_where_it_was_not_measured(monkeypatch, forgetful, matrix_unit):
    matrix_unit(False)
    on_a_cpu(monkeypatch, "sapphirerapids")
    monkeypatch.setattr(float_multiply, "at_hand", lambda problem: True)
    assert explain(problem("e4m3", "e5m2", 17)) == (by_name("cpu:dequant"), choice.USUAL)
    assert choose(problem("e4m3", "e5m2", 16)).name == "cpu:lines"
    assert choose(problem("e4m3", "e5m2", 17), "cpu:pairs").name == "cpu:pairs"


@pairs
def test_auto_takes_the_matrix_unit_instead_of_it(monkeypatch, forgetful, matrix_unit):
    matrix_unit(True)
    on_a_cpu(monkeypatch, "sapphirerapids")
    assert {choose(problem("e4m3", "e5m2", m)).name for m in (16, 17, 512)} == {choice.MATRIX}
    assert explain(problem("e4m3", "e4m3", 64)) == (by_name(choice.MATRIX), choice.MATRIX_FIRST)
    assert choose(problem("e4m3", "e5m2", 15)).name == "cpu:lines"  # less than a tile
    assert choose(problem("e4m3", "e5m2", 64, 8)).name == "cpu:dequant"  # groups of no whole tiles


def on_a_cpu(monkeypatch, name):
    monkeypatch.setattr(features, "cpu_name", lambda: name)


def by_name(name):
    return next(rung for rung in ladder.rungs("scaled_linear", "cpu") if rung.name == name)


@pairs
def test_who_compiles_everything_compiles_it_too(monkeypatch):
    monkeypatch.setattr(served, "level", lambda: None)
    assert float_multiply.at_hand(problem("e4m3", "e4m3", 64))


# --- code that comes with the package -----------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "needed"),
    [
        ("ggmlq.cpu.codes8.float_product.sweep", float_multiply.NEEDED),
        ("ggmlq.cpu.amx.product.multiplier", permission.NEEDED),
    ],
)
def test_two_rooms_use_more_than_their_level(family, needed):
    place = family.partition(".cpu.")[2]
    for level in LEVELS:
        assert level.of("ggmlq.cpu.codes8.int_product.sweep") is level
        more = next((extra for start, extra in level.more.items() if place.startswith(start)), set())
        assert level.of(family).features - level.features <= more
        assert level.of(family) is level or not level.of(family).more
    wider = [level.folder for level in LEVELS if {*needed} <= level.of(family).needed]
    assert wider == ["avx512-vbmi"]


def test_no_cpu_gets_instructions_that_it_has_not(monkeypatch):
    level = LEVELS[0]
    monkeypatch.setattr(served, "level", lambda: level)
    monkeypatch.setattr(Store, "packaged", lambda *arguments: pytest.fail(f"{arguments} was looked up"))
    monkeypatch.setattr(served, "compiled_for", lambda: level.needed)
    assert served.loaded(Origin("ggmlq.cpu.codes8.float_product.sweep", ("e4m3",))) is None
    assert served.loaded(Origin("ggmlq.cpu.amx.product.multiplier", ())) is None
