"""Packs of prebuilt code (ggmlq/cuda/prebuilt): the kernels that belong in, and the files.

A kernel belongs in if products of blocks, decoders or encoders take it where nobody names a kernel, for some
number of rows; of codes with scales, those of e4m3 and int8 on Hopper, with quantizers of 128 columns, of
blocks and of rows. Rungs that are there to be read, GRUs and other codes are compiled when asked for.
"""

from __future__ import annotations

import json
import lzma
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib import metadata
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from ggmlq.cuda.machine.coverage import families
from ggmlq.cuda.machine.served import HERE, PTX, SERVED
from ggmlq.store import packs, reach
from ggmlq.store.packs import FILES, SUFFIX, Origin, Pack

MACHINE = SERVED[9, 0]
ROOM = 227 << 10  # bytes of shared memory of a block
COMPILERS_FILE = "compilers.json"  # beside the folders: the compilers of the packs
COMPILERS = ("numba", "numba-cuda", "llvmlite", "cuda-core", "nvidia-nvjitlink", "nvidia-nvvm")
LEVEL = 9 | lzma.PRESET_EXTREME
# The best filters for text, for instructions of 16 bytes (3 % less), and for those of any length (1 %).
WAYS = (
    {"lc": 3, "lp": 0, "pb": 2}, {"lc": 1, "lp": 3, "pb": 4}, {"lc": 0, "lp": 4, "pb": 4},
    {"lc": 4, "lp": 0, "pb": 0}, {"lc": 0, "lp": 2, "pb": 2},
)  # fmt: skip
Takes = Callable[..., Any]  # true for the cases of a family that belong in
everything: Takes = lambda *case: True
nothing: Takes = lambda *case: False


class Wanted(NamedTuple):
    """A kernel, and the folder that its code belongs in."""

    origin: Origin
    folder: str


def _gemv(fmt: Any, columns: int, span: int, small: bool, fragment_rows: int) -> bool:
    """The stage that GPUs with Hopper's shared memory take for a number of rows; other GPUs may differ."""
    from ggmlq.cuda.linear.r13_gemv import _stage_for

    return bool(_stage_for(fmt, columns, ROOM, True, small, fragment_rows).span == span)


def _gemv_elsewhere(fmt: Any, columns: int, span: int, small: bool, fragment_rows: int) -> bool:
    """The stage of :func:`_gemv` on GPUs that were not measured."""
    from ggmlq.cuda.gemv.stages import TWO

    return fragment_rows == TWO and _gemv(fmt, columns, span, small, fragment_rows)


def _widest(fmt: Any, tile: Any) -> bool:
    """The widest tile; products with fewer rows of activations take gemv."""
    return bool(tile.columns == 64)


def _stored(fmt: Any, *more: Any) -> bool:
    """Types of weights in models; q8_1 and q8_K are for activations."""
    return fmt.name not in ("q8_1", "q8_K")


def _floats(variant: Any) -> bool:
    """Products of e4m3 whose results are floats."""
    return bool(variant.x == variant.w == "e4m3" and not variant.out.coded)


def _integers(variant: Any) -> bool:
    """Products of int8 without zero points, whose results are floats."""
    return bool(variant.x == variant.w == "s8" and not variant.out.coded and not variant.zeros)


def _few(variant: Any, *more: Any) -> bool:
    """Products of e4m3 or int8 for a few rows."""
    plain = variant.x == variant.w and variant.x in ("s8", "e4m3")
    return bool(plain and not variant.out.coded and not variant.zeros)


def _by_columns() -> Iterator[tuple[Any, ...]]:
    """All tiles where each column has a scale of w; tests take the widest."""
    from ggmlq.cuda.codes8.variant import COLUMN_SCALE_TILES, OUTPUTS, Variant

    for wave, out in product(COLUMN_SCALE_TILES, OUTPUTS):
        yield (Variant(wave.tile, "e4m3", "e4m3", out, column_scales=True),)


def _ways() -> Iterator[Any]:
    """The ways to quantize activations and weights where nobody names one."""
    from ggmlq.cuda.quantize_scaled._groups import Conversion

    for scale in ("float32", "e8m0"):
        yield Conversion("e4m3", scale, "half_even", False, True)
    yield Conversion("int8", "float32", "half_even", False, False)


def _groups() -> Iterator[tuple[Any, ...]]:
    """Groups of 128 columns, of many rows and of few."""
    from ggmlq.cuda.quantize_scaled._groups import turns_of
    from ggmlq.cuda.quantize_scaled._loads import SIZES

    for kind, way in product(SIZES, _ways()):
        for few in (False, True) if turns_of(kind, way) > 1 else (False,):
            yield kind, way, 128, few


