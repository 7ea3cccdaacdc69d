"""Numba that compiles for another machine than this one; its code is never run here.

Numba asks for the code of the CPU it runs on, in one class. In a process that only compiles, that class is
replaced by one whose target is the level's: types, rules and passes stay Numba's, and LLVM gets the other
machine's triple, layout and costs from the first pass on, as it would there.
"""

from __future__ import annotations

import platform
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

from ggmlq.cpu.machine.levels import Level


def machine_of(level: Level) -> Any:
    """LLVM for a level, with code that may lie anywhere, as Numba has it."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(triple_of(level))
    return target.create_target_machine(
        cpu=level.cpu, features=level.text, opt=3, reloc="default", codemodel="large"
    )


def triple_of(level: Level) -> str:
    """LLVM's name of the level's system: this one's, or Linux there."""
    here = level.machine == platform.machine()
    return str(llvm.get_process_triple()) if here else f"{level.machine}-unknown-linux-gnu"


def placeless() -> None:
    """Have code leave out the place where an exception is raised: folders are those of this machine."""
    from numba.core.callconv import CPUCallConv

    original = CPUCallConv.set_static_user_exc

    def without_place(
        self: Any, builder: Any, exc: Any, exc_args: Any = None, loc: Any = None, func_name: Any = None
    ) -> None:
        """Raise as Numba does, without ``loc``."""
        original(self, builder, exc, exc_args)

    CPUCallConv.set_static_user_exc = without_place


def aim(level: Level) -> None:
    """Have Numba compile for a level in this process; machines like this one it knows by its settings."""
    placeless()
    if level.machine == platform.machine():
        return
    from numba.core import codegen, registry

    assert "_toplevel_target_context" not in vars(registry.cpu_target), "Numba has compiled something already"

    class Library(codegen.AOTCodeLibrary):
        """Code that has no address here."""

        def get_pointer_to_function(self, name: str) -> int:
            """Finish the code; its address is nothing here."""
            self._ensure_finalized()
            return 0

        def serialize_using_object_code(self) -> Any:
            """Bytes for a cache that is switched off."""
            return self.serialize_using_bitcode()

    class Codegen(codegen.AOTCPUCodegen):
        """Numba's own, without an engine that would run code."""

        _library_class = Library

        def _init(self, module: Any) -> None:
            self._tm = machine_of(level)
            self._tm_features = level.text
            self._target_data = self._tm.target_data
            self._data_layout = str(self._target_data)
            self._loopvect, self._opt_level = False, 0  # as Numba has them by default

        def _create_empty_module(self, name: str) -> ir.Module:
            module = super()._create_empty_module(name)
            module.triple = triple_of(level)
            return module

        def _get_host_cpu_name(self) -> str:
            return level.cpu

        def set_env(self, name: str, env: Any) -> None:
            """Do nothing: no code is run here."""

    codegen.JITCPUCodegen = Codegen
