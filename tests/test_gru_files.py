"""Files of GRUs: a FixedGRU saved and loaded, whatever was done to the file; ONNX and torch weights."""

from __future__ import annotations

import pickle
import struct
from types import SimpleNamespace

import gru_cases as cases
import numpy as np
import pytest

import ggmlq as gq
from ggmlq.errors import GRUFileError
from ggmlq.gru import to_torch_order


@pytest.mark.parametrize("both", [False, True])
def test_a_saved_gru_runs_alike(both, fresh, tmp_path):
    f, _, x = cases.fixed(
        fresh, 6, 3, 4, 5, "mixed", both, tables="interpolated", rounding="half_even", dynamic_x=True
    )
    path = tmp_path / "g.npz"
    f.save(path)
    for again in (gq.FixedGRU.load(path), pickle.loads(pickle.dumps(f))):
        assert repr(again) == repr(f)
        assert all(
            (a == b).all() for a, b in zip(f(x, return_codes=True), again(x, return_codes=True), strict=True)
        )
        assert again.rounding == "half_even"
        one, other = (part.parameters[0] if both else part.parameters for part in (f, again))
        assert all(
            np.all(one[name].exponent == other[name].exponent) and one[name][1:] == other[name][1:]
            for name in one
        )
    with np.load(path, allow_pickle=False) as arrays:
        assert all(arrays[name].dtype.kind in "biufU" for name in arrays)
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_save_leaves_the_old_file(fresh, tmp_path):
    f, _, _ = cases.fixed(fresh, 3, 2, 2, 3)
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "folder", tmp_path / "none" / "g.npz", 3):
        with pytest.raises(GRUFileError):
            f.save(path)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_codes_are_read_only(fresh):
    f, _, _ = cases.fixed(fresh, 3, 2, 2, 3)
    with pytest.raises(ValueError, match="read-only"):
        f.codes["W"][0, 0] = 1
    with pytest.raises(TypeError):
        f.parameters["x"] = None


def saved(f, path, change):
    """A file with something of it changed."""
    f.save(path)
    with np.load(path) as file:
        arrays = dict(file)
    change(arrays)
    np.savez(path, **arrays)


def replaced(name, value):
    def change(arrays):
        arrays[name] = value(arrays[name].copy()) if callable(value) else value

    return change


def put(index, value):
    def change(array):
        array[index] = value
        return array

    return change


@pytest.mark.parametrize(
    "change",
    [
        replaced("version", 2), replaced("directions", 3), replaced("directions", 2),
        replaced("tables", "lut"),
        replaced("rounding", "up"), replaced("dynamic_x", 1), replaced("0/W", lambda a: a.astype(np.int16)),
        replaced("0/W", lambda a: a[:, :0]), replaced("0/W", lambda a: a[1:]), replaced("0/R", lambda a: a.T),
        replaced("0/R", lambda a: a[..., None]), replaced("0/bx", lambda a: a[1:]),
        replaced("0/table_z", lambda a: a[1:]), replaced("0/formats", put((0, 0), 1 << 40)),
        replaced("0/formats", put((0, 2), 17)), replaced("0/formats", put((1, 1), 1 << 20)),
        replaced("0/formats", put((2, 1), 1)), replaced("0/formats", put((11, 0), -3)),
        replaced("0/formats", lambda a: a.astype(float)), replaced("0/exponents", put((0, 0), 1 << 62)),
        replaced("0/ranges", put((0, 0), np.nan)), replaced("0/W", np.array([object()])),
        lambda arrays: arrays.pop("0/table_g"), lambda arrays: arrays.clear(),
    ],
)  # fmt: skip
def test_files_that_do_not_hold_together_are_refused(change, fresh, tmp_path):
    f, _, _ = cases.fixed(fresh, 3, 2, 2, 3, "int8")
    path = tmp_path / "g.npz"
    saved(f, path, change)
    with pytest.raises(GRUFileError, match=r"g\.npz"):
        gq.FixedGRU.load(path)


def test_cut_and_damaged_files_are_refused_or_run(fresh, tmp_path):
    f, _, x = cases.fixed(fresh, 3, 2, 2, 3, "int8")
    path = tmp_path / "g.npz"
    f.save(path)
    whole = path.read_bytes()
    for at in fresh.integers(0, len(whole), 25):
        path.write_bytes(whole[:at])
        with pytest.raises(GRUFileError):
            gq.FixedGRU.load(path)
    for at in fresh.integers(0, len(whole), 60):
        path.write_bytes(whole[:at] + bytes([int(fresh.integers(256))]) + whole[at + 1 :])
        try:
            found = gq.FixedGRU.load(path)
        except gq.GGMLQError:
            continue
        found.warned = True
        found(x)
    with pytest.raises(GRUFileError):
        gq.FixedGRU.load(tmp_path / "none.npz")
    with pytest.raises(GRUFileError):
        gq.FixedGRU.load(None)


# --- torch ----------------------------------------------------------------------------------------


def module(parts, reverse=None, **more):
    """Something with the attributes of a torch.nn.GRU."""
    found = {"num_layers": 1, "bidirectional": reverse is not None, **more}
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    for ending, arrays in (("", parts), ("_reverse", reverse or [])):
        found |= {name + ending: to_torch_order(array) for name, array in zip(names, arrays, strict=False)}
    return SimpleNamespace(**found)


