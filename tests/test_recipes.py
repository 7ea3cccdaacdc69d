"""Recipes: the choice is the best there is, its size what was asked, its errors what they are said to be."""

from __future__ import annotations

import itertools
import os

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.convert.knapsack import solve
from ggmlq.convert.measure import draw
from ggmlq.convert.recipe import SLACK
from ggmlq.errors import ConvertError, GGMLQError

TYPES = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0")  # NumPy encodes them: nothing is compiled


def weights(rng, *shape):
    """Of a scale of its own, some rows louder."""
    x = rng.standard_t(5, shape) * rng.lognormal(0, 1) * rng.lognormal(0, 0.5, (*shape[:-1], 1))
    return x.astype(np.float32)


@pytest.fixture
def model(tmp_path, fresh):
    """Path, tensors, and importance for some of them."""
    tensors = {"token_embd.weight": weights(fresh, 24, 64), "output_norm.weight": weights(fresh, 64)}
    for layer in range(int(fresh.integers(3, 6))):
        tensors[f"blk.{layer}.attn_q.weight"] = weights(fresh, int(fresh.integers(8, 40)), 64)
        tensors[f"blk.{layer}.ffn_down.weight"] = weights(fresh, 32, 96)
        tensors[f"blk.{layer}.ffn_up_exps.weight"] = weights(fresh, 3, 8, 64)
        tensors[f"blk.{layer}.ffn_norm.weight"] = weights(fresh, 64)
    importance = {
        name: fresh.gamma(1, 1, (*x.shape[:-2], x.shape[-1])).astype(np.float32) * fresh.lognormal(0, 1)
        for name, x in tensors.items()
        if x.ndim > 1 and "embd" not in name
    }
    path = tmp_path / "m.gguf"
    gq.save(path, tensors, {"general.architecture": "llama", "llama.block_count": 6})
    return path, tensors, importance


def bits(path):
    with gq.open(path) as file:
        infos = [file.info(name) for name in file]
        elements = sum(int(np.prod(info.shape)) for info in infos)
        return 8 * sum(info.nbytes for info in infos) / elements


def true_error(path, tensors, importance):
    """Sum of importance * difference^2, computed plainly."""
    usual = np.median([x.mean() for x in importance.values()]) if importance else 1.0
    total = 0.0
    with gq.open(path) as file:
        for name, x in tensors.items():
            rows = importance.get(name)
            scale = usual if rows is None else rows.astype(np.float64)[..., None, :]
            total += float((scale * (x.astype(np.float64) - np.asarray(file[name])) ** 2).sum())
    return total


def test_the_choice_is_the_best_of_all(fresh, rounds):
    for _ in rounds(1.5):
        count, kinds = fresh.integers(1, 6, 2)
        costs = [fresh.integers(0, 40, kinds).astype(np.int64) for _ in range(count)]
        ties = fresh.random() < 0.3
        errors = [np.round(3 * fresh.random(kinds)) if ties else fresh.random(kinds) for _ in range(count)]
        most = int(fresh.integers(0, 40 * count))
        least = int(fresh.integers(0, most + 1))
        ways = itertools.product(range(kinds), repeat=int(count))
        sums = [
            (
                sum(int(c[i]) for c, i in zip(costs, way, strict=True)),
                sum(e[i] for e, i in zip(errors, way, strict=True)),
            )
            for way in ways
        ]
        fitting = [(cost, error) for cost, error in sums if cost <= most]
        found = solve(costs, errors, most)
        if not fitting:
            assert found is None
            continue
        best = min(error for _, error in fitting)
        assert found.cost <= most
        assert found.error <= best + 1e-6 * abs(best) + 1e-12
        assert found.bound <= best + 1e-12
        chosen = [(c[i], e[i]) for c, e, i in zip(costs, errors, found.choice, strict=True)]
        assert sum(int(c) for c, _ in chosen) == found.cost
        assert sum(e for _, e in chosen) == pytest.approx(found.error)
        if any(cost >= least for cost, _ in fitting):
            assert least <= solve(costs, errors, most, least).cost <= most


