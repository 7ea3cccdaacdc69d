"""Opening right files: what is in them, and what holds after the file is closed."""

from __future__ import annotations

import gc
import os
import pathlib
import pickle
import threading

import gguf_bytes as gb
import gguf_oracle
import numpy as np
import pytest

import ggmlq as gq


@pytest.fixture
def write(tmp_path):
    def write(raw, name="m.gguf"):
        path = tmp_path / name
        path.write_bytes(raw)
        return path

    return write


@pytest.mark.parametrize("order", "<>")
def test_a_value_of_every_type(write, order):
    raw = gb.small(order)
    f = gq.open(write(raw))
    version, sign, alignment, values, tensors = gguf_oracle.parse(raw)
    assert (f.version, f.alignment) == (version, alignment) == (3, 32)
    assert f.byteorder == {"<": "little", ">": "big"}[sign] == {"<": "little", ">": "big"}[order]
    assert dict(f.metadata) == values
    assert list(f) == list(tensors) == ["w", "s", "v"]
    for name, (kind, shape, data) in tensors.items():
        assert (f[name].format.id, f[name].shape) == (kind, shape)
        assert f[name].blocks.tobytes() == data


def test_the_types_of_python(write):
    metadata = gq.open(write(gb.small())).metadata
    for key, kind in [("u64", int), ("f32", float), ("f64", float), ("yes", bool), ("empty", str)]:
        assert type(metadata[key]) is kind
    assert [type(item) for item in metadata["types"]] == [int] * 3
    assert [type(item) for item in metadata["flags"]] == [bool] * 3
    assert type(metadata["types"][0]) is int
    assert metadata["nested"] == [[1, 2], ["q"]]
    assert metadata["ünï"] == "çödé"


def test_the_types_of_gguf_are_remembered(write):
    metadata = gq.open(write(gb.small())).metadata
    assert metadata.type("u8") == "uint8"
    assert metadata.type("tokens") == "array of string"
    assert metadata.type("nested") == "array of array"


def test_a_scalar_and_three_axes(write):
    f = gq.open(write(gb.small()))
    assert (f["s"].shape, f["s"].blocks.item(), np.asarray(f["s"]).item()) == ((), 2.5, 2.5)
    assert f["v"].blocks.tolist() == [[[1, 2, 3]], [[4, 5, -1]]]
    assert f["w"].shape == (2, 64)


def test_version_2(write):
    raw = bytearray(gb.small())
    raw[4] = 2
    f = gq.open(write(raw))
    assert f.version == 2
    assert len(f) == 3


def test_a_file_without_anything(write):
    f = gq.open(write(gb.Builder().file()))
    assert (len(f), len(f.metadata), list(f), dict(f)) == (0, 0, [], {})


