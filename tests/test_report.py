"""``gq.report``: every fact beside NumPy's own, and estimates beside the truth."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.arrays.blocks import random_blocks
from ggmlq.cli import main
from ggmlq.errors import PageError
from ggmlq.pages.blocks import Place, place_of
from ggmlq.report import blocks, examine, page, values


@pytest.fixture
def model(tmp_path):
    def model(content, name="m.gguf", metadata=None, **how):
        gq.save(tmp_path / name, content, metadata or {}, **how)
        return tmp_path / name

    return model


def of(q):
    return values.examine(q, lambda n: None)


@pytest.mark.parametrize("slab", [64, 1 << 20])
@pytest.mark.parametrize("shape", [(40, 96), (3, 7, 32), (130,), (1, 256), (5, 1), (2, 1, 1, 40)])
@pytest.mark.parametrize("kind", ["f32", "f16", "q8_0"])
def test_values_are_those_of_numpy(fresh, monkeypatch, slab, shape, kind):
    monkeypatch.setattr(values, "SLAB", slab)
    if kind == "q8_0" and shape[-1] % 32:
        shape = (*shape[:-1], 32 * shape[-1])
    x = fresh.standard_t(2, shape).clip(-600, 600).astype(np.float32)  # a hundred times that is a half
    flat = x.reshape(-1, shape[-1])
    if len(flat) > 4:
        flat[3] = 0
        flat[:, 0] *= 100
    if kind == "f32":
        x.reshape(-1)[-1], x.reshape(-1)[0] = np.nan, np.inf
    q = gq.quantize(x, kind) if kind != "f32" else gq.QuantArray.from_bytes(x, "f32", shape)
    seen = []
    found = values.examine(q, seen.append)
    assert sum(seen) == q.nbytes
    y = np.asarray(q, np.float64)
    good = y[np.isfinite(y)]
    assert (found.elements, found.nan, found.infinite) == (y.size, np.isnan(y).sum(), np.isinf(y).sum())
    assert found.zeros == (y == 0).sum()
    assert (found.min, found.max) == (good.min(), good.max())
    rms = math.sqrt(np.square(good).mean())
    assert found.rms == pytest.approx(rms, rel=1e-9)
    assert found.mean == pytest.approx(good.mean(), rel=1e-6, abs=1e-9 * rms)
    assert found.histogram.sum() == y.size - np.isnan(y).sum()
    edge = np.abs(np.abs(y) / rms - values.REACH) < 1e-4  # float32 may fall to either side
    assert abs(found.outliers - (np.abs(y) > values.REACH * rms).sum()) <= edge.sum()
    rows = y.reshape(-1, shape[-1])
    if y.ndim > 1 and shape[-1] > 1:
        assert found.dead_rows == (rows == 0).all(axis=1).sum()
        squares = np.sqrt(np.square(rows[np.isfinite(rows).all(axis=1)]).sum(axis=1))
        live = squares[squares > 0]
        if len(live):
            assert found.outlier_rows == (squares > values.OUTLYING * np.median(live)).sum()


def test_bins_are_where_they_are_said_to_be(fresh):
    x = fresh.standard_normal((64, 256), np.float32)
    found = of(gq.QuantArray.from_bytes(x, "f32", x.shape))
    scaled = x.astype(np.float64) / found.rms
    wanted = np.histogram(scaled, values.EDGES)[0]
    assert np.abs(found.histogram[1:-1] - wanted).sum() <= 4  # two ends of a value on an edge
    assert found.facts()["histogram"]["counts"] == found.histogram[1:-1].tolist()


def test_what_has_no_spread():
    zero = of(gq.QuantArray.from_bytes(np.zeros((4, 32), np.float32), "f32", (4, 32)))
    assert (zero.dead_rows, zero.dead_columns, zero.zeros, zero.histogram.sum()) == (4, 32, 128, 128)
    lost = of(gq.QuantArray.from_bytes(np.full((2, 8), np.nan, np.float32), "f32", (2, 8)))
    assert (lost.nan, lost.rms, lost.min, lost.histogram.sum()) == (16, None, None, 0)
    for least in (1e-45, 1e-40, 3e38):
        q = gq.QuantArray.from_bytes(np.float32([[least, 0, -least, 0]]), "f32", (1, 4))
        assert of(q).histogram.sum() == 4
    huge = of(gq.QuantArray.from_bytes(np.full((2, 8), 1e300), "f64", (2, 8)))
    assert huge.max == 1e300
    assert of(gq.QuantArray.from_bytes(b"", "f32", (0, 8))).elements == 0
    number = of(gq.QuantArray.from_bytes(np.arange(6), "i64", (6,)))
    assert (number.min, number.max, number.zeros) == (0, 5, 1)


@pytest.mark.parametrize("fmt", [f for f in gq.formats.values() if f.block_size > 1], ids=lambda f: f.name)
def test_blocks_of_any_format(fresh, monkeypatch, fmt):
    monkeypatch.setattr(blocks, "RUN", 3)
    made = random_blocks(fmt, 7, 3, int(fresh.integers(1 << 30)))
    q = gq.QuantArray.from_bytes(made.copy(), fmt, (7, 3 * fmt.block_size))
    found = blocks.examine(q)
    bad = np.argwhere(fmt.invalid(q.blocks))
    assert found.damaged == len(bad)
    assert found.first_damaged == [tuple(place) for place in bad[: blocks.LISTED].tolist()]
    parts = fmt.unpack(q.blocks)
    assert found.codes.sum() == parts.codes.size
    for code in np.unique(parts.codes):
        assert found.codes[int(code) + 128] == (parts.codes == code).sum()
    scales = parts.scale[np.isfinite(parts.scale)]
    assert found.zero_scales == (scales == 0).sum()
    assert sum(found.scales.values()) == (scales != 0).sum()


def test_a_large_tensor_is_looked_at_in_runs(fresh, monkeypatch):
    monkeypatch.setattr(blocks, "LOOK", 64)
    monkeypatch.setattr(blocks, "RUN", 1)
    q = gq.quantize(fresh.standard_normal((64, 64), np.float32), "q8_0").copy()
    q.blocks["d"][63, 1] = np.inf
    found = blocks.examine(q)
    assert (found.seen, found.damaged, found.first_damaged) == (2, 1, [(63, 1)])


@pytest.mark.parametrize("name", ["q4_0", "q5_1", "q8_0", "q4_K", "q6_K", "mxfp4"])
def test_an_estimate_is_near_the_truth(fresh, name):
    x = fresh.standard_normal((64, 512), np.float32) * np.float32(10 ** fresh.uniform(-3, 1))
    q = gq.quantize(x, name)
    guess = values.estimated(q.format, of(q), blocks.examine(q))
    assert guess == pytest.approx(gq.nmse(np.asarray(q), x), rel=0.3)


def test_errors_against_an_original(fresh, model):
    x = fresh.standard_normal((32, 256), np.float32)
    content = {f"blk.{i}.ffn_up.weight": x * (i + 1) for i in range(3)}
    original = model(content, "a.gguf")
    made = model({name: gq.quantize(w, "q4_K") for name, w in content.items()}, "b.gguf")
    found = examine(made, original)
    assert found.original == str(original)
    for tensor in found.tensors:
        truth = content[tensor.name]
        assert tensor.nmse == pytest.approx(gq.nmse(np.asarray(gq.quantize(truth, "q4_K")), truth), rel=1e-6)
        assert tensor.estimate is None
        picked = truth[np.unique(np.linspace(0, 31, values.TRIED).astype(int))]
        for name, nmse in tensor.others.items():
            assert nmse == pytest.approx(gq.nmse(np.asarray(gq.quantize(picked, name)), picked), rel=1e-6)
        better, nmse = tensor.better
        assert better.name == "q5_K"
        assert nmse == tensor.others["q5_K"] < tensor.nmse
    assert examine(made).tensors[0].estimate == pytest.approx(found.tensors[0].nmse, rel=0.3)


def test_findings(fresh, model):
    x = fresh.standard_normal((16, 256), np.float32)
    bad = gq.quantize(x, "q4_0").copy()
    bad.blocks["d"][5, 2] = np.nan
    dead = x.copy()
    dead[[2, 9]] = 0
    dead[:, 11] *= 500
    other = x.copy()
    other[1, 1] = np.inf
    path = model({"bad": bad, "dead": dead, "inf": other, "none": np.zeros((4, 4), np.float32)},
                 metadata={"general.architecture": "llama"})  # fmt: skip
    found = examine(path)
    told = [(f.severity, f.where, f.text) for f in found.findings]
    assert not found.ok
    assert [severity for severity, *_ in told] == sorted(severity for severity, *_ in told)
    said = {where: text for _, where, text in told}
    assert "1 of 128 q4_0 blocks has a NaN" in said["tensor 'bad'"]
    assert "block 2 of row 5" in said["tensor 'bad'"]
    assert "[1, 1]" in said["tensor 'inf'"]
    assert said["tensor 'none'"] == "is zero everywhere"
    lines = [text for _, where, text in told if where == "tensor 'dead'"]
    assert lines == [
        "2 rows are zero throughout: 2, 9",
        "1 column is far larger than the others (8 times the median): 11",
    ]


def test_a_tensor_that_is_worse_than_its_like(fresh, model):
    x = {f"blk.{i}.w.weight": fresh.standard_normal((8, 64), np.float32) for i in range(6)}
    q = {name: gq.quantize(w, "q8_0") for name, w in x.items()}
    q["blk.4.w.weight"] = gq.quantize(x["blk.4.w.weight"] * np.float32(1.5), "q8_0")
    found = examine(model(q, "q.gguf"), model(x, "x.gguf"))
    (finding,) = [f for f in found.findings if "median" in f.text]
    assert finding.where == "tensor 'blk.4.w.weight'"
    shapes = examine(
        model({"w": x["blk.0.w.weight"][:4]}, "s.gguf"), model({"w": x["blk.0.w.weight"]}, "l.gguf")
    )
    assert any("another shape" in f.text for f in shapes.findings)
    assert not shapes.ok


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("blk.3.ffn_up.weight", Place("blk", 3, "ffn_up")),
        ("blk.10.attn_q.bias", Place("blk", 10, "attn_q.bias")),
        ("v.blk.0.ln1.weight", Place("v.blk", 0, "ln1")),
        ("blk.2.ffn_down_exps.weight", Place("blk", 2, "ffn_down_exps")),
        ("token_embd.weight", Place("", None, "token_embd")),
        ("output", Place("", None, "output")),
        ("mm.0.weight", Place("mm", 0, "weight")),
        ("", Place("", None, "")),
        ("blk." + "9" * 400 + ".w", Place("", None, "blk." + "9" * 400 + ".w")),
        ("blk.٣.w", Place("", None, "blk.٣.w")),
        ("a\n.1.b", Place("a\n", 1, "b")),
        ("blk.3.expert.5.w", Place("blk", 3, "expert.5.w")),
    ],
)
def test_places(name, place):
    assert place_of(name) == place


def test_any_file(fresh, model):
    """Big-endian, empty, scalars, all types: facts are strict JSON, and a page is made."""
    odd = {"one": np.float32(3), "empty": np.zeros((0, 4), np.float32), "i": np.arange(5, dtype=np.int8)}
    for fmt in gq.formats.values():
        if fmt.block_size > 1:
            made = random_blocks(fmt, 2, 1, 7)
            odd[fmt.name] = gq.QuantArray.from_bytes(made.copy(), fmt, (2, fmt.block_size))
    few = {name: odd[name] for name in ("one", "empty", "i", "q4_K", "q8_0")}
    for path in (model({}, "none.gguf"), model(few, "big.gguf", byteorder="big")):
        found = examine(path)
        assert [tensor.name for tensor in found.tensors] == list(gq.open(path))
        assert found.nbytes == sum(q.nbytes for q in gq.open(path).values())


class Walked(list):
    """A list that counts how often it was gone through."""

    times = 0

    def __iter__(self):
        self.times += 1
        return super().__iter__()


def test_the_tensors_are_not_gone_through_for_each_role(model):
    walks = []
    for count in (2, 50):
        found = examine(model({f"t{i}": np.float32(i) for i in range(count)}, f"{count}.gguf"))
        found = replace(found, tensors=Walked(found.tensors))
        assert len(found.parts("role")) == count
        page.page(found)
        walks.append(found.tensors.times)
    assert walks[0] == walks[1]


# --- the command ----------------------------------------------------------------------------


@pytest.fixture
def small(fresh, model):
    x = {f"blk.{i}.ffn_up.weight": fresh.standard_normal((8, 64), np.float32) for i in range(2)}
    x["blk.1.ffn_up.weight"][3] = 0
    q = {name: gq.quantize(w, "q4_0") for name, w in x.items()}
    return model(q, "q.gguf", {"general.architecture": "llama"}), model(x, "x.gguf")


def test_the_command(small, tmp_path, monkeypatch, capsys):
    pytest.importorskip("jinja2", reason="Jinja2 is not installed (extra report)")
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(small[0])]) == 0
    assert capsys.readouterr().out.endswith("q.gguf: 0 errors, 1 note\nwrote q.report.html\n")
    page = (tmp_path / "q.report.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert "Estimated error" in page
    assert main(["report", str(small[0]), "--against", str(small[1]), "-o", "other.html"]) == 0
    assert "Measured against x.gguf" in (tmp_path / "other.html").read_text()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other.html", "q.gguf", "q.report.html", "x.gguf"]
    other = (tmp_path / "other.html").read_bytes()
    assert main(["report", str(small[1]), "-o", "other.html"]) == main(["report", str(small[0])]) == 2
    assert "say that you mean it: --force" in capsys.readouterr().err
    assert (tmp_path / "other.html").read_bytes() == other
    assert main(["report", str(small[1]), "-o", "other.html", "--force"]) == 0
    assert (tmp_path / "other.html").read_bytes() != other


def test_json(small, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(small[0]), "--against", str(small[1]), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert not [*tmp_path.glob("*.html")]
    assert facts["ok"]
    assert facts["bits_per_weight"] == 4.5
    assert [t["layer"] for t in facts["tensors"]] == [0, 1]
    assert facts["tensors"][1]["values"]["dead_rows"] == 1
    assert facts["tensors"][1]["values"]["first"]["dead_rows"] == [3]
    assert sum(facts["tensors"][0]["blocks"]["codes"]["counts"]) == 512
    assert facts["types"][0]["name"] == "q4_0"


def test_what_is_damaged_is_exit_1(fresh, model, tmp_path, capsys):
    pytest.importorskip("jinja2", reason="Jinja2 is not installed (extra report)")
    q = gq.quantize(fresh.standard_normal((8, 64), np.float32), "q8_0").copy()
    q.blocks["d"][1, 1] = np.nan
    assert main(["report", str(model({"w": q})), "-o", str(tmp_path / "r.html")]) == 1
    assert "1 of 16 q8_0 blocks has a NaN" in capsys.readouterr().out
    assert "NaN" in (tmp_path / "r.html").read_text()


def test_refused_before_the_work(small, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("ggmlq.report.examine", lambda *args: pytest.fail("work was done"))
    for output in (tmp_path, tmp_path / "no" / "r.html"):
        assert main(["report", str(small[0]), "-o", str(output)]) == 2
        assert "folder" in capsys.readouterr().err
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
    assert main(["report", str(small[0]), "-o", str(tmp_path / "r.html")]) == 2
    assert 'pip install "jinja2>=' in capsys.readouterr().err


def test_a_model_is_no_place_for_a_page(small, tmp_path, capsys):
    pytest.importorskip("jinja2", reason="Jinja2 is not installed (extra report)")
    before = small[0].read_bytes()
    assert main(["report", str(small[0]), "-o", str(small[0])]) == 2
    assert "is no HTML page" in capsys.readouterr().err
    assert small[0].read_bytes() == before
    (tmp_path / "r.html").touch()
    assert main(["report", str(small[0]), "-o", str(tmp_path / "r.html"), "--force"]) == 0


def test_an_existing_page_stays_where_none_can_be_written(small, tmp_path, monkeypatch):
    pytest.importorskip("jinja2", reason="Jinja2 is not installed (extra report)")
    (tmp_path / "r.html").write_text("before")
    found = examine(small[0])

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(PageError, match="No space left"):
        found.write(tmp_path / "r.html")
    assert (tmp_path / "r.html").read_text() == "before"
    assert not list(tmp_path.glob("*.tmp"))
