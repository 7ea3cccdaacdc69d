"""What two places say of one thing: the table of types and the quantizer, Python and the command line."""

from __future__ import annotations

import json
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

import ggmlq as gq
from ggmlq import cli
from ggmlq.arrays.blocks import random_blocks
from ggmlq.convert import plan_dequantize, plan_quantize
from ggmlq.errors import ConvertError

SEED = int(np.random.default_rng().integers(1 << 30))


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "in.gguf"
    gq.save(path, {"blk.0.ffn_up.weight": np.ones((4, 256), np.float32)})
    return path


def test_the_table_names_the_types_that_the_quantizer_refuses_without_an_imatrix(model, capsys):
    cli.main(["formats", "--json"])
    facts = {fact["name"]: fact for fact in json.loads(capsys.readouterr().out)}
    for name, fmt in gq.formats.items():
        if fmt.block_size == 1 or not fmt.can_quantize:
            continue
        try:
            plan_quantize(model, name)
            refused = False
        except ConvertError as error:
            if "no files of it" in str(error):
                continue
            refused = "needs the importance" in str(error)
        assert refused == facts[name]["imatrix"].startswith("required"), name
        assert facts[name]["needs_imatrix"] == (facts[name]["imatrix"] == "required")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            alone = fmt.needs_imatrix
        assert alone == (facts[name]["imatrix"] == "required")


def test_requantizing_is_refused_with_the_types_and_both_names_of_the_way_out(tmp_path, capsys):
    path = tmp_path / "in.gguf"
    content = {
        f"{kind}.{i}.weight": gq.QuantArray.from_bytes(
            random_blocks(gq.formats[kind], 2, 1, SEED), kind, (2, 256)
        )
        for kind, count in (("q4_K", 3), ("q6_K", 2))
        for i in range(count)
    }
    gq.save(path, dict(reversed(content.items())))
    args = ["quantize", str(path), str(tmp_path / "o.gguf"), "--type", "q8_0", "--dry-run"]
    assert cli.main(args) == 2
    said = capsys.readouterr().err
    assert "5 tensors (" in said
    assert ") consist of blocks already (3 q4_K, 2 q6_K), and quantizing" in said
    assert "--allow-requantize, in Python allow_requantize=True" in said
    assert cli.main([*args, "--allow-requantize"]) == 0


def test_plans_take_paths(model):
    for plan, after in ((plan_quantize(model, "q8_0"), "q8_0"), (plan_dequantize(str(model), "f16"), "f16")):
        assert [step.after.name for step in plan.steps] == [after]
        gq.convert.run(plan, model.with_name("out.gguf"))
        assert [q.format.name for q in gq.open(model.with_name("out.gguf")).values()] == [after]


@pytest.mark.parametrize("name", ["q4_0", "q4_K", "iq4_nl"])
def test_importance_that_overflows_is_told_and_its_bytes_stay(name):
    x = np.random.default_rng(SEED).standard_normal((2, 256), np.float32)
    fair = np.random.default_rng(SEED).gamma(1, 1, 256).astype(np.float32)
    with pytest.warns(RuntimeWarning, match=r"importance up to 1e\+25 squares .* divide the importance"):
        gq.quantize(x, name, fair / fair.max() * np.float32(1e25))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain = gq.quantize(x, name, fair)
        large = gq.quantize(x, name, fair * np.float32(2**40))
        gq.quantize(x, "q8_0", fair * np.float32(1e30))  # which takes no notice of it
    assert gq.nmse(np.asarray(large), x) < 1.2 * gq.nmse(np.asarray(plain), x)


# --- tensors of torch -----------------------------------------------------------------------


class Tensor:
    """As much of a torch tensor as saving asks for."""

    layout = "torch.strided"

    def __init__(self, data, dtype):
        self.data, self.dtype, self.shape = data, f"torch.{dtype}", data.shape

    def detach(self):
        return self

    cpu = contiguous = detach

    def view(self, dtype):
        assert (self.dtype, dtype) == ("torch.bfloat16", "int16")
        return Tensor(self.data, dtype)

    def numpy(self):
        assert self.dtype != "torch.bfloat16", "Got unsupported ScalarType BFloat16"
        return self.data


def saved(path, x):
    gq.save(path, {"a": x, "b": x})
    return gq.open(path)["a"]


def test_tensors_are_saved(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(Tensor=Tensor, int16="int16"))
    x = np.random.default_rng(SEED).standard_normal((3, 4)).astype(np.float32)
    bits = (x.view(np.uint32) >> 16).astype(np.uint16)
    q = saved(tmp_path / "m.gguf", Tensor(bits.view(np.int16), "bfloat16"))
    assert (q.format.name, q.blocks.tolist()) == ("bf16", bits.tolist())
    for kind in ("float32", "float16", "float64", "int8", "int64"):
        q = saved(tmp_path / "m.gguf", Tensor(x.astype(kind), kind))
        assert q.blocks.tolist() == x.astype(kind).tolist()
    with pytest.raises(gq.GGUFError, match=r"a tensor of torch.bool, .*; convert it with x.float\(\)"):
        gq.save(tmp_path / "m.gguf", {"a": Tensor(x > 0, "bool")})


def test_torchs_own_tensors_are_saved(tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = torch.randn(5, 6).t()
    for kind in (torch.bfloat16, torch.float16, torch.float32, torch.int32):
        q = saved(tmp_path / "m.gguf", x.to(kind))
        assert np.array_equal(np.asarray(q), x.to(kind).float().numpy())
