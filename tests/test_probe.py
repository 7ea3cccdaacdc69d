"""Unit vectors through wrong kernels: where weights differ from those of the tensor, and what they are."""

from __future__ import annotations

import numpy as np
import pytest
from test_diagnose import some

from ggmlq.faults.blocks.operand import operand
from ggmlq.faults.blocks.weights import main_scales, wrong_sums
from ggmlq.faults.probe import read

FIRST_HALF = np.arange(8) % 4
LATER = np.r_[np.arange(8), np.arange(4, 12)]


def kernel(weights, lost=None):
    """A kernel that multiplies with these weights, and leaves some columns unwritten."""

    def multiply(x):
        y = (x.astype(np.float64) @ weights.T).astype(np.float32)
        unwritten = np.zeros(y.shape, np.bool_)
        if lost is not None:
            y[:, lost], unwritten[:, lost] = np.nan, True
        return y, unwritten

    return multiply


def told(q, weights, rows=9, **more):
    return read(kernel(weights, **more), q, rows, "ggml-cpu").text


def changed(q, which):
    """Weights of a wrong kernel, with what is said of them."""
    w = operand(q.format, q.blocks)
    dense = w.dense.copy()
    rows, columns = dense.shape
    if which == "rows":
        dense[16:32] = dense[:16]
    elif which == "zero":
        dense[:, 256:] = 0
    elif which == "factor":
        dense *= 127 / 128
    elif which == "beside":
        dense[:, 32:64] = dense[:, :32]
    elif which == "codes of rows":
        stored = w.stored.copy()
        stored[16:32] = stored[:16]
        dense = w.but(stored=stored).dense
    elif which == "high bit":
        dense = w.but(stored=w.stored - 16 * (w.stored >= 16)).dense
    elif which == "nibbles":
        order = np.arange(256).reshape(-1, 2, 32)[:, ::-1].ravel()
        dense = w.but(stored=w.stored.reshape(rows, -1, 256)[..., order].reshape(rows, columns)).dense
    elif which == "sums":
        dense = wrong_sums(w, 8, FIRST_HALF).dense
    elif which == "main scales":
        dense = main_scales(w, 16, LATER).dense
    return dense


@pytest.mark.parametrize(
    ("name", "which", "words"),
    [
        ("q4_0", "rows", "n 16 to 31. They are those of row n-16."),
        ("q6_K", "zero", "k 256 to 511, all n. They are zero"),
        ("q8_0", "factor", "all k, all n. They are 0.99219 times the right ones."),
        ("q4_0", "beside", "k 32 to 63, all n. They are those of element k-32 of the same row."),
        ("q4_0", "codes of rows", "The scales are right, the codes are others: those of row n-16."),
        ("q5_0", "high bit", "The scales are right, the codes are others, off by -16."),
        ("q4_K", "nibbles", "element 0 has that of 32, 1 has that of 33"),
        ("q4_K", "sums", "constants that the sums are multiplied with are wrong in groups 0 to 7 of each 8: "
                         "group 0 has those of 0 and 4"),
        ("q6_K", "main scales", "k 128 to 255 of every 256, all n. The scales that the codes are multiplied "
                                "with are wrong in groups 8 to 15 of each 16: group 8 has that of 4"),
    ],
)  # fmt: skip
def test_what_the_kernel_multiplies_with_instead(name, which, words):
    q = some(name, n=48, k=512)[1]
    assert words in told(q, changed(q, which))


def test_a_part_of_long_rows_shows_scales_and_codes_too():
    q = some("q4_0", n=48, k=1056)[1]
    assert "those of row n-16." in told(q, changed(q, "codes of rows"))
    q = some("q6_K", n=48, k=1280)[1]
    assert "group 8 has that of 4" in told(q, changed(q, "main scales"))


def test_right_weights_are_called_right():
    q = some("q4_K", n=48, k=512)[1]
    text = told(q, operand(q.format, q.blocks).dense)
    assert "every weight that it multiplies with is right, alone and in pairs" in text


def test_what_was_never_written_is_no_wrong_weight():
    q = some("q4_0", n=48, k=256)[1]
    assert "every weight" in told(q, operand(q.format, q.blocks).dense, lost=slice(40, 48))


def test_a_sum_that_is_carried_over_shows_in_two_blocks():
    q = some("q8_0", n=48, k=512)[1]
    w = operand(q.format, q.blocks)

    def multiply(x):
        terms = np.einsum("mbk,nbk->mnb", x.reshape(len(x), -1, 32), w.dense.reshape(48, -1, 32))
        carried = np.cumsum(terms / w.scale, axis=-1) * w.scale * (np.abs(terms) > 0)  # where a block adds
        return carried.sum(axis=-1).astype(np.float32), np.zeros((len(x), 48), np.bool_)

    text = read(multiply, q, 9, "ggml-cpu").text
    assert "two blocks together go wrong" in text
    assert "blocks 0 and 1" in text


def test_long_rows_are_read_at_both_ends():
    q = some("q4_0", n=16, k=4096)[1]
    shapes = []

    def multiply(x):
        shapes.append(x.shape)
        return (x @ np.asarray(q).T).astype(np.float32), np.zeros((len(x), 16), np.bool_)

    read(multiply, q, 64, "f32")
    assert set(shapes) == {(64, 4096)}
    assert len(shapes) <= 18


def test_long_rows_are_read_in_part():
    """The groups that were read are compared with theirs, not with all."""
    _, q = some("q4_0", n=5, k=4096)
    w = operand(q.format, q.blocks)
    stored = w.stored.copy()
    stored[:, ::64] = 7 - stored[:, ::64]
    assert "weights that it multiplies with are not those" in told(q, w.but(stored=stored).dense)
