"""Code that comes with the package: of what products take, of today's sources, loaded without Numba."""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test or cuda)")
pytest.importorskip("cuda.core", reason="cuda-core is not installed (extra test or cuda)")

from fake_cupy import put_gpu
from launched_kernels import CARDS, launch, launch_experts, put_card
from made_of import PACKAGE, functions_of
from scripts import ROOT, load
from stale_packs import REBUILD, need_fresh

import ggmlq as gq
from ggmlq.cuda.cost.warp_specialized import TILES
from ggmlq.cuda.machine import compile_process, compile_worker, served
from ggmlq.cuda.machine.launch import Kernel
from ggmlq.cuda.packed.layout import layout_of
from ggmlq.formats import FORMATS
from ggmlq.store import packs, reach
from ggmlq.store.origin import Origin
from ggmlq.store.store import Store
from ggmlq.testing import dry_run

_packs, assemble = load("tools", "_packs"), load("tools", "assemble")
_kernels = load("tools", "_kernels_cuda")
CUDA = reach.SIDES["cuda"]
BLOCKS = _kernels.stored()
ROWS = (1, 2, 4, 8, 9, 16, 17, 32, 33, 64, 65, 200, 512, 1024, 4096)
GEMV = "ggmlq.cuda.linear.r13_gemv.kernel"


# --- what is in ---------------------------------------------------------------------------------


@cache
def fresh_code():
    """The code in packs of today's sources; a stale kernel is what tools/prebuild.py --check is for."""
    listed = []
    for path in sorted(served.STORE.prebuilt.glob(f"*/*{packs.SUFFIX}")):
        listed += [_packs.Wanted(origin, path.parent.name) for origin in origins(path)]
    return _packs.fresh_code(served.STORE.prebuilt, listed)


def origins(path):
    """The kernels of a pack, by the cases that their families list."""
    names = packs.opened(path).kernels
    for family in sorted({name.partition("(")[0] for name in names} & _kernels.families().keys()):
        for case in _kernels.families()[family].cases:
            if str(origin := Origin(family, case)) in names:
                yield origin


def named(kernel, machine):
    """The error where a kernel is not in the packs at all; one that is stale is compiled when first used."""
    pack = packs.opened(served.STORE.prebuilt / machine / f"{kernel.origin.pack}{packs.SUFFIX}")
    return pack is not None and str(kernel.origin) in pack.kernels


@cache
def moved():
    """Families in packs that no module has any more: packs are older than a move."""
    listed = {each.name.partition("(")[0] for each in _packs.held(served.STORE.prebuilt)}
    return listed - _kernels.families().keys()


def in_packs(kernel, card):
    machines = [served.machine_of(card.capability), *([] if kernel.exact else [served.PTX])]
    there = any(named(kernel, machine) for machine in machines)
    if not there and moved():
        pytest.skip(f"packs are stale: they know {kernel.origin.family} by another name; {REBUILD}")
    return there


@pytest.mark.parametrize("card", CARDS)
def test_what_products_take_is_there(card, monkeypatch, fresh):
    """Of every format, for any number of rows: all kernels from the file's bytes to the result."""
    for fmt in BLOCKS:
        for m in {*ROWS, int(fresh.integers(1, 1000))}:
            with monkeypatch.context() as patch:
                here, found = put_card(patch, card)
                kernels = launch(fmt, m, here, found)
            for kernel in kernels:
                assert in_packs(kernel, here), (
                    f"{fmt.name}, {m} rows on {card}: no {kernel.origin}; {REBUILD}"
                )


def test_what_products_with_experts_take_is_there(monkeypatch, fresh):
    """Likewise, on Hopper, whose kernels read ids on the card."""
    takers = set()
    for fmt in BLOCKS:
        for tokens in (1, 4, 8, 16, 64, 300, int(fresh.integers(1, 2000)), 5000):
            with monkeypatch.context() as patch:
                here, found = put_card(patch, "NVIDIA H200")
                kernels, taker = launch_experts(fmt, tokens, 4, here, found)
            takers.add(taker)
            for kernel in kernels:
                assert in_packs(kernel, here), f"{fmt.name}, {tokens} tokens: no {kernel.origin}; {REBUILD}"
    assert takers == {"cuda:gemv_int16", "cuda:gemv", "cuda:grouped"}