def _blocks() -> Iterator[tuple[Any, ...]]:
    """Blocks of 128 × 128, and whole rows up to 16384 columns."""
    from ggmlq.cuda.quantize_scaled._blocks import TILES
    from ggmlq.cuda.quantize_scaled._loads import SIZES

    for kind, way, tile in product(SIZES, _ways(), TILES):
        if way.scale == "float32" and tile != (64, 64):
            yield kind, way, tile


# Cases beyond those that a family lists for the tests; all of them belong into machine code for 9.0.
MORE: dict[str, Callable[[], Iterator[tuple[Any, ...]]]] = {
    "codes8.persistent.float_kernel": _by_columns,
    "quantize_scaled._blocks.kernel": _blocks,
    "quantize_scaled._groups.kernel": _groups,
}

# The cases of each family that belong into machine code for 9.0, and into PTX for all others.
FAMILIES: dict[str, tuple[Takes, Takes]] = {
    "activations.expert_codes.gatherer": (everything, nothing),
    "activations.expert_x_tiles.few_gatherer": (everything, nothing),
    "activations.expert_x_tiles.gatherer": (everything, nothing),
    "activations.floats.kernel": (everything, everything),
    "activations.floats.orderer": (everything, nothing),
    "activations.int8.activation_kernel": (nothing, everything),
    "activations.sixteen.changer": (everything, everything),
    "activations.x_tiles.x_tile_kernel": (everything, nothing),
    "codes8.grouped.float_kernel": (_floats, nothing),
    "codes8.grouped.integer_kernel": (_integers, nothing),
    "codes8.operands.scale_gatherer": (everything, nothing),
    "codes8.persistent.float_kernel": (_floats, nothing),
    "codes8.persistent.integer_kernel": (_integers, nothing),
    "codes8.split_k.kernel": (_floats, nothing),
    "epilogue.bias.adder": (everything, everything),
    "expert_linear.r4_gemv.kernel": (everything, nothing),
    "expert_linear.r5_grouped.kernel": (everything, nothing),
    "expert_linear.r7_small_m_codes.kernel": (_few, nothing),
    "linear.r13_gemv.kernel": (_gemv, _gemv_elsewhere),
    "linear.r14_mma_bf16.kernel": (nothing, _widest),
    "linear.r15_wgmma.kernel": (_stored, nothing),
    "linear.r16_warp_specialized.kernel": (everything, nothing),
    "linear.r4_dp4a.kernel": (nothing, everything),
    "linear.r5_registers.kernel": (nothing, everything),
    "packed.pack.pack_kernel": (everything, everything),
    "packed.to_bf16.decoder": (everything, everything),
    "packed.to_blocks.restore_kernel": (everything, everything),
    "quantize.decode.decoder": (everything, everything),
    "quantize.mxfp4.kernel": (everything, everything),
    "quantize.q4_0.kernel": (everything, everything),
    "quantize.q4_1.kernel": (everything, everything),
    "quantize.q5_0.kernel": (everything, everything),
    "quantize.q5_1.kernel": (everything, everything),
    "quantize.q8_0.kernel": (everything, everything),
    "quantize.q8_1.kernel": (everything, everything),
    "quantize_scaled._blocks.kernel": (nothing, nothing),
    "quantize_scaled._groups.kernel": (nothing, nothing),
    "scaled_linear.r10_small_m.kernel": (_few, nothing),
    "schedule.groups.grouper": (everything, nothing),
    "schedule.split_k.adder": (everything, everything),
    "unpacked.offsets.compensation_kernel": (nothing, everything),
    "unpacked.weights.weight_kernel": (nothing, everything),
}


@cache
def wanted() -> tuple[Wanted, ...]:
    """All kernels that belong in the packs."""
    kernels = []
    for short, takes in FAMILIES.items():
        name = f"ggmlq.cuda.{short}"
        for case in families()[name].cases:
            for folder, take in zip((MACHINE, PTX), takes, strict=True):
                if take(*case):
                    kernels.append(Wanted(Origin(name, case), folder))
        kernels += [Wanted(Origin(name, case), MACHINE) for case in MORE.get(short, tuple)()]
    return tuple(dict.fromkeys(kernels))


@cache
def digest(family: str, formats: tuple[str, ...]) -> str:
    """The digest of the sources of a kernel."""
    return reach.reached(family, formats).digest


def fresh_code(folders: Path = HERE, all_of: Iterable[Wanted] | None = None) -> dict[Wanted, bytes]:
    """Code in the packs whose sources have not changed; of the GPU's kernels, or of others."""
    code = {}
    for kernel in wanted() if all_of is None else all_of:
        origin = kernel.origin
        pack = _pack(folders, kernel)
        facts = pack.header["families"].get(origin.family) if pack else None
        place = facts and facts["cases"].get(origin.text)
        fresh = place and facts["digest"] == digest(origin.family, origin.formats)
        if pack and fresh and (body := _body(pack)) is not None:
            code[kernel] = body[place[0] : place[0] + place[1]]
    return code


