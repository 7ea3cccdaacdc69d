"""Instructions for emulated_ptx.py: a function each, on the 32 lanes of a warp; False: it has to wait."""

from __future__ import annotations

import re
from functools import cache

import numpy as np

from ggmlq.codes import CODES

OPS, START = {}, 1024 + 128  # where dynamic shared memory begins
LOCAL, LOCAL_AT = 1024, 1 << 61  # bytes of a thread's local memory, and where that of a warp begins
TYPES = {
    "u32": np.uint32,
    "s32": np.int32,
    "b32": np.uint32,
    "u64": np.uint64,
    "s64": np.int64,
    "b64": np.uint64,
}
TYPES |= {"f32": np.float32, "u16": np.uint16, "b16": np.uint16, "f64": np.float64, "s16": np.int16}
TYPES |= {"u8": np.uint8, "s8": np.int8, "b8": np.uint8, "f16": np.float16}
SIZES = {kind: np.dtype(kind).itemsize for kind in TYPES.values()}
EVERY = np.full(32, True)  # lanes
PARAMETER = "kernel_param_"  # with a number: a parameter, whose place is that number


class Locked(Exception):
    """All that is left waits."""


class Trap(Exception):
    """A kernel stopped itself."""


def op(*names):
    def decorate(function):
        for name in names:
            OPS[name] = function
        return function

    return decorate


def read(warp, text, kind):
    """An operand as 32 values of a kind."""
    value = warp.registers.get(text)
    if value is not None:
        held = value.dtype.type
        if held is kind or held is np.bool_ or kind is bool:
            return value
        size = SIZES[kind]
        if value.itemsize == size:
            return value.view(kind)
        return value.astype(np.uint64).astype(np.dtype(f"u{size}")).view(kind)
    if text in warp.special:
        return warp.special[text].astype(np.uint32).astype(kind)
    return constant(text, kind)


@cache
def constant(text, kind):
    """A number, or where memory begins, as 32 values that nobody changes."""
    values = _constant(text, kind)
    values.flags.writeable = False
    return values


def _constant(text, kind):
    if text == "__local_depot0":
        return (LOCAL_AT + LOCAL * np.arange(32)).astype(kind)
    if text == "dynamic_shared" or text.startswith("_cudapy_smem"):  # one array alone
        return np.full(32, START, kind)
    if text.startswith(PARAMETER):
        return np.full(32, int(text.removeprefix(PARAMETER)), kind)
    if text.startswith("0d"):
        return np.full(32, int(text[2:], 16), np.uint64).view(np.float64)
    if text.startswith("0f"):
        return np.full(32, int(text[2:], 16), np.uint32).view(np.float32)
    value = int(text, 0)
    size = np.dtype(kind).itemsize
    return np.full(32, value % (1 << 8 * size), f"u{size}").view(kind)


def write(warp, text, value, active):
    """To a register; its old array stays as it is, for others may hold it."""
    if active is EVERY and type(value) is np.ndarray and value.shape == (32,):
        warp.registers[text] = np.ascontiguousarray(value)
        return
    value = np.asarray(value)
    old = warp.registers.get(text)
    if old is None or old.dtype.itemsize != value.dtype.itemsize:
        old = np.zeros(32, value.dtype)
    warp.registers[text] = np.where(active, value, old.view(value.dtype) if value.dtype != bool else old)


@cache
def kind_of(name):
    return TYPES[re.findall(r"\.([usbf]\d\d?)\b", name)[-1]]


def arithmetic(function):
    def run(warp, name, operands, active):
        kind = kind_of(name)
        values = [read(warp, o, kind) for o in operands[1:]]
        write(warp, operands[0], function(*values).astype(kind, copy=False), active)

    return run


def flushed(values):
    """Floats without subnormal numbers."""
    return np.where(np.abs(values) < np.float32(2.0**-126), np.copysign(np.float32(0), values), values)


