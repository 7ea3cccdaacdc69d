"""Files with holes: kept between processes, private, and never taken for zeros."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest
from served import check

import ggmlq as gq
from ggmlq import remote
from ggmlq.base import progress
from ggmlq.remote import held, opening
from ggmlq.store.private import Folder
from ggmlq.tasks.rows import rows_of

posix = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="this system has no owners and modes of files")


def test_what_was_fetched_is_kept(server, tensors, gguf_bytes):
    for _ in range(2):
        with gq.open(f"{server.url}/a/m.gguf") as f:
            check(f, tensors)
    assert server.sent <= len(gguf_bytes) + held.PIECE
    (entry,) = remote.entries()
    assert entry.size == len(gguf_bytes)
    assert remote.empty() == [entry]
    assert not remote.entries()
    assert not os.path.exists(entry.path)


def test_what_was_damaged_on_this_disk_is_fetched_again(server, tensors):
    with gq.open(f"{server.url}/a/m.gguf") as f:
        check(f, tensors)
    (entry,) = remote.entries()
    with open(os.path.join(entry.path, "data"), "r+b") as file:
        file.seek(300_000)
        file.write(bytes(200_000))  # as after a power cut: the table is there and the data is not
    before = server.sent
    with gq.open(f"{server.url}/a/m.gguf") as f:
        check(f, tensors)
    assert 200_000 < server.sent - before < 600_000


def test_a_file_that_changes_under_its_version_is_not_mixed_with_what_is_kept(server, tensors, tmp_path):
    old = gq.open(f"{server.url}/a/m.gguf")
    check(old, tensors)
    new = {name: x if name == "small" else np.asarray(x)[::-1] for name, x in tensors.items()}
    gq.save(tmp_path / "new.gguf", new, {"general.name": "fad", "tokens": ["word"] * 2000})
    server.files["/a/m.gguf"] = (tmp_path / "new.gguf").read_bytes()
    with gq.open(f"{server.url}/a/m.gguf") as f:
        check(f, new)
    check(old, tensors)
    old.close()


def test_without_a_version_nothing_is_kept(server, tensors):
    server.etag = None
    for _ in range(2):
        with gq.open(f"{server.url}/a/m.gguf") as f:
            check(f, tensors)
    assert not remote.entries()
    assert server.sent > 2 * 10**6


def test_without_a_cache(server, tensors, monkeypatch):
    monkeypatch.setenv("GGMLQ_CACHE_DIR", "off")
    with gq.open(f"{server.url}/a/m.gguf") as f:
        check(f, tensors)
    assert not remote.entries()


def test_the_cache_has_a_limit(server, gguf_bytes, monkeypatch):
    server.files |= {f"/{i}.gguf": gguf_bytes for i in range(4)}
    monkeypatch.setenv("GGMLQ_REMOTE_BYTES", str(5 * len(gguf_bytes) // 2))
    for i in range(4):
        with gq.open(f"{server.url}/{i}.gguf") as f:
            for name in f:
                np.asarray(f[name])
        os.utime(remote.entries()[0].path + "/about.json", (i, i))
    left = [os.path.basename(entry.address) for entry in remote.entries()]
    assert "3.gguf" in left
    assert "0.gguf" not in left
    assert len(left) < 4


# --- other users ----------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path):
    for folder in (tmp_path / "cache", tmp_path / "cache" / "remote"):
        folder.mkdir(mode=0o700)
    return tmp_path / "cache"


def is_done_without(server, tensors, caplog):
    """The file opens, and one sentence says why nothing is kept."""
    progress._logged.clear()
    with gq.open(f"{server.url}/a/m.gguf") as f:
        check(f, tensors)
    assert not remote.entries()
    (record,) = caplog.records
    assert record.message.endswith("what is fetched is kept as long as this process has it open")
    return record.message


@posix
@pytest.mark.parametrize("where", ["", "remote"])
@pytest.mark.parametrize("mode", [0o1777, 0o775])
def test_a_cache_that_others_may_write_to_is_done_without(server, tensors, cache, caplog, where, mode):
    (cache / where).chmod(mode)
    said = is_done_without(server, tensors, caplog)
    assert f"can be written to by others (mode {mode:04o}); chmod go-w it, or set GGMLQ_CACHE_DIR" in said
    assert remote.problem() in said
    assert os.listdir(cache / "remote") == []


@posix
@pytest.mark.parametrize("where", ["", "remote"])
def test_a_cache_of_another_user_is_done_without(server, tensors, cache, caplog, where):
    if os.geteuid():
        pytest.skip("only root can give folders away")
    os.chown(cache / where, 54321, -1)
    assert "belongs to another user (uid 54321)" in is_done_without(server, tensors, caplog)


@posix
def test_links_in_a_cache_are_not_followed(server, tensors, tmp_path, cache, caplog):
    gq.open(f"{server.url}/a/m.gguf").close()
    (entry,) = remote.entries()
    (tmp_path / "precious").write_bytes(b"precious" * 1000)
    os.unlink(entry.path + "/data")
    os.symlink(tmp_path / "precious", entry.path + "/data")
    progress._logged.clear()
    with gq.open(f"{server.url}/a/m.gguf") as f:
        check(f, tensors)
    assert "data is no file, or a link" in caplog.text
    assert (tmp_path / "precious").read_bytes() == b"precious" * 1000


@posix
def test_folders_exchanged_while_a_file_is_opened(server, tensors, tmp_path, cache, monkeypatch):
    """All of a file is opened in the one folder that was asked who may write to it."""
    (tmp_path / "precious").write_bytes(b"precious" * 1000)
    write = Folder.write

    def exchanged(folder, name, content):
        write(folder, name, content)
        folder.path.rename(tmp_path / "away")
        folder.path.mkdir(mode=0o777)
        for file in ("data", "table"):
            (folder.path / file).symlink_to(tmp_path / "precious")

    monkeypatch.setattr(Folder, "write", exchanged)
    with gq.open(f"{server.url}/a/m.gguf") as f:
        check(f, tensors)
    assert (tmp_path / "precious").read_bytes() == b"precious" * 1000


@posix
@pytest.mark.parametrize("name", ["about.json", "data", "table"])
def test_pipes_hold_nobody_up(server, tensors, cache, name):
    bait = cache / "remote" / ("0" * 40)
    bait.mkdir(mode=0o700)
    os.mkfifo(bait / name)
    met = []

    def work():
        with gq.open(f"{server.url}/a/m.gguf") as f:
            check(f, tensors)
        met.append(sorted(entry.address for entry in remote.empty()))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(30)
    assert met == [["?", f"{server.url}/a/m.gguf"]]
    assert not bait.exists()


# --- other processes ------------------------------------------------------------------------


@pytest.mark.parametrize("others", [0, 1])
def test_a_cache_that_is_emptied_while_a_file_is_opened(server, tensors, monkeypatch, others):
    """The opened file is read, also where others have made new files of the same name."""
    header, opened = opening.read_header, []

    def emptied(*args):
        monkeypatch.setattr(opening, "read_header", header)
        found = header(*args)
        assert len(remote.empty()) == 1
        opened.extend(gq.open(f"{server.url}/a/m.gguf") for _ in range(others))
        return found

    monkeypatch.setattr(opening, "read_header", emptied)
    with gq.open(f"{server.url}/a/m.gguf") as f:
        check(f, tensors)
    for each in opened:
        check(each, tensors)
        each.close()
    assert len(remote.entries()) == others


@pytest.mark.parametrize("times", [1, 100])
def test_a_folder_that_is_emptied_while_it_is_filled(server, tensors, monkeypatch, times):
    write, left = Folder.write, [times]

    def emptied(folder, name, content):
        write(folder, name, content)
        if left[0] > 0:
            left[0] -= 1
            remote.empty()

    monkeypatch.setattr(Folder, "write", emptied)
    with gq.open(f"{server.url}/a/m.gguf") as f:
        check(f, tensors)
    left[0] = 0
    assert len(remote.entries()) == (times == 1)


def test_a_file_has_its_size_before_its_name_and_is_never_cut(tmp_path, monkeypatch):
    new = Folder._new

    def other(folder, name):
        """Another process makes the same file, and writes to it."""
        monkeypatch.setattr(Folder, "_new", new)
        file = folder.sized(name, 100)
        os.pwrite(file, b"theirs", 50)
        os.close(file)
        return new(folder, name)

    with Folder(tmp_path) as folder:
        monkeypatch.setattr(Folder, "_new", other)
        file = folder.sized("data", 100)
        assert os.pread(file, 100, 0) == bytes(50) + b"theirs" + bytes(44)
        longer = folder.sized("data", 200)
        assert os.pread(longer, 300, 0) == bytes(200)
        assert os.pread(file, 6, 50) == b"theirs"
        os.close(file)
        os.close(longer)
        monkeypatch.setattr(os, "link", fails)
        os.close(folder.sized("more", 300))
    assert sorted((path.name, path.stat().st_size) for path in tmp_path.iterdir()) == [
        ("data", 200), ("more", 300),
    ]  # fmt: skip


def fails(*args, **words):
    raise OSError(95, "no links here")


def test_a_worker_does_not_take_a_new_file_for_the_old_one(server, tensors):
    """The new one has holes where the old one has what was fetched."""
    with gq.open(f"{server.url}/a/m.gguf") as f:
        x = f["blk.1.ffn_up.weight"]
        rows = rows_of(x)
        assert gq.equal(rows.array(), x)
        remote.empty()
        with pytest.raises(gq.GGMLQError, match="removed since it was opened"):
            rows_of(x)
        with gq.open(f"{server.url}/a/m.gguf"):
            with pytest.raises(gq.GGMLQError, match="and inode"):
                rows.array()
            with pytest.raises(gq.GGMLQError, match="replaced since it was opened"):
                rows_of(x)
