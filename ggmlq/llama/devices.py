"""Lists the devices of a ggml build and finds one by its name, with or without ggml's registry."""

from __future__ import annotations

import ctypes
import itertools
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import DeviceError, MissingDependencyError
from . import library
from .library import SIZE, P, Symbols, words

KINDS = ("CPU", "GPU", "IGPU", "ACCEL", "META")  # in the order of ggml's enum


@dataclass(frozen=True)
class Device:
    """One device as its backend describes it."""

    name: str  # "CPU", "CUDA0"
    description: str
    backend: str  # "CPU", "CUDA", "Vulkan"
    kind: str
    memory_free: int
    memory_total: int
    features: str = ""  # what the backend was built with, as it names that: "AVX2, AVX512_VNNI"
    layouts: tuple[str, ...] = ()  # of weights, beside the plain one: "AMX", "CPU_REPACK"

    def facts(self) -> dict[str, Any]:
        """The facts as JSON has them."""
        return asdict(self)


@dataclass(frozen=True)
class Handle:
    """A device, and the pointers to it and to its backend."""

    device: Device
    dev: int
    reg: int


def handles(symbols: Symbols) -> list[Handle]:
    """All devices of the build, in ggml's order."""
    devices = []
    for reg in _regs(symbols):
        for i in range(symbols.ggml_backend_reg_dev_count(reg)):
            dev = symbols.ggml_backend_reg_dev_get(reg, i)
            devices.append(Handle(_describe(symbols, reg, dev), dev, reg))
    return devices


def find(symbols: Symbols, name: str) -> Handle:
    """The device of that name, in any case."""
    all_devices = handles(symbols)
    for handle in all_devices:
        if handle.device.name.lower() == name.lower():
            return handle
    listed = ", ".join(handle.device.name for handle in all_devices) or "none"
    more = "".join(f"; {trouble}" for trouble in symbols.troubles)
    raise DeviceError(
        f"device {name!r}: {symbols.build.folder} has {listed}{more}; "
        "name one of these, or build ggml with the backend"
    )


GLANCE = 0.2  # seconds between looks for a server


def connect(symbols: Symbols, server: str, patience: float) -> None:
    """Add the devices of a server of ggml's RPC before all others, if it answers within some seconds."""
    regs = [reg for reg in _regs(symbols) if words(symbols.ggml_backend_reg_name(reg)) == "RPC"]
    if not regs:
        raise DeviceError(f"--rpc {server}: {symbols.build.folder} has no RPC; build ggml with -DGGML_RPC=ON")
    add = symbols.procedure(regs[0], "ggml_backend_rpc_add_server", P, ctypes.c_char_p)
    if add is None:
        raise DeviceError(f"--rpc {server}: RPC of this library is older than October 2025; take a newer one")
    end = time.monotonic() + patience
    while not _answers(server):
        if time.monotonic() > end:
            raise DeviceError(
                f"--rpc {server}: no server answers there; start one, in a loop if cases may end it: "
                "while true; do rpc-server -p PORT; done"
            )
        time.sleep(GLANCE)
    symbols.servers = [int(add(server.encode()) or 0)]


def _answers(server: str) -> bool:
    """True where somebody listens at ``HOST:PORT``."""
    host, _, port = server.rpartition(":")
    if not (host and port.isdecimal()):
        raise DeviceError(f"--rpc {server}: it is HOST:PORT, as 127.0.0.1:50052; write it so")
    with suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), timeout=1):
        return True
    return False


def _regs(symbols: Symbols) -> list[int]:
    """The backends: of a server, registered, loaded at run time, or taken from their own files."""
    return [*symbols.servers, *_local(symbols)]


def _local(symbols: Symbols) -> list[int]:
    if not symbols.has("ggml_backend_reg_count"):
        parts = dict.fromkeys([*symbols.build.backends, "cpu"])  # cpu: perhaps in the one file
        names = [f"ggml_backend_{part}_reg" for part in parts]
        functions = [getattr(symbols, name) for name in names if symbols.has(name)]
        for function in functions:
            function.restype, function.argtypes = P, []
        return [int(function()) for function in functions] or _none(symbols)
    if not symbols.ggml_backend_reg_count() and symbols.has("ggml_backend_load_all_from_path"):
        for folder in {path.parent: None for path in symbols.build.backends.values()}:
            symbols.ggml_backend_load_all_from_path(str(folder).encode())
        library.checked(symbols.build)
    count = symbols.ggml_backend_reg_count()
    return [symbols.ggml_backend_reg_get(i) for i in range(count)] or _none(symbols)


def _none(symbols: Symbols) -> list[int]:
    more = "".join(f"; {trouble}" for trouble in symbols.troubles)
    files = ", ".join(path.name for path in symbols.build.parts.values())
    raise MissingDependencyError(
        f"libggml: {symbols.build.folder} ({files}) has no backend that loads{more}; to multiply, "
        "ggml needs one beside libggml-base: name a folder that also has libggml-cpu"
    )


def _describe(symbols: Symbols, reg: int, dev: int) -> Device:
    free, total = SIZE(), SIZE()
    symbols.ggml_backend_dev_memory(dev, ctypes.byref(free), ctypes.byref(total))
    kind = symbols.ggml_backend_dev_type(dev)
    return Device(
        name=words(symbols.ggml_backend_dev_name(dev)),
        description=words(symbols.ggml_backend_dev_description(dev)),
        backend=words(symbols.ggml_backend_reg_name(reg)),
        kind=KINDS[kind] if 0 <= kind < len(KINDS) else f"type {kind}",
        memory_free=free.value,
        memory_total=total.value,
        features=", ".join(_features(symbols, reg)),
        layouts=tuple(words(symbols.ggml_backend_buft_name(kind)) for kind in extra_kinds(symbols, reg, dev)),
    )


def extra_kinds(symbols: Symbols, reg: int, dev: int) -> list[int]:
    """The buffer types that a device has for weights beyond the default: repacked, AMX …"""
    function = symbols.procedure(reg, "ggml_backend_dev_get_extra_bufts", ctypes.POINTER(P), P)
    addresses = function(dev) if function else None
    kinds: list[int] = []
    while addresses and addresses[len(kinds)]:
        kinds.append(addresses[len(kinds)])
    return kinds


class _Feature(ctypes.Structure):
    """A name and a value, mostly "1"."""

    _fields_ = (("name", ctypes.c_char_p), ("value", ctypes.c_char_p))


def _features(symbols: Symbols, reg: int) -> Iterator[str]:
    """The features that a backend was built with, where it reports them."""
    listed = symbols.procedure(reg, "ggml_backend_get_features", ctypes.POINTER(_Feature), P)
    for feature in itertools.takewhile(lambda feature: feature.name, listed(reg) if listed else []):
        name, value = words(feature.name), words(feature.value)
        if value != "0":
            yield name if value == "1" else f"{name} = {value}"
