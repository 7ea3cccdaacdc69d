"""ggml's own C reader as the judge of the files that we write."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_bool, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_void_p

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.gguf import Typed

pytestmark = pytest.mark.llama

VALUES = {  # GGUF's number, ggml's suffix, the C type, examples
    "uint8": (0, "u8", ctypes.c_uint8, [0, 255]),
    "int8": (1, "i8", ctypes.c_int8, [-128, 127]),
    "uint16": (2, "u16", ctypes.c_uint16, [0, 65535]),
    "int16": (3, "i16", ctypes.c_int16, [-32768, 32767]),
    "uint32": (4, "u32", c_uint32, [0, 2**32 - 1]),
    "int32": (5, "i32", ctypes.c_int32, [-(2**31), 2**31 - 1]),
    "float32": (6, "f32", ctypes.c_float, [0.5, -1.25]),
    "bool": (7, "bool", c_bool, [True, False]),
    "string": (8, "str", c_char_p, ["", "ünïcödé ☃"]),
    "uint64": (10, "u64", ctypes.c_uint64, [0, 2**64 - 1]),
    "int64": (11, "i64", c_int64, [-(2**63), 2**63 - 1]),
    "float64": (12, "f64", ctypes.c_double, [0.1, -1e300]),
}


class InitParams(Structure):
    _fields_ = [("no_alloc", c_bool), ("ctx", POINTER(c_void_p))]


class TensorHead(Structure):
    """The beginning of struct ggml_tensor."""

    _fields_ = [("type", c_int), ("buffer", c_void_p), ("ne", c_int64 * 4), ("nb", c_size_t * 4)]


class CReader:
    """A file as ``gguf_init_from_file`` sees it; ``handle`` is None where it refuses."""

    def __init__(self, library, path):
        self.c = ctypes.CDLL(str(library.path))
        self.c.gguf_init_from_file.restype = c_void_p
        self.c.gguf_init_from_file.argtypes = [c_char_p, InitParams]
        self.tensors = c_void_p()
        params = InitParams(no_alloc=True, ctx=ctypes.pointer(self.tensors))
        self.handle = self.c.gguf_init_from_file(str(path).encode(), params)

    def call(self, name, result, *args):
        function = getattr(self.c, f"gguf_{name}")
        function.restype = result
        args = [arg if isinstance(arg, bytes) else c_int64(arg) for arg in args]
        return function(c_void_p(self.handle), *args)

    def value(self, key, kind):
        number, suffix, result, _ = VALUES[kind]
        index = self.call("find_key", c_int64, key.encode())
        assert self.call("get_kv_type", c_int, index) == number
        found = self.call(f"get_val_{suffix}", result, index)
        return found.decode() if isinstance(found, bytes) else found

    def array(self, key, kind):
        number, _, result, _ = VALUES[kind]
        index = self.call("find_key", c_int64, key.encode())
        assert self.call("get_kv_type", c_int, index) == 9
        assert self.call("get_arr_type", c_int, index) == number
        n = self.call("get_arr_n", c_size_t, index)
        if kind == "string":
            return [self.call("get_arr_str", c_char_p, index, i).decode() for i in range(n)]
        data = self.call("get_arr_data", c_void_p, index)
        return list((result * n).from_address(data)) if n else []

    def shape(self, name):
        self.c.ggml_get_tensor.restype = POINTER(TensorHead)
        head = self.c.ggml_get_tensor(self.tensors, name.encode()).contents
        return tuple(reversed(head.ne[:]))

    def free(self):
        if self.handle:
            self.c.gguf_free(c_void_p(self.handle))
            self.c.ggml_free(self.tensors)


@pytest.fixture
def c_reader(libggml):
    readers = []
    yield lambda path: readers.append(CReader(libggml, path)) or readers[-1]
    for reader in readers:
        reader.free()


def blocks_of(fmt):
    raw = np.random.default_rng(fmt.id).integers(0, 256, (3, 2 * fmt.dtype.itemsize), np.uint8)
    return gq.QuantArray.from_bytes(raw, fmt, (3, 2 * fmt.block_size))


def test_values(tmp_path, c_reader):
    values = {f"{kind}.{i}": Typed(v, kind) for kind, (*_, vs) in VALUES.items() for i, v in enumerate(vs)}
    values |= {f"{kind}.all": Typed(vs, kind) for kind, (*_, vs) in VALUES.items()}
    gq.save(tmp_path / "m.gguf", {}, values)
    reader = c_reader(tmp_path / "m.gguf")
    assert reader.handle
    assert reader.call("get_n_kv", c_int64) == len(values)
    assert reader.call("get_version", c_uint32) == 3
    for kind, (*_, vs) in VALUES.items():
        assert [reader.value(f"{kind}.{i}", kind) for i in range(len(vs))] == vs
        assert reader.array(f"{kind}.all", kind) == vs
    assert [reader.call("get_key", c_char_p, i).decode() for i in range(len(values))] == list(values)


def test_chosen_types(tmp_path, c_reader):
    scalars = {"uint32": 1, "int32": -1, "float32": 0.5, "bool": True, "string": "x", "uint64": 2**40}
    arrays = {"int32": [1, 2], "string": ["x", ""], "int64": [2**40], "bool": [True], "float32": [0.5]}
    lists = {f"[{kind}]": value for kind, value in arrays.items()}
    gq.save(tmp_path / "m.gguf", {}, scalars | lists | {"empty": []})
    reader = c_reader(tmp_path / "m.gguf")
    assert {kind: reader.value(kind, kind) for kind in scalars} == scalars
    assert {kind: reader.array(f"[{kind}]", kind) for kind in arrays} == arrays
    assert reader.array("empty", "int32") == []


@pytest.mark.parametrize("alignment", [8, 32, 4096])
def test_tensors_of_every_format(tmp_path, libggml, c_reader, alignment):
    tensors = {fmt.name: blocks_of(fmt) for fmt in gq.formats.values() if fmt.name in libggml.types}
    tensors |= {
        "scalar": np.float32(2).reshape(()),
        "four": np.ones((2, 3, 4, 5), np.float16),
        "n" * 63: np.ones(3),
    }
    path = tmp_path / "m.gguf"
    gq.save(path, tensors, alignment=alignment)
    reader = c_reader(path)
    assert reader.handle
    assert reader.call("get_alignment", c_size_t) == alignment
    assert reader.call("get_n_tensors", c_int64) == len(tensors)
    raw, start = path.read_bytes(), reader.call("get_data_offset", c_size_t)
    for i, (name, q) in enumerate(gq.open(path).items()):
        assert reader.call("get_tensor_name", c_char_p, i).decode() == name == list(tensors)[i]
        assert reader.call("get_tensor_type", c_int, i) == q.format.id
        assert reader.shape(name) == (1,) * (4 - q.ndim) + q.shape
        size = reader.call("get_tensor_size", c_size_t, i)
        at = start + reader.call("get_tensor_offset", c_size_t, i)
        assert raw[at : at + size] == q.raw.tobytes()


def test_parts_of_a_split_model(tmp_path, c_reader):
    tensors = {f"t{i}": np.full(10, i, np.float32) for i in range(5)}
    paths = gq.save(
        tmp_path / "m.gguf", tensors, {"general.architecture": "llama"}, alignment=64, split_max_bytes=80
    )
    for number, path in enumerate(paths):
        reader = c_reader(path)
        assert reader.handle
        assert [reader.value(k, "uint16") for k in ("split.no", "split.count")] == [number, 3]
        assert reader.value("split.tensors.count", "int32") == 5
        assert reader.call("get_n_tensors", c_int64) == [2, 2, 1][number]


def test_what_it_refuses_is_a_finding(tmp_path, c_reader):
    """Rules of ggml that the format does not have: ``validate`` tells of them."""
    import gguf_bytes as gb

    from ggmlq.gguf.check import check

    b = gb.Builder()
    gap = [b.info("a", [4], gb.F32, 0), b.info("b", [4], gb.F32, 64)]
    for name, raw in {
        "long": b.file([], [b.info("n" * 64, [4], gb.F32, 0)], bytes(16)),
        "gap": b.file([], gap, bytes(80)),
        "nested": b.file([b.kv("k", gb.ARRAY, b.array(gb.ARRAY, [b.array(gb.UINT8, [1])]))]),
    }.items():
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(raw)
        assert not c_reader(path).handle
        assert gq.open(path).version == 3
        assert any("ggml" in finding.text for finding in check(str(path)))
