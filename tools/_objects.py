"""Object code of Numba's kernels that needs neither Numba nor Python, for packs of the CPU's kernels.

Of Numba's module the kernel is kept, with all that it calls; what Python would call is dropped. Two things
are added: ``entry``, which C can call, and the functions of Numba's memory that kernels use, on malloc and
free. LLVM makes the object with the settings that Numba has for its own.
"""

from __future__ import annotations

import re
import struct
from typing import Any

import llvmlite.binding as llvm
from _cross import machine_of

from ggmlq.cpu.machine.levels import Level
from ggmlq.cpu.machine.loading import ENTRY, FAILED, KERNEL, OUTER

# Numba's layout: count of references, destructor, its argument, the data, its size, its allocator.
MEMORY = """
declare ptr @malloc(i64)
declare void @free(ptr)

define ptr @NRT_MemInfo_alloc_aligned(i64 %size, i32 %align) {
  %huge = icmp ugt i64 %size, 4611686018427387904
  br i1 %huge, label %none, label %ask
ask:
  %wide = zext i32 %align to i64
  %more = add i64 %wide, 48
  %whole = add i64 %size, %more
  %info = call ptr @malloc(i64 %whole)
  %refused = icmp eq ptr %info, null
  br i1 %refused, label %none, label %fill
fill:
  %from = ptrtoint ptr %info to i64
  %first = add i64 %from, 48
  %over = urem i64 %first, %wide
  %up = sub i64 %wide, %over
  %data = add i64 %first, %up
  %p1 = getelementptr i64, ptr %info, i64 1
  %p2 = getelementptr i64, ptr %info, i64 2
  %p3 = getelementptr i64, ptr %info, i64 3
  %p4 = getelementptr i64, ptr %info, i64 4
  %p5 = getelementptr i64, ptr %info, i64 5
  store i64 1, ptr %info
  store i64 0, ptr %p1
  store i64 0, ptr %p2
  store i64 %data, ptr %p3
  store i64 %size, ptr %p4
  store i64 0, ptr %p5
  ret ptr %info
none:
  ret ptr null
}

define void @NRT_MemInfo_call_dtor(ptr %info) {
  call void @free(ptr %info)
  ret void
}
"""
CALL = """
declare i32 @"{kernel}"(ptr, ptr, i64, i64, i64)

define i64 @{entry}(i64 %arguments, i64 %start, i64 %stop) {{
  %result = alloca ptr
  %raised = alloca ptr
  store ptr null, ptr %raised
  %status = call i32 @"{kernel}"(ptr %result, ptr %raised, i64 %arguments, i64 %start, i64 %stop)
  switch i32 %status, label %failed [ i32 0, label %fine
                                      i32 -2, label %fine ]
fine:
  ret i64 0
failed:
  %place = load ptr, ptr %raised
  %none = icmp eq ptr %place, null
  %number = ptrtoint ptr %place to i64
  %code = select i1 %none, i64 {failed}, i64 %number
  ret i64 %code
}}
"""


def object_of(function: Any, signature: Any, level: Level) -> bytes:
    """The object code of a function of Numba for a level; in a process that compiles for it."""
    function.compile(signature)
    result = function.overloads[signature]
    name = result.fndesc.llvm_func_name
    text = re.sub(r" comdat(\(\$[^)]*\))?", "", result.library.get_llvm_str())
    module = llvm.parse_assembly(re.sub(r"^\$.*$", "", text, flags=re.MULTILINE))
    for more in (MEMORY, CALL.format(kernel=name, entry=ENTRY, failed=FAILED)):
        module.link_in(llvm.parse_assembly(more))
    visible = {ENTRY, name}
    for value in [*module.functions, *module.global_variables]:
        if not value.is_declaration and value.name not in visible:
            value.linkage = "internal"
    machine = machine_of(level)
    passes = llvm.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3)))
    outer = {f.name for f in module.functions if f.is_declaration and not f.name.startswith("llvm.")}
    outer |= {v.name for v in module.global_variables if v.is_declaration}
    if outer - set(OUTER):
        raise ValueError(f"{name} refers to {sorted(outer - set(OUTER))}; a kernel may refer to {OUTER}")
    module.get_function(name).name = KERNEL
    module.verify()
    return renamed(bytes(machine.emit_object(module)))


def renamed(code: bytes) -> bytes:
    """An object whose local symbols are named by their numbers: Numba's names count what it compiled before.

    Each keeps a name of its own, because LLVM's loader finds the target of a relocation by the name. Names
    with ``$``, which mark code and data for arm64, stay. The table of names lies last, before the headers.
    """
    start, (size, count, last) = struct.unpack_from("<Q", code, 40)[0], struct.unpack_from("<3H", code, 58)
    heads = [[*struct.unpack_from("<IIQQQQIIQQ", code, start + size * at)] for at in range(count)]
    first, end = heads[last][4], heads[last][4] + heads[last][5]
    if max(h[4] + h[5] for h in heads if h is not heads[last] and h[1] != 8) > first or end > start:
        raise ValueError("an object whose table of names does not lie last")
    body, table = bytearray(code[:first]), bytearray(1)

    def place(old: int, name: bytes = b"") -> int:
        word = b"\0" + (name or code[first + old : code.index(0, first + old)]) + b"\0"
        if word not in table:
            table.extend(word[1:])
        return table.index(word) + 1

    for head in heads:
        head[0] = place(head[0])  # names of sections stand in the same table
    symbols = next(head for head in heads if head[1] == 2)
    for number, at in enumerate(range(symbols[4], symbols[4] + symbols[5], 24)):
        old, info = struct.unpack_from("<IB", body, at)
        is_named = old and info >> 4 == 0 and code[first + old] != ord("$")
        name = f"local.{number}".encode() if is_named else b""
        struct.pack_into("<I", body, at, place(old, name) if old else 0)
    heads[last][5] = len(table)
    body += table + bytes(-(len(body) + len(table)) % 8)
    struct.pack_into("<Q", body, 40, len(body))
    return bytes(body + b"".join(struct.pack("<IIQQQQIIQQ", *head) for head in heads))