def test_what_scaled_products_take_is_there(fresh):
    """Of e4m3 and int8 on Hopper: whichever tile a shape gets, for results of each kind of floats."""
    card = dry_run.CARDS[0]
    for code, tiles in _kernels.SCALED:
        shapes = [
            (128 * int(2 ** fresh.uniform(0, 7)), 128 * int(2 ** fresh.uniform(0, 6))) for _ in range(3)
        ]
        rows = [int(2 ** fresh.uniform(0, 12)) for _ in range(3)]
        for kernel in dry_run.scaled_kernels(code, tiles, card, shapes, rows):
            assert in_packs(kernel, card), f"{code} {shapes} {rows}: no {kernel.origin}; {REBUILD}"


def test_what_attention_takes_is_listed(fresh):
    """Caches of the usual types, in whichever floats and sizes a user has: their kernels belong in packs."""
    card = [card for card in dry_run.CARDS if card.capability >= (8, 0)][fresh.integers(9)]
    listed = {kernel.origin for kernel in dry_run.cache_kernels(card, _kernels.CACHES)}
    for _ in range(12):
        cache = {**_kernels.CACHES[fresh.integers(len(_kernels.CACHES))], "batch": int(fresh.integers(1, 4))}
        cache["heads"] = cache["heads"] if cache.get("shared") else int(fresh.integers(1, 9))
        sizes = [int(2 ** fresh.uniform(0, most)) for most in (10, 13)]
        kind = str(fresh.choice(dry_run.RESULTS))
        for kernel in dry_run.cache_kernels(card, [cache], sizes[:1], sizes[1:], [kind]):
            known = kernel.origin in listed or in_packs(kernel, card)
            assert known, f"{cache}, {kind}, {sizes} on {card.name}: {kernel.origin} is not listed"


def frame_of(code):
    """Bytes that a kernel keeps on a stack, as its ELF notes them."""
    sections = struct.unpack_from("<Q", code, 40)[0]
    size, count, named = struct.unpack_from("<3H", code, 58)
    headers = [struct.unpack_from("<2I4Q", code, sections + i * size) for i in range(count)]
    found = []
    for name, _, _, _, begin, length in headers:
        if not code.startswith(b".nv.info\0", headers[named][4] + name):
            continue
        at = begin
        while at < begin + length:
            form, attribute, value = struct.unpack_from("<2BH", code, at)
            if attribute == 0x11:  # of a function, so many bytes
                found.append(struct.unpack_from("<I", code, at + 8)[0])
            at += 4 + (value if form == 4 else 0)  # what follows, or the value itself
    return max(found)


def test_machine_code_is_for_its_gpu():
    """ELF for CUDA, its flags say the capability, nothing on a stack; PTX as it is written."""
    for each, code in fresh_code().items():
        if each.machine == served.PTX:
            assert re.search(rb"\n\.version 7\.8\n\.target sm_90\n", code), each
            assert b".entry kernel(" in code
        else:
            machine, flags = struct.unpack_from("<H", code, 18)[0], struct.unpack_from("<I", code, 48)[0]
            assert (code[:4], machine) == (b"\x7fELF", 190), each
            assert 90 in (flags & 255, flags >> 8 & 255), each
            assert frame_of(code) == 0, each


def test_ptx_becomes_machine_code_for_every_gpu(fresh):
    """A few kernels, without a stack; ``tools/assemble.py`` looks at all."""
    listed = [each for each in fresh_code().items() if each[0].machine == served.PTX]
    if len(listed) < 4:
        need_fresh()
    for i in fresh.choice(len(listed), 4, replace=False):
        each, code = listed[i]
        kernel = _kernels.families()[each.origin.family].make(*each.origin.case)
        for capability in assemble.ROOM:
            assert assemble.problem(each.origin, code, capability) is None, f"{each.origin} for {capability}"
            if capability >= kernel.least:
                text = served.for_driver(code, capability).decode()
                assert ("griddepcontrol" in text) is (kernel.early and capability >= (9, 0))


# --- is it of these sources? --------------------------------------------------------------------


def test_the_digest_reaches_all_that_a_kernel_is_made_of(fresh):
    all_origins = [each.origin for each in fresh_code()]
    if not all_origins:
        need_fresh()
    names = sorted({origin.family for origin in all_origins})
    drawn = [[origin for origin in all_origins if origin.family == name] for name in names]
    for listed in drawn:
        for origin in (listed[0], listed[fresh.integers(len(listed))]):
            places = reach.reached(origin.family, origin.formats).places
            kernel = _kernels.families()[origin.family].make(*origin.case)
            for function in functions_of(kernel.function, {}):
                path = Path(function.__code__.co_filename).relative_to(PACKAGE).as_posix()
                line = function.__code__.co_firstlineno
                covered = any(path == file and first <= line <= last for file, first, last in places)
                host = path.startswith(CUDA.host) and path not in CUDA.compiler
                assert covered or host, f"{origin} is made of {path}:{line}, which its digest leaves out"


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    """A copy of the sources."""
    place = tmp_path_factory.mktemp("sources")
    for name in ("cuda", "formats", "codes", "fixed", "gru"):
        shutil.copytree(PACKAGE / name, place / name, ignore=shutil.ignore_patterns("*.pack", "__pycache__"))
    for name in ("formats/packing.py", "codes/tiling.py"):
        shutil.copy(PACKAGE / name, place / name)
    return place


