"""Products on the matrix unit: emulated, so that all of the kernel runs wherever AVX-512 is; and on it."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from block_cases import weights
from emulated_amx import Emulated
from llvmlite.ir import VoidType
from numba import njit, types
from numba.extending import intrinsic
from right import assert_right

import ggmlq as gq
from ggmlq.arrays.rows import rows
from ggmlq.base.threads import at_most
from ggmlq.codes.tiling import tiling
from ggmlq.cpu.amx import permission
from ggmlq.cpu.amx.multiply import multiply
from ggmlq.cpu.amx.product import LARGE
from ggmlq.cpu.amx.unit import POINTER, Unit, shapes
from ggmlq.cpu.attention import call as attention
from ggmlq.cpu.attention import drive
from ggmlq.cpu.codes8 import amx_multiply
from ggmlq.cpu.linear import r7_amx
from ggmlq.cpu.machine.features import compiled_for
from ggmlq.cpu.machine.simd import Simd
from ggmlq.cpu.machine.target import AVX512, target
from ggmlq.cpu.panels import multiply as panel_products
from ggmlq.cpu.panels.layout import layout_of
from ggmlq.cpu.scaled_linear import r5_amx
from ggmlq.dispatch.ladder import choose, rungs
from ggmlq.dispatch.problems import Linear, Operand, ScaledLinear
from ggmlq.formats import FORMATS
from ggmlq.testing.models import tiny_model

KEPT = [fmt.name for fmt in FORMATS.values() if layout_of(fmt)]
# One of each way that a panel holds weights: by bits, levels, scales of scales, offsets, groups of 16.
KINDS = ("q4_0", "q5_1", "q6_K", "q8_0", "mxfp4", "q4_K", "nvfp4", "tq2_0")
vectors = pytest.mark.skipif(
    target() is not AVX512 or "avx512bf16" not in compiled_for(), reason="needs AVX-512 with bfloat16"
)
on_the_unit = pytest.mark.skipif(permission.refused() is not None, reason=str(permission.refused()))


def units():
    """The unit, where there is one, and the emulated one."""
    return [pytest.param(Emulated, marks=vectors), pytest.param(Unit, marks=on_the_unit)]


@pytest.fixture
def rung():
    return next(rung for rung in rungs("linear", "cpu") if rung.name == "cpu:amx")


def product(x, q, unit):
    out = np.full((len(x), q.shape[0]), np.nan, np.float32)
    multiply(x, q, out, unit)
    return out


@pytest.mark.parametrize("unit", units())
@pytest.mark.parametrize("name", KINDS)
def test_right_in_its_arithmetic(name, unit, rung):
    """Rows and columns that fill no tile, K of more than one chunk and of a part of one."""
    for n, k, m in ((70, 768, 35), (19, 256, 1), (33, 1280, 16)):
        q, x = weights(name, n, k, seed=n), rows("normal", m, k, seed=m)
        y = product(x, q, unit)
        assert_right(y, x, q, rung)
        want, bound = (f(x, q, "bf16") for f in (gq.reference.linear, gq.reference.bound))
        assert (np.abs(y - want) <= bound)[np.isfinite(want)].all()


@on_the_unit
@pytest.mark.parametrize("name", KEPT)
def test_every_format_on_the_unit(name, rung):
    q, x = weights(name, 70, 2048, seed=3), rows("normal", 300, 2048, seed=4)
    assert_right(gq.linear(x, q, kernel="cpu:amx"), x, q, rung)


@pytest.mark.parametrize("unit", units())
def test_the_same_bits_for_any_number_of_rows_and_threads(unit):
    q, x = weights("q4_0", 100, 1536, seed=5), rows("normal", 600, 1536, seed=6)
    whole = product(x, q, unit)
    for m, threads in ((1, 1), (31, 2), (129, 2), (513, 1)):
        with at_most(threads):
            assert np.array_equal(product(x[:m], q, unit), whole[:m])


@pytest.mark.parametrize("unit", units())
def test_a_result_that_passes_by_the_caches(unit):
    """Rows that begin anywhere in a line; a last pair of panels that is not whole; nothing beside it."""
    q, x = weights("q4_0", 3601, 64, seed=13), rows("normal", 300, 64, seed=14)
    memory = np.full(300 * 3601 + 40, 7, np.float32)
    out = memory[5 : 5 + 300 * 3601].reshape(300, 3601)
    assert out.size > LARGE
    multiply(x, q, out, unit)
    assert np.array_equal(out[250:283], product(x[250:283], q, unit))
    assert np.array_equal(out[:33], product(x[:33], q, unit))
    assert (memory[:5] == 7).all()
    assert (memory[5 + out.size :] == 7).all()


@pytest.mark.parametrize("unit", units())
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_16_bits_in_and_out(name, unit):
    """The bits of float32 in and out, rounded after; columns and rows that fill no tile."""
    kind = getattr(ml_dtypes, name, np.float16)
    q, x = weights("q4_0", 74, 256, seed=9), rows("normal", 40, 256, seed=10).astype(kind)
    want = product(x.astype(np.float32), q, unit).astype(kind)
    out = np.zeros((41, 74), want.dtype)
    multiply(x, q, out[:-1], unit)
    assert np.array_equal(out[:-1].view(np.uint16), want.view(np.uint16))
    assert not out[-1].view(np.uint16).any()
    if unit is Unit:
        y = gq.linear(x, q, kernel="cpu:amx", dtype=want.dtype)
        assert np.array_equal(y.view(np.uint16), want.view(np.uint16))


@on_the_unit
def test_the_emulation_is_the_unit_to_the_bit():
    for name in KINDS:
        q, x = weights(name, 40, 1024, seed=7), rows("normal", 40, 1024, seed=8)
        assert np.array_equal(product(x, q, Unit), product(x, q, Emulated))


@on_the_unit
def test_the_shapes_of_another_library_are_given_back():
    """As ggml does, which tells its shapes to a thread once."""
    theirs = bytearray(shapes())
    theirs[16], theirs[48] = 32, 8
    given = np.frombuffer(bytes(theirs), np.uint8).copy()
    found = np.zeros_like(given)
    q, x = weights("q4_0", 40, 512, seed=1), rows("normal", 40, 512, seed=2)
    with at_most(1):
        _shapes("ldtilecfg")(given.ctypes.data)
        product(x, q, Unit)
        _shapes("sttilecfg")(found.ctypes.data)
        assert bytes(found) == bytes(theirs)
        given[:] = 0
        _shapes("ldtilecfg")(given.ctypes.data)
        product(x, q, Unit)
        _shapes("sttilecfg")(found.ctypes.data)
    assert not found.any()


def _shapes(name):
    """Compiled: load shapes from an address, or store them there."""

    @intrinsic
    def do(typing, address):
        def emit(context, builder, signature, args):
            Simd(builder, AVX512).call(f"llvm.x86.{name}", VoidType(), builder.inttoptr(args[0], POINTER))
            return context.get_dummy_value()

        return types.void(types.int64), emit

    return njit(lambda address: do(address))  # noqa: PLW0108


@pytest.mark.parametrize("unit", units())
def test_infinite_activations(unit):
    q, x = weights("q4_0", 32, 256, seed=1), rows("normal", 3, 256, seed=1)
    x[1, 7], x[2, 9] = np.inf, np.nan
    y = product(x, q, unit)
    assert np.isfinite(y[0]).all()
    assert not np.isfinite(y[1:]).any()


@pytest.mark.parametrize("unit", units())
def test_the_largest_powers_as_scales(unit):
    """A power of two more in each scale, and so many less in the activations: the same sums."""
    q, x = weights("mxfp4", 32, 256, seed=11), np.float32(np.arange(5 * 256) % 7 - 3).reshape(5, 256)
    sums = []
    for power in (0, 118):
        raw = np.array(q.raw)
        raw[:, ::17] = 127 + power  # a block's first byte is its scale
        sums.append(
            product(
                x * np.float32(2.0**-power), gq.QuantArray.from_bytes(raw.tobytes(), "mxfp4", q.shape), unit
            )
        )
    assert np.isfinite(sums[0]).all()
    assert np.array_equal(*sums)


@pytest.mark.parametrize("unit", units())
def test_nothing_to_sum(unit):
    q = gq.QuantArray.from_bytes(b"", "q4_0", (3, 0))
    assert (product(np.zeros((2, 0), np.float32), q, unit) == 0).all()


def test_where_linux_or_the_cpu_refuses_others_serve(monkeypatch):
    monkeypatch.setattr(permission, "refused", lambda: "no")
    assert r7_amx.refuses(Linear(FORMATS["q4_0"], 512, 4096, 4096, device="cpu")) == "no"
    assert choose(Linear(FORMATS["iq2_s"], 512, 4096, 4096, device="cpu")).name != "cpu:amx"


@pytest.mark.parametrize("name", ["q4_0", "q4_K"])
def test_asking_ahead_changes_no_result(name, monkeypatch):
    """As it is done where there is such a unit; beyond the last panel too."""
    x = rows("normal", 1, 512, seed=1)
    found = []
    for far in (0, 4096, 1 << 40):
        monkeypatch.setattr(panel_products, "prefetch_distance", lambda far=far: far)
        found.append(gq.linear(x, weights(name, 35, 512, seed=2), kernel="cpu:panels"))
    assert all(np.array_equal(y, found[0]) for y in found)


# --- codes with scales beside them -----------------------------------------------------------


def scaled(fresh, rows, k, name, zeros):
    code = gq.codes[name]
    values = fresh.integers(int(code.min), int(code.max) + 1, (rows, k)).astype(code.dtype)
    scales = fresh.uniform(0.01, 0.1, (rows, 1)).astype(np.float32)
    points = fresh.integers(int(code.min), int(code.max) + 1, (rows, 1)).astype(np.int32) if zeros else None
    return gq.ScaledArray(values, scales, code, (1, None), points)


@pytest.mark.parametrize("unit", units())
@pytest.mark.parametrize("names", [("int8", "int8"), ("uint8", "int8_full"), ("int8", "uint8")])
@pytest.mark.parametrize("zeros", [False, True])
def test_codes_are_multiplied_to_the_bits_of_tiles(names, zeros, unit, fresh):
    for m, n, k in ((35, 70, 192), (16, 19, 64), (33, 130, 2304)):
        x, w = (scaled(fresh, rows, k, name, zeros) for rows, name in zip((m, n), names, strict=True))
        want = gq.scaled_linear(x, w, kernel="cpu:tiles")
        y = np.full((m, n), np.nan, np.float32)
        amx_multiply.integers(ScaledLinear.of(x, w), x, w, y, unit)
        assert np.array_equal(y, want)


@pytest.mark.parametrize("unit", units())
@pytest.mark.parametrize(
    ("name", "tiles"), [("e4m3", ((1, 128), (128, 128))), ("e5m2", ((1, None), (1, 32)))]
)
def test_floats_are_near_the_oracle(name, tiles, unit, fresh):
    """Groups of a whole chunk, of part of one and of many; rows and columns that fill no tile."""
    code = gq.codes[name]
    for m, n, k in ((35, 70, 1312), (16, 16, 128), (33, 19, 640)):
        x, w = (floats(fresh, rows, k, code, tile) for rows, tile in zip((m, n), tiles, strict=True))
        y = np.full((m + 1, n), 7, np.float32)
        amx_multiply.floats(ScaledLinear.of(x, w), x, w, y[:-1], unit)
        size = np.abs(x.dequantize()).astype(np.float64) @ np.abs(w.dequantize()).T
        assert (np.abs(y[:-1] - gq.reference.scaled_linear(x, w)) <= 1e-6 * size).all()
        assert (y[-1] == 7).all()


def floats(fresh, rows, k, code, tile):
    codes = fresh.integers(0, 256, (rows, k), np.uint8)
    codes[(codes & 0x7F) > code.largest] = 0
    scales = fresh.uniform(0.01, 0.1, tiling(tile, rows, k).shape).astype(np.float32)
    return gq.ScaledArray(codes, scales, code, tile)


@on_the_unit
def test_codes_go_to_the_unit_by_themselves(fresh):
    x, w = scaled(fresh, 600, 1024, "int8", False), scaled(fresh, 200, 1024, "int8", False)
    assert choose(ScaledLinear.of(x, w)).name == "cpu:amx"
    for threads in (1, 3):
        with at_most(threads):
            assert np.array_equal(gq.scaled_linear(x, w), gq.scaled_linear(x, w, kernel="cpu:tiles"))


@pytest.mark.parametrize(
    ("m", "k", "tile"),
    [(15, 64, (1, None)), (16, 100, (1, None)), (16, 256, (1, 128)), (16, 1 << 18, (1, None))],
)
def test_which_codes_it_takes(m, k, tile):
    operand = Operand("int8", tile[0], tile[1] or k)
    reason = r5_amx.refuses(ScaledLinear(operand, operand, m, 16, k, device="cpu"))
    assert reason.startswith("a tile is" if m < 16 else "it takes one scale")


# --- attention ------------------------------------------------------------------------------------


def heads(fresh, *shapes):
    return [fresh.standard_normal(shape, np.float32) for shape in shapes]


@pytest.mark.parametrize("unit", units())
def test_attention_in_bfloat16(unit, fresh, monkeypatch):
    """Rows that fill no tile and more than a unit; stretches that are merged; values behind the last."""
    whole, given = drive.attend, []
    monkeypatch.setattr(permission, "refused", lambda: None)
    monkeypatch.setattr(drive, "attend", lambda *args: given.append(args[-1]) or whole(*args[:-1], unit))
    q, k, v = heads(fresh, (2, 6, 47, 64), (2, 2, 1200, 64), (2, 2, 1200, 96))
    k, v = gq.quantize(k, "q8_0"), gq.quantize(v, "q5_1")
    with at_most(2):
        for options in ({"causal": True}, {"window": 300, "softcap": 5.0}, {"lengths": [1199, 130]}):
            y = gq.attention(q, k, v, arithmetic="bf16", **options)
            want, bound = (
                f(q, k, v, arithmetic="bf16", **options)
                for f in (gq.reference.attention, gq.reference.attention_bound)
            )
            assert (np.abs(y - want) <= bound).all(), options
            exact = gq.reference.attention(q, k, v, **options)
            assert gq.nmse(y, want) < 0.5 * gq.nmse(y, exact), options  # what float32 computes is not
        x = q[:1, :2, :33].copy()
        x[0, 0, 5] = np.nan
        y = gq.attention(x, k[:1], k[:1], arithmetic="bf16")[0]
    assert np.isnan(y[0, 5]).all()
    assert np.isfinite(np.delete(y[0], 5, 0)).all()
    assert np.isfinite(y[1]).all()
    assert given == [Unit] * 4


def test_which_attention_goes_to_the_unit(fresh, monkeypatch):
    """What names it, in kernel or arithmetic, and does not want rows to keep their bits."""
    units, shape = [], (1, 1, 40, 64)
    monkeypatch.setattr(permission, "refused", lambda: None)
    monkeypatch.setattr(drive, "attend", lambda *args: units.append(args[-1]))
    q, k = heads(fresh, (1, 2, 32, 64), shape)
    blocks, bits = gq.quantize(k, "q8_0"), k.astype(ml_dtypes.bfloat16)
    for keys, values, options, taken in (
        (blocks, bits, {}, False),
        (k, k, {"kernel": "cpu:amx"}, True),
        (blocks, bits, {"arithmetic": "bf16"}, True),
        (blocks, blocks, {"invariant": True}, False),
        (blocks, blocks, {"arithmetic": "f32"}, False),
    ):
        gq.attention(q, keys, values, **options)
        assert units.pop() is (Unit if taken else None), options
    with pytest.raises(gq.GGMLQError, match="rows keep their bits in 'cpu:rows' alone"):
        gq.attention(q, k, k, arithmetic="bf16", invariant=True)
    with pytest.raises(gq.GGMLQError, match="tiles hold 32 columns, and rows have 16"):
        gq.attention(q[..., :16], k[..., :16], k, kernel="cpu:amx")
    monkeypatch.setattr(permission, "refused", lambda: "no such unit")
    with pytest.raises(gq.GGMLQError, match="'cpu:amx' cannot be used: no such unit"):
        gq.attention(q, k, k, arithmetic="bf16")
    gq.attention(q, blocks, blocks)
    assert units.pop() is None


@pytest.mark.parametrize("unit", units())
def test_prompts_of_a_model_on_the_unit(unit, fresh, monkeypatch, tmp_path):
    """Rows of several units behind others in the cache, with fewer and with more threads than units."""
    model = gq.model.load(tiny_model(tmp_path / "tiny.gguf"))
    tokens, asked = fresh.integers(3, 200, 300), []
    want = {}
    for threads in (1, 2):
        for kind in (None, unit):
            monkeypatch.setattr(attention, "unit_for", lambda *facts, kind=kind: asked.append(facts) or kind)
            cache = model.cache(300)
            with at_most(threads):
                rows = [model.run(part, cache) for part in (tokens[:20], tokens[20:])]
            want[kind, threads] = np.concatenate(rows)
    assert {*asked} == {(2 * 20, 64, 64), (2 * 280, 64, 64)}
    for kind in (None, unit):
        assert np.array_equal(want[kind, 1], want[kind, 2])
    assert 0 < gq.nmse(want[unit, 1], want[None, 1]) < 1e-4


def test_which_prompts_go_to_the_unit(monkeypatch):
    """Those with many rows over a key, in columns that fill tiles, where there is a unit."""
    monkeypatch.setattr(permission, "refused", lambda: None)
    cases = (attention.LEAST_ROWS, 64, 96), (attention.LEAST_ROWS - 1, 64, 96), (1000, 80, 64)
    assert [attention.unit_for(*case) for case in cases] == [Unit, None, None]
    monkeypatch.setattr(permission, "refused", lambda: "no such unit")
    assert attention.unit_for(*cases[0]) is None
