"""Encoders that search a code book (IQ1, IQ2, IQ3): ggml's bytes, with and without importance."""

from __future__ import annotations

import ctypes
import warnings
from importlib import import_module

import numpy as np
import pytest
from block_cases import assert_same_blocks

import ggmlq as gq
from ggmlq.arrays.rows import KINDS, rows
from ggmlq.base import threads
from ggmlq.formats import FORMATS
from ggmlq.formats._grids import grid

encoding = import_module("ggmlq.ops.quantize")  # ggmlq.ops has the function of that name

GRIDS = [fmt for fmt in FORMATS.values() if fmt.block_size > 1 and fmt.pack is None and fmt.can_quantize]
K = 768

# Runs of 16 weights are scaled by one of these: sizes near every threshold, zeros between.
SIZES = np.array([0, 1e-40, 1e-20, 1e-14, 1e-11, 1e-9, 1e-7, 1, 1, 1, 1e3])

MORE_ROWS = {
    "sizes": lambda rng: rng.standard_normal((4, K)) * rng.choice(SIZES, (4, K // 16)).repeat(16, 1),
    "zero runs": lambda rng: rng.standard_normal((4, K)) * rng.choice([0, 1, 1], (4, K // 32)).repeat(32, 1),
    "few values": lambda rng: rng.choice(rng.standard_normal(6), (4, K)),
    "mirrored": lambda rng: rng.choice([-2, -1, -0.5, -0.0, 0.0, 0.5, 1, 2], (4, K)),
    "one sign": lambda rng: rng.random((4, K)),
    "large": lambda rng: rng.standard_normal((4, K)) * 10 ** rng.uniform(3, 10, (4, 1)),
}
IMPORTANCE = {
    "none": lambda rng: None,
    "ones": lambda rng: np.ones(K),
    "even": lambda rng: rng.uniform(0.5, 2, K),
    "decades": lambda rng: np.exp(rng.normal(0, 4, K)),
    "half of it 0": lambda rng: np.where(rng.random(K) < 0.5, 0, rng.random(K)),
    "runs of 0": lambda rng: rng.random(K) * rng.choice([0, 1], K // 16).repeat(16),
    "tiny": lambda rng: rng.random(K) * 1e-30,
}


@pytest.fixture
def rng():
    """Another seed in each run; a failure shows it."""
    seed = int(np.random.default_rng().integers(1 << 31))
    print("seed", seed)
    return np.random.default_rng(seed)


def by_name(fmt):
    return fmt.name


def encode(x, fmt, weights=None):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return gq.quantize(x, fmt, imatrix=weights).blocks


def weights_of(fmt, kind, rng):
    made = IMPORTANCE["ones" if kind == "none" and fmt.needs_imatrix else kind](rng)
    return made if made is None else made.astype(np.float32)


def test_all_of_them_are_here():
    assert {fmt.name for fmt in GRIDS} == {name for name in FORMATS if name[:3] in ("iq1", "iq2", "iq3")}


@pytest.mark.parametrize("kind", ["uniform", "normal", "edges", "steps"])
@pytest.mark.parametrize("fmt", GRIDS, ids=by_name)
def test_golden(fmt, kind, golden):
    inputs, stored = golden("inputs"), golden(fmt.name)
    x = inputs[kind]
    weights = np.ones(x.shape[1], np.float32) if fmt.name in ("iq2_xxs", "iq2_xs", "iq1_s", "iq1_m") else None
    assert_same_blocks(encode(x, fmt, weights), stored[f"{kind}/blocks"].view(fmt.dtype), fmt, x)
    weights = inputs["importance"][: x.shape[1]]
    assert_same_blocks(encode(x, fmt, weights), stored[f"{kind}/weighted"].view(fmt.dtype), fmt, x)


@pytest.mark.llama
@pytest.mark.parametrize("spread", IMPORTANCE)
@pytest.mark.parametrize("fmt", GRIDS, ids=by_name)
def test_libggml(fmt, spread, libggml, rng):
    """Rows of every kind at once, but the huge: ggml's assertions end the process on these."""
    kinds = [rows(kind, 1, K, int(rng.integers(1 << 31))) for kind in KINDS if kind != "huge"]
    x = np.concatenate([*kinds, *(make(rng) for make in MORE_ROWS.values())]).astype(np.float32)
    weights = weights_of(fmt, spread, rng)
    want = libggml.quantize(x, fmt, weights).view(fmt.dtype)
    assert_same_blocks(encode(x, fmt, weights), want, fmt, x)


@pytest.mark.llama
def test_ggml_says_the_same_of_importance(libggml):
    required = ctypes.CDLL(str(libggml.path)).ggml_quantize_requires_imatrix
    required.restype = ctypes.c_bool
    for fmt in FORMATS.values():
        assert fmt.needs_imatrix == required(fmt.id), fmt.name


# Error of normal rows in percent of their root mean square, as ggml's own encoders have it.
@pytest.mark.parametrize(
    ("name", "percent"),
    [("iq3_s", 13.6), ("iq3_xxs", 18.4), ("iq2_s", 25.1), ("iq2_xs", 29.6), ("iq2_xxs", 34.3),
     ("iq1_m", 45.8), ("iq1_s", 48.6)],
)  # fmt: skip
def test_encodings_are_as_near_as_ever(name, percent):
    x = rows("normal", 16, 1024, seed=3)
    error = np.sqrt(gq.nmse(np.asarray(gq.quantize(x, name, np.ones(1024, np.float32))), x))
    assert 100 * error == pytest.approx(percent, rel=0.02)


@pytest.mark.parametrize("name", ["iq2_s", "iq1_m"])
def test_the_number_of_threads_changes_nothing(name, monkeypatch, rng):
    monkeypatch.setattr(encoding, "SLAB", 3000)
    x = rng.standard_normal((23, 512)).astype(np.float32)
    before = threads.num_threads()
    found = []
    for n in (1, 2, 3):
        threads.set_num_threads(n)
        found.append(gq.quantize(x, name).raw.tobytes())
    threads.set_num_threads(before)
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("name", [fmt.name for fmt in GRIDS if fmt.needs_imatrix])
def test_a_missing_imatrix_says_what_does_without(name):
    with pytest.raises(ValueError, match=rf"encodes {name} only with one.*iq3_xxs.*iq1_m") as failed:
        gq.quantize(np.ones((1, 256), np.float32), name)
    assert not any(f" {fmt.name}," in str(failed.value) for fmt in GRIDS if fmt.needs_imatrix)


@pytest.mark.parametrize("size", [1e8, 1e13, 1e18, 3e38])
@pytest.mark.parametrize("fmt", GRIDS, ids=by_name)
def test_what_no_half_can_scale_is_a_warning(fmt, size):
    """Ggml stores an infinite d, or ends the process where its sums overflow."""
    x = rows("uniform", 2, 512, seed=1) * np.float32(size)
    with pytest.warns(RuntimeWarning, match=f"{fmt.name} cannot hold"):
        gq.quantize(x, fmt, np.ones(512, np.float32))


def test_iq3_s_warns_where_ggml_misplaces_rows():
    x = rows("normal", 1, 512, seed=1)
    x[0, 480:] = 0  # the last run of a block: nothing comes after it
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        q = gq.quantize(x, "iq3_s")
    assert gq.nmse(np.asarray(q), x) < 0.04
    x[0, 32:64] = 0
    with pytest.warns(RuntimeWarning, match=r"runs of 32 zeros .*take 'iq3_xxs'"):
        q = gq.quantize(x, "iq3_s")
    values = np.asarray(q)[0]
    assert gq.nmse(values[256:], x[0, 256:]) < 0.04
    assert gq.nmse(values[:256], x[0, :256]) > 0.1


@pytest.mark.parametrize(
    ("book", "wanted"),
    [("iq3_xxs", 2), ("iq3_s", 3), ("iq2_xxs", 2), ("iq2_xs", 2), ("iq2_s", 1), ("iq1", 3)],
)
def test_neighbours_are_those_of_a_sorted_list(book, wanted, rng):
    from ggmlq.cpu.encode.books import neighbours

    table = neighbours(book, wanted)
    levels, ranks = np.unique(grid(book), return_inverse=True)
    ranks = ranks.reshape(grid(book).shape)
    for point in rng.integers(0, len(table.exact), 40):
        place = point // len(levels) ** np.arange(ranks.shape[1]) % len(levels)
        distance = ((ranks - place) ** 2).sum(axis=1)
        order = np.argsort(distance, kind="stable")
        far = np.unique(distance)[wanted - 1]
        want = order[:1] if distance[order[0]] == 0 else order[distance[order] <= far]
        listed = table.row[table.first[point] : table.first[point + 1]].ravel()
        assert table.exact[point] == (distance[order[0]] == 0)
        assert listed[: len(want)].tolist() == want.tolist()
        assert (listed[len(want) :] == want[-1]).all()


def test_books_begin_with_the_lowest_levels():
    """The row of a run that no candidate fits is number 0, in ggml as here."""
    for book in ("iq3_xxs", "iq3_s", "iq2_xxs", "iq2_xs", "iq2_s", "iq1"):
        assert (grid(book)[0] == grid(book).min()).all()
