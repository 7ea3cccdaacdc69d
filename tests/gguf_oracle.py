"""A second reader of GGUF: slow, straight, written from the rules alone. Knows nothing of ggmlq.

``parse`` returns what a file holds, or raises Bad. Sizes of types come from the table below.
"""

from __future__ import annotations

from math import prod
from struct import calcsize, unpack_from

CODES = "BbHhIif?..Qqd"
SIZES = {  # ggml's id: (elements, bytes) of a block
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292),
    16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110),
    22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8),
    29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17), 40: (64, 36), 41: (128, 18),
    42: (64, 18),
}  # fmt: skip
DEPTH = 16
STRING, ARRAY, UINT32 = 8, 9, 4


class Bad(Exception):
    """The file breaks a rule."""


class BadValue:
    """A value that is there but has no meaning: text that is not UTF-8, a bool of 2."""


class Reader:
    def __init__(self, data):
        self.data, self.at, self.order = data, 0, "<"

    def bytes(self, n):
        if n > len(self.data) - self.at:
            raise Bad("cut short")
        self.at += n
        return self.data[self.at - n : self.at]

    def number(self, code):
        return unpack_from(self.order + code, self.bytes(calcsize(self.order + code)))[0]

    def name(self):
        n = self.number("Q")
        if n > 65535:
            raise Bad("long name")
        try:
            return self.bytes(n).decode()
        except UnicodeDecodeError:
            raise Bad("name is not UTF-8") from None

    def value(self, kind, depth=0):
        if kind > 12:
            raise Bad("type of value")
        if kind == STRING:
            raw = self.bytes(self.number("Q"))
            try:
                return raw.decode()
            except UnicodeDecodeError:
                return BadValue
        if kind == ARRAY:
            return self.array(depth)
        if kind == 7:
            return {0: False, 1: True}.get(self.bytes(1)[0], BadValue)
        return self.number(CODES[kind])

    def array(self, depth):
        kind, n = self.number("I"), self.number("Q")
        if kind > 12 or depth >= DEPTH or n > len(self.data) - self.at:
            raise Bad("array")
        items = [self.value(kind, depth + 1) for _ in range(n)]
        return BadValue if BadValue in items else items


def parse(data):
    """Version, byte order, alignment, values with types, tensors as (type, shape, bytes)."""
    r = Reader(data)
    if r.bytes(4) != b"GGUF":
        raise Bad("magic")
    version = r.number("I")
    if version not in (2, 3):
        r.at, r.order = 4, ">"
        version = r.number("I")
    if version not in (2, 3):
        raise Bad("version")
    n_tensors, n_keys = r.number("Q"), r.number("Q")
    values = {}
    for _ in range(n_keys):
        key, kind = r.name(), r.number("I")
        if key in values:
            raise Bad("key twice")
        values[key] = (kind, r.value(kind))
    kind, alignment = values.get("general.alignment", (UINT32, 32))
    if kind != UINT32 or alignment not in [1 << i for i in range(32)]:
        raise Bad("alignment")
    tensors = tensors_of(r, n_tensors, alignment)
    count = values.get("split.count", (0, 1))[1]
    if not isinstance(count, int) or count > 1:
        raise Bad("a part")
    return version, r.order, alignment, {k: v for k, (_, v) in values.items()}, tensors


def tensors_of(r, count, alignment):
    infos = []
    for _ in range(count):
        name, n_dims = r.name(), r.number("I")
        if n_dims > 4:
            raise Bad("dims")
        ne = [r.number("Q") for _ in range(n_dims)]
        kind, offset = r.number("I"), r.number("Q")
        if kind not in SIZES or name in [info[0] for info in infos] or offset % alignment:
            raise Bad("tensor")
        elements, size = SIZES[kind]
        if prod(max(n, 1) for n in ne) * size > 2**63 - 1 or (ne[0] if ne else 1) % elements:
            raise Bad("shape")
        infos.append((name, kind, ne, offset, prod(ne) // elements * size))
    start = -(-r.at // alignment) * alignment
    used, end = [], 0
    for *_, offset, nbytes in sorted(infos, key=lambda info: info[3:]):
        end = None if offset != end else -(-(offset + nbytes) // alignment) * alignment
    cut = set()  # tensors without gaps in a file that is too short: a partial download
    for name, _, _, offset, nbytes in infos:
        if start + offset + nbytes > len(r.data) + (0 if nbytes else alignment - 1):
            if end is None:
                raise Bad("outside")
            cut.add(name)
        if any(offset < end and begin < offset + nbytes for begin, end in used if nbytes):
            raise Bad("overlap")
        used += [(offset, offset + nbytes)] if nbytes else []
    return {
        name: None
        if name in cut
        else (kind, tuple(reversed(ne)), r.data[start + offset : start + offset + nbytes] if nbytes else b"")
        for name, kind, ne, offset, nbytes in infos
    }
