"""Servers: nothing that one does makes a wrong tensor, or takes for ever."""

from __future__ import annotations

import numpy as np
import pytest
from served import check

import ggmlq as gq
from ggmlq import remote
from ggmlq.errors import RemoteError, RemoteNotFoundError
from ggmlq.remote import ranges


@pytest.mark.parametrize("mischief", ["drops", "busy", "sends nothing"])
def test_what_breaks_is_taken_up_again(server, tensors, mischief):
    with gq.open(f"{server.url}/a/m.gguf") as f:
        server.mischief, server.times = mischief, 4
        check(f, tensors)
    server.mischief, server.times, server.etag = mischief, 10**9, '"new"'
    if mischief != "drops":
        with pytest.raises(RemoteError, match=f"tried {ranges.TRIES} times"):
            gq.open(f"{server.url}/a/m.gguf")


def test_a_server_that_always_drops_is_given_up(server, tensors):
    f = gq.open(f"{server.url}/a/m.gguf")
    server.mischief = "drops"
    with pytest.raises(RemoteError, match=f"tried {ranges.TRIES} times"):
        check(f, tensors)
    assert len(server.asked) < 3 * ranges.TRIES
    f.close()


@pytest.mark.parametrize(
    ("mischief", "said"),
    [
        ("ignores ranges", "ignores ranges"), ("other range", "were asked for"),
        ("no range", "were asked for"), ("negative", "were asked for"), ("huge", "were asked for"),
        ("less", "announces"), ("packs", "packs what it sends"),
        ("longer", "had .* bytes and has"), ("other version", "its version was"),
    ],
)  # fmt: skip
def test_a_server_that_lies_gets_no_tensor_through(server, tensors, mischief, said):
    f = gq.open(f"{server.url}/a/m.gguf")
    server.mischief = mischief
    with pytest.raises(RemoteError, match=said):
        f["blk.3.ffn_up.weight"]
    server.mischief = ""
    check(f, tensors)  # nothing of the lie was kept
    f.close()
    remote.empty()
    server.mischief = mischief
    if mischief not in ("longer", "other version"):  # what is told first is believed, and held to
        with pytest.raises(RemoteError, match=said):
            gq.open(f"{server.url}/a/m.gguf")


@pytest.mark.parametrize(
    ("etag", "modified"), [('"one"', None), ('W/"one"', None), (None, "Mon, 01 Jan 2024")]
)
def test_a_file_that_changes_is_an_error_and_another_file(server, tensors, fresh, tmp_path, etag, modified):
    server.etag, server.modified = etag, modified
    f = gq.open(f"{server.url}/a/m.gguf")
    check(f, {"small": tensors["small"]})
    new = {name: -np.asarray(x) if name != "small" else x for name, x in tensors.items()}
    gq.save(tmp_path / "new.gguf", new, {"general.name": "far", "tokens": ["word"] * 2000})
    server.files["/a/m.gguf"] = (tmp_path / "new.gguf").read_bytes()
    server.etag, server.modified = etag and etag.replace("one", "two"), modified and "Tue, two"
    with pytest.raises(RemoteError, match="changed on the server"):
        f["blk.3.ffn_up.weight"]
    f.close()
    with gq.open(f"{server.url}/a/m.gguf") as f:
        check(f, new)


@pytest.mark.parametrize(
    ("status", "said"), [(401, "wants a login"), (403, "wants a login"), (418, "HTTP 418")]
)
def test_refusals_are_told(server, status, said):
    server.statuses["/a/m.gguf"] = status
    with pytest.raises(RemoteError, match=said):
        gq.open(f"{server.url}/a/m.gguf")
    with pytest.raises(RemoteNotFoundError, match="HTTP 404"):
        gq.open(f"{server.url}/none.gguf")
    assert len(server.asked) == 2  # what is final is not tried again


def test_redirects_end(server):
    server.redirects |= {"/round": "/trip", "/trip": "/round", "/file": "file:///etc/passwd"}
    for path in ("/round", "/file"):
        with pytest.raises(RemoteError):
            gq.open(server.url + path)


def test_nobody_answers():
    with pytest.raises(RemoteError, match="tried"):
        gq.open("http://127.0.0.1:9/x.gguf")
