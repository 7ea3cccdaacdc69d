"""Servers: nothing that one does makes a wrong tensor, or takes for ever."""

from __future__ import annotations

import time

import numpy as np
import pytest
from served import check, served, talking

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


# --- time -------------------------------------------------------------------------------------

HEAD = b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-65535/65536\r\nContent-Length: 65536\r\n\r\n"


def continues(send):
    while True:
        send(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)


def dribbles(text, then=b"x"):
    def talk(send):
        send(text)
        while True:
            send(then)
            time.sleep(0.02)

    return talk


def redirects(send):
    send(b"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 99999999999\r\n\r\n")
    while True:
        send(bytes(1 << 16))


@pytest.mark.parametrize(
    "talk",
    [
        continues, redirects, dribbles(b""), dribbles(b"HTTP/1.1 206 OK\r\n", b"X: y\r\n"), dribbles(HEAD),
        dribbles(HEAD.replace(b"Content-Length: 65536", b"Transfer-Encoding: chunked"), b"1\r\nx\r\n"),
    ],
    ids=["continues", "redirects", "status", "header", "body", "chunks"],
)  # fmt: skip
def test_a_server_that_takes_for_ever_has_an_end(monkeypatch, talk):
    monkeypatch.setenv("GGMLQ_REMOTE_TIMEOUT", "0.3")
    start = time.monotonic()
    with talking(talk) as url, pytest.raises(RemoteError) as caught:
        gq.open(f"{url}/m.gguf")
    assert time.monotonic() - start < 5
    said = str(caught.value)
    assert "must come within 0.3 s" in said or talk is redirects
    assert "GGMLQ_REMOTE_TIMEOUT" in said or talk is redirects


def test_a_server_that_asks_to_wait_too_long_is_not_waited_for():
    start = time.monotonic()
    answer = b"HTTP/1.1 503 Busy\r\nRetry-After: 3600\r\nContent-Length: 0\r\n\r\n"
    said = r"asks to come back after 3600 s; .* within 60 s"
    with talking(lambda send: send(answer)) as url, pytest.raises(RemoteError, match=said):
        gq.open(f"{url}/m.gguf")
    assert time.monotonic() - start < 5


def test_a_slow_line_has_the_time_that_it_needs(monkeypatch, tmp_path):
    """The clock is for 64 KiB each, not for all that is asked for at once."""
    monkeypatch.setenv("GGMLQ_REMOTE_TIMEOUT", "0.8")
    gq.save(tmp_path / "m.gguf", {"x": np.ones(5 << 16, np.uint8).view(np.int8)})
    data = (tmp_path / "m.gguf").read_bytes()
    with served({"/m.gguf": data}) as server, gq.open(f"{server.url}/m.gguf") as f:
        server.mischief = "slow"
        start = time.monotonic()
        assert np.asarray(f["x"]).all()
        assert time.monotonic() - start > 0.8


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "a minute"])
def test_times_that_mean_nothing(monkeypatch, text):
    monkeypatch.setenv("GGMLQ_REMOTE_TIMEOUT", text)
    with pytest.raises(RemoteError, match=r"GGMLQ_REMOTE_TIMEOUT=.* more than 0 .* unset it for 60"):
        gq.open("http://127.0.0.1:9/m.gguf")


# --- messages ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        b"\x1b[31m\x1b]0;pwn\x07\xc2\x9b\r\n\r\n",
        b"HTTP/1.1 503 \x1b[31m\xc2\x9b\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 404 \x1b[31m\xc2\x9b\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 418 " + b"\x1b" * 9999 + b"\r\nContent-Length: 0\r\n\r\n",
        HEAD.replace(b"bytes 0-", b"\x1b[31m"),
        HEAD.replace(b"65536\r\n\r\n", b"\x1b[31m\r\n\r\n"),
        HEAD.replace(b"Content-Length", b"Content-Encoding: \x1b[31m\r\nContent-Length"),
    ],
)
def test_words_of_a_server_are_shown_and_short(answer):
    with talking(lambda send: send(answer)) as url, pytest.raises(RemoteError) as caught:
        gq.open(f"{url}/m.gguf")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


def test_versions_of_a_server_are_shown(server):
    server.etag = '"\x1b[31m"'
    f = gq.open(f"{server.url}/a/m.gguf")
    server.mischief = "other version"
    with pytest.raises(RemoteError, match="its version was") as caught:
        f["blk.3.ffn_up.weight"]
    assert str(caught.value).isprintable()
    f.close()


def test_the_range_that_was_asked_for_is_told(server):
    server.mischief = "no range"
    with pytest.raises(RemoteError, match="bytes 0 to 65535 were asked for, and the server does not say"):
        gq.open(f"{server.url}/a/m.gguf")