@pytest.fixture
def tree(copied):
    """That copy, of which files may be changed; it is as it was afterwards."""
    before = {}
    yield SimpleNamespace(path=copied, before=before)
    for path, text in before.items():
        (copied / path).write_text(text)
    forget()


def forget():
    for remembered in (reach.reached, reach._file, reach._text, reach._needs, reach._counts, reach.digest_of):
        remembered.cache_clear()


def changed(tree, path, old, new):
    file = tree.path / path
    text = tree.before[path] = file.read_text()
    assert text.count(old) == 1, f"{path} has {text.count(old)} of {old!r}"
    file.write_text(text.replace(old, new))
    forget()


@pytest.mark.parametrize(
    ("path", "old", "new", "stale"),
    [
        ("cuda/gemv/stages.py", "from __future__", "# a comment\nfrom __future__", False),
        ("cuda/intrinsics/dependent_launch.py", "Wait until the kernel before", "Wait until it", False),
        ("cuda/intrinsics/bf16x2.py", "def mma_into(", "def mma_into(extra, ", True),
        ("formats/q4_0.py", "\nFORMAT = ", "\nANOTHER = 1\nFORMAT = ", True),
        ("cuda/intrinsics/tables.py", "kind, types.int64)", "kind, types.int32)", False),
        ("cuda/linear/_gemv.py", "tiles = w.frag", "tiles = +w.frag", False),  # of its launch
        ("cuda/linear/_gemv.py", "let_start()\n", "pass\n", True),
        ("cuda/machine/compiling.py", 'abi="numba"', 'abi="c"', True),
        ("cuda/machine/launch.py", "GRAPHS_EARLY = 12030", "GRAPHS_EARLY = 1", False),
        ("formats/q8_0.py", "\nFORMAT = ", "\nANOTHER = 1\nFORMAT = ", False),
    ],
)
def test_a_changed_source(tree, path, old, new, stale):
    """A change of what a kernel is made of makes its code old, for the check and in a process."""
    origin = Origin(
        "ggmlq.cuda.packed.pack.pack_kernel" if path.startswith("formats/") else GEMV, (FORMATS["q4_0"],)
    )
    before = reach.reached(origin.family, origin.formats, tree.path).digest
    assert before == reach.reached(origin.family, origin.formats).digest
    changed(tree, path, old, new)
    assert (reach.reached(origin.family, origin.formats, tree.path).digest != before) is stale


def test_one_more_case_makes_no_other_code_old(tree):
    """Nor does a name that counts in an expression, though kernels have variables of that name."""
    origin = Origin("ggmlq.cuda.linear.r16_warp_specialized.kernel", (layout_of(FORMATS["q4_0"]), TILES[0]))
    before = reach.reached(origin.family, origin.formats, tree.path).digest
    more = "\n    *(WarpSpecializedTile(columns) for columns in (24, 40)),\n)"
    changed(tree, "cuda/cost/warp_specialized.py", " 208, 256)),\n)", f" 240, 256)),{more}")
    assert reach.reached(origin.family, origin.formats, tree.path).digest == before


# --- how it is taken ----------------------------------------------------------------------------


@pytest.fixture
def loader(monkeypatch):
    """A driver that remembers what it is given; it refuses what begins with a bang."""
    state, found = put_gpu(monkeypatch), []

    class Refused(Exception):
        pass

    class Module:
        def load(self, code):
            found.append(code)
            if code[:1] == b"!":
                raise Refused("not for this driver")

        def get_function(self, name):
            return SimpleNamespace(ptr=1, name=name)

    state.cupy.cuda.function = SimpleNamespace(Module=Module)
    state.cupy.cuda.driver = SimpleNamespace(CUDADriverError=Refused)
    monkeypatch.setattr("ggmlq.cuda.machine.device.driver_version", lambda: 13000)
    monkeypatch.setattr("ggmlq.cuda.machine.device.most_shared", lambda: 1 << 10)
    monkeypatch.setattr(Kernel, "cubin", lambda kernel, capability: b"compiled")
    return found


