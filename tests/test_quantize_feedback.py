"""Error feedback: codes chosen with the errors of earlier columns in mind, by moments of a text."""

from __future__ import annotations

import json

import numpy as np
import pytest
from families import family_model

import ggmlq as gq
from ggmlq.cli import main
from ggmlq.commands import _quality
from ggmlq.convert import plan_quantize
from ggmlq.convert.stream import Tally, converted
from ggmlq.formats._direct import direct
from ggmlq.model import moments, quality
from ggmlq.ops.feedback import Moments
from ggmlq.testing.models import Shape, tiny_model

KINDS = dict.fromkeys(("q", "k", "v", "out", "gate", "up", "down", "embd", "head"), "f16")
TEXT = "How vexingly quick daft zebras jump; pack my box with five dozen liquor jugs. " * 8
FED = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_K", "q3_K", "q4_K", "q5_K", "q6_K", "iq4_nl", "iq4_xs",
       "mxfp4", "nvfp4", "iq2_xs", "iq3_s")  # fmt: skip


def inputs(fresh, tokens, columns):
    """Inputs of a product whose columns go together, some of them large."""
    mixing = fresh.standard_normal((columns, columns)) * fresh.gamma(1, 1, columns)
    return (fresh.standard_normal((tokens, columns)) @ mixing).astype(np.float32)


def test_codes_are_written_where_unpack_reads_them(fresh):
    for fmt in gq.formats.values():
        if (places := direct(fmt)) is None:
            continue
        raw = fresh.integers(0, 256, (9, fmt.dtype.itemsize), np.uint8)
        before = raw.copy()
        new = fresh.integers(0, len(places.levels), (9, fmt.block_size))
        places.write(raw, new)
        with np.errstate(all="ignore"):
            codes, *scales = fmt.unpack(raw.view(fmt.dtype))
            _, *others = fmt.unpack(before.view(fmt.dtype))
        assert np.array_equal(codes.reshape(new.shape), places.levels[new]), fmt.name
        for one, other in zip(scales, others, strict=True):
            assert one is other or np.array_equal(one, other, equal_nan=True), fmt.name


@pytest.mark.drawn(3)
@pytest.mark.parametrize("kind", FED)
def test_outputs_are_nearer(kind, fresh):
    x, seen = fresh.standard_normal((24, 512), np.float32), inputs(fresh, 4000, 512)
    train, held = seen[:3000], seen[3000:]
    alone = gq.quantize(x, kind, imatrix=np.square(train).mean(axis=0))
    fed = gq.quantize(x, kind, moments=train.T @ train)

    def lost(q):
        return float(np.square(held @ (x - np.asarray(q)).T).sum())

    assert lost(fed) < (0.87 if direct(gq.formats[kind]) else 0.98) * lost(alone)
    rows = gq.quantize(x.reshape(2, 12, 512), kind, moments=train.T @ train)
    assert rows.shape == (2, 12, 512)
    assert np.mean(rows.raw.reshape(fed.raw.shape) == fed.raw) > 0.95


def test_inputs_that_do_not_go_together_change_nothing(fresh):
    x = fresh.standard_normal((8, 64), np.float32)
    q = gq.quantize(x, "q4_0", imatrix=np.ones(64), moments=np.eye(64))
    codes = np.rint(x.reshape(8, 2, 32) / np.float32(q.blocks["d"])[..., None]).clip(-8, 7)
    assert np.array_equal(np.asarray(q).reshape(8, 2, 32), codes * np.float32(q.blocks["d"])[..., None])
    assert gq.equal(gq.quantize(x, "f16", moments=np.eye(64)), gq.quantize(x, "f16"))
    assert gq.quantize(x[:0], "q4_0", moments=np.eye(64)).shape == (0, 64)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (np.eye(32), r"shape \[32, 32\].*\[64, 64\]"),
        (np.arange(4096.0).reshape(64, 64), "symmetric"),
        (np.full((64, 64), np.nan), "finite"),
        (-np.eye(64), "not positive"),
        (np.zeros((64, 64)), "0"),
        ("abc", "no array of numbers"),
    ],
)
def test_moments_that_are_none(wrong, says):
    with pytest.raises(gq.errors.ImportanceError, match=says):
        gq.quantize(np.ones((2, 64), np.float32), "q4_0", moments=wrong)
    with pytest.raises(gq.errors.NonFiniteError, match="inf"):
        gq.quantize(np.full((2, 64), np.inf, np.float32), "q4_0", moments=np.eye(64))


