"""Weights that were laid out for kernels lie on the disk: mapped by the next model, never another file's."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import time

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.arrays.buffers import owner_of
from ggmlq.cli import main
from ggmlq.cpu.panels import multiply
from ggmlq.model import layouts as of_models
from ggmlq.model.arithmetic import Host
from ggmlq.store import layouts
from ggmlq.store.private import RELATIVE
from ggmlq.testing.models import tiny_model

pytestmark = pytest.mark.skipif(not RELATIVE, reason="this system has no times of files to trust")
TOKENS = [1, 5, 7]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A cache where even small files of this moment are kept."""
    monkeypatch.setattr(layouts, "root", lambda: tmp_path / "cache")
    monkeypatch.setattr(of_models, "LEAST", 1)
    monkeypatch.setattr(layouts, "AGE", 0)
    monkeypatch.setattr(layouts, "_writers", [])
    return tmp_path / "cache" / layouts.HOME


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two model files of one size."""
    folder = tmp_path_factory.mktemp("models")
    return [tiny_model(folder / f"{seed}.gguf", seed=seed) for seed in (0, 1)]


@pytest.fixture
def path(files, tmp_path):
    return str(shutil.copy(files[0], tmp_path / "tiny.gguf"))


def written():
    for thread in layouts._writers:
        thread.join()


def laid_out(path):
    """The panels of a file's matrices, which are on the disk after that if they can be."""
    file = gq.open(path)
    there = of_models.Layouts(file)
    arrays = [there.lend([name], file[name]) for name in file]
    panels = [q.prepared(multiply.panels) for q in arrays if multiply.panels_shape(q)]
    there.keep()
    written()
    return panels


def is_mapped(panels):
    """True where all panels are maps of the disk, False where none is."""
    owners = map(owner_of, panels)
    (one,) = {isinstance(owner, memoryview) and isinstance(owner.obj, mmap.mmap) for owner in owners}
    return one


def same(some, others):
    return len(some) == len(others) and all(map(np.array_equal, some, others))


def test_what_was_made_before_is_mapped(place, path):
    first = laid_out(path)
    assert not is_mapped(first)
    (entry,) = layouts.entries()
    assert entry.model == path
    assert entry.bytes == os.path.getsize(entry.path)
    second = laid_out(path)
    assert is_mapped(second)
    assert same(first, second)
    assert not any(panels.flags.writeable or panels.ctypes.data % 64 for panels in second)


def test_a_model_gives_the_same_from_the_disk(place, path):
    models = [gq.model.load(path) for _ in range(2)]
    models += [gq.model.load(path, lean=True)]
    logits, tokens = [], []
    for model in models:
        logits.append(model.logits(TOKENS))
        tokens.append([*model.generate(TOKENS, 3)])
        written()
    assert np.array_equal(logits[0], logits[1])
    assert tokens[0] == tokens[1]
    there = models[1]._weights.layouts
    made = [q.prepared_copy(multiply.panels) for q in there._matrices.values()]
    if not layouts.entries():
        pytest.skip("this CPU's kernels read blocks as they are")
    assert any(is_mapped([panels]) for panels in made if panels is not None)
    for q in there._matrices.values():
        assert q.has_bytes or np.array_equal(multiply.panels(q), q.prepared_copy(multiply.panels))
    weights = models[1]._weights
    for name, (stack, _) in weights._places.items():  # one of several over each other is not laid out again
        panels = weights.matrix(name).prepared_copy(multiply.panels)
        if (of_stack := stack.prepared_copy(multiply.panels)) is None:
            continue
        assert np.shares_memory(panels, of_stack)
        assert np.array_equal(panels, multiply.panels(weights.tensors[f"{name}.weight"]))


@pytest.mark.parametrize("counts", [(16, 32, 40), (17, 16), (32, 5)], ids=str)
def test_matrices_over_each_other_have_the_panels_of_one(counts):
    rng = np.random.default_rng(0)
    for fmt in ("q4_K", "q8_0"):
        parts = [gq.quantize(rng.standard_normal((n, 256)).astype(np.float32), fmt) for n in counts]
        raw = np.concatenate([part.raw for part in parts])
        stack, whole = Host().stacked(parts), gq.QuantArray.from_bytes(raw, fmt, (sum(counts), 256))
        assert np.array_equal(multiply.panels(stack), multiply.panels(whole))
        assert stack.has_bytes == any(n % 16 for n in counts[:-1])  # panels that have rows of two
        assert np.array_equal(stack.raw, raw)
        assert np.array_equal(stack[3:20].dequantize(), whole[3:20].dequantize())


def test_a_file_that_was_written_to_is_another_one(place, path, files):
    before, facts = laid_out(path), os.stat(path)
    time.sleep(0.02)  # steps of the clock of some file systems
    with open(path, "r+b") as file:  # the same inode and size
        file.write(files[1].read_bytes())
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    again = os.stat(path)
    assert (again.st_ino, again.st_size, again.st_mtime_ns) == (
        facts.st_ino, facts.st_size, facts.st_mtime_ns,
    )  # fmt: skip
    after = laid_out(path)
    assert not is_mapped(after)
    assert not same(after, before)
    assert same(after, laid_out(files[1]))
    assert is_mapped(laid_out(path))


