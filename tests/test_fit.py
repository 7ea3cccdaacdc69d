"""tools/fit.py writes constants that choose better, and no others; programs that measure check words."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")

from scripts import load

fit, ways = load("tools", "fit"), load("bench", "bench_ways")
peers, beside = load("bench", "attention_peers"), load("bench", "bench_attention")
parts = load("bench", "parts")
BEFORE = fit.constants()


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """A file of figures of 8-bit codes, whose times are the estimates; and a place for constants."""
    some = [f for f in json.loads(fit.MEASURED.read_text())["figures"] if f["kernel"] == "codes8"][:6]
    figures = [
        {**figure, "ways": [[*way[:-1], us] for way, us in zip(figure["ways"], each, strict=True)]}
        for figure, each in zip(some, fit.estimated(some, "codes", BEFORE.codes), strict=True)
    ]
    path = tmp_path / "ways.json"
    path.write_text(json.dumps({"figures": figures}))
    monkeypatch.setattr(fit, "PLACE", tmp_path / "costs.json")
    return path


def other(values):
    """Constants that choose worse: more stages and parts seem to cost much."""
    return values._replace(arrival=20.0, join=50.0, exchange=20.0, wave=0.1, starved=3.0)


@pytest.mark.parametrize("gains", [False, True])
def test_constants_change_where_choices_gain(measured, monkeypatch, capsys, gains):
    worse = BEFORE._replace(codes=other(BEFORE.codes))
    before, after = (worse, BEFORE) if gains else (BEFORE, worse)
    monkeypatch.setattr(fit, "constants", lambda: before)
    monkeypatch.setattr(fit, "fitted", lambda *_: after.codes)
    words = ["--measured", str(measured), "--kernels", "codes8"]
    assert fit.main(words) == 0
    text = capsys.readouterr().out
    assert "as they are" in text
    assert "fitted" not in text
    assert not text.endswith("\n\n")
    assert fit.main([*words, "--write"]) == 0
    text = capsys.readouterr().out
    assert ("→ 0.00 %: new constants" if gains else "off the best 0.00 → ") in text
    if gains:
        assert "costs.json: new constants of codes\n" in text
        held = json.loads(fit.PLACE.read_text())
        assert held == {"what": fit.WHAT, **{name: getattr(BEFORE, name)._asdict() for name in fit.KINDS}}
    else:
        assert "no gain, constants left as they are" in text
        assert text.endswith("costs.json: left as it is\n")
    assert [path.name for path in sorted(measured.parent.iterdir())] == ["costs.json"] * gains + ["ways.json"]


def test_no_figures_change_nothing(measured, capsys):
    assert fit.main(["--measured", str(measured), "--kernels", "gemv", "--write", "--held-out"]) == 0
    assert (
        "gemv              has no figures in ways.json\ncosts.json: left as it is\n"
        in capsys.readouterr().out
    )
    assert not fit.PLACE.exists()


def test_a_fit_is_no_farther_from_its_figures(measured, monkeypatch):
    monkeypatch.setattr(fit, "STEPS", 4)
    figures, begun = json.loads(measured.read_text())["figures"][:3], BEFORE.codes._replace(start=3.0)

    def off(values):
        return sum(
            np.abs(np.log(e / fit.measured(f))).mean()
            for e, f in zip(fit.estimated(figures, "codes", values), figures, strict=True)
        )

    assert off(fit.fitted(figures, "codes", begun)) < off(begun)


def test_words_are_checked(measured, tmp_path, capsys):
    for program in (fit, ways):
        with pytest.raises(SystemExit):
            program.main(["--kernels", "gemv,gem"])
        said = capsys.readouterr().err
        assert "'gem' is none of " in said
        assert "codes8; did you mean 'gemv'?" in said
    with pytest.raises(SystemExit, match=r"none\.json: No such file.*bench_ways\.py --json FILE makes"):
        fit.main(["--measured", str(tmp_path / "none.json")])
    one = json.loads(measured.read_text())["figures"][:1]
    for content, says in (
        ("{", "JSONDecodeError"),
        ("{}", "KeyError"),
        (json.dumps({"figures": one}), "a shape"),
        (json.dumps({"figures": [{**one[0], "ways": [[*one[0]["ways"][0][:-1], 0.01]]}]}), "reads 4.45"),
    ):
        measured.write_text(content)
        with pytest.raises(SystemExit, match=says):
            fit.main(["--measured", str(measured), "--held-out"])
    with pytest.raises(SystemExit, match=r"bench_attention: --kernel cpu:rowss .*'cpu:rows' in 'f32'"):
        beside.main(["--kernel", "cpu:rows,cpu:rowss"])


def test_what_was_timed_before_an_interruption_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(ways, "machine", dict)
    path = tmp_path / "ways.json"
    path.write_text("before")
    words = ["--kernels", "gemv", "--json", str(path), "--commit", "abc"]
    for count in (0, 2):

        def timed(*_, count=count):
            for m in range(count):
                yield {"kernel": "gemv", "M": m, "ways": [[1, 2.0]]}
            raise KeyboardInterrupt

        monkeypatch.setattr(ways, "measured", timed)
        assert ways.main(words) == 130
        assert f"interrupted after {count} figures" in capsys.readouterr().err
        assert (path.read_text() == "before") == (not count)
    facts = json.loads(path.read_text())
    assert (facts["commit"], [each["M"] for each in facts["figures"]]) == ("abc", [0, 1])
    assert [each.name for each in tmp_path.iterdir()] == ["ways.json"]


def test_copies_have_any_number_of_rows():
    assert peers.copies_of("put:q8_0:100x64,take:q4_K:7x512") == [
        ("put", "q8_0", 100, 64),
        ("take", "q4_K", 7, 512),
    ]
    assert (peers.repeated(np.arange(6).reshape(3, 2), 7)[:, 0] == [0, 2, 4, 0, 2, 4, 0]).all()
    for words, says in {
        "put:q8_0:100": "write it as put:q8_0:4096x1024",
        "put:q8_0:0x64": "write it as",
        "put:q8:4x64": "did you mean 'q8_0'",
        "take:q4_K:4x100": "q4_K blocks hold 256, rows have 100",
    }.items():
        with pytest.raises(peers.argparse.ArgumentTypeError, match=says):
            peers.copies_of(words)


def test_parts_of_a_benchmark_join(tmp_path, capsys):
    cases, paths = list(range(7)), []
    assert [parts.of_part(cases, (i, 3)) for i in (1, 2, 3)] == [[0, 3, 6], [1, 4], [2, 5]]
    for i in (3, 1, 2):
        figures = [{"N": n, "K": 8, "M": m} for n in parts.of_part(cases, (i, 3)) for m in (1, 64)]
        paths.append(tmp_path / f"{i}.json")
        facts = {"commit": "a", "seed": 5, "part": (i, 3), "figures": figures, "failed": ["9x8"] * (i == 2)}
        paths[-1].write_text(json.dumps(facts))
    figures = [{"N": n, "K": 8, "M": m} for n in cases for m in (1, 64)]
    assert parts.joined(paths) == {"commit": "a", "seed": 5, "figures": figures, "failed": ["9x8"]}
    assert (parts.status(parts.joined(paths)), parts.status(parts.joined(paths[:2]))) == (1, 0)
    assert "without 9x8, which failed" in capsys.readouterr().err
    assert [f["N"] for f in parts.joined(paths[:2])["figures"]] == [0, 0, 2, 2, 3, 3, 5, 5, 6, 6]
    assert capsys.readouterr().err == "without part 2 of 3\n"
    with pytest.raises(SystemExit, match=r"part \[3\] is given twice"):
        parts.joined([*paths, paths[0]])
    paths[1].write_text(json.dumps({"commit": "b", "seed": 5, "part": (1, 3), "figures": []}))
    with pytest.raises(
        SystemExit, match=r"1\.json: commit, seed, parts, cards, peers \('b', 5, 3, \[\], None\); those of "
    ):
        parts.joined(paths)
    assert parts.part("2/4") == (2, 4)
    with pytest.raises(peers.argparse.ArgumentTypeError, match="'5/4' is no part"):
        parts.part("5/4")
