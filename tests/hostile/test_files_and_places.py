"""Files made to cost a reader what they did not cost their writer, and places where a save must not write."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import ggmlq as gq
from ggmlq import cli
from ggmlq.gguf import atomic, plan, source

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))
import gguf_bytes as gb  # noqa: E402

SECONDS = 400
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="limits of memory and links as Linux has them")
W = {"w": np.zeros(4, np.float32)}

LIMITED = """
import resource, sys
import ggmlq.cli
resource.setrlimit(resource.RLIMIT_DATA, (1 << 29, 1 << 29))  # maps of files do not count
sys.exit(ggmlq.cli.main(sys.argv[1:]))
"""


def limited(*args, program=LIMITED, **more):
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, args)],
        capture_output=True, text=True, timeout=SECONDS, check=False, env=os.environ | more,
    )  # fmt: skip


# --- headers that repeat themselves ---------------------------------------------------------


def sparse(path, kind, count, nbytes, depth=0):
    """One key: an array of so many, whose elements lie in a hole of the file."""
    b = gb.Builder()
    inner = b.u32(kind) + b.u64(count)
    for _ in range(depth):
        inner = b.u32(gb.ARRAY) + b.u64(1) + inner
    path.write_bytes(b.file([b.text("k") + b.u32(gb.ARRAY) + inner]))
    os.truncate(path, path.stat().st_size + nbytes)
    return path


@pytest.mark.slow
@LINUX
@pytest.mark.parametrize(
    ("kind", "count", "each", "depth", "what"),
    [
        (gb.UINT8, 30 << 30, 1, 0, source.BYTES),
        (gb.STRING, 1 << 37, 8, 0, source.TEXTS),
        (gb.STRING, 1 << 37, 8, 3, source.TEXTS),
        (gb.ARRAY, 1 << 36, 12, 0, source.ARRAYS),
        (gb.ARRAY, 8_000_000, 12, 0, source.ARRAYS),
        (gb.ARRAY, 1 << 36, 12, 2, source.ARRAYS),
        (gb.FLOAT64, 1 << 36, 8, 1, source.BYTES),
    ],
)
def test_holes(tmp_path, kind, count, each, depth, what):
    path = sparse(tmp_path / "m.gguf", kind, count, count * each, depth)
    for command in ("info", "validate"):
        done = limited(command, path)
        assert done.returncode == (2 if command == "info" else 1), done.stderr
        said = done.stdout + done.stderr
        assert re.search(rf"the header has \d+ {what} or more, \d+ are read; .*{source.FACTOR}=\d+ in", said)


def test_what_the_limits_allow_is_read(tmp_path, monkeypatch):
    """Right up to the limit, and beyond it as the error says."""
    monkeypatch.setitem(source.LIMITS, source.ARRAYS, 100)
    path = tmp_path / "m.gguf"
    sparse(path, gb.ARRAY, 100, 1200)
    assert gq.open(path).metadata["k"] == [[]] * 100
    sparse(path, gb.ARRAY, 301, 3612)
    with pytest.raises(gq.GGUFError, match=f"{source.FACTOR}=4 in the environment"):
        gq.open(path)
    monkeypatch.setenv(source.FACTOR, "4")
    assert gq.open(path).metadata["k"] == [[]] * 301
    monkeypatch.setenv(source.FACTOR, "many")
    with pytest.raises(gq.GGUFError, match="'many' in the environment: it is a whole number"):
        gq.open(path)


@pytest.mark.slow
@pytest.mark.parametrize("what", [source.KEYS, source.TENSORS])
def test_many_keys_and_tensors(tmp_path, monkeypatch, what):
    monkeypatch.setitem(source.LIMITS, what, 3)
    b = gb.Builder()
    for n in (3, 4):
        keys = [b.kv(f"k{i}", gb.UINT8, 1) for i in range(n)]
        infos = [b.info(f"t{i}", [0], gb.F32, 0) for i in range(n)]
        (tmp_path / "m.gguf").write_bytes(b.file(keys if what == source.KEYS else [], infos if keys else []))
        if n == 3:
            gq.open(tmp_path / "m.gguf")
    with pytest.raises(gq.GGUFError, match=f"the header has 4 {what} or more, 3 are read"):
        gq.open(tmp_path / "m.gguf")


@pytest.mark.slow
@LINUX
def test_the_dearest_header_that_is_read(tmp_path):
    """As many arrays in an array as are allowed, in little memory."""
    path = sparse(tmp_path / "m.gguf", gb.ARRAY, source.LIMITS[source.ARRAYS], 12 << 18)
    assert limited("info", path).returncode == 0


# --- other people's words -------------------------------------------------------------------

ESCAPE = "\x1b]0;gotcha\x07\x1b[31m\u202e\x9b"


def test_nothing_reaches_the_terminal_raw(tmp_path, capsys):
    path = tmp_path / f"{ESCAPE}.gguf"
    b = gb.Builder()
    name = "w\n" + ESCAPE
    infos = [b.info(name, [32], gb.Q8_0, 0)]
    data = np.array([0x7E00], np.uint16).tobytes() + bytes(32)  # a scale that is NaN
    text = b.kv(ESCAPE, gb.STRING, ESCAPE), b.kv("bad" + ESCAPE, gb.STRING, b"\xff" + ESCAPE.encode())
    path.write_bytes(b.file(text, infos, data))
    other = tmp_path / "b.gguf"
    other.write_bytes(b.file([], [b.info(name, [32], gb.F32, 0)], bytes(128)))
    for command in (
        ["info", path], ["validate", path], ["show", path, name], ["show", path, ESCAPE],
        ["diff", path, other], ["diff", other, path], ["copy", path, tmp_path / f"c{ESCAPE}.gguf"],
        ["quantize", other, tmp_path / ESCAPE], ["quantize", other, tmp_path / ESCAPE, "--type", "q8_0"],
        ["dequantize", path, tmp_path / "d.gguf"], ["dequantize", other, tmp_path / ("d" + ESCAPE)],
        ["info", tmp_path / ("none" + ESCAPE)], ["info", path, ESCAPE], ["check", "--replay", path],
        ["diagnose", path],
    ):  # fmt: skip
        with contextlib.suppress(SystemExit):  # of argparse
            cli.main(list(map(str, command)))
        said = "".join(capsys.readouterr()).replace("\n", "")
        assert said.isprintable(), f"{command}: {said!r}"
        assert said


LINES = [
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "pointer of Git LFS"),
    (b"<!DOCTYPE html><html><head>", "a web page"),
    (b"\n<html lang=en>", "a web page"),
    (b"Entry not found", "a text, 'Entry not found'"),
    (b"\x1f\x8b\x08" + bytes(40), "packed with gzip"),
    (b"PK\x05\x06" + bytes(18), "a zip archive"),
    (bytes(257) + b"ustar" + bytes(300), "a tar archive"),
    (b"\x80\x02}q\x00", "a pickle"),
    (b"lmgg" + bytes(40), "from before GGUF"),
    (bytes(4000), "zeros, as a download"),
    ((70).to_bytes(8, "little") + b'{"w":{"dtype":"F32"', "a safetensors file"),
]


@pytest.mark.parametrize(("raw", "says"), LINES, ids=[says for _, says in LINES])
def test_what_is_no_gguf_file(tmp_path, raw, says):
    (tmp_path / "m.gguf").write_bytes(raw)
    with pytest.raises(gq.GGUFError, match=f"no GGUF file but .*{says}.*; "):
        gq.open(tmp_path / "m.gguf")


def test_arrays_of_numpy_are_no_gguf_file(tmp_path):
    for save, says in ((np.save, "an npy file of NumPy"), (np.savez, "an npz file of NumPy")):
        with (tmp_path / "m.gguf").open("wb") as file:
            save(file, np.zeros(3))
        with pytest.raises(gq.GGUFError, match=f"no GGUF file but {says}; save"):
            gq.open(tmp_path / "m.gguf")


def test_bytes_for_a_path(tmp_path):
    gq.save(tmp_path / "m.gguf", W)
    raw = (tmp_path / "m.gguf").read_bytes()
    for given in (raw, bytearray(raw), memoryview(raw), b"x" * 10**6, b"GGUF\0" * 10**5, "x" * 10**6):
        with pytest.raises(gq.GGMLQError) as error:
            gq.open(given)
        assert len(str(error.value)) < 400
    with pytest.raises(gq.GGMLQError, match=f"got the {len(raw)} bytes of a GGUF file .*; .* write"):
        gq.open(raw)
    assert list(gq.open(os.fsencode(tmp_path / "m.gguf"))) == ["w"]


# --- where a save must not write ------------------------------------------------------------


@LINUX
def test_links_of_devices_are_not_replaced(tmp_path):
    out = tmp_path / "out"
    out.write_text("kept")
    (tmp_path / "link.gguf").symlink_to("/proc/self/fd/1")
    program = "import sys, numpy as np, ggmlq as gq; gq.save(sys.argv[1], {'w': np.zeros(3, 'f4')})"
    for path in ("/dev/fd/1", "/proc/self/fd/1", tmp_path / "link.gguf"):  # nobody can rename in /proc
        with out.open("r+") as file:
            done = subprocess.run(
                [sys.executable, "-c", program, str(path)], stdout=file, stderr=subprocess.PIPE,
                text=True, check=False, timeout=SECONDS,
            )  # fmt: skip
        assert "stands for a device, and a save would replace it" in done.stderr
    assert out.read_text() == "kept"


def test_a_link_becomes_a_device_only_by_what_it_leads_to(tmp_path, monkeypatch):
    """The same, where nobody may touch the real ones."""
    devices = tmp_path / "dev"
    devices.mkdir()
    monkeypatch.setattr(plan, "DEVICES", (str(devices),))
    (tmp_path / "file").write_text("kept")
    (devices / "stdout").symlink_to(tmp_path / "file")
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("dev/stdout")
    for name in ("a", "b", "dev/stdout"):
        with pytest.raises(gq.GGUFError, match="stands for a device"):
            gq.save(tmp_path / name, W)
        assert (tmp_path / name).is_symlink()
    (tmp_path / "loop").symlink_to("loop")
    plan.check_target(str(tmp_path / "loop"))


def test_a_file_that_is_read_only(tmp_path):
    path = tmp_path / "m.gguf"
    gq.save(path, W)
    path.chmod(0o444)
    before = path.read_bytes()
    for tensors in (W, gq.open(path)):
        with pytest.raises(gq.GGUFError, match=r"is there and read-only \(mode 0444\); .*chmod"):
            gq.save(path, tensors)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["m.gguf"]


def test_a_disk_that_is_too_small(tmp_path, monkeypatch):
    path = tmp_path / "m.gguf"
    gq.save(path, W)
    assert plan.room(str(tmp_path)) < plan.room(str(tmp_path / "none")) == sys.maxsize
    need = path.stat().st_size
    monkeypatch.setattr(plan, "room", lambda folder: need)
    gq.save(path, W)
    monkeypatch.setattr(plan, "room", lambda folder: need - 1)
    with pytest.raises(gq.GGUFError, match=f"has {need - 1} bytes free, .* needs {need} bytes, beside"):
        gq.save(path, W)
    assert [p.name for p in tmp_path.iterdir()] == ["m.gguf"]


# --- the lock of sets -----------------------------------------------------------------------

SET = {f"t{i}": np.zeros(64, np.float32) for i in range(3)}


@pytest.fixture
def held(tmp_path):
    """A process that holds the lock of the folder until its input ends."""
    program = (
        "import sys; from ggmlq.gguf.atomic import locked\n"
        "with locked(sys.argv[1]): print('held', flush=True); sys.stdin.read()"
    )
    if sys.platform == "win32":
        pytest.skip("there are no locks on this system")
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as process:  # fmt: skip
        process.stdout.readline()
        yield process
        process.stdin.close()


def test_waiting_for_a_lock_is_said_and_ends(tmp_path, held, monkeypatch, capsys):
    monkeypatch.setattr(atomic, "AFTER", 0.1)
    monkeypatch.setattr(atomic, "PATIENCE", 0.5)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with pytest.raises(gq.GGUFError, match=rf"\.lock has been held for . s by process {held.pid} on"):
        gq.save(tmp_path / "m.gguf", SET, split_max_bytes=256)
    assert f"waiting for {tmp_path}/.ggmlq.lock, held by process {held.pid} on " in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == [".ggmlq.lock"]


def test_a_lock_that_is_given_back_is_taken(tmp_path, held):
    timer = threading.Timer(0.3, held.stdin.close)
    timer.start()
    started = time.monotonic()
    assert len(gq.save(tmp_path / "m.gguf", SET, split_max_bytes=256)) == 3
    assert time.monotonic() >= started
    timer.join()


@pytest.mark.skipif(sys.platform == "win32", reason="there are no locks on this system")
def test_a_link_under_the_name_of_the_lock(tmp_path):
    (tmp_path / "victim").write_text("kept")
    for name in ("victim", "new"):
        (tmp_path / ".ggmlq.lock").symlink_to(name)
        with pytest.raises(gq.GGUFError, match=r"\.ggmlq\.lock is a link; .* remove it"):
            gq.save(tmp_path / "m.gguf", SET, split_max_bytes=256)
        (tmp_path / ".ggmlq.lock").unlink()
    assert [p.name for p in tmp_path.iterdir()] == ["victim"]
    assert (tmp_path / "victim").read_text() == "kept"


@pytest.mark.skipif(sys.platform == "win32", reason="there are no locks on this system")
def test_file_systems_without_locks_do_without(tmp_path, monkeypatch):
    def flock(fd, how):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr("fcntl.flock", flock)
    assert len(gq.save(tmp_path / "m.gguf", SET, split_max_bytes=256)) == 3
