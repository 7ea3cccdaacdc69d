"""Addresses: what they mean, and that what is secret in them goes nowhere and does not show."""

from __future__ import annotations

import urllib.error
from email.message import Message

import pytest
from served import check, served

import ggmlq as gq
from ggmlq import remote
from ggmlq.errors import RemoteError, RemoteNotFoundError
from ggmlq.remote.address import parse
from ggmlq.remote.ranges import Ranges


def test_names_that_want_escapes(server, tensors, gguf_bytes):
    server.files["/%C3%BC/m.gguf"] = gguf_bytes
    with gq.open(f"{server.url}/ü/m.gguf") as f:
        check(f, {"small": tensors["small"]})


def test_the_hub(server, tensors, gguf_bytes, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_TOKEN", "secret-word")
    with served({"/cdn": gguf_bytes}) as cdn:
        server.redirects["/o/n/resolve/v1/m.gguf"] = "/a/m.gguf"
        with gq.open("hf://o/n/m.gguf@v1") as f:
            check(f, tensors)
            assert f.path == "hf://o/n/m.gguf@v1"
        assert {token for _, _, token in server.asked} == {"Bearer secret-word"}
        server.redirects["/o/n/resolve/main/m.gguf"] = f"{cdn.url}/cdn?signed=1"
        with gq.open("hf://o/n/m.gguf") as f:
            check(f, tensors)
        assert cdn.asked
        assert {token for _, _, token in cdn.asked} == {None}
    server.statuses["/o/n/resolve/main/gated.gguf"] = 401
    with pytest.raises(RemoteError, match="set HF_TOKEN") as caught:
        gq.open("hf://o/n/gated.gguf")
    assert "secret" not in str(caught.value)
    monkeypatch.setenv("HF_TOKEN", "secret\x07word")
    with pytest.raises(RemoteError, match="no token has") as caught:
        gq.open("hf://o/n/gated.gguf")
    assert "secret" not in str(caught.value)
    server.asked.clear()
    gq.open(f"{server.url}/a/m.gguf").close()
    assert [token for _, _, token in server.asked] == [None]  # for hf:// alone


def test_secrets_of_an_address_do_not_show(server):
    with pytest.raises(RemoteNotFoundError) as caught:
        gq.open(f"{server.url}/x.gguf?signature=abc123")
    assert "abc123" not in str(caught.value)
    with gq.open(f"{server.url}/a/m.gguf?signature=abc123") as f:
        assert "abc123" not in repr(f)
    assert "abc123" not in str(remote.entries())


@pytest.mark.parametrize(
    "text", ["https://", "https:///x", "hf://only/two", "hf://a/b/../c", "https://u:p@h/x", "http://h:99999/x",
             "https://h/a b", "http://a..b/x", "http://h\u2028/x", "hf://a/b@r/c@s", "https://[::1/x"],
)  # fmt: skip
def test_addresses_that_mean_nothing(text):
    with pytest.raises(RemoteError):
        gq.open(text)


def test_a_token_shows_nowhere(server, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_TOKEN", "secret-word")
    address = parse("hf://o/n/m.gguf")
    assert address.token == "secret-word"
    for text in (repr(address), str(address), f"{address}", repr([address]), repr(address.beside("x"))):
        assert "secret" not in text
    assert "signature" not in repr(parse("https://h/x?signature=abc123"))


def test_why_a_token_was_not_sent(monkeypatch):
    """An endpoint without https gets none, and the hint does not ask for one that is there."""
    monkeypatch.setenv("HF_ENDPOINT", "http://name:word@mirror.example")
    refused = Ranges(parse("hf://o/n/m.gguf")._replace(token=None))
    monkeypatch.setenv("HF_TOKEN", "secret-word")
    assert parse("hf://o/n/m.gguf").token is None
    error = urllib.error.HTTPError("", 401, "", Message(), None)
    with pytest.raises(RemoteError, match=r"not sent, .* http://mirror.example; set HF_ENDPOINT"):
        refused._refused(error)
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(RemoteError, match="set HF_TOKEN"):
        refused._refused(error)
    error.close()