def test_a_copy_of_a_file_is_another_one(place, path, tmp_path):
    laid_out(path)
    assert not is_mapped(laid_out(shutil.copy2(path, tmp_path / "copy.gguf")))
    os.rename(tmp_path, tmp_path.with_name(f"{tmp_path.name}-moved"))
    os.rename(tmp_path.with_name(f"{tmp_path.name}-moved"), tmp_path)
    assert is_mapped(laid_out(path))


def test_a_file_of_this_minute_has_no_name(place, path, monkeypatch):
    monkeypatch.setattr(layouts, "AGE", 60)
    assert not is_mapped(laid_out(path))
    assert not place.exists()
    monkeypatch.setattr(time, "time", lambda now=time.time: now() + 61)
    laid_out(path)
    assert len(layouts.entries()) == 1


def test_panels_of_other_code_are_made_again(place, path, monkeypatch):
    laid_out(path)
    monkeypatch.setattr(of_models, "_version", lambda name: "another")
    assert not is_mapped(laid_out(path))
    assert is_mapped(laid_out(path))
    assert len(layouts.entries()) == 1


def damages():
    return {
        "cut": lambda content: content[:-1],
        "empty": lambda content: b"",
        "no line": lambda content: b"x" * len(content),
        "no list": lambda content: b"[]\n" + content,
        "elsewhere": lambda content: content.replace(b'": [0, ', b'": [9999999999, ', 1),
    }


@pytest.mark.parametrize("kind", damages())
def test_a_damaged_entry_is_none(place, path, kind):
    panels = laid_out(path)
    (entry,) = layouts.entries()
    with open(entry.path, "rb") as file:
        content = file.read()
    with open(entry.path, "wb") as file:
        file.write(damages()[kind](content))
    again = laid_out(path)
    assert not is_mapped(again)
    assert same(again, panels)
    assert is_mapped(laid_out(path))


def test_where_nothing_can_be_kept_nothing_is(place, path, monkeypatch):
    def raises(*arguments):
        raise OSError(28, "No space left on device")

    for module, name, value in (
        (layouts, "root", lambda: None), (layouts, "room", lambda folder: 1000), (os, "fsync", raises),
    ):  # fmt: skip
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            assert not is_mapped(laid_out(path))
            assert layouts.entries() == []
    assert os.listdir(place) == []
    os.chmod(place, 0o777)  # others could write weights there
    assert not is_mapped(laid_out(path))
    os.chmod(place, 0o700)
    assert os.listdir(place) == []
    laid_out(path)
    assert is_mapped(laid_out(path))


def test_a_file_that_changes_meanwhile_is_not_kept(place, path):
    file = gq.open(path)
    there = of_models.Layouts(file)
    there.lend(["token_embd"], file["token_embd.weight"]).prepared(multiply.panels)
    os.utime(path, ns=(10**18, 10**18))
    there.keep()
    written()
    assert os.listdir(place) == []


def test_the_end_of_a_process_waits_for_no_disk(place, path, monkeypatch):
    monkeypatch.setattr(layouts._ends, "is_set", lambda: True)
    laid_out(path)
    assert os.listdir(place) == []


def test_those_not_used_for_longest_go(place, path, files, monkeypatch):
    laid_out(path)
    (entry,) = layouts.entries()
    for name in (f"{'0' * 32}{layouts.ENTRY}-12345678.partial", "mine.partial"):
        (place / name).write_bytes(b"x")
        os.utime(place / name, (1e9, 1e9))
    monkeypatch.setattr(layouts, "MOST", entry.bytes * 3 // 2)
    laid_out(files[1])
    (entry,) = layouts.entries()
    assert entry.model == str(files[1])
    assert sorted(os.listdir(place)) == sorted([os.path.basename(entry.path), "mine.partial"])


def test_several_may_write_at_once(place, path):
    file = gq.open(path)
    several = [of_models.Layouts(file) for _ in range(4)]
    for there in several:
        there.lend(["token_embd"], file["token_embd.weight"]).prepared(multiply.panels)
    for there in several:
        there.keep()
    written()
    assert len(os.listdir(place)) == 1
    assert len(layouts.opened(several[0]._name)) == 1


def test_the_command_lists_and_removes_them(place, path, capsys):
    laid_out(path)
    assert main(["cache", "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)["layouts"]
    assert entry["model"] == path
    assert main(["cache"]) == 0
    assert path in (text := capsys.readouterr().out)
    assert "weights of 1 model laid out" in text
    assert main(["cache", "--empty", "layouts"]) == 0
    assert "removed weights of 1 model laid out" in capsys.readouterr().out
    assert layouts.entries() == []
    assert os.listdir(place) == []