@pytest.mark.parametrize("alignment", [1, 8, 64, 4096])
def test_alignments(write, alignment):
    b = gb.Builder()
    raw = b.file(
        [b.kv("general.alignment", gb.UINT32, alignment)],
        [b.info("a", [3], gb.I8, 0), b.info("b", [2], gb.I8, -(-3 // alignment) * alignment)],
        b"\1\2\3" + bytes(-3 % alignment) + b"\4\5",
        alignment=alignment,
    )
    f = gq.open(write(raw))
    assert f.alignment == alignment
    assert (f["a"].blocks.tolist(), f["b"].blocks.tolist()) == ([1, 2, 3], [4, 5])


def test_order_and_gaps_of_the_data_are_free(write):
    b = gb.Builder()
    infos = [b.info("late", [1], gb.F32, 64), b.info("early", [1], gb.F32, 0)]
    f = gq.open(write(b.file([], infos, np.float32(1).tobytes() + bytes(60) + np.float32(2).tobytes())))
    assert (np.asarray(f["late"]).item(), np.asarray(f["early"]).item()) == (2, 1)


def test_tensors_without_elements(write):
    b = gb.Builder()
    infos = [b.info("a", [0, 2**40], gb.F32, 0), b.info("b", [4, 0], gb.F16, 0)]
    f = gq.open(write(b.file([], infos)))
    assert (f["a"].shape, f["b"].shape, f["b"].nbytes) == ((2**40, 0), (0, 4), 0)


@pytest.mark.parametrize("kind", [str, pathlib.Path, os.fsencode])
def test_paths(write, kind):
    assert len(gq.open(kind(write(gb.small(), "nämé with space.gguf")))) == 3


@pytest.mark.parametrize("path", [None, 3, b"x".hex, [1]])
def test_what_is_no_path(path):
    with pytest.raises(gq.GGMLQError, match="memory-mapped"):
        gq.open(path)


def test_it_is_a_mapping(write):
    f = gq.open(write(gb.small()))
    assert "w" in f
    assert "nope" not in f
    assert f.get("nope") is None
    assert f["w"] is f["w"]
    assert [q.shape for q in f.values()] == [(2, 64), (), (2, 1, 3)]
    assert f == f  # noqa: PLR0124
    assert repr(f).endswith("3 tensors, 20 keys>")
    for mapping, name in ((f, "v1"), (f.metadata, "token")):
        with pytest.raises(KeyError, match=r"did you mean '(v|tokens)'") as caught:
            mapping[name]
        assert isinstance(caught.value, gq.GGUFError)


def test_arrays_are_views_on_the_file(write):
    q = gq.open(write(gb.small()))["w"]
    assert not q.raw.flags.owndata
    assert not q.raw.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        q.blocks["d"][:] = 0
    copy = q.copy()
    copy.blocks["d"][:] = 1
    assert (np.asarray(copy) != np.asarray(q)).any()


def test_arrays_and_metadata_outlive_the_with_block(write):
    path = write(gb.small())
    with gq.open(path) as f:
        q, metadata = f["w"], f.metadata
    expected = gguf_oracle.parse(path.read_bytes())
    path.unlink()
    gc.collect()
    assert q.raw.tobytes() == expected[4]["w"][2]
    assert metadata["tokens"] == expected[3]["tokens"]
    for use in (
        len,
        list,
        lambda f: f["w"],
        lambda f: f.metadata,
        lambda f: f.__enter__(),
        lambda f: "w" in f,
    ):
        with pytest.raises(gq.GGUFError, match="closed"):
            use(f)
    assert "closed" in repr(f)


def test_closing_twice_is_fine(write):
    f = gq.open(write(gb.small()))
    f.close()
    f.close()


def test_pickle_opens_the_path_again(write):
    f = pickle.loads(pickle.dumps(gq.open(write(gb.small()))))
    assert list(f) == ["w", "s", "v"]


def test_no_tensor_is_read_at_open(write):
    """The data of this file does not exist on the disk: 8 TiB of hole."""
    b = gb.Builder()
    path = write(b.file([], [b.info("hole", [2**10, 2**31], gb.F32, 0)]))
    try:
        os.truncate(path, path.stat().st_size + 2**43)
    except OSError:
        pytest.skip("the file system has no files of 8 TiB")
    q = gq.open(path)["hole"]
    assert q.nbytes == 2**43
    assert np.asarray(q[12345]).tolist() == [0] * 2**10


def test_threads_see_the_same(write):
    f = gq.open(write(gb.small()))
    seen, barrier = [], threading.Barrier(8)

    def look():
        barrier.wait()
        seen.append(({k: q.raw.tobytes() for k, q in f.items()}, dict(f.metadata)))

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 8
    assert all(found == seen[0] for found in seen)


# --- names ------------------------------------------------------------------------------------

CHECKPOINT_AND_GGUF = [
    ("model.embed_tokens.weight", "token_embd.weight"),
    ("lm_head.weight", "output.weight"),
    ("model.layers.0.self_attn.q_proj.weight", "blk.0.attn_q.weight"),
    ("model.layers.1.self_attn.q_proj.bias", "blk.1.attn_q.bias"),
    ("model.layers.1.post_attention_layernorm.weight", "blk.1.ffn_norm.weight"),
    ("model.layers.0.mlp.experts.0.up_proj.weight", "blk.0.ffn_up_exps.weight"),
]


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Two models of the same tensors, under the names of GGUF and under those of a checkpoint."""
    folder = tmp_path_factory.mktemp("names")
    for column, name in enumerate(("m.safetensors", "m.gguf")):
        gq.save(folder / name, {pair[column]: np.ones(2, np.float32) for pair in CHECKPOINT_AND_GGUF})
    return gq.open(folder / "m.safetensors"), gq.open(folder / "m.gguf")


@pytest.mark.parametrize("pair", CHECKPOINT_AND_GGUF, ids=lambda pair: pair[1])
def test_a_name_of_the_other_side_is_answered_with_this_one(both, pair):
    for file, absent, there in zip(both, pair[::-1], pair, strict=True):
        with pytest.raises(KeyError) as caught:
            file[absent]
        assert str(caught.value).endswith(f"under another name; take f[{there!r}]")
    with pytest.raises(KeyError, match="did you mean"):
        both[1][f"{pair[1]}s"]


def test_patterns_select(both):
    file = both[1]
    part = file.select("blk.0.*")
    assert list(part) == ["blk.0.attn_q.weight", "blk.0.ffn_up_exps.weight"]
    assert part["blk.0.attn_q.weight"] is file["blk.0.attn_q.weight"]
    assert dict(part) == {name: file[name] for name in part}
    assert repr(part) == "<2 of 6 tensors: 'blk.0.attn_q.weight', 'blk.0.ffn_up_exps.weight'>"
    assert list(file.select(lambda name: name.endswith("bias"))) == ["blk.1.attn_q.bias"]
    assert list(both[0].select("*.mlp.*")) == ["model.layers.0.mlp.experts.0.up_proj.weight"]
    assert part.get("output.weight", 3) == 3
    assert part._ipython_key_completions_() == list(part)
    assert "<td>blk.0.attn_q.weight</td>" in part._repr_html_()
    assert "output.weight" not in part._repr_html_()
    with pytest.raises(KeyError, match=r"<2 of 6 tensors.*not this one"):
        part["output.weight"]
    with pytest.raises(KeyError, match=r"select\('nope\*'\).*takes none of 6"):
        file.select("nope*")
    with pytest.raises(KeyError, match=r"f\.select\('blk\.0\.\*'\) gives the 2 whose names fit"):
        file["blk.0.*"]


def test_opening_has_no_options(both):
    with pytest.raises(
        gq.GGMLQError, match=r'open\(path, device=…\).*gq\.open\(path\)\.to\("cuda"\)'
    ) as caught:
        gq.open(both[1].path, device="cuda")
    assert isinstance(caught.value, TypeError)