def problems(folders: Path = HERE, all_of: Iterable[Wanted] | None = None) -> dict[str, list[str]]:
    """Errors of the packs: code that is missing, of other sources, or of kernels that do not belong in."""
    errors: dict[str, list[str]] = {"missing": [], "stale": [], "unwanted": []}
    kernels = {
        f"{kernel.folder}: {kernel.origin}": kernel for kernel in (wanted() if all_of is None else all_of)
    }
    for name, kernel in kernels.items():
        origin, pack = kernel.origin, _pack(folders, kernel)
        facts = pack.header["families"].get(origin.family) if pack else None
        if not facts or origin.text not in facts["cases"]:
            errors["missing"].append(name)
        elif facts["digest"] != digest(origin.family, origin.formats):
            errors["stale"].append(name)
    for path in sorted(folders.glob(f"*/*{SUFFIX}")):
        pack = packs.opened(path)
        for family, facts in pack.header["families"].items() if pack else ():
            for case in facts["cases"]:
                if (name := f"{path.parent.name}: {family}({case})") not in kernels:
                    errors["unwanted"].append(name)
    return errors


def write(code: Mapping[Wanted, bytes], folders: Path = HERE) -> None:
    """Write packs of this code; packs with the same bytes stay as they are, other packs go."""
    groups: dict[Path, dict[Origin, bytes]] = {}
    for kernel, content in code.items():
        groups.setdefault(_path(folders, kernel), {})[kernel.origin] = content
    for path, entries in groups.items():
        content = packed(entries)
        if not path.exists() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
            partial.write_bytes(content)
            os.replace(partial, path)
    for path in set(folders.glob(f"*/*{SUFFIX}")) - set(groups):
        path.unlink()
    for name, facts in ((FILES, files(groups.values())), (COMPILERS_FILE, versions())):
        lines, path = json.dumps(facts, indent=0, sort_keys=True) + "\n", folders / name
        if not path.exists() or path.read_text() != lines:
            path.write_text(lines)


def files(groups: Iterable[Iterable[Origin]]) -> dict[str, str]:
    """Digests of all files that kernels are made of, as they are now."""
    names = {name for origins in groups for o in origins for name in reach.reached(o.family, o.formats).files}
    return {name: packs.digest_of(reach.PACKAGE / name) for name in names}


def looked_away(folders: Path = HERE) -> list[str]:
    """Files that have changed since the packs were last looked at, in whatever way."""
    digests = packs.looked_at(folders)
    return sorted(name for name in digests if packs.digest_of(reach.PACKAGE / name) != digests[name])


def packed(entries: Mapping[Origin, bytes]) -> bytes:
    """A pack: the same bytes for the same code and sources."""
    header: dict[str, Any] = {"files": [], "families": {}}
    body = b""
    for origin in sorted(entries, key=lambda origin: (origin.family, origin.text)):
        facts = header["families"].setdefault(origin.family, {"digest": "", "files": [], "cases": {}})
        if not facts["digest"]:
            sources = reach.reached(origin.family, origin.formats)
            facts["digest"] = sources.digest
            header["files"] += [name for name in sources.files if name not in header["files"]]
            facts["files"] = [header["files"].index(name) for name in sources.files]
        facts["cases"][origin.text] = [len(body), len(entries[origin])]
        body += entries[origin]
    line = json.dumps(header, separators=(",", ":")).encode()
    return line + b"\n" + _compressed(body)


@cache
def _compressed(body: bytes) -> bytes:
    """Code as compressed best; cached, for packs are written several times on the way."""
    filters = ([{"id": lzma.FILTER_LZMA2, "preset": LEVEL, **way}] for way in WAYS)
    return min((lzma.compress(body, lzma.FORMAT_XZ, lzma.CHECK_CRC32, filters=f) for f in filters), key=len)


@cache
def versions() -> dict[str, str]:
    """Versions of the installed compilers."""
    return {name: metadata.version(name) for name in COMPILERS if any(metadata.distributions(name=name))}


def _path(folders: Path, kernel: Wanted) -> Path:
    return folders / kernel.folder / f"{kernel.origin.pack}{SUFFIX}"


@cache
def _pack(folders: Path, kernel: Wanted) -> Pack | None:
    return packs.opened(_path(folders, kernel))


@cache
def _body(pack: Pack) -> bytes | None:
    return pack.body()


def names(errors: Mapping[str, list[str]]) -> Iterator[str]:
    """A line for each error of the packs."""
    for kind, kernels in errors.items():
        yield from (f"{kind}: {kernel}" for kernel in kernels)
