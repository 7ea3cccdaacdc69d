"""Oracles of films, other sizes and gradients, by loops and differences; mistakes by places; contrasts."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ggmlq import reference
from ggmlq.check.opreport import contrasts
from ggmlq.faults import diagnose_node
from ggmlq.llama.guards import GUARD, UNWRITTEN


def rows(fresh, *shape):
    """Random float32 with four axes."""
    return fresh.standard_normal((1,) * (4 - len(shape)) + shape).astype(np.float32)


def right(op, inputs, params, y):
    """The result of an oracle, which takes y as right."""
    y = np.asarray(y, np.float32)
    result = reference.node(op, inputs, {"shape": y.shape, **params})
    assert not result.wrong(y).any(), (op, result.excess(y).max())
    assert result.wrong(y + 1 + np.abs(y)).all()
    return result


@pytest.mark.parametrize(("step", "pad", "apart"), [(1, 0, 1), (2, 1, 1), (1, 2, 2)])
def test_films_by_loops(fresh, step, pad, apart):
    kernel, x = rows(fresh, 2 * 2, 2, 3, 2), rows(fresh, 2 * 3, 5, 6, 4)  # [OC·C, D, H, W], [N·C, D, H, W]
    padded = np.pad(x.astype(float), [(0, 0)] + [(pad, pad)] * 3)
    size = [
        (n + 2 * pad - apart * (k - 1) - 1) // step + 1
        for n, k in zip(x.shape[1:], kernel.shape[1:], strict=True)
    ]
    windows = np.zeros((3, *size, 2, 2, 3, 2))  # [N, OD, OH, OW, C, KD, KH, KW]
    for i, *at in itertools.product(range(3), *map(range, size)):
        for channel, *k in itertools.product(range(2), range(2), range(3), range(2)):
            place = tuple(a * step + b * apart for a, b in zip(at, k, strict=True))
            windows[(i, *at, channel, *k)] = padded[(2 * i + channel, *place)]
    names = [f"{letter}{i}" for letter in "spd" for i in range(3)]
    params = dict(zip(names, [step] * 3 + [pad] * 3 + [apart] * 3, strict=True)) | {"channels": 2}
    y = windows.reshape(3 * size[0], *size[1:], -1)
    right("IM2COL_3D", [kernel, x], {**params, "type": "f32"}, y)
    y = np.einsum("nzyxchij,kchij->nkzyx", windows, kernel.astype(float).reshape(2, 2, 2, 3, 2))
    right("CONV_3D", [kernel, x], {**params, "films": 3, "outer": 2}, y.reshape(6, *size))


def test_columns_add_up(fresh):
    x = rows(fresh, 7, 3 * 4)  # 7 places, 3 channels, 4 elements
    y = np.zeros((3, 6 * 2 + 4))
    for place, channel, k in itertools.product(range(7), range(3), range(4)):
        y[channel, 2 * place + k] += x[0, 0, place, 4 * channel + k]
    right("COL2IM_1D", [x], {"s0": 2, "channels": 3, "p0": 1}, y[None, None, :, 1:-1])


def test_means_and_maxima_of_windows_of_rows_by_loops(fresh):
    """Ggml divides a mean of a row's window by the elements inside the row, that of an image's by all."""
    x = rows(fresh, 2, 3, 13)
    for size, step, pad in ((3, 2, 1), (2, 2, 0), (4, 1, 3), (2, 3, 0), (2, 2, 3)):
        starts = range(-pad, 13 + pad - size + 1, step)
        cut = [[row[max(i, 0) : max(i + size, 0)] for i in starts] for row in x.reshape(-1, 13)]
        params = {"k0": size, "s0": step, "p0": pad}
        mean = [[w.mean(dtype=float) if w.size else 0.0 for w in row] for row in cut]
        right("POOL_1D", [x], {**params, "how": 1}, np.reshape(mean, (1, 2, 3, -1)))
        best = [[w.max(initial=-np.finfo(np.float32).max) for w in row] for row in cut]
        result = reference.node("POOL_1D", [x], {**params, "how": 0, "shape": (1, 2, 3, len(starts))})
        assert not result.wrong(np.reshape(best, (1, 2, 3, -1))).any()
        params |= {"k1": 1, "s1": 1, "p1": 0}
        whole = [[w.sum(dtype=float) / size for w in row] for row in cut]
        right("POOL_2D", [x], {**params, "how": 1}, np.reshape(whole, (1, 2, 3, -1)))


def test_windows_by_loops(fresh):
    x = rows(fresh, 5, 7, 3)  # 5 rows of 7 pixels
    y = np.zeros((2 * 2, 4, 4, 3))
    for i, j in itertools.product(range(5), range(7)):
        y[i // 4 * 2 + j // 4, i % 4, j % 4] = x[0, i, j]
    right("WIN_PART", [x], {"columns": 2, "rows": 2, "width": 4}, y)
    right("WIN_UNPART", [y.astype(np.float32)], {"width": 4}, x)


def test_relative_positions_by_loops(fresh):
    table, n = rows(fresh, 7, 5), 4
    y = [[table[0, 0, n - 1 - key + query] for key in range(n)] for query in range(n)]
    right("GET_REL_POS", [table], {}, np.array(y)[None])
    x, across, down = rows(fresh, 2, 6, 9), rows(fresh, 2, 2, 3, 3), rows(fresh, 2, 2, 3, 3)
    y = x.astype(float).reshape(2, 2, 3, 3, 3)  # patches, rows, columns of pixels, and of all others
    for i, j in itertools.product(range(3), range(3)):
        y[..., i, j] += across[..., j].astype(float) + down[..., i]
    right("ADD_REL_POS", [x, across, down], {"in_place": 0}, y.reshape(1, 2, 6, 9))


def test_the_indexer_by_loops(fresh):
    q, k, weights = rows(fresh, 2, 3, 4, 16), rows(fresh, 2, 6, 1, 16), rows(fresh, 2, 1, 3, 4)
    mask = np.where(fresh.random((1, 1, 3, 6)) < 0.3, -np.inf, 0.0).astype(np.float16)
    y = np.zeros((2, 1, 3, 6))
    for s, row, at, head in itertools.product(range(2), range(3), range(6), range(4)):
        product = float(q[s, row, head].astype(float) @ k[s, at, 0])
        y[s, 0, row, at] += max(product, 0) * weights[s, 0, row, head]
    result = reference.node("LIGHTNING_INDEXER", [q, k, weights, mask], {})
    assert not result.wrong((y + mask).astype(np.float32)).any()
    assert result.wrong(y + mask + 1)[np.broadcast_to(np.isfinite(mask), y.shape)].all()


def test_connections_of_streams_by_loops(fresh):
    mixes, scale, base = rows(fresh, 5, 24), rows(fresh, 3), rows(fresh, 24)
    y = np.zeros((1, 5, 4, 4))
    for token in range(5):
        one = (mixes[0, 0, token].astype(float) * scale[0, 0, 0, 2] + base[0, 0, 0])[8:].reshape(4, 4)
        mixed = np.exp(one) / np.exp(one).sum(1)[:, None] + 0.01
        for step in range(3):
            if step:
                mixed = mixed / (mixed.sum(1)[:, None] + 0.01)
            mixed = mixed / (mixed.sum(0) + 0.01)
        y[0, token] = mixed
    right("DSV4_HC_COMB", [mixes, scale, base], {"eps": 0.01, "steps": 3}, y)
    x, before, post = rows(fresh, 5, 20), rows(fresh, 5, 4, 20), rows(fresh, 5, 4)
    matrix = y.astype(np.float32)
    wanted = x[0, 0, :, None].astype(float) * post[0, 0, :, :, None]
    wanted = wanted + np.einsum("tse,tsd->tde", before[0].astype(float), matrix[0])
    right("DSV4_HC_POST", [x, before, post, matrix], {}, wanted[None])
    wanted = np.einsum("tse,ts->te", before[0].astype(float), post[0, 0])
    right("DSV4_HC_PRE", [before, post], {"scale": 0.0, "gated": 0}, wanted[None, None])
    gates = rows(fresh, 5, 4, 20)
    wanted = 0.7 * (before[0] / (1 + np.exp(-gates[0].astype(float)))).sum(1)
    right("DSV4_HC_PRE", [before, gates], {"scale": 0.7, "gated": 1}, wanted[None, None])


def test_mistakes_of_streams_and_positions_are_named(fresh):
    mixes, scale, base = rows(fresh, 5, 24), rows(fresh, 3), rows(fresh, 24)
    params = {"eps": 0.001, "steps": 3}
    y = reference.node("DSV4_HC_COMB", [mixes, scale, base], {**params, "steps": 2}).value
    assert (
        diagnose_node("DSV4_HC_COMB", [mixes, scale, base], params, y.astype(np.float32)).fault
        == "node-steps"
    )
    x, across, down = rows(fresh, 2, 9, 9), rows(fresh, 2, 3, 3, 3), rows(fresh, 2, 3, 3, 3)
    y = reference.node("ADD_REL_POS", [x, down, across], {"in_place": 0}).value.astype(np.float32)
    diagnosis = diagnose_node("ADD_REL_POS", [x, across, down], {"in_place": 0}, y)
    assert diagnosis.fault == "node-operands-exchanged"
    image = rows(fresh, 8, 8, 20)
    how = {"columns": 2, "rows": 2, "width": 4}
    y = reference.node("WIN_PART", [np.roll(image, 1, -2)], how).value.astype(np.float32)
    assert diagnose_node("WIN_PART", [image], how, y).fault == "node-window"


def test_other_sizes_of_images_of_one_value_and_of_slopes():
    """Means of neighbours keep a constant; a cubic and a line keep a slope away from the edges."""
    slope = np.broadcast_to(np.arange(20.0, dtype=np.float32), (1, 1, 20, 20)).copy()
    for mode in (1, 2, 1 | 256, 2 | 256, 1 | 512):
        same = reference.node("UPSCALE", [np.full_like(slope, 2.5)], {"mode": mode, "shape": (1, 1, 33, 41)})
        np.testing.assert_allclose(same.value, 2.5, rtol=1e-12)
        y = reference.node("UPSCALE", [slope], {"mode": mode, "shape": (1, 1, 20, 40)}).value[0, 0, 7]
        at = np.arange(40) * 19 / 39 if mode & 256 else (np.arange(40) + 0.5) / 2 - 0.5
        if mode & 0xFF == 1:
            np.testing.assert_allclose(y[4:-4], at[4:-4], rtol=1e-12)
        else:  # this cubic keeps a slope in its middle alone
            assert np.abs(y[4:-4] - at[4:-4]).max() < 0.1
    assert reference.node("UPSCALE", [slope], {"mode": 1 | 512, "shape": (1, 1, 10, 10)}).bound.max() < 2e-3


def test_gradients_by_differences(fresh):
    x, y = rows(fresh, 3, 17).astype(float), rows(fresh, 3, 17).astype(float)
    norm = lambda x: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-2)
    silu = lambda x: x / (1 + np.exp(-x))
    for op, function, params in (("RMS_NORM_BACK", norm, {"eps": 1e-2}), ("SILU_BACK", silu, {})):
        gradient = np.zeros_like(x)
        for column in range(17):
            step = np.zeros(17)
            step[column] = 1e-5
            gradient[..., column] = ((function(x + step) - function(x - step)) / 2e-5 * y).sum(-1)
        result = reference.node(op, [y, x], params)
        np.testing.assert_allclose(result.value, gradient, atol=1e-7)
        assert result.bound.max() < 1e-4


def test_sums_over_copies(fresh):
    x = rows(fresh, 4, 6, 10)
    right("REPEAT_BACK", [x], {}, x.reshape(1, 2, 2, 3, 2, 10).sum((1, 3), dtype=float)[:, :, :, :])
    gradient, ids = rows(fresh, 5, 8), np.array([2, 0, 2, 3, 2], np.int32).reshape(1, 1, 1, 5)
    y = np.zeros((1, 1, 6, 8))
    for row, i in zip(gradient[0, 0], ids.reshape(-1), strict=True):
        y[0, 0, i] += row
    result = reference.node("GET_ROWS_BACK", [gradient, ids], {"shape": y.shape})
    assert not result.wrong(y.astype(np.float32)).any()


def test_memory_outside_and_unwritten_are_named(fresh):
    x = rows(fresh, 5, 40)
    y = np.tanh(x.astype(float)).astype(np.float32)
    y.view(np.uint32)[0, 0, 3, 30:] = GUARD
    assert diagnose_node("TANH", [x], {}, y).fault == "node-outside"
    y.view(np.uint32)[0, 0, 3, 30:] = UNWRITTEN
    assert diagnose_node("TANH", [x], {}, y).fault == "node-unwritten"


def test_other_mistakes_are_named(fresh):
    a = np.tril(rows(fresh, 9, 9) * 0.2) + 2 * np.eye(9, dtype=np.float32)
    b = rows(fresh, 9, 5)
    y = np.linalg.solve(a.astype(float), b.astype(float))
    assert not reference.node("SOLVE_TRI", [a, b], {}).wrong(y.astype(np.float32)).any()
    turned = np.ascontiguousarray(y.swapaxes(-1, -2)).reshape(y.shape).astype(np.float32)
    assert diagnose_node("SOLVE_TRI", [a, b], {}, turned).fault == "node-transposed"
    x, bias = rows(fresh, 5, 64), 0.75
    assert (
        diagnose_node("SCALE", [x], {"scale": 3.0, "bias": bias}, x + 3 * np.float32(bias)).fault
        == "node-bias"
    )
    x, mask = rows(fresh, 2, 2, 6, 33), rows(fresh, 2, 2, 6, 33) * 3
    scores = (
        x.astype(float) + mask.astype(float)[[[0, 0], [0, 0]], [[0, 0], [1, 1]]]
    )  # of the sequence's number
    powers = np.exp(scores)
    y = (powers / powers.sum(-1, keepdims=True)).astype(np.float32)
    assert diagnose_node("SOFT_MAX", [x, mask], {"scale": 1.0, "bias": 0.0}, y).fault == "node-mask-head"
    whole = rows(fresh, 2, 3, 7, 20)
    y = np.maximum(np.lib.stride_tricks.as_strided(whole, (2, 3, 5, 17), (1680, 560, 68, 4)), 0)  # dense rows
    assert diagnose_node("RELU", [whole[:, :, :5, :17]], {}, y.copy()).fault == "node-stride"


def test_what_wrong_cases_share():
    def of(n, threads=1, gaps=False):
        return {"threads": threads, "ne0 of the first source": n, "gaps in the first source": gaps}

    right, wrong = [of(64), of(128), of(64, 5)], [of(32), of(96), of(16)]
    text = "right where ne0 of the first source is a multiple of 64 (64, 128), wrong elsewhere"
    assert contrasts(wrong, right) == [text]
    assert contrasts([of(7, 2), of(9, 5)], [of(7), of(9)]) == ["wrong only with several threads"]
    gaps = ["wrong only with gaps in the first source"]
    assert contrasts([of(7, 1, True), of(9, 2, True)], [of(7), of(9, 2)]) == gaps
    assert contrasts([of(7, 5), of(9, 5)], [of(7, 1), of(7, 2)]) == ["right up to threads = 2, wrong above"]
    assert contrasts([of(7)], right) == []
    assert contrasts([of(7), of(9)], [of(7), of(9)]) == []
    (text,) = contrasts([of(16), of(128)], [of(64), of(64)])
    assert text.startswith("right only where ne0")
    assert text.endswith(" is 64")


def test_wrong_blocks_are_diagnosed(fresh):
    """Blocks are judged as wholes: their bytes are more than their verdicts."""
    x = rows(fresh, 5, 64)
    right = reference.node("CPY", [x], {"type": "q4_0", "shape": x.shape})
    y = right.value.copy()
    y[..., 3, 18:] ^= 255
    assert right.wrong(y).shape == (1, 1, 5, 2)
    assert not diagnose_node("CPY", [x], {"type": "q4_0", "shape": x.shape}, y).ok