OPS["add."] = arithmetic(lambda a, b: a + b)
OPS["add.rn.ftz.f32"] = arithmetic(lambda a, b: flushed(flushed(a) + flushed(b)))
OPS["sub."] = arithmetic(lambda a, b: a - b)
OPS["mul.lo."] = OPS["mul.f32"] = OPS["mul.rn"] = arithmetic(lambda a, b: a * b)
OPS["mad.lo."] = arithmetic(lambda a, b, c: a * b + c)
OPS["min."], OPS["max."] = arithmetic(np.minimum), arithmetic(np.maximum)
OPS["div."], OPS["rem."] = arithmetic(lambda a, b: a // b), arithmetic(lambda a, b: a % b)
OPS["div.rn.f32"] = arithmetic(lambda a, b: a / b)
OPS["sqrt."], OPS["ex2."] = arithmetic(np.sqrt), arithmetic(np.exp2)
OPS["rcp."], OPS["abs."] = arithmetic(lambda a: 1 / a), arithmetic(np.abs)
OPS["fma."] = arithmetic(lambda a, b, c: (a.astype(np.float64) * b + c).astype(np.float32))


@op("shl.", "shr.")
def shift(warp, name, operands, active):
    kind = kind_of(name)
    a, bits = read(warp, operands[1], kind), 8 * SIZES[kind]
    if operands[2].isdigit() and int(operands[2]) < bits:
        by = kind(operands[2])
        write(warp, operands[0], a << by if name.startswith("shl") else a >> by, active)
        return
    by = read(warp, operands[2], np.uint32)
    if name.startswith("shl"):
        shifted = np.where(by < bits, a << np.minimum(by, bits - 1).astype(kind), 0).astype(kind)
    else:
        shifted = a >> np.minimum(by, bits - 1).astype(kind)
        shifted = shifted if np.dtype(kind).kind == "i" else np.where(by < bits, shifted, 0).astype(kind)
    write(warp, operands[0], shifted, active)


BITWISE = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert}


@op("and.", "or.", "xor.", "not.")
def bits(warp, name, operands, active):
    kind = bool if ".pred" in name else kind_of(name)
    values = [read(warp, o, kind) for o in operands[1:]]
    write(warp, operands[0], BITWISE[name[: name.index(".")]](*values), active)


@op("bfi.b32", "bfi.b64")
def bfi(warp, name, operands, active):
    kind = np.uint32 if name.endswith("32") else np.uint64
    a, b = (read(warp, o, kind) for o in operands[1:3])
    at, count = (read(warp, o, np.uint32).astype(kind) for o in operands[3:])
    mask = ((np.uint64(1) << count.astype(np.uint64)) - np.uint64(1)).astype(kind) << at
    write(warp, operands[0], b & ~mask | a << at & mask, active)


@op("mul.wide.u16", "mul.wide.u32")
def wide(warp, name, operands, active):
    kind, to = (np.uint16, np.uint32) if name.endswith("u16") else (np.uint32, np.uint64)
    a, b = (read(warp, o, kind).astype(to) for o in operands[1:])
    write(warp, operands[0], a * b, active)


@op("mad.wide.u32")
def wide_sum(warp, name, operands, active):
    a, b = (read(warp, o, np.uint32).astype(np.uint64) for o in operands[1:3])
    write(warp, operands[0], a * b + read(warp, operands[3], np.uint64), active)


@op("mov.")
def mov(warp, name, operands, active):
    if ".pred" in name:
        value = warp.registers.get(operands[1])
        write(warp, operands[0], np.full(32, operands[1] != "0") if value is None else value, active)
    elif operands[1].startswith("{"):
        half, whole = (np.uint32, np.uint64) if kind_of(name) is np.uint64 else (np.uint16, np.uint32)
        low, high = (read(warp, o.strip(), half).astype(whole) for o in operands[1][1:-1].split(","))
        write(warp, operands[0], low | high << whole(8 * np.dtype(half).itemsize), active)
    elif operands[0].startswith("{"):
        halves = np.ascontiguousarray(read(warp, operands[1], kind_of(name))).view(
            f"u{kind_of(name)().itemsize // 2}"
        )
        for i, register in enumerate(listed(operands[0])):
            write(warp, register, halves[i::2], active)
    else:
        write(warp, operands[0], read(warp, operands[1], kind_of(name)), active)


