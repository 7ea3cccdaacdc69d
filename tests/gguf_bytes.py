"""GGUF files byte by byte, right or wrong on purpose. Knows nothing of ggmlq."""

from __future__ import annotations

from struct import pack

UINT8, INT8, UINT16, INT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64, INT64, FLOAT64 = range(13)
CODES = "BbHhIifB..Qqd"  # of struct, by type
F32, F16, Q4_0, Q8_0, I8 = 0, 1, 2, 8, 24


class Builder:
    """Writes in one byte order. Anything may be given as bytes, which are taken as they are."""

    def __init__(self, order="<"):
        self.order = order

    def u32(self, n):
        return pack(self.order + "I", n)

    def u64(self, n):
        return pack(self.order + "Q", n)

    def text(self, text):
        raw = text if isinstance(text, bytes) else text.encode()
        return self.u64(len(raw)) + raw

    def number(self, kind, value):
        return pack(self.order + CODES[kind], value)

    def array(self, kind, items):
        """An array's content; items of strings and arrays are encoded already or are texts."""
        parts = [self._item(kind, item) for item in items]
        return self.u32(kind) + self.u64(len(parts)) + b"".join(parts)

    def _item(self, kind, item):
        if kind == STRING:
            return self.text(item)
        return item if isinstance(item, bytes) else self.number(kind, item)

    def kv(self, key, kind, value):
        if kind == STRING:
            value = self.text(value)
        elif not isinstance(value, bytes):
            value = self.number(kind, value)
        return self.text(key) + self.u32(kind) + value

    def info(self, name, ne, kind, offset):
        dims = self.u32(len(ne)) + b"".join(map(self.u64, ne))
        return self.text(name) + dims + self.u32(kind) + self.u64(offset)

    def file(self, kvs=(), infos=(), data=b"", *, magic=b"GGUF", version=3, counts=None, alignment=32):
        """Header, padding, data. ``counts`` overrides the numbers of tensors and keys."""
        tensors, keys = counts or (len(infos), len(kvs))
        head = (
            magic + self.u32(version) + self.u64(tensors) + self.u64(keys) + b"".join(kvs) + b"".join(infos)
        )
        return head + (bytes(-len(head) % alignment) if infos else b"") + data


def small(order="<"):
    """A right file with a value of every kind and three tensors."""
    b = Builder(order)
    kvs = [
        b.kv("general.architecture", STRING, "llama"),
        b.kv("u8", UINT8, 200), b.kv("i8", INT8, -100), b.kv("u16", UINT16, 60000),
        b.kv("i16", INT16, -30000),
        b.kv("u32", UINT32, 4_000_000_000), b.kv("i32", INT32, -2_000_000_000), b.kv("f32", FLOAT32, 0.5),
        b.kv("u64", UINT64, 2**63 + 5), b.kv("i64", INT64, -(2**62)), b.kv("f64", FLOAT64, 0.1),
        b.kv("yes", BOOL, 1), b.kv("no", BOOL, 0), b.kv("empty", STRING, ""), b.kv("ünï", STRING, "çödé"),
        b.kv("tokens", ARRAY, b.array(STRING, ["a", "", "bc", "x" * 300, "\0" * 9, "ü"])),
        b.kv("types", ARRAY, b.array(INT32, [1, -2, 3])),
        b.kv("flags", ARRAY, b.array(BOOL, [1, 0, 1])),
        b.kv("none", ARRAY, b.array(FLOAT64, [])),
        b.kv("nested", ARRAY, b.array(ARRAY, [b.array(UINT16, [1, 2]), b.array(STRING, ["q"])])),
    ]  # fmt: skip
    infos = [
        b.info("w", [64, 2], Q4_0, 0),
        b.info("s", [], F32, 96),
        b.info("v", [3, 1, 2], I8, 128),
    ]
    data = bytes(range(72)) + bytes(24) + pack(order + "f", 2.5) + bytes(28) + bytes([1, 2, 3, 4, 5, 255])
    return b.file(kvs, infos, data)
