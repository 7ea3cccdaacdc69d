"""Files elsewhere: what is fetched, and that nothing a server does makes a wrong tensor."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import sys
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
from served import served

import ggmlq as gq
from ggmlq import remote
from ggmlq.cli import main
from ggmlq.errors import MissingDependencyError, RemoteError, RemoteNotFoundError
from ggmlq.gguf import edit
from ggmlq.remote import held, ranges


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A cache of its own for each test, and short pauses."""
    monkeypatch.setenv("GGMLQ_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(ranges, "PAUSE", 0.001)
    for name in ("HF_TOKEN", "HF_ENDPOINT", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def tensors(fresh):
    """A megabyte and a half in some tensors."""
    found = {f"blk.{i}.ffn_up.weight": fresh.standard_normal((64, 1024), np.float32) for i in range(4)}
    found["blk.0.attn_norm.weight"] = fresh.standard_normal(1000).astype(np.float16)
    found["small"] = gq.quantize(fresh.standard_normal((3, 32), np.float32), "q4_0")
    found["empty"] = np.zeros((0, 8), np.float32)
    return found


@pytest.fixture
def gguf_bytes(tmp_path, tensors):
    gq.save(tmp_path / "m.gguf", tensors, {"general.name": "far", "tokens": ["word"] * 2000})
    return (tmp_path / "m.gguf").read_bytes()


@pytest.fixture
def server(gguf_bytes):
    with served({"/a/m.gguf": gguf_bytes}) as server:
        yield server


def check(f, tensors):
    for name, x in tensors.items():
        assert np.array_equal(np.asarray(f[name]), np.asarray(x)), name


def test_the_header_comes_first_and_tensors_when_they_are_asked_for(server, tensors, gguf_bytes):
    with gq.open(f"{server.url}/a/m.gguf") as f:
        assert list(f) == list(tensors)
        assert (f.metadata["general.name"], len(f.metadata["tokens"])) == ("far", 2000)
        assert server.sent == held.PIECE
        assert len(server.asked) == 1
        x = f["blk.2.ffn_up.weight"]
        assert server.sent <= 2 * held.PIECE + x.nbytes + held.PIECE
        assert np.array_equal(np.asarray(x), tensors["blk.2.ffn_up.weight"])
        before = server.sent
        check(f, {"blk.2.ffn_up.weight": tensors["blk.2.ffn_up.weight"]})
        assert server.sent == before
        assert "/a/m.gguf" in repr(f)
        check(pickle.loads(pickle.dumps(f)), tensors)
        y = np.ones((1, 1024), np.float32) @ f["blk.1.ffn_up.weight"].T
    assert np.allclose(y, tensors["blk.1.ffn_up.weight"].sum(axis=1), atol=1e-3)
    assert np.array_equal(np.asarray(x), tensors["blk.2.ffn_up.weight"])  # held after closing


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


def test_a_long_header_takes_few_requests(tmp_path, fresh):
    words = [bytes(fresh.integers(97, 123, 12, np.uint8)).decode() for _ in range(60_000)]
    gq.save(
        tmp_path / "m.gguf",
        {"w": np.ones((2048, 1024), np.float32)},
        {"tokens": words, "nothing": [""] * 5000},
    )
    data = (tmp_path / "m.gguf").read_bytes()
    with served({"/m.gguf": data}) as server, gq.open(f"{server.url}/m.gguf") as f:
        assert f.metadata["tokens"][59_999] == words[-1]
        assert len(server.asked) <= 4
        assert server.sent < 5 << 20
        check(f, {"w": np.ones((2048, 1024), np.float32)})


@pytest.mark.parametrize("order", ["little", "big"])
@pytest.mark.parametrize("step", [64, 1000, 4096])
def test_a_header_is_read_right_wherever_its_beginning_ends(tmp_path, fresh, monkeypatch, order, step):
    """The reader begins again and again with a little more, and what it finds is what is there."""
    from ggmlq.remote import prefix

    monkeypatch.setattr(held, "PIECE", 64)
    monkeypatch.setattr(prefix, "FIRST", step)
    monkeypatch.setattr(prefix, "FACTOR", 2)
    keys = {"a": [""] * 1500, "b": ["x" * int(n) for n in fresh.integers(0, 300, 40)], "c": [1, 2, 3]}
    keys |= {"d": [["p", "q"], [1.5] * 9], "general.alignment": 64}
    x = fresh.standard_normal((5, 7), np.float32)
    gq.save(tmp_path / "m.gguf", {"x": x, "y": x[0]}, keys, byteorder=order)
    with served({"/m.gguf": (tmp_path / "m.gguf").read_bytes()}) as server:
        far, here = gq.open(f"{server.url}/m.gguf"), gq.open(tmp_path / "m.gguf")
        assert repr(dict(far.metadata)) == repr(dict(here.metadata))
        check(far, {"x": x, "y": x[0]})
        far.close()


def test_safetensors_with_scales(tmp_path, fresh):
    coded = gq.quantize_scaled(fresh.standard_normal((256, 512), np.float32), "e4m3", (128, 128))
    norm = fresh.standard_normal(512).astype(np.float16)
    gq.save(tmp_path / "m.safetensors", {"up.weight": coded, "norm.weight": norm}, {"format": "pt"})
    config = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    files = {"/m.safetensors": (tmp_path / "m.safetensors").read_bytes()}
    for more in ({}, {"/config.json": json.dumps(config).encode()}):
        with served(files | more) as server, gq.open(f"{server.url}/m.safetensors") as f:
            assert server.sent == held.PIECE
            assert np.array_equal(np.asarray(f["up.weight"]), np.asarray(coded))
            assert np.array_equal(np.asarray(f["norm.weight"]), norm)
            assert f.metadata["format"] == "pt"
            assert f.quantization.method == (config["quantization_config"]["quant_method"] if more else None)


def test_an_index_and_its_files(tmp_path, fresh):
    files, weights = {}, {}
    whole = {f"w{i}": fresh.standard_normal((100, 300), np.float32) for i in range(3)}
    for i, (name, x) in enumerate(whole.items()):
        gq.save(tmp_path / "part.safetensors", {name: x})
        files[f"/m/part-{i}.safetensors"] = (tmp_path / "part.safetensors").read_bytes()
        weights[name] = f"part-{i}.safetensors"
    weights["lost"] = "part-9.safetensors"
    index = "/m/model.safetensors.index.json"
    with served(files | {index: json.dumps({"weight_map": weights}).encode()}) as server:
        with gq.open(server.url + index) as f:
            check(f, whole)
            assert f.missing == ("lost",)
        server.files[index] = json.dumps({"weight_map": {"x": "../../etc/part.safetensors"}}).encode()
        server.etag = '"two"'
        with pytest.raises(gq.errors.SafetensorsError, match="beside its index"):
            gq.open(server.url + index)


def test_all_parts_of_a_split_model(tmp_path, tensors):
    paths = gq.save(tmp_path / "s.gguf", tensors, split_max_tensors=2)
    files = {f"/d/{os.path.basename(path)}": open_bytes(path) for path in paths}
    with served(files) as server, gq.open(f"{server.url}/d/{os.path.basename(paths[1])}") as f:
        check(f, tensors)
        assert len(f.paths) == len(paths)
    del files[f"/d/{os.path.basename(paths[2])}"]
    with served(files) as server, pytest.raises(RemoteNotFoundError, match="00003-of"):
        gq.open(f"{server.url}/d/{os.path.basename(paths[0])}")


def open_bytes(path):
    with open(path, "rb") as file:
        return file.read()


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


def test_what_is_no_model_is_told(server):
    server.files |= {"/page": b"<!doctype html><title>log in</title>", "/none": b"", "/short.gguf": b"GGUF\3"}
    with pytest.raises(gq.GGUFError, match="a web page"):
        gq.open(f"{server.url}/page")
    with pytest.raises(RemoteError, match="empty"):
        gq.open(f"{server.url}/none")
    with pytest.raises(gq.GGUFError, match="are left"):
        gq.open(f"{server.url}/short.gguf")


def test_names_that_want_escapes(server, tensors, gguf_bytes):
    server.files["/%C3%BC/m.gguf"] = gguf_bytes
    with gq.open(f"{server.url}/ü/m.gguf") as f:
        check(f, {"small": tensors["small"]})


def test_a_cut_file_opens_with_what_is_there(server, tensors, gguf_bytes):
    server.files["/cut.gguf"] = gguf_bytes[:700_000]
    with gq.open(f"{server.url}/cut.gguf") as f:
        assert f.missing
        with pytest.raises(gq.GGUFError, match="cut off"):
            f[f.missing[0]]
        check(f, {"blk.0.ffn_up.weight": tensors["blk.0.ffn_up.weight"]})


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


def test_redirects_end(server):
    server.redirects |= {"/round": "/trip", "/trip": "/round", "/file": "file:///etc/passwd"}
    for path in ("/round", "/file"):
        with pytest.raises(RemoteError):
            gq.open(server.url + path)


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


def test_nobody_answers():
    with pytest.raises(RemoteError, match="tried"):
        gq.open("http://127.0.0.1:9/x.gguf")


def test_workers_of_this_machine_read_what_was_fetched(server, tensors, tmp_path):
    with (
        gq.open(f"{server.url}/a/m.gguf") as f,
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool,
    ):
        plan = gq.convert.plan_quantize(f, "q8_0")
        gq.convert.run(plan, tmp_path / "a.gguf", executor=pool)
        gq.convert.run(plan, tmp_path / "b.gguf")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_other_file_systems(tensors, gguf_bytes, monkeypatch):
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed: pip install fsspec")
    system = fsspec.filesystem("memory")
    system.pipe("/far/m.gguf", gguf_bytes)
    with gq.open("memory://far/m.gguf") as f:
        check(f, {"small": tensors["small"]})
        system.pipe("/far/m.gguf", gguf_bytes[::-1])
        with pytest.raises(RemoteError, match="changed"):
            f["blk.3.ffn_up.weight"]
    with pytest.raises(RemoteNotFoundError):
        gq.open("memory://far/none.gguf")
    with pytest.raises(RemoteError, match="fsspec knows no"):
        gq.open("nosuch://far/m.gguf")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingDependencyError, match=r"pip install .fsspec"):
        gq.open("s3://bucket/m.gguf")


def test_commands_and_surveys(server, tensors, gguf_bytes, tmp_path, capsys):
    def run(*words):
        status = main(list(map(str, words)))
        said = capsys.readouterr()
        return status, said.out, said.err

    far = f"{server.url}/a/m.gguf"
    facts = json.loads(run("info", far, "--json")[1])
    assert facts["file_bytes"] == len(gguf_bytes)
    assert len(facts["tensors"]) == len(tensors)
    assert server.sent == held.PIECE
    assert "HTTP 404" in run("info", f"{server.url}/no.gguf?x=[1]")[2]
    found = {one.name: one for one in gq.survey(far, types=["q8_0"]).tensors}
    assert found["blk.1.ffn_up.weight"].values.max == tensors["blk.1.ffn_up.weight"].max()
    assert run("copy", far, tmp_path / "copy.gguf")[0] == 0
    assert (tmp_path / "copy.gguf").read_bytes() == gguf_bytes
    gq.convert.quantize(far, tmp_path / "far.gguf", "q8_0")
    gq.convert.quantize(tmp_path / "copy.gguf", tmp_path / "near.gguf", "q8_0")
    assert (tmp_path / "far.gguf").read_bytes() == (tmp_path / "near.gguf").read_bytes()
    with gq.gguf.open(far) as f:
        assert edit.why_not_in_place(f, f.metadata) == "it lies elsewhere"
    assert far in run("cache")[1]
    assert run("validate", far)[0] == 0
    assert json.loads(run("cache", "--empty", "--json")[1])["removed"]
    assert not remote.entries()