@op("cvt.rni.s32.f32")
def nearest(warp, name, operands, active):
    """Saturated; NaN is 0."""
    value = np.rint(np.nan_to_num(read(warp, operands[1], np.float32).astype(np.float64), posinf=2**31))
    write(warp, operands[0], np.clip(value, -(2**31), 2**31 - 1).astype(np.int32), active)


@op("prmt.b32")
def prmt(warp, name, operands, active):
    both = np.stack([read(warp, o, np.uint32) for o in operands[1:3]], 1).view(np.uint8)
    picks = read(warp, operands[3], np.uint32)[:, None] >> (4 * np.arange(4, dtype=np.uint32)) & 15
    picked = np.take_along_axis(both, (picks & 7).astype(np.int64), 1)
    picked = np.where(picks < 8, picked, (picked >> 7) * np.uint8(255))  # the sign in all bits
    write(warp, operands[0], np.ascontiguousarray(picked).view(np.uint32)[:, 0], active)


@op("lop3.b32")
def lop3(warp, name, operands, active):
    a, b, c = (read(warp, o, np.uint32) for o in operands[1:4])
    of_table = {0xEA: a & b | c, 0x6A: a & b ^ c}
    write(warp, operands[0], of_table[int(str(operands[4]), 0)], active)


@op("cvt.rn.satfinite.e4m3x2.f32", "cvt.rn.satfinite.e5m2x2.f32")
def to_minifloats(warp, name, operands, active):
    high, low = (CODES[name[17:21]].encode(read(warp, o, np.float32)) for o in operands[1:])
    write(warp, operands[0], high.astype(np.uint16) << np.uint16(8) | low, active)


@op("cvt.")
def cvt(warp, name, operands, active):
    _, to, source = name.replace(".rn", "").replace(".rzi", "").split(".")
    if to in ("bf16x2", "f16x2"):
        high, low = (narrow(read(warp, o, np.float32), to[:-2]) for o in operands[1:])
        write(warp, operands[0], high << np.uint32(16) | low, active)
    elif to in ("bf16", "f16"):
        write(warp, operands[0], narrow(read(warp, operands[1], np.float32), to).astype(np.uint16), active)
    else:
        write(warp, operands[0], read(warp, operands[1], TYPES[source]).astype(TYPES[to]), active)


def narrow(value, kind):
    if kind == "f16":
        return value.astype(np.float16).view(np.uint16).astype(np.uint32)
    word = value.view(np.uint32)
    return (word + np.uint32(0x7FFF) + (word >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)


@op("selp.")
def selp(warp, name, operands, active):
    a, b = (read(warp, o, kind_of(name)) for o in operands[1:3])
    write(warp, operands[0], np.where(warp.registers[operands[3]], a, b), active)


def unordered(compare):
    """True where one is NaN, too."""
    return lambda a, b: compare(a, b) | np.isnan(a) | np.isnan(b)


COMPARE = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal}
COMPARE |= {"gt": np.greater, "ge": np.greater_equal, "neu": np.not_equal}
COMPARE |= {f"{name}u": unordered(COMPARE[name]) for name in ("lt", "le", "gt", "ge")}


@op("setp.")
def setp(warp, name, operands, active):
    _, how, *more = name.split(".")
    kind = kind_of(name)
    bits = COMPARE[how](read(warp, operands[1], kind), read(warp, operands[2], kind))
    write(warp, operands[0], bits & warp.registers[operands[3]] if more[0] == "and" else bits, active)


@op("trap")
def trap(warp, name, operands, active):
    raise Trap(f"warp {warp.number}")


# --- memory -----------------------------------------------------------------------------------


def place(warp, text):
    """Addresses of an operand in brackets."""
    name, offset = base_of(text)
    return read(warp, name, np.uint64).astype(np.int64) + offset


@cache
def base_of(text):
    """The register of an operand in brackets, and what is added to it."""
    register, _, offset = text[1:-1].partition("+")
    return register.strip(), int(offset or 0)