def test_many_classes_are_solved_to_a_stated_bound(fresh):
    shapes = fresh.integers(1, 30, 150) * 4096
    rates = np.array([2.625, 3.4375, 4.25, 4.5, 5.5, 6.5625, 8.5, 16])
    errors = [n * 2.0 ** (-2 * rates) * fresh.lognormal(0, 1.5) * fresh.lognormal(0, 0.1, 8) for n in shapes]
    costs = [(n * rates / 8).astype(np.int64) for n in shapes]
    for target in (3, 4.5, 7):
        found = solve(costs, errors, int(shapes.sum() * target / 8))
        assert found.cost <= shapes.sum() * target / 8
        assert found.error <= found.bound * (1 + 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("weighted", [False, True])
def test_the_size_and_the_error_are_as_said(model, tmp_path, fresh, weighted):
    path, tensors, importance = model
    imatrix = importance if weighted else {}
    target = float(fresh.uniform(5.6, 20))  # the norms, in float32, count too
    types = ("q4_1", "q8_0") if weighted else TYPES  # by importance NumPy takes its time
    with gq.open(path) as file:
        found = gq.convert.recipe(file, target, types=types, imatrix=imatrix or None, objective="error")
        gq.convert.run(found.plan, tmp_path / "o.gguf")
    assert target - 0.3 <= bits(tmp_path / "o.gguf") <= target
    assert bits(tmp_path / "o.gguf") == pytest.approx(found.bits_per_weight)
    assert found.deviation == 0
    assert 0 <= found.gap < 1
    assert true_error(tmp_path / "o.gguf", tensors, imatrix) == pytest.approx(found.error, rel=1e-5)
    assert "norm" not in "".join(found.types)
    for mix in (
        ("q4_1",) if weighted else ("q4_0", "q4_1", "q5_0", "q8_0")
    ):  # never worse than one type for all, of that size
        gq.convert.quantize(path, tmp_path / "p.gguf", mix, imatrix=imatrix or None)
        same = gq.convert.recipe(path, bits(tmp_path / "p.gguf"), types=types, imatrix=imatrix or None)
        assert same.error <= true_error(tmp_path / "p.gguf", tensors, imatrix) * (1 + 1e-5)


def test_a_file_fits_into_a_size(model, tmp_path, fresh):
    path, tensors, _ = model
    low = os.path.getsize(path) // 5
    spare = SLACK * sum(w.size for w in tensors.values()) / 8 + 700  # what may be left, and padding
    for size in fresh.integers(low, 2 * low, 2).tolist():
        found = gq.convert.recipe(path, size=size, types=TYPES)
        gq.convert.run(found.plan, tmp_path / "o.gguf")
        made = os.path.getsize(tmp_path / "o.gguf")
        assert made <= size
        assert made >= size - spare or "no choice of types has between" in found.plan.notes[-1]
        assert gq.convert.layout(found.plan, tmp_path / "o.gguf") == [
            (str(tmp_path / "o.gguf"), os.path.getsize(tmp_path / "o.gguf"))
        ]


@pytest.mark.parametrize("objective", ["both", "relative"])
def test_errors_count_as_the_objective_says(model, tmp_path, objective):
    path, tensors, importance = model
    found = gq.convert.recipe(path, 7, types=("q4_1", "q8_0"), imatrix=importance, objective=objective)
    gq.convert.run(found.plan, tmp_path / "o.gguf")
    gq.save(tmp_path / "zeros.gguf", {name: np.zeros_like(x) for name, x in tensors.items()})
    layers = len({name.split(".")[1] for name in tensors if name.startswith("blk")})
    lost, energy = (
        np.array([true_error(tmp_path / file, {name: tensors[name]}, importance) for name in found.types])
        for file in ("o.gguf", "zeros.gguf")
    )
    mean = np.array([1 / layers if name.startswith("blk") else 1 for name in found.types])
    relative = (mean * lost / energy).sum() / mean.sum()
    both = (relative + 0.25 * lost.sum() / energy.sum()) / 1.25
    assert found.relative == pytest.approx(relative if objective == "relative" else both, rel=1e-5)
    assert 6.7 <= found.bits_per_weight <= 7


def test_a_relative_recipe_does_not_see_scales(model, tmp_path):
    path, tensors, _ = model
    louder = {name: x * np.float32(2.0 ** (i % 5)) for i, (name, x) in enumerate(tensors.items())}
    gq.save(tmp_path / "louder.gguf", louder, gq.open(path).metadata)
    one, two = (
        gq.convert.recipe(p, 6, types=TYPES, objective="relative") for p in (path, tmp_path / "louder.gguf")
    )
    assert one.types == two.types
    assert one.error == pytest.approx(two.error, rel=1e-6)
    assert 5.7 <= one.bits_per_weight <= 6


def test_types_of_the_users_are_kept(model):
    path = model[0]
    found = gq.convert.recipe(path, 9, types=TYPES, keep={"^token_embd": "q8_0", "ffn_up": "q5_1"})
    after = {step.name: step.after.name for step in found.plan.steps}
    assert after["token_embd.weight"] == "q8_0"
    assert after["blk.0.ffn_up_exps.weight"] == "q5_1"
    assert 8.7 <= found.bits_per_weight <= 9
    with pytest.raises(ConvertError, match="can have"):
        gq.convert.recipe(path, 6, types=TYPES, keep={"ffn_down": "same"})


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"target": 3.0}, "can have 4."),
        ({"target": 33.0}, "can have"),
        ({"size": 5}, "bytes\\)"),
        ({"size": 1 << 40}, "bytes\\)"),
        ({"target": -1}, "positive"),
        ({"target": float("nan")}, "positive"),
        ({"target": True}, "positive"),
        ({"target": 5, "objective": "least"}, "no such one"),
        ({}, "one of them"),
        ({"target": 4, "size": 4}, "one of them"),
        ({"target": 5, "types": []}, "nothing to choose"),
        ({"target": 5, "types": ["q8_K"]}, "no files of it"),
        ({"target": 5, "keep": {"weight": "same"}}, "no tensor's type is free"),
    ],
)
def test_what_cannot_be_reached_is_an_error(model, asked, says):
    with pytest.raises(ConvertError, match=says):
        gq.convert.recipe(model[0], **({"types": TYPES} | asked))


