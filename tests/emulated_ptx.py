"""PTX of Hopper's pipelines, run by NumPy: warps of lanes, barriers, the copy engine, wgmma, clusters.

For kernels that wait for each other in ways that nothing else shows without a GPU: a lock is found as such;
an access outside of memory, and an instruction of a whole warp that not all lanes reach, as well. Products of
the tensor cores are done at once, in float64; nothing is said about time, or about what runs asynchronously.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import emulated_halves  # noqa: F401
import emulated_hopper  # noqa: F401
import emulated_integers  # noqa: F401
import emulated_votes  # noqa: F401
import numpy as np
from emulated_words import EVERY, LOCAL, OPS, START, Locked, read

from ggmlq.cuda.driver import tensor_maps

END = -1  # where lanes are that have ended
TABLE = re.compile(r"\.(?:visible )?\.?global \.align \d+ \.b8 (\w+)\[(\d+)\] = \{([^}]*)\};")


class Memory:
    """What of this process a kernel may touch, and maps of the copy engine."""

    def __init__(self):
        self.known, self.maps, self.last = [], {}, (0, 0, None)

    def add(self, array):
        """An array that was handed over."""
        first, end = np.lib.array_utils.byte_bounds(array)
        view = (ctypes.c_uint8 * (end - first)).from_address(first)
        self.known.append((first, end, np.frombuffer(view, np.uint8), array))

    def at(self, address, size):
        """Bytes, to be read and written."""
        first, end, view = self.last
        if first <= address and address + size <= end:
            return view[address - first : address - first + size]
        for first, end, view, _ in self.known:
            if first <= address and address + size <= end:
                self.last = first, end, view
                return view[address - first : address - first + size]
        raise IndexError(f"{size} bytes at {address:#x}: nothing that was handed over")

    def map(self, box):
        """A map of a machine.maps.Box, where the driver makes one; its address."""
        length = box.box_columns * tensor_maps.KINDS[box.kind][1]
        assert not tensor_maps.refuses(box.address, box.pitch)
        assert min(box.rows, box.columns, box.box_rows, box.box_columns) >= 1
        assert max(box.box_rows, box.box_columns) <= 256
        assert length % 16 == 0
        assert length <= tensor_maps.ROW or not box.swizzled
        at = (1 << 60) + 128 * len(self.maps)
        self.maps[at] = box
        return at


class Statement(NamedTuple):
    """One of a program; ``target``: where it branches to, ``END`` for a return."""

    guard: str | None
    inverted: bool
    name: str
    operands: list[str]
    run: Callable | None
    whole_warp: bool
    target: int | None


@cache
def program(ptx):
    """Statements, and names of parameters."""
    body = re.sub(r"//[^\n]*", "", ptx[ptx.index(".visible .entry") :])
    names = re.findall(r"\.param \.u(\d+) (\w+)", body)
    body = body[body.index("\n{") + 2 : body.rindex("}")]
    found, labels, scopes, count = [], {}, [""], 0
    for text in statements(body):
        if text == "{":
            count += 1
            scopes.append(f"@{count}")
        elif text == "}":
            scopes.pop()
        elif text.endswith(":"):
            labels[text[:-1] + (scopes[-1] if not text.startswith("$") else "")] = len(found)
        elif not text.startswith("."):
            found.append(parsed(text, scopes[-1]))
    return [statement(labels, *each) for each in found], [name for _, name in names]


def statement(labels, guard, name, operands):
    """One whose label and whose meaning are looked up."""
    inverted, guard = (guard or "").startswith("!"), guard and guard.lstrip("!")
    if name == "ret" or name.startswith("bra"):
        return Statement(
            guard, inverted, name, operands, None, False, END if name == "ret" else labels[operands[0]]
        )
    return Statement(guard, inverted, name, operands, *meaning(name), None)


def statements(body):
    """Cut at semicolons; braces at the start of a statement open and close scopes."""
    at, text = 0, ""
    depth = 0
    while at < len(body):
        c = body[at]
        if not text.strip() and c in "{}":
            yield c
            text = ""
        elif c == ";":
            yield text.strip()
            text = ""
        elif c == ":" and re.fullmatch(r"\s*\$?\w+", text) and body[at + 1] != ":":
            yield text.strip() + ":"
            text = ""
        else:
            depth += (c == "{") - (c == "}")
            text += c
        at += 1


def parsed(text, scope):
    guard = None
    if text.startswith("@"):
        guard, text = text[1:].split(None, 1)
    name, _, rest = text.partition(" ") if "\t" not in text.split(" ")[0] else text.partition("\t")
    operands = re.findall(r"\{[^{}]*\}|\[[^\[\]]*\]|[^,\s{}\[\]]+(?:\s*\+\s*-?\d+)?", rest.strip())
    if name.startswith("bra") and not operands[0].startswith("$"):
        operands = [operands[0] + scope]
    return guard, name.strip(), [operand.strip() for operand in operands]


class Block:
    """Shared memory and barriers of one block."""

    def __init__(self, rank, shared):
        self.rank, self.shared, self.barriers = rank, np.full(shared + 4096, 0xAB, np.uint8), {}
        self.meetings = {}  # number of a barrier of warps: (threads arrived, generation)


class Cluster:
    """Blocks that see each other's shared memory, and where all their warps that have not ended meet."""

    def __init__(self, blocks):
        self.blocks, self.live, self.arrived, self.generation = blocks, 0, 0, 0

    def turn(self):
        if self.live and self.arrived == self.live:
            self.arrived, self.generation = 0, self.generation + 1


