"""Operators and modules on drawn views of weights: the numbers of a fresh copy of the view, or its error.

Arrays for kernels are looked up by a tensor's address, and many views of one memory begin there.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import ggmlq as gq
from ggmlq import errors

torch = pytest.importorskip("torch", reason="torch is not installed")

import ggmlq.torch as gt  # noqa: E402
from ggmlq.torch import checks  # noqa: E402

N, K, E = 24, 512, 4
OPS = torch.ops.ggmlq
TYPES = ["mxfp4", "q4_0", "q8_0", "q6_K"]  # of 32 and of 256 numbers a block


def floats(fresh, *shape):
    return torch.from_numpy(fresh.standard_normal(shape, np.float32))


def raw(fresh, name, *shape):
    """The bytes of drawn weights, in memory of torch."""
    q = gq.quantize(fresh.standard_normal(shape, np.float32), name)
    return q.format.id, torch.from_numpy(q.raw.copy()).clone()


def a_view(fresh, w):
    """A drawn view of weights [.., N, bytes]: rows apart, a row again and again, parts, another order."""
    rows, size = w.shape[-2], w.shape[-1]
    first, step = int(fresh.integers(0, 3)), int(fresh.integers(1, 4))
    axis = int(fresh.integers(0, w.dim() - 1))
    apart = [slice(None)] * axis + [slice(first, None, step)]
    one = w.narrow(axis, first, 1).expand(w.shape)
    wide = torch.cat([w, w], -1)
    views = [
        w, w.detach(), w[tuple(apart)], one, w.narrow(axis, 0, w.shape[axis] // 2), w.transpose(0, 1),
        w.flatten().as_strided((rows, size), (size // 2, 1)), wide[..., :size], wide[..., 3 : 3 + size],
        w[..., ::2], w[..., :-1], w[..., : size // 2], w.view(torch.int8), w.flatten(),
        w.view(*w.shape[:-2], -1, 2 * size), w.mT.contiguous().mT,
        torch.cat([w.flatten()[:5], w.flatten()])[5:].view(w.shape),
    ]  # fmt: skip
    return views[fresh.integers(0, len(views))]


def calls(fresh, type, w):
    """Operators with operands for weights [.., N, bytes] of K numbers a row, as functions of the weights."""
    n, k = w.shape[-2] if w.dim() > 1 else N, int(fresh.choice([K, K, K, K // 2]))
    n = int(fresh.choice([n, n, n, N]))
    x, dy, rows = floats(fresh, 2, k), floats(fresh, 2, n), torch.tensor([[0, n - 1]])
    uses, shape = torch.from_numpy(fresh.integers(0, 2, (2, 2))), [n, k]
    if w.dim() == 3:
        each = floats(fresh, 2, 2, n)
        return {
            "expert_linear": lambda w: OPS.expert_linear(x.to(w.device), w, uses.to(w.device), type, n),
            "expert_linear_grad": lambda w: OPS.expert_linear_grad(
                each.to(w.device), w, uses.to(w.device), type, k, True
            ),
            "dequantize": lambda w: OPS.dequantize(w, type, [w.shape[0], *shape], torch.float32),
        }
    return {
        "linear": lambda w: OPS.linear(x.to(w.device), w, type, n),
        "linear_grad": lambda w: OPS.linear_grad(dy.to(w.device), w, type, k),
        "dequantize": lambda w: OPS.dequantize(w, type, shape, torch.float32),
        "get_rows": lambda w: OPS.get_rows(w, type, rows.to(w.device), torch.float32),
        "prepare": lambda w: OPS.prepare(w, type),
    }


def outcome(call, w):
    """The result, or the error of ours; any other is one of the test."""
    try:
        return call(w)
    except errors.GGMLQError as error:
        return type(error), str(error)


def same(got, want):
    if isinstance(want, torch.Tensor):
        return isinstance(got, torch.Tensor) and np.array_equal(got.numpy(), want.numpy(), equal_nan=True)
    return got == want


@pytest.mark.drawn(2)
@pytest.mark.parametrize("name", TYPES)
def test_views_of_one_memory(name, fresh):
    """Any order of views and operators: a fresh copy lies where nothing is known, stand-ins say the same."""
    results = 0
    for shape in ((N, K), (E, N, K)):
        type, whole = raw(fresh, name, *shape)
        for _ in range(60):
            if not fresh.integers(0, 8):
                whole = raw(fresh, name, *shape)[1]  # often at the address of the one that went
            w = a_view(fresh, whole)
            operators = calls(fresh, type, whole if fresh.integers(0, 3) else w)
            operator = str(fresh.choice(list(operators)))
            call = operators[operator]
            got, want = outcome(call, w), outcome(call, w.clone(memory_format=torch.contiguous_format))
            assert same(got, want), (operator, w.shape, w.stride())
            stand_in = outcome(call, w.to("meta"))
            if isinstance(want, torch.Tensor):
                results += 1
                assert (stand_in.shape, stand_in.dtype) == (want.shape, want.dtype)
            elif want[0] is not errors.BlockIndexError:  # of ids, whose numbers a stand-in does not have
                assert stand_in == want
    assert results > 20


def test_every_other_row(fresh):
    """Gate and up as rows of one storage: in operators, backward, modules and one compiled graph."""
    type, both = raw(fresh, "mxfp4", 2 * N, K)
    x, dy = floats(fresh, 3, K), floats(fresh, 3, N)

    def product(x, w):
        return OPS.linear(x, w, type, w.shape[0])

    compiled = torch.compile(product, fullgraph=True, dynamic=True, backend="aot_eager")
    at_once = partial(gt.hosts.transformers.mul_mat_vec, ggml_type=type, out_features=N)
    views = both[:N], both[::2], both[1::2], both[:1].expand(N, -1)
    copies = [view.clone(memory_format=torch.contiguous_format) for view in views]
    for view, own in zip(views * 2, copies * 2, strict=True):
        want = product(x, own)
        assert torch.equal(product(x, view), want)
        assert torch.equal(at_once(view, x), want)
    for view, own in zip(views, copies, strict=True):
        learning = x.clone().requires_grad_()
        y = compiled(learning, view)
        y.backward(dy)
        assert torch.equal(y, product(x, own))
        assert torch.equal(learning.grad, OPS.linear_grad(dy, own, type, K))
    q = gq.QuantArray.from_bytes(copies[1].numpy(), type, (N, K))
    part, rows = gt.Linear(q), gt.Embedding(q)
    experts = gt.Experts(gq.QuantArray.from_bytes(copies[1].numpy()[None], type, (1, N, K)))
    for view, own in zip(views * 2, copies * 2, strict=True):
        part.weight.data, rows.weight.data, experts.weight.data = view, view, view[None]
        want, values = product(x, own), OPS.dequantize(own, type, [N, K], torch.float32)
        assert torch.equal(part(x), want)
        assert torch.equal(experts(x, torch.zeros(3, 1, dtype=torch.long))[:, 0], want)
        assert torch.equal(rows(torch.arange(N)), values)
        assert all(torch.equal(each.dequantize().view(N, K), values) for each in (part, rows, experts))


def test_a_wrong_shape_behind_a_right_call(fresh):
    """An error in words: by the operator, without torch's dispatcher, compiled, and of stand-ins."""
    type, w = raw(fresh, "q4_0", N, K)
    x = floats(fresh, 2, K)

    def product(x, w):
        return OPS.linear(x, w, type, N)

    def at_once(x, w):
        return gt.hosts.transformers.mul_mat_vec(w, x, type, N)

    compiled = torch.compile(product, backend="eager")
    assert torch.equal(product(x, w), compiled(x, w))
    assert torch.equal(product(x, w), at_once(x, w))
    for wrong in (w[:, :-1], w[:10], w.flatten(), w.view(N // 2, -1)):
        said = [outcome(partial(call, x), wrong) for call in (product, at_once)]
        said.append(outcome(partial(product, x.to("meta")), wrong.to("meta")))
        assert said == [said[0]] * 3
        assert said[0][0] is errors.ShapeError
        assert "those of w have" in said[0][1] or f"w has shape {tuple(wrong.shape)}" in said[0][1]
        with pytest.raises(Exception, match=r"w has shape|those of w have"):
            compiled(x, wrong)


def test_bytes_that_are_said_to_be_in_two_orders(fresh):
    """Strips as long as the file's bytes: decoding the one says nothing of the other."""
    type, w = raw(fresh, "q8_0", 128, 128)
    flat = w.flatten()
    assert flat.numel() == checks.strips_size(gq.formats[type], (128, 128))
    want = OPS.dequantize(flat.clone(), type | gt.PREPARED, [128, 128], torch.float32)
    OPS.dequantize(flat, type, [128, 128], torch.float32)
    assert same(OPS.dequantize(flat, type | gt.PREPARED, [128, 128], torch.float32), want)


def test_memory_that_was_given_back(fresh):
    """A storage that a program made smaller: no byte behind it is read."""
    type, w = raw(fresh, "q8_0", N, K)
    x = floats(fresh, 2, K)
    for size in (100, 0):
        for known_before in (True, False):
            part = w.clone()
            if known_before:
                OPS.linear(x, part, type, N)
            part.untyped_storage().resize_(size)
            with pytest.raises(errors.ShapeError, match=f"a storage that has {size}; .*fill w again"):
                OPS.linear(x, part, type, N)


def test_lengths_of_decoded_weights(fresh):
    """Negative lengths, also those whose product is right, and more of them than reshape may find."""
    type, w = raw(fresh, "q8_0", N, K)
    for bytes_ in (w, w[:0], w.to("meta"), w.flatten()):
        for shape in ([-N, -K], [-1, K], [1, -N, -K], [-2, -N // 2, K], [0, -K], [-3, 0]):
            for number in (type, type | gt.PREPARED):
                with pytest.raises(errors.ShapeError, match="lengths of axes are 0 or more"):
                    OPS.dequantize(bytes_, number, shape, torch.float32)