def test_a_row_goes_without_where_feedback_does_not_help(fresh, tmp_path):
    w = fresh.standard_normal((16, 64), np.float32)
    gq.save(tmp_path / "m.gguf", {"blk.0.ffn_up.weight": w}, {"general.architecture": "llama"})
    plan = plan_quantize(tmp_path / "m.gguf", "q4_0")
    seen, tally = inputs(fresh, 300, 64), Tally()
    of_others = Moments(seen.T @ seen, np.eye(64, dtype=np.float32))
    (made,) = converted(plan.file["blk.0.ffn_up.weight"], plan.steps[0], tally, moments=[of_others])
    alone = gq.quantize(w, "q4_0")
    assert tally.alone
    assert tally.alone + tally.fed_back == 16
    assert (np.square(w - np.asarray(made)).sum(1) <= np.square(w - np.asarray(alone)).sum(1) + 1e-6).all()


@pytest.mark.drawn(1)
@pytest.mark.parametrize("family", ["llama", "qwen3moe", "gemma3", "phi3"])
def test_moments_of_a_model(family, fresh, tmp_path, monkeypatch):
    """They are sums of what each product of a layer reads, for few layers at a time where memory is small."""
    m = gq.model.load(family_model(tmp_path / "m.gguf", family, types=("f16",)))
    pieces = [fresh.integers(3, 250, 24).tolist() for _ in range(5)]
    whole = moments.Gathered(m, pieces, False)
    assert whole.get("blk.0.attn_q.weight" if family != "phi3" else "blk.0.attn_qkv.weight")
    monkeypatch.setattr(moments, "MOST", 1)
    parts = moments.Gathered(m, pieces, False)
    importance = m.importance(pieces[2:4], chunk_size=24)
    names = [name for name in m.file if name.startswith("blk.") and m.file[name].ndim > 1]
    for name in names:
        a = b = whole.get(name)
        if m.file[name].ndim == 2:
            b = parts.get(name)
        else:
            assert parts.get(name) is None
        if a is None or b is None:
            assert a is b
            assert name not in importance or "norm" in name
            continue
        counts, means = importance.counts[name], np.atleast_2d(importance[name])
        assert len(a) == len(b) == len(counts)
        for one, other, count, mean in zip(a, b, counts, means, strict=True):
            if one is None or other is None:
                assert one is other
                continue
            assert np.array_equal(one.values, other.values)
            assert np.array_equal(one.held_back, other.held_back)
            assert one.values.diagonal() * 24 == pytest.approx(mean * count, rel=2e-3, abs=1e-6)
            assert (np.square(whole.largest[name]).max() >= mean / len(pieces) / 24).all()
    assert whole.get("token_embd.weight") is None
    assert ("output.weight" in m.file) == (whole.get("output.weight") is not None)
    with pytest.raises(gq.errors.ShapeError, match="1 of 3 stretches of 24"):
        moments.Gathered(m, pieces[:1], False)


@pytest.mark.slow
@pytest.mark.parametrize("gain", [0.5, 1])
def test_the_command(gain, tmp_path, capsys, monkeypatch):
    """The file has feedback where KL on stretches held back is lower with it."""
    measured = []

    def answer(model, against, pieces, bar):
        measured.append(model.file.path)
        real = quality.measured(model, against, pieces, bar)
        return real | {"kl": gain if model.file.path == str(out) else 1.0}

    monkeypatch.setattr(_quality, "measured", answer)
    path, out, text = tmp_path / "m.gguf", tmp_path / "o.gguf", tmp_path / "t.txt"
    tiny_model(path, KINDS, Shape(layers=2), seed=8)
    text.write_text(TEXT)
    short = tmp_path / "s.txt"
    short.write_text(TEXT[:40])
    words = ["quantize", str(path), str(out), "--type", "q4_0", "--json", "--force"]
    more = ["--feedback", str(text), "--stretch", "48"]
    assert main(words) == 0
    alone = {name: q.raw.copy() for name, q in gq.open(out).items()}
    capsys.readouterr()
    assert main([*words, *more]) == 0
    notes = [n for n in json.loads(capsys.readouterr().out)["notes"] if "error feedback" in n]
    changed = [name for name, q in gq.open(out).items() if not np.array_equal(q.raw, alone[name])]
    assert len(measured) == 2
    if gain == 1:
        assert notes[0].endswith("held back: it is left out")
        assert not changed
        return
    assert "token_embd.weight" in notes[0]
    assert notes[1].startswith("KL 0.50000")
    assert changed
    assert "token_embd.weight" not in changed
    for wrong, says in (
        (["--feedback", str(tmp_path / "no.txt")], "no.txt"),
        (["--feedback", str(short)], "1 of 3 stretches"),
        ([*more, "--prune-layers", "1"], "prune it first"),
        ([*more, "--workers", "2"], "workers"),
    ):
        assert main([*words, *wrong]) == 2
        assert says in capsys.readouterr().err
