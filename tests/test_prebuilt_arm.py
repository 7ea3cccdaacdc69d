"""Code for arm64 as far as any machine can look at it; ``test_prebuilt_cpu.py`` runs it where it can."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import llvmlite.binding as llvm
import pytest
from scripts import load
from stale import skip_if_stale

from ggmlq.cpu.machine import features, loading, served
from ggmlq.cpu.machine.levels import LEVELS, best

_packs, _cpu = load("tools", "_packs"), load("tools", "_kernels_cpu")
ARM = {level.folder: level for level in LEVELS if level.machine == "aarch64"}
LINKED = {  # places in code that LLVM's linker for code in memory can fill in, wherever the code lies
    257: "ABS64", 260: "PREL64", 261: "PREL32", 263: "MOVW_UABS_G0", 264: "MOVW_UABS_G0_NC",
    265: "MOVW_UABS_G1", 266: "MOVW_UABS_G1_NC", 267: "MOVW_UABS_G2", 268: "MOVW_UABS_G2_NC",
    269: "MOVW_UABS_G3", 282: "JUMP26", 283: "CALL26",
}  # fmt: skip
SDOT = ((0xFFE0FC00, 0x4E809400), (0xFFC0F400, 0x4F80E000))  # of 16 bytes: by vectors, by one element
LSE = (0x3F200C00, 0x38200000)  # atomic steps in one instruction: ldadd and its like
CAS = (0x3FA07C00, 0x08A07C00)  # and compare-and-swap


class Section(NamedTuple):
    """A section of an object file."""

    kind: int
    flags: int
    content: bytes


def sections(code: bytes) -> Iterator[Section]:
    start, (size, count) = struct.unpack_from("<Q", code, 40)[0], struct.unpack_from("<HH", code, 58)
    for at in range(start, start + size * count, size):
        kind, flags, _, offset, length = struct.unpack_from("<IQQQQ", code, at + 4)
        yield Section(kind, flags, code[offset : offset + length])


def needed(code: bytes) -> set[str]:
    """Names that an object defines not itself."""
    parts = list(sections(code))
    (symbols,) = (part.content for part in parts if part.kind == 2)
    names = next(part.content for part in parts if part.kind == 3 and b"\0kernel\0" in part.content)
    found = set()
    for name, _, _, place, _, _ in struct.iter_unpack("<IBBHQQ", symbols):
        if place == 0 and name:
            found.add(names[name : names.index(0, name)].decode())
    return found


def has(code: bytes, *patterns: tuple[int, int]) -> bool:
    """Whether one of these is among the instructions."""
    words = [
        w for part in sections(code) if part.flags & 4 for (w,) in struct.iter_unpack("<I", part.content)
    ]
    return any(word & mask == value for mask, value in patterns for word in words)


@pytest.fixture(scope="module")
def objects():
    """All code for arm64, without seals."""
    skip_if_stale(served.STORE)
    kept = _packs.fresh_code(served.STORE.prebuilt, _cpu.wanted(tuple(ARM.values())))
    if (machines := {each.machine for each in kept}) != {*ARM}:
        skip_if_stale(served.STORE)
    assert machines == {*ARM}
    return {each: content[: -loading.SEAL] for each, content in kept.items()}


def test_objects_need_only_what_they_are_given(objects):
    for each, code in objects.items():
        assert needed(code) <= {*loading.OUTER}, each
        assert b"ggmlq/cpu" not in code, f"{each} holds a path of the machine that it was made on"
        for part in sections(code):
            if part.kind == 4:
                kinds = {info & 0xFFFFFFFF for _, info, _ in struct.iter_unpack("<QQq", part.content)}
                assert kinds <= {*LINKED}, (each, kinds - {*LINKED})


def test_each_level_keeps_to_its_instructions(objects):
    """The dot product where it is the point of a kernel; for any arm64 neither it nor atomic steps."""
    products = ("direct", "through_bytes", "from_blocks", "by_lines", "sweep")
    sums = "row_converter", (True,)  # of signed bytes, which LLVM adds by their dot product with ones
    for each, code in objects.items():
        place, _, family = each.origin.family.rpartition(".")
        if (family, each.origin.case) != sums or each.machine == "arm64":
            floats = place.endswith(("_floats", "_transposed"))
            dots = family in products and not floats and each.machine == "arm64-dotprod"
            assert has(code, *SDOT) is dots, each
        if each.machine == "arm64":
            assert not has(code, LSE, CAS), each
    (board,) = (
        code for each, code in objects.items() if "dot" in each.machine and "doer" in str(each.origin)
    )
    assert has(board, LSE)
    assert has(board, CAS)


@pytest.mark.parametrize(
    ("has", "folder"),
    [
        ({"fp-armv8"}, None),
        ({"fp-armv8", "neon", "crc"}, "arm64"),
        ({"fp-armv8", "neon", "dotprod"}, "arm64"),
        ({"fp-armv8", "neon", "dotprod", "lse", "sve"}, "arm64-dotprod"),
    ],
)
def test_a_cpu_of_arm_gets_only_what_it_has_all_instructions_for(has, folder):
    found = best("aarch64", frozenset(has))
    assert (found and found.folder) == folder


@pytest.mark.parametrize(
    ("cpu", "told", "there"),
    [
        ("neoverse-n1", features.ASIMDDP, True),
        ("neoverse-n1", 0, False),  # a hypervisor hides it
        ("cortex-a72", 0, False),
        ("generic", features.ASIMDDP, False),  # LLVM does not know the CPU, and would end the process
    ],
)
def test_the_dot_product_counts_though_llvm_does_not_name_it(monkeypatch, cpu, told, there):
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    monkeypatch.setattr(features, "LINUX", True)
    monkeypatch.setattr(features, "MACHINE", "aarch64")
    monkeypatch.setattr(features.llvm, "get_process_triple", lambda: "aarch64-unknown-linux-gnu")
    monkeypatch.setattr(features, "cpu_name", lambda: cpu)
    monkeypatch.setattr(features, "_hwcap", lambda: told)
    assert features._lacks_dotprod(frozenset({"neon"}), "+neon,+fp-armv8,-sve") is there