class Warp:
    """32 lanes: registers, and where each is."""

    def __init__(self, machine, cluster, block, number, index):
        self.machine, self.block, self.number, self.index = machine, block, number, index
        self.cluster = cluster
        cluster.live += 1
        self.places = {0: EVERY}  # the lanes at each place that some are at
        self.registers, self.state, self.steps = {}, {}, 0
        down, across = np.divmod(32 * number + np.arange(32), machine.across)
        self.special = {"%tid.x": across, "%tid.y": down, "%ctaid.x": np.full(32, index)}
        self.local = np.full(32 * LOCAL, 0xAB, np.uint8)
        self.special["%laneid"] = np.arange(32)
        self.special["%ctaid.y"] = np.full(32, machine.row)
        self.special["%ctaid.z"] = np.full(32, machine.layer)
        self.special["%ntid.x"] = np.full(32, machine.across)
        self.special["%ntid.y"] = np.full(32, machine.threads // machine.across)
        self.special["%nctaid.x"] = np.full(32, machine.grid)
        self.special["%nctaid.y"] = np.full(32, machine.down)
        self.special["%nctaid.z"] = np.full(32, machine.deep)
        self.special["%cluster_ctarank"] = np.full(32, block.rank)
        self.special["%cluster_nctarank"] = np.full(32, len(cluster.blocks))

    @property
    def done(self):
        return not self.places

    def join(self, place, lanes):
        """More lanes at a place."""
        if place in self.places:
            lanes = self.places[place] | lanes
            lanes = EVERY if lanes.all() else lanes
        self.places[place] = lanes

    def held(self, statement, mask):
        """The lanes of a mask whose guard holds: the mask itself where all do, None where none does."""
        held = self.registers[statement.guard]
        held = ~held if statement.inverted else held
        active = held if mask is EVERY else mask & held
        which = active.tobytes()  # compared at once
        return mask if which == mask.tobytes() else active if True in which else None

    def members(self, statement, mask):
        """The lanes that an instruction waits for: those in the last operand of a shuffle, else all."""
        if not statement.name.startswith("shfl"):
            return EVERY
        words = read(self, statement.operands[-1], np.uint32)[mask]
        return (np.bitwise_or.reduce(words) >> np.arange(32, dtype=np.uint32) & 1).astype(bool)

    def refuse_absent(self, statement, mask):
        """An instruction of a whole warp that not all lanes reach together is a lock."""
        absent = np.logical_or.reduce(list(self.places.values())) & self.members(statement, mask)
        if absent.any():
            raise Locked(f"{statement.name}: lanes {np.flatnonzero(absent)} are elsewhere")

    def run(self):
        """Until it waits or ends; whether it came any further."""
        before = self.steps
        while self.places:
            here = min(self.places)  # the lanes that are the farthest behind
            mask = self.places.pop(here)
            if not self.run_from(here, mask):
                return self.steps > before
        self.cluster.live -= 1
        self.cluster.turn()
        return True

    def run_from(self, here, mask):
        """Lanes of one place go on: until they wait (False), end, part, or come to others or past them."""
        code, others = self.machine.code, self.places
        limit = min(others, default=len(code))
        while here != END:
            statement = code[here]
            active = mask if statement.guard is None else self.held(statement, mask)
            if statement.target is not None:
                self.steps += 1
                if active is mask:
                    here = statement.target
                    if others:
                        break
                elif active is None:
                    here += 1
                else:
                    self.part(statement.target, active)
                    here, mask = here + 1, mask & ~active
                    break
            else:
                if others and statement.whole_warp:
                    self.refuse_absent(statement, mask)
                if (
                    active is not None
                    and statement.run(self, statement.name, statement.operands, active) is False
                ):
                    self.join(here, mask)
                    return False
                self.steps += 1
                here += 1
            if here >= limit:
                break
        if here != END:
            self.join(here, mask)
        return True

    def part(self, place, lanes):
        """Lanes go elsewhere, or end."""
        if place != END:
            self.join(place, lanes)


def with_places(ptx, shared):
    """The text with addresses for several arrays of shared memory, and the bytes of all of it."""
    arrays = re.findall(r"\.shared \.align (\d+) \.b8 (_cudapy_smem\w*)\[(\d+)\]", ptx)
    if len(arrays) < 2:
        return ptx, shared + sum(int(size) for *_, size in arrays)
    head, body = ptx[: ptx.index(".visible .entry")], ptx[ptx.index(".visible .entry") :]
    for edge, name, size in arrays:
        shared = -(-shared // int(edge)) * int(edge)
        body = re.sub(rf"\b{name}\b", str(START + shared), body)
        shared += int(size)
    return head + body, shared


def with_tables(ptx, memory, tables):
    """The text with the bytes that a module declares in memory: their names become addresses.

    ``tables``: those that are there, by name, which gets more.
    """

    def placed(table):
        values = np.zeros(int(table[2]), np.uint8)  # the last zeros are left out in the text
        numbers = np.array(table[3].split(","), np.int64).astype(np.uint8)
        values[: len(numbers)] = numbers
        memory.add(tables.setdefault(table[1], values))
        return ""

    ptx = TABLE.sub(placed, ptx)
    for name, table in tables.items():
        ptx = ptx.replace(name, str(table.ctypes.data))
    return ptx


@cache
def meaning(name):
    """What an instruction does, and whether it is one of a whole warp."""
    key = next((key for key in sorted(OPS, key=len, reverse=True) if name.startswith(key)), name)
    return OPS[key], re.search(r"\.sync|\.aligned|^bar", name) is not None


class Machine:
    """A kernel on a grid of blocks; clusters one after the other, or all at one time."""

    def __init__(self, ptx, memory, threads, shared, across=None):
        ptx, self.shared = with_places(ptx, shared)
        self.code, self.names = program(ptx)
        self.memory, self.threads, self.across = memory, threads, across or threads

    @np.errstate(all="ignore")  # as a GPU computes
    def __call__(self, grid, *arguments, cluster=1, together=False):
        across, down, self.deep = (*grid, 1, 1)[:3]
        self.grid, self.down = across, down
        self.arguments = dict(zip(self.names, arguments, strict=True))
        at_once = across * down if together else cluster
        for number in range(0, across * down * self.deep, at_once):
            first, self.row, self.layer = number % across, number // across % down, number // (across * down)
            clusters = [
                Cluster([Block(rank, self.shared) for rank in range(cluster)])
                for _ in range(at_once // cluster)
            ]
            warps = [
                Warp(self, own, block, number, first + which * cluster + block.rank)
                for which, own in enumerate(clusters)
                for block in own.blocks
                for number in range(self.threads // 32)
            ]
            while not all(warp.done for warp in warps):
                if not sum(warp.run() for warp in warps if not warp.done):
                    where = {w.number: self.code[min(w.places)][2:4] for w in warps if not w.done}
                    raise Locked(f"block {first}: {where}")
