"""Work given to pools of processes: the same bytes and results as here, whoever dies on the way."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
from executors import importance, model, sabotage

import ggmlq as gq
from ggmlq import tasks
from ggmlq.base import threads
from ggmlq.cli import main
from ggmlq.errors import ConvertError, DTypeError, GGUFError, WorkerError
from ggmlq.tasks import pools, rows
from ggmlq.tasks.engine import kill

SPAWN = multiprocessing.get_context("spawn")


class Here(Executor):
    """The smallest executor that there is."""

    def submit(self, work, /, *args, **kwargs):
        future = Future()
        try:
            future.set_result(work(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


@pytest.fixture(scope="module")
def pool():
    with ProcessPoolExecutor(2, SPAWN) as pool:
        yield pool


@pytest.fixture
def small(monkeypatch):
    """Slices of a few rows, so that small tensors have many."""
    monkeypatch.setattr(rows, "ELEMENTS", 1 << 14)


def bytes_of(*paths):
    return [path.read_bytes() for path in paths]


@pytest.mark.parametrize(
    ("kind", "weighted", "byteorder"),
    [("q8_0", False, "little"), ("q4_K", True, "little"), ("q5_1", True, "big")],
)
def test_a_conversion_has_the_same_bytes(tmp_path, fresh, pool, small, kind, weighted, byteorder):
    tensors = model(tmp_path / "in.gguf", fresh, byteorder)
    how = {"imatrix": importance(tensors, fresh) if weighted else None}
    alone = gq.convert.quantize(tmp_path / "in.gguf", tmp_path / "alone.gguf", kind, **how)
    for executor in (pool, Here()):
        shared = gq.convert.quantize(
            tmp_path / "in.gguf", tmp_path / "shared.gguf", kind, **how, executor=executor
        )
        a, b = bytes_of(tmp_path / "alone.gguf", tmp_path / "shared.gguf")
        assert a == b
        assert [done.nmse for done in shared.tensors] == [done.nmse for done in alone.tensors]
        assert shared.notes == alone.notes
    assert sorted(os.listdir(tmp_path)) == ["alone.gguf", "in.gguf", "shared.gguf"]


def test_parts_of_a_split_model(tmp_path, fresh, pool, small):
    with gq.gguf.open((model(tmp_path / "in.gguf", fresh), tmp_path / "in.gguf")[1]) as f:
        gq.save(tmp_path / "parts.gguf", f, split_max_tensors=3)
    first = next(iter(sorted(tmp_path.glob("parts-*"))))
    with gq.gguf.open(first) as f:
        plan = gq.convert.plan_quantize(f, "q5_0")
        alone = gq.convert.run(plan, tmp_path / "a.gguf", keep_split=True)
        shared = gq.convert.run(plan, tmp_path / "b.gguf", keep_split=True, executor=pool)
    assert len(alone.paths) == len(shared.paths) > 1
    for mine, theirs in zip(alone.paths, shared.paths, strict=True):
        assert Path(mine).read_bytes() == Path(theirs).read_bytes()


def test_a_tensor_that_cannot_be_converted_leaves_nothing(tmp_path, fresh, pool, small):
    x = fresh.standard_normal((64, 512), np.float32)
    x[40, 7] = np.nan
    gq.save(tmp_path / "in.gguf", {"a.weight": np.abs(x[:30]), "b.weight": x})
    (tmp_path / "out.gguf").write_bytes(b"before")
    said = []
    for executor in (None, pool):
        with pytest.raises(ConvertError, match=r"'b\.weight' to q4_0: row 40, column 7 is nan") as caught:
            gq.convert.quantize(tmp_path / "in.gguf", tmp_path / "out.gguf", "q4_0", executor=executor)
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert sorted(os.listdir(tmp_path)) == ["in.gguf", "out.gguf"]
    assert (tmp_path / "out.gguf").read_bytes() == b"before"


@pytest.mark.slow
def test_a_worker_killed_in_the_middle_is_replaced(tmp_path, fresh, small):
    model(tmp_path / "in.gguf", fresh)
    gq.convert.quantize(tmp_path / "in.gguf", tmp_path / "alone.gguf", "q8_0")
    (tmp_path / "marks").mkdir()
    with ProcessPoolExecutor(2, SPAWN, initializer=sabotage, initargs=(str(tmp_path / "marks"), 2)) as pool:
        gq.convert.quantize(tmp_path / "in.gguf", tmp_path / "shared.gguf", "q8_0", executor=pool)
    assert len(os.listdir(tmp_path / "marks")) == 2
    a, b = bytes_of(tmp_path / "alone.gguf", tmp_path / "shared.gguf")
    assert a == b
    assert sorted(os.listdir(tmp_path)) == ["alone.gguf", "in.gguf", "marks", "shared.gguf"]


def half_a_message():
    """Send half a result, and then nothing."""
    from multiprocessing.connection import Connection

    def cut(self, buf):
        os.write(self._handle, bytes(buf)[: len(buf) // 2])
        time.sleep(99)

    Connection._send = cut
    return b"so much"


@pytest.mark.slow
def test_workers_killed_in_the_middle_of_a_message(monkeypatch):
    """The thread that reads it ends, for which the end of the process waits."""
    heard, receive = threading.Event(), Connection._recv

    def recv(self, size, *more):
        heard.set()
        return receive(self, size, *more)

    with pools.processes(1) as pool:
        pool.submit(os.getpid).result(60)  # it is there
        monkeypatch.setattr(Connection, "_recv", recv)
        thread = pool._executor_manager_thread
        pool.submit(half_a_message)
        assert heard.wait(60)
        kill(pool)
        thread.join(30)
        assert not thread.is_alive()


@pytest.mark.slow
def test_a_tensor_that_kills_whoever_touches_it_is_named(tmp_path, fresh):
    model(tmp_path / "in.gguf", fresh)
    (tmp_path / "marks").mkdir()
    how = (str(tmp_path / "marks"), 99, "blk.2.ffn_up.weight")
    with (
        ProcessPoolExecutor(2, SPAWN, initializer=sabotage, initargs=how) as pool,
        pytest.raises(WorkerError, match=r"'blk\.2\.ffn_up\.weight', rows .*its worker died 3 times"),
    ):
        gq.convert.quantize(tmp_path / "in.gguf", tmp_path / "out.gguf", "q8_0", executor=pool)
    assert len(os.listdir(tmp_path / "marks")) == 3
    assert sorted(os.listdir(tmp_path)) == ["in.gguf", "marks"]


def test_a_comparison_finds_the_same(tmp_path, fresh, pool, monkeypatch):
    monkeypatch.setattr(rows, "ELEMENTS", 1 << 18)  # what a comparison adds up at a time
    x = fresh.standard_normal((1200, 512), np.float32)
    late, nan, late_nan = x.copy(), x.copy(), x.copy()
    late[1100, 3] += 1
    nan[5, 6] = nan[900, 1] = np.nan
    late_nan[1199, 511] = np.inf
    a = {
        "same": x,
        "late": x,
        "types": x,
        "nan": x,
        "inf": x,
        "shape": x[:4],
        "mine": x[0],
        "i": np.arange(9),
    }
    b = {"same": x, "late": late, "types": gq.quantize(x, "q4_K"), "nan": nan, "inf": late_nan}
    b |= {"shape": x[:5], "theirs": x[0], "i": np.arange(9), "empty": np.zeros((0, 3), np.float32)}
    a |= {"i": b["i"], "empty": b["empty"]}
    gq.save(tmp_path / "a.gguf", a, {"k": 1})
    gq.save(tmp_path / "b.gguf", b, {"k": 2})
    for tolerance in (0.0, 1e-2):
        alone, shared, here = (
            gq.diff.compare(tmp_path / "a.gguf", tmp_path / "b.gguf", tolerance=tolerance, executor=e)
            for e in (None, pool, Here())
        )
        assert repr(shared) == repr(alone) == repr(here)
    assert [t.status for t in alone.tensors if t.name == "same"] == ["same bytes"]


def test_threads_may_be_the_workers(tmp_path, fresh, small):
    model(tmp_path / "in.gguf", fresh)
    gq.convert.quantize(tmp_path / "in.gguf", tmp_path / "alone.gguf", "q6_K", any_name=True)
    with ThreadPoolExecutor(4) as threads:
        gq.convert.quantize(
            tmp_path / "in.gguf", tmp_path / "shared.gguf", "q6_K", any_name=True, executor=threads
        )
    a, b = bytes_of(tmp_path / "alone.gguf", tmp_path / "shared.gguf")
    assert a == b


def test_what_is_no_executor_or_is_closed_is_told(tmp_path, fresh):
    model(tmp_path / "in.gguf", fresh)
    closed = ProcessPoolExecutor(1, SPAWN)
    closed.shutdown()
    for executor, kind, said in ((8, DTypeError, "no concurrent"), (closed, WorkerError, "takes no work")):
        with pytest.raises(kind, match=said):
            gq.convert.quantize(tmp_path / "in.gguf", tmp_path / "out.gguf", "q8_0", executor=executor)
    assert os.listdir(tmp_path) == ["in.gguf"]


def test_a_file_that_changes_meanwhile_is_noticed(tmp_path, fresh):
    tensors = model(tmp_path / "in.gguf", fresh)
    with gq.gguf.open(tmp_path / "in.gguf") as f:
        found = rows.rows_of(f["blk.1.ffn_up.weight"])
        assert np.array_equal(np.asarray(found.array()), tensors["blk.1.ffn_up.weight"])
        with open(tmp_path / "in.gguf", "r+b") as file:
            file.write(b"GGUF")
        with pytest.raises(GGUFError, match="stays as it is"):
            found.array()
        model(tmp_path / "new.gguf", fresh)
        os.replace(tmp_path / "new.gguf", tmp_path / "in.gguf")
        with pytest.raises(GGUFError, match="it was replaced since"):
            rows.rows_of(f["ids"])
    with pytest.raises(gq.GGMLQError, match="lies in memory"):
        rows.rows_of(gq.quantize(tensors["blk.1.ffn_up.weight"], "q8_0"))


def threads_used(task):
    from ggmlq.base.threads import num_threads

    return num_threads()


class Asked:
    what = "a question"


def test_workers_share_the_cores(pool, monkeypatch):
    from ggmlq.base.threads import available

    monkeypatch.setattr(threads, "_requested", [])  # nobody said how many
    said = []
    tasks.run(pool, [Asked(), Asked()], threads_used, lambda task, n: said.append(n))
    assert said == [max(1, available() // 2)] * 2
    tasks.run(None, [Asked()], threads_used, lambda task, n: said.append(n))
    assert said[-1] == threads.num_threads()


def run_command(*words, **how):
    """As a terminal starts it: a shell lets what it puts into the background ignore interrupts."""
    return subprocess.Popen(
        [sys.executable, "-m", "ggmlq", *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - it takes no lock
        **how,
    )  # fmt: skip


def test_the_command_takes_workers(tmp_path, fresh, capsys):
    model(tmp_path / "in.gguf", fresh)
    said = []
    for name, more in (("a", []), ("b", ["--workers", "2"])):
        made = str(tmp_path / f"{name}.gguf")
        assert main(["quantize", str(tmp_path / "in.gguf"), made, "--type", "q8_0", *more]) == 0
        said.append(capsys.readouterr().out.replace(f"{name}.gguf", "out"))
    assert said[0] == said[1]
    a, b = bytes_of(tmp_path / "a.gguf", tmp_path / "b.gguf")
    assert a == b


@pytest.mark.drawn(1)
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_leaves_neither_files_nor_workers(tmp_path, fresh, number):
    x = fresh.standard_normal((4096, 4096), np.float32)
    gq.save(tmp_path / "in.gguf", {f"blk.{i}.ffn_up.weight": x for i in range(4)})
    run = run_command(
        "quantize", tmp_path / "in.gguf", tmp_path / "out.gguf", "--type", "iq3_s", "--workers", 2
    )
    end = time.monotonic() + 60
    while not list(tmp_path.glob(".ggmlq-*")) and time.monotonic() < end:
        time.sleep(0.02)
    time.sleep(0.5)
    assert run.poll() is None
    os.killpg(run.pid, number) if number == signal.SIGINT else run.send_signal(number)
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 128 + number, errors
    assert "Traceback" not in errors
    assert os.listdir(tmp_path) == ["in.gguf"]
    end = time.monotonic() + 10
    while alive(run.pid) and time.monotonic() < end:
        time.sleep(0.05)
    assert not alive(run.pid)


def alive(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
