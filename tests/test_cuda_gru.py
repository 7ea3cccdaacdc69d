"""GRUs in integers on a GPU: the oracle's codes on every rung; what rungs take without one."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import gru_cases as cases
import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")

from fake_cupy import put_gpu

import ggmlq as gq
from ggmlq.base.slots import Slot
from ggmlq.cuda.driver import submit
from ggmlq.cuda.driver.launch import Kernel, Launch
from ggmlq.cuda.intrinsics.language import types
from ggmlq.dispatch.card import Card
from ggmlq.dispatch.problems import Gru
from ggmlq.errors import DeviceError, NonFiniteError, ShapeError
from ggmlq.gru.cuda import r3_grid, r4_cluster
from ggmlq.gru.cuda.layout import TILED, padded_units
from ggmlq.gru.run import INTERMEDIATE

RUNGS = gq.kernels("gru", device="cuda")
NAMES = [rung.name for rung in RUNGS]
NARROW = {"W": {"bits": 5}, "h": {"bits": 6}, "z_pre": {"bits": 10}, "Wx": {"bits": 9}}
quiet = pytest.mark.filterwarnings("ignore::ggmlq.gru.SaturationWarning")  # h0 goes anywhere here


# --- without a GPU ------------------------------------------------------------------------------


def problem(units=256, widths="int8", narrow=True, bits=8, entries=256, capability=(9, 0), n=32, count=132):
    card = Card("a card", capability, count, 227 << 10)
    return Gru(widths, narrow, 100, n, 64, units, bits, entries, device="cuda", card=card)


def test_there_is_a_ladder():
    assert NAMES == ["cuda:graph", "cuda:grid", "cuda:cluster"]
    for rung in RUNGS[:1]:
        assert rung.refuses(problem(widths="other", narrow=False, bits=16, entries=1 << 16)) is None
    grid, cluster = (rung.refuses for rung in RUNGS[1:])
    for refuses in (grid, cluster):
        assert refuses(problem()) is None
        assert refuses(problem(widths="mixed")) is None
        assert "8 bits" in refuses(problem(narrow=False))
        assert "8 bits" in refuses(problem(bits=12))
        assert "1024 entries" in refuses(problem(entries=4096))
        assert "capability" in refuses(problem(capability=(7, 5)))
    assert "capability 9.0" in cluster(problem(capability=(8, 0)))
    assert "512 units" in cluster(problem(units=513))
    assert "2048 units" in grid(problem(units=2049))
    assert "64 multiprocessors" in grid(problem(units=1000, count=60))
    assert grid(problem(capability=(8, 0))) is None


def test_shapes_add_up():
    for module, clusters in ((r3_grid, False), (r4_cluster, True)):
        for padded, shapes in module.SHAPES.items():
            assert padded in TILED
            for shape in shapes:
                assert shape.columns == padded_units(padded) == padded
                assert shape.lane_pairs * shape.splits == 4 * shape.tiles
                assert shape.blocks * shape.groups * 16 == padded
                assert shape.threads <= 256
                assert shape.stage_offset % 16 == shape.sums_offset % 16 == shape.states_offset % 16 == 0
                if clusters:
                    assert shape.blocks <= 8
                    assert shape.pitch % 128 == 64
                    assert shape.shared <= 99 << 10
    fewest = r4_cluster.fewest_waves
    shapes = r4_cluster.SHAPES[256]
    assert [fewest(shapes, n, 132).rows for n in (1, 8, 128, 129, 256, 500, 5000)] == [
        8,
        8,
        8,
        16,
        16,
        32,
        32,
    ]


def test_a_grid_that_runs_together_and_tuples_of_arguments(monkeypatch):
    put_gpu(monkeypatch)
    found = []
    monkeypatch.setattr(submit, "driver_launch", lambda: lambda *given: found.append(given) or 0)
    mixed = types.Tuple((types.int32, types.uint64, types.int32))
    kernel = Kernel("nothing", lambda *_: None, types.uint64, mixed, threads=32, together=True)
    kernel._loaded[0] = SimpleNamespace(ptr=5), 0, False
    minus = (1 << 64) - 1
    kernel((8,), (32,), 7, (1, minus, 3))
    *_, attributes, count = submit.SHAPE.unpack(ctypes.string_at(found[0][0], submit.SHAPE.size))
    assert count == 1
    assert [*(ctypes.c_uint32 * 3).from_address(attributes)] == [2, 0, 1]
    pointers = (ctypes.c_void_p * 4).from_address(found[0][2])
    assert [ctypes.c_uint64.from_address(at).value for at in pointers] == [7, 1, minus, 3]


def test_a_prepared_launch(monkeypatch):
    put_gpu(monkeypatch)
    found = []
    monkeypatch.setattr(submit, "driver_launch", lambda: lambda *given: found.append(given) or 0)
    several = types.UniTuple(types.int32, 2)
    kernel = Kernel("nothing", lambda *_: None, types.uint64, types.uint64, types.uint32, several, threads=64)
    kernel._loaded[0] = SimpleNamespace(ptr=5), 1000, False
    ready, nothing = (
        submit.PreparedLaunches([launch.loaded()])
        for launch in (
            Launch(kernel, (8,), (64,), (Slot(1) + 16, Slot(0), 7, (3, 4)), cluster=8),
            Launch(kernel, (0,), (64,), (1, 2, 3, (4, 5))),
        )
    )
    for addresses, stream in (([10, 20], 99), ([30, 40], 77)):
        ready.launch(addresses, stream)
        nothing.launch(addresses, stream)
        shape_at, function, pointers_at, _ = found.pop()
        assert not found
        assert function == 5
        shape = submit.SHAPE.unpack(ctypes.string_at(shape_at, submit.SHAPE.size))
        assert shape[:8] == (8, 1, 1, 64, 1, 1, 1000, stream)
        assert shape[-1] == 1
        assert [*(ctypes.c_uint32 * 5).from_address(shape[-2])] == [4, 0, 8, 1, 1]
        pointers = (ctypes.c_void_p * 5).from_address(pointers_at)
        words = [ctypes.c_uint64.from_address(at).value for at in pointers]
        assert words == [addresses[1] + 16, addresses[0], 7, 3, 4]


# --- on a GPU -----------------------------------------------------------------------------------


def check(cupy, f, x, h0=None, kernel="auto"):
    """Codes, states and intermediates are those of the oracle; two runs give the same."""
    want, gpu = gq.reference.gru(f, x, h0), f.to("cuda")
    x, h0 = cupy.asarray(x), None if h0 is None else cupy.asarray(h0)
    poison = cupy.full(1 << 22, 0x55, cupy.uint8)  # what outputs are made of
    del poison
    y, h, v = gpu(x, h0, return_codes=True, return_intermediates=True, kernel=kernel)
    again = gpu(x, h0, return_codes=True, return_intermediates=True, kernel=kernel)
    assert all((a == b).all() for a, b in zip((y, h, v), again, strict=True))
    assert y.dtype == f.parameters["h"].dtype
    assert (y.get() == want["h"]).all(), kernel
    assert (v.get() == np.concatenate([want[name] for name in INTERMEDIATE], -1)).all()
    assert (h.get() == (want["h"][-1] if len(x) else want["h0"])).all()
    plain, last = gpu(x, h0, kernel=kernel)
    assert (plain.get() == f.parameters["h"].decode(want["h"])).all()
    assert plain.dtype == last.dtype == np.float32
    return gpu


def taken(kernel, f):
    """True where a rung takes the widths of a GRU; all rungs take int8 and mixed."""
    plan = f.plan(f.cells[0], f.parameters["x"])
    bits = max(f.parameters[name].bits for name in ("x", "h", "W", "R"))
    return RUNGS[NAMES.index(kernel)].refuses(
        Gru.here(f.widths, plan.narrow, 1, 1, 1, f.units, bits, max(map(len, plan.tables)), device="cuda")
    ) is None  # fmt: skip


@quiet
@pytest.mark.cuda
@pytest.mark.parametrize("kernel", NAMES)
@pytest.mark.parametrize(
    "widths", ["int8", "mixed", "int16", cases.ODD, cases.UNSIGNED, NARROW],
    ids=["int8", "mixed", "int16", "odd", "unsigned", "narrow"],
)  # fmt: skip
def test_every_rung_has_the_oracle_s_codes(kernel, widths, cupy, fresh):
    for c, h in ((1, 1), (5, 7), (int(fresh.integers(2, 70)), int(fresh.integers(2, 300)))):
        g = cases.made(fresh, c, h)
        for n in (1, 3, int(fresh.integers(4, 90))):
            x = cases.inputs(fresh, int(fresh.integers(1, 40)), n, c)
            g.observe(x)
            f = g.fixed(widths)
            if taken(kernel, f):
                check(cupy, f, x, fresh.uniform(-0.4, 0.4, (n, h)), kernel)


@quiet
@pytest.mark.cuda
@pytest.mark.parametrize("kernel", NAMES)
def test_larger_ones(kernel, cupy, fresh):
    shapes = [(70, 32, 256, 256), (100, 1, 256, 256), (9, 200, 64, 512), (40, 17, 100, 333), (5, 600, 3, 64)]
    if kernel != "cuda:cluster":
        shapes += [(40, 64, 512, 1024), (7, 100, 30, 900), (3, 40, 128, 1500), (33, 1, 64, 1024)]
    for t, n, c, h in shapes:
        f, _, x = cases.fixed(fresh, t, n, c, h, str(fresh.choice(["int8", "mixed"])))
        check(cupy, f, x, kernel=kernel)


@quiet
@pytest.mark.cuda
@pytest.mark.parametrize("kernel", NAMES)
def test_both_directions_batch_first_and_in_parts(kernel, cupy, fresh):
    f, _, x = cases.fixed(fresh, 30, 6, 9, 40, "int8", both=True)
    gpu, host = f.to("cuda"), f(x)
    device = gpu(cupy.asarray(x), kernel=kernel)
    assert all((a == b.get()).all() for a, b in zip(host, device, strict=True))
    first = gpu(cupy.asarray(x.swapaxes(0, 1)), batch_first=True, kernel=kernel)[0]
    assert (first.get() == host[0].swapaxes(0, 1)).all()
    f, _, x = cases.fixed(fresh, 50, 6, 9, 40, "int8")
    gpu, dx = f.to("cuda"), cupy.asarray(x)
    whole, last = gpu(dx, kernel=kernel)
    one, h = gpu(dx[:33], kernel=kernel)
    two, h = gpu(dx[33:], h, kernel=kernel)
    assert (cupy.concatenate([one, two]) == whole).all()
    assert (h == last).all()


@quiet
@pytest.mark.cuda
def test_counts_and_dynamic_x(cupy, fresh):
    g, x = cases.made(fresh, 5, 40), cases.inputs(fresh, 40, 9, 5)
    g.observe(x[:3] / 2)
    for name in NAMES:
        f = g.fixed("int8")
        gpu = f.to("cuda")
        f(x)
        gpu(cupy.asarray(x), kernel=name)
        found = [{n: u.saturated for n, u in each.diagnostics().items()} for each in (f, gpu)]
        assert found[0] == found[1], name
    f = g.fixed("mixed", dynamic_x=True, rounding="half_even")
    for kind in (np.float32, np.float64):
        for name in NAMES:
            check(cupy, f, (3 * x).astype(kind), kernel=name)


@pytest.mark.cuda
def test_a_warning_once(cupy, fresh):
    g, x = cases.made(fresh, 5, 40), cases.inputs(fresh, 40, 9, 5)
    g.observe(x / 4)
    gpu = g.fixed("int8").to("cuda")
    with pytest.warns(gq.gru.SaturationWarning, match="calibration"):
        gpu(cupy.asarray(x))
    gpu(cupy.asarray(x))


@pytest.mark.cuda
def test_empty_and_wrong_inputs(cupy, fresh):
    f, _, x = cases.fixed(fresh, 4, 3, 5, 7)
    gpu = f.to("cuda")
    h0 = fresh.uniform(-0.2, 0.2, (3, 7)).astype(np.float32)
    y, h = gpu(cupy.asarray(x[:0]), cupy.asarray(h0))
    assert y.shape == (0, 3, 7)
    assert (h.get() == h0).all()
    assert gpu(cupy.asarray(x[:, :0]))[0].shape == (4, 0, 7)
    with pytest.raises(DeviceError, match="cuda"):
        gpu(x)
    with pytest.raises(DeviceError, match="h0"):
        gpu(cupy.asarray(x), h0)
    with pytest.raises(ShapeError):
        gpu(cupy.asarray(x[..., :4]))
    x[2, 1, 3] = np.nan
    with pytest.raises(NonFiniteError, match=r"x\[2, 1, 3\]"):
        gpu(cupy.asarray(x))
    with pytest.raises(NonFiniteError, match="h0"):
        gpu(cupy.asarray(np.nan_to_num(x)), cupy.full((3, 7), np.inf))


@pytest.mark.cuda
def test_in_a_graph(cupy, fresh):
    f, _, x = cases.fixed(fresh, 40, 9, 5, 200, "int8")
    gpu, want = f.to("cuda"), f(x)[0]
    for name in NAMES:
        dx = cupy.asarray(x)
        gpu(dx, kernel=name)
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            stream.begin_capture()
            y, _ = gpu(dx, kernel=name)
            graph = stream.end_capture()
            for factor in (1, -1):
                dx[...] = cupy.asarray(factor * x)
                graph.launch(stream)
                stream.synchronize()
                if factor == 1:
                    assert (y.get() == want).all(), name
        assert not (y.get() == want).all()


@quiet
@pytest.mark.cuda
def test_both_directions_in_a_graph_and_calls_of_threads(cupy, fresh):
    f, _, x = cases.fixed(fresh, 40, 9, 5, 200, "int8", both=True)
    gpu, h0 = f.to("cuda"), fresh.uniform(-0.4, 0.4, (2, 9, 200)).astype(np.float32)
    want, dx, dh = f(x, h0), cupy.asarray(x), cupy.asarray(h0)
    for name in NAMES:
        gpu(dx, dh, kernel=name)
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            stream.begin_capture()
            found = [gpu(dx, dh, kernel=name) for _ in range(2)]
            graph = stream.end_capture()
            for _ in range(2):
                graph.launch(stream)
            stream.synchronize()
            for pair in found:
                assert all((a == b.get()).all() for a, b in zip(want, pair, strict=True)), name

    def calls(n):
        with cupy.cuda.Stream(non_blocking=True):
            given = cupy.asarray(x[:, :n]), cupy.asarray(h0[:, :n])
            for _ in range(20):
                y, h = gpu(*given)
                assert (y.get() == want[0][:, :n]).all()
                assert (h.get() == want[1][:, :n]).all()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(calls, (9, 9, 4, 1)))