def bytes_at(warp, name, at, size):
    """Of global memory, of a thread's own, of this block's shared memory, or of another's."""
    if at >= LOCAL_AT:
        at -= LOCAL_AT
        assert at // LOCAL == (at + size - 1) // LOCAL, f"{name} outside: {at}"
        return warp.local[at : at + size]
    if ".shared" not in name:
        return warp.machine.memory.at(at, size)
    shared = warp.block.shared
    if "::cluster" in name:
        shared, at = warp.cluster.blocks[at >> 24].shared, at & 0xFFFFFF
    assert START <= at <= len(shared) - size, f"{name} outside: {at}"
    return shared[at : at + size]


def together(warp, name, at, size):
    """The memory that holds what all lanes mean, and where each begins; None: they mean several parts."""
    first, last = int(at.min()), int(at.max())
    if first >= LOCAL_AT or "::cluster" in name:
        return None
    if ".shared" in name:
        assert START <= first <= last <= len(warp.block.shared) - size, f"{name} outside: {first} to {last}"
        return warp.block.shared, at
    memory = warp.machine.memory
    memory.at(first, size)  # makes its array the last one
    begin, end, view = memory.last
    return (view, at - begin) if last + size <= end else None


@cache
def listed(text):
    """The registers of an operand; nobody changes the list."""
    return [part.strip() for part in text.strip("{}").split(",")]


@op("ld.param")
def ld_param(warp, name, operands, active):
    value, kind = warp.machine.arguments[operands[1][1:-1]], kind_of(name)
    value %= 1 << 8 * SIZES[kind]
    write(warp, operands[0], np.full(32, value, f"u{SIZES[kind]}").view(kind), active)


@op("ld.")
def ld(warp, name, operands, active):
    kind, to, at = kind_of(name), listed(operands[0]), place(warp, operands[1])
    size, lanes = SIZES[kind], at if active is EVERY else at[active]
    assert not (lanes % (size * len(to))).any(), f"{name} is not aligned"
    span = together(warp, name, lanes, size * len(to))
    if span is not None:
        words = span[0][span[1][:, None] + np.arange(size * len(to))].view(kind)
    for i, register in enumerate(to):
        value = np.zeros(32, kind)
        if span is not None:
            value[active] = words[:, i]
        else:
            for lane in np.flatnonzero(active):
                value[lane] = bytes_at(warp, name, int(at[lane]) + size * i, size).view(kind)[0]
        if size < 4 and not register.startswith("%rs"):  # a load fills its register
            value = value.astype(np.int64 if register.startswith("%rd") else np.int32)
        elif size == 1:
            value = value.astype(np.int16)
        write(warp, register, value, active)


@op("st.")
def st(warp, name, operands, active):
    kind, values, at = kind_of(name), listed(operands[1]), place(warp, operands[0])
    size, lanes = SIZES[kind], at if active is EVERY else at[active]
    assert not (lanes % (size * len(values))).any(), f"{name} is not aligned"
    span = together(warp, name, lanes, size * len(values))
    for i, register in enumerate(values):
        value = read(warp, register, kind)
        if span is not None:
            places = (span[1] + size * i)[:, None] + np.arange(size)
            span[0][places] = np.ascontiguousarray(value[active]).view(np.uint8).reshape(-1, size)
            continue
        for lane in np.flatnonzero(active):
            bytes_at(warp, name, int(at[lane]) + size * i, size)[:] = value[lane : lane + 1].view(np.uint8)


@op("mapa.")
def mapa(warp, name, operands, active):
    at, rank = (read(warp, o, np.uint32) for o in operands[1:])
    write(warp, operands[0], at | rank << np.uint32(24), active)


@op("stmatrix.")
def stmatrix(warp, name, operands, active):
    at, words = place(warp, operands[0]), [read(warp, o, np.uint32) for o in listed(operands[1])]
    for i, word in enumerate(words):
        for r in range(8):
            a = int(at[8 * i + r])
            assert a % 16 == 0
            warp.block.shared[a : a + 16] = word[4 * r : 4 * r + 4].view(np.uint8)