def test_weights_of_torch(fresh):
    one, two = cases.arrays(fresh, 3, 4), cases.arrays(fresh, 3, 4)
    g = gq.GRU.from_torch(module(one))
    assert all((getattr(g, name) == part).all() for name, part in zip(cases.PARTS, one, strict=True))
    g = gq.GRU.from_torch(module(one, two))
    assert (g.R[1] == two[1]).all()
    g = gq.GRU.from_torch(module(one[:2]))
    assert not g.bx.any()
    for wrong in (
        SimpleNamespace(),
        module(one, num_layers=0),
        module([np.ones((12, 3)), np.ones((12, 3))]),
        3,
    ):
        with pytest.raises(gq.GGMLQError):
            gq.GRU.from_torch(wrong)
    with pytest.raises(gq.GGMLQError, match="2 layers"):
        gq.GRU.from_torch(module(one, num_layers=2), layer=2)


def test_torch_itself(fresh):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    for both in (False, True):
        net = torch.nn.GRU(5, 6, bidirectional=both)
        x = torch.rand(7, 3, 5)
        y, h = net(x)
        ours = gq.GRU.from_torch(net)(x.numpy())
        assert np.abs(ours[0] - y.detach().numpy()).max() < 1e-5
        assert np.abs(ours[1] - h.detach().numpy().reshape(ours[1].shape)).max() < 1e-5


# --- ONNX -----------------------------------------------------------------------------------------


def varint(n):
    out = b""
    n &= (1 << 64) - 1
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def field(number, value):
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def tensor(name, array, how="raw"):
    dims = b"".join(field(1, n) for n in array.shape)
    kinds = {"f4": 1, "f8": 11, "f2": 10}
    head = dims + field(2, kinds[array.dtype.str[1:]]) + field(8, name)
    if how == "raw":
        return head + field(9, array.tobytes())
    if how == "packed":
        return head + field(10 if array.dtype == np.float64 else 4, array.tobytes())
    return head + b"".join(varint(4 << 3 | 5) + struct.pack("<f", v) for v in array.ravel())


def onnx(parts, how="raw", direction="forward", reset=1, node="gru", count=1):
    """An ONNX file with a GRU, W and R as initializers, B as a constant."""
    W, R, bx, br = parts
    attributes = field(5, field(1, "linear_before_reset") + field(3, reset) + field(20, 2))
    attributes += field(5, field(1, "direction") + field(4, direction) + field(20, 3))
    attributes += field(5, field(1, "hidden_size") + field(3, R.shape[-1]))
    inputs = b"".join(field(1, name) for name in ("x", "W", "R", "B"))
    kind = field(4, "GRU") + attributes
    nodes = b"".join(
        field(1, inputs + field(2, "y") + field(3, f"{node}{i or ''}") + kind) for i in range(count)
    )
    bias = tensor("", np.concatenate([bx, br], -1), how)
    constant = field(1, field(2, "B") + field(4, "Constant") + field(5, field(1, "value") + field(5, bias)))
    graph = constant + nodes + field(5, tensor("W", W, how)) + field(5, tensor("R", R, how))
    return field(1, 8) + field(7, graph)


@pytest.mark.parametrize("how", ["raw", "packed", "single"])
def test_weights_of_onnx(how, fresh, tmp_path):
    one, two = cases.arrays(fresh, 3, 4), cases.arrays(fresh, 3, 4)
    path = tmp_path / "g.onnx"
    path.write_bytes(onnx([part[None] for part in one], how))
    g = gq.GRU.from_onnx(path)
    assert all((getattr(g, name) == part).all() for name, part in zip(cases.PARTS, one, strict=True))
    path.write_bytes(onnx([np.stack(pair) for pair in zip(one, two, strict=True)], how, "bidirectional"))
    g = gq.GRU.from_onnx(str(path))
    assert (g.W[1] == two[0]).all()
    assert (g.br[1] == two[3]).all()


def test_onnx_files_are_refused_in_words(fresh, tmp_path):
    parts = [part[None] for part in cases.arrays(fresh, 3, 4)]
    path = tmp_path / "g.onnx"
    good = onnx(parts)
    for data, said in (
        (b"", "no GRU node"), (onnx(parts, reset=0), "linear_before_reset"),
        (onnx(parts, direction="reverse"), "reverse"),
        (onnx(parts, count=2), "2 GRU nodes"), (onnx([parts[0], parts[0], *parts[2:]]), "shape"),
        (good.replace(b"B\x01W", b"B\x01V"), "computed"), (np.random.default_rng(0).bytes(500), "no ONNX"),
    ):  # fmt: skip
        path.write_bytes(data)
        with pytest.raises(gq.GGMLQError, match=said):
            gq.GRU.from_onnx(path)
    path.write_bytes(onnx(parts, count=2))
    assert gq.GRU.from_onnx(path, node="gru1").units == 4
    for wrong in (None, tmp_path, tmp_path / "none"):
        with pytest.raises(gq.GGMLQError):
            gq.GRU.from_onnx(wrong)


def test_hostile_onnx_files(fresh, tmp_path, rounds):
    good = onnx([part[None] for part in cases.arrays(fresh, 2, 2)])
    path = tmp_path / "g.onnx"
    for _ in rounds(0.5):
        data = bytearray(good[: int(fresh.integers(1, len(good) + 1))])
        for at in fresh.integers(0, len(data), 3):
            data[at] = int(fresh.integers(256))
        path.write_bytes(data)
        try:
            gq.GRU.from_onnx(path)
        except gq.GGMLQError:
            continue