def small():
    kernel = Kernel("small", lambda *_: None, threads=32)
    kernel.origin = Origin("ggmlq.cuda.nowhere.kernel", (1,))
    return kernel


@pytest.mark.parametrize(
    ("code", "given"), [(b"code", [b"code"]), (b"!old", [b"!old", b"compiled"]), (None, [b"compiled"])]
)
def test_prebuilt_code_is_loaded_and_compiled_where_that_fails(loader, monkeypatch, code, given):
    monkeypatch.setattr(served, "code_of", lambda *asked: code)
    small().load()
    assert loader == given


def test_a_kernel_that_no_pack_knows(loader):
    small().load()
    assert loader == [b"compiled"]


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "no header", "another's", "gone"])
def test_a_damaged_or_foreign_pack_is_refused_in_words(tmp_path, monkeypatch, damage):
    origin = Origin("ggmlq.cuda.activations.floats.kernel", (True,))
    path = tmp_path / "sm_90" / f"{origin.pack}{packs.SUFFIX}"
    path.parent.mkdir()
    content = (served.STORE.prebuilt / "sm_90" / path.name).read_bytes()
    middle = len(content) // 2
    wrong = {
        "cut": content[:-9],
        "flipped": content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :],
        "empty": b"",
        "no header": b"[]\n" + content,
        "another's": (served.STORE.prebuilt / "ptx" / path.name).read_bytes(),
    }
    monkeypatch.setattr(served, "STORE", Store(tmp_path, lambda: "-"))
    if damage in wrong:
        path.write_bytes(wrong[damage])
        words = "it is the pack ptx/" if damage == "another's" else "is not used"
        with pytest.warns(RuntimeWarning, match=words):
            assert served.code_of(origin, (9, 0), True) is None
        assert packs.examine(tmp_path, "sm_90")["refused"] == [str(path)]
    else:
        assert served.code_of(origin, (9, 0), True) is None


def process(code, tmp_path, **more):
    """Python with something that is called cupy, and without what the tests ask for."""
    (tmp_path / "cupy").mkdir()
    (tmp_path / "cupy" / "__init__.py").write_text("")
    environment = {k: v for k, v in os.environ.items() if k != "GGMLQ_COMPILE_HERE"} | more
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(ROOT), str(ROOT / "tests")])
    environment["GGMLQ_CACHE_DIR"] = str(tmp_path / "cache")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=environment, capture_output=True, text=True,
        check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_nothing_of_numba_is_imported_where_nothing_is_compiled(tmp_path):
    """A process makes all kernels of products and finds their code, as far as that goes without a card."""
    need_fresh()
    code = """
        import sys
        import pytest
        from launched_kernels import launch, put_card
        from ggmlq.cuda.machine import served
        from ggmlq.formats import FORMATS
        for name in ("q4_0", "q6_K", "iq2_xs"):
            for m in (1, 20, 64, 512, 4096):
                with pytest.MonkeyPatch.context() as patch:
                    card, found = put_card(patch, "NVIDIA H200")
                    for kernel in launch(FORMATS[name], m, card, found):
                        assert served.is_served(kernel.origin, card.capability, kernel.exact), kernel.origin
        import ggmlq as gq
        assert len(gq.kernels(device="cuda")) > 10
        from ggmlq.cuda.machine.coverage import families
        for family in families().values():
            for case in family.cases:
                family.make(*case)
        print(*sorted({m.split(".")[0] for m in sys.modules} & {"numba", "llvmlite", "cuda"}))
    """
    assert process(code, tmp_path) == []


def test_what_is_not_prebuilt_is_compiled_by_another_process(tmp_path):
    code = """
        import sys
        from ggmlq.cuda.activations import floats
        first, second = floats.kernel(True).cubin((8, 6)), floats.kernel(False).cubin((8, 6))
        print(first[:4] == second[:4] == b"\\x7fELF", first != second, "numba" in sys.modules)
    """
    assert process(code, tmp_path) == ["True", "True", "False"]


def test_what_goes_wrong_there_is_said_here():
    kind, said = compile_worker.compiled("ggmlq.cuda.activations.floats.kernel", (True,), (1, 0))
    assert kind == "error"
    assert said
    with pytest.raises(gq.GGMLQError, match="GGMLQ_COMPILE_HERE=1"):
        compile_process.code(None, (9, 0))