def test_values_that_are_no_numbers(tmp_path):
    x = np.ones((8, 64), np.float32)
    x[5, 3] = np.nan
    gq.save(tmp_path / "m.gguf", {"a.weight": x})
    with pytest.raises(ConvertError, match="row 5, column 3 is nan"):
        gq.convert.recipe(tmp_path / "m.gguf", 5, types=TYPES)


def test_a_type_that_cannot_hold_the_values_is_not_chosen(tmp_path, fresh):
    x = fresh.standard_normal((8, 64)).astype(np.float32)
    gq.save(tmp_path / "m.gguf", {"a.weight": x * np.float32(1e9), "b.weight": x, "c.weight": x})
    found = gq.convert.recipe(tmp_path / "m.gguf", 20, types=TYPES)
    assert found.types["a.weight"].name == "f32"
    gq.convert.run(found.plan, tmp_path / "o.gguf")


def test_rows_stand_for_a_tensor(fresh):
    """Estimates lie about as far from the truth as they say, also where a few rows hold most of it."""
    off = []
    for i in range(12):
        x = fresh.standard_t(4, (4000, 64)) * fresh.lognormal(0, 1, (4000, 1))
        x[fresh.integers(4000, size=3)] *= 100
        q = gq.quantize(x.astype(np.float32), "f32")
        rows = fresh.gamma(1, 1, (1, 64))
        sample = draw(f"t{i}", q, rows, 64 * 200)
        assert sample.share < 0.06
        values, whole = sample.values.astype(np.float32), np.asarray(q)

        def error(values, rows=rows):
            return np.einsum("ij,j->i", (values - np.asarray(gq.quantize(values, "q4_0"))) ** 2.0, rows[0])

        found, deviation = sample.total(error(values))
        truth = error(whole).sum()
        assert abs(found - truth) < 0.1 * truth
        off.append((found - truth) / deviation)
        assert sample.energy == pytest.approx(float((whole.astype(np.float64) ** 2 @ rows[0]).sum()))
    assert np.sqrt(np.mean(np.square(off))) < 3


def test_files_of_types(tmp_path, fresh):
    names = [f"blk.{i}.{part}.weight" for i in range(12) for part in ("attn_q", "ffn_up")]
    names += ["output.weight", "Odd name=\u00e4.weight", "v.blk.3.x-y_z.weight"]
    types = {name: gq.formats[str(fresh.choice(TYPES))] for name in names}
    gq.convert.write_tensor_types(tmp_path / "t.txt", types)
    text = (tmp_path / "t.txt").read_text()
    assert text == text.lower().replace("q4_k", "q4_K")
    assert len(text.split()) == len(text.splitlines()) < len(names)
    pairs = gq.convert.read_tensor_types(tmp_path / "t.txt")
    gq.save(tmp_path / "m.gguf", {name: np.ones((2, 64), np.float32) for name in names})
    plan = gq.convert.plan_quantize(tmp_path / "m.gguf", "q8_0", keep=pairs)
    assert {step.name: step.after for step in plan.steps} == types
    with pytest.raises(ConvertError, match="tells this name from another"):
        gq.convert.write_tensor_types(tmp_path / "u.txt", {"A": gq.formats["q4_0"], "B": gq.formats["q8_0"]})
    assert not (tmp_path / "u.txt").exists()


@pytest.mark.parametrize("raw", [b"attn_q", b"=q4_0", b"a=", b"\xff=q4_0", b"a\0=q4_0", b"#comment\na=q4_0"])
def test_files_that_are_none(tmp_path, raw):
    (tmp_path / "t.txt").write_bytes(raw)
    with pytest.raises(ConvertError, match=r"t\.txt"):
        gq.convert.read_tensor_types(tmp_path / "t.txt")


def test_files_that_cannot_be_read(tmp_path):
    for path in (tmp_path, tmp_path / "no.txt"):
        with pytest.raises(OSError, match="tensor types") as error:
            gq.convert.read_tensor_types(path)
        assert isinstance(error.value, GGMLQError)


def test_what_was_measured_stays_with_an_open_file(model, monkeypatch):
    from ggmlq.convert import measure

    with gq.open(model[0]) as file:
        first = gq.convert.recipe(file, 6, types=TYPES)
        monkeypatch.setattr(measure, "draw", None)  # would be called for anything new
        assert gq.convert.recipe(file, 6, types=TYPES).types == first.types
        gq.convert.recipe(file, 9, types=TYPES[:3])
