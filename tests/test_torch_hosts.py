"""Hosts by their interfaces, in stand-ins: what is replaced, what it computes, and that it is put back.

tests/hosts has tests against transformers and diffusers themselves (tools/test --hosts). vLLM and ComfyUI
need a GPU or a program around them, so their interfaces are all that is tested.
"""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest

import ggmlq as gq
from ggmlq import errors

torch = pytest.importorskip("torch", reason="torch is not installed")

import ggmlq.torch as gt  # noqa: E402

N, K, E = 40, 256, 3


def blocks(fresh, *shape, name="q4_K"):
    q = gq.quantize(fresh.standard_normal(shape, np.float32), name)
    return q, torch.from_numpy(q.raw.copy())


def floats(fresh, *shape):
    return torch.from_numpy(fresh.standard_normal(shape, np.float32))


@pytest.fixture
def plugin(monkeypatch):
    """A module with the names of vllm_gguf_plugin.ops."""
    ops = types.ModuleType("vllm_gguf_plugin.ops")
    for name in (
        "ggml_dequantize",
        "ggml_mul_mat_vec_a8",
        "ggml_mul_mat_a8",
        "ggml_moe_a8",
        "ggml_moe_a8_vec",
    ):
        setattr(ops, name, None)
    monkeypatch.setitem(sys.modules, "vllm_gguf_plugin", types.ModuleType("vllm_gguf_plugin"))
    monkeypatch.setitem(sys.modules, "vllm_gguf_plugin.ops", ops)
    return ops


def test_vllm(plugin, fresh):
    host = gt.hosts.vllm
    assert "ggml_moe_a8_vec" in host.enable()
    try:
        q, w = blocks(fresh, N, K)
        x = floats(fresh, 5, K)
        want = gq.linear(x.numpy(), q)
        assert np.array_equal(plugin.ggml_mul_mat_a8(w, x, 12, N).numpy(), want)
        assert np.array_equal(plugin.ggml_mul_mat_vec_a8(w, x, 12, N).numpy(), want)
        assert plugin.ggml_dequantize(w, 12, N, K, None).dtype == torch.float16
        assert np.array_equal(plugin.ggml_dequantize(w, 12, N, K, torch.float32).numpy(), np.asarray(q))
        q, w = blocks(fresh, E, N, K)
        ids = torch.from_numpy(fresh.integers(0, E, (5, 2)).astype(np.int32))
        want = gq.expert_linear(x.numpy(), q, ids.numpy()).reshape(10, N)
        assert np.array_equal(plugin.ggml_moe_a8_vec(x, w, ids, 2, 12, N, 5).numpy(), want)
        uses = [[use for use in range(10) if ids.reshape(-1)[use] == e] for e in range(E)]
        tiles = [(part[i : i + 4], e) for e, part in enumerate(uses) for i in range(0, len(part), 4)]
        order = torch.tensor(
            [use for part, _ in tiles for use in (*part, *[10] * (4 - len(part)))], dtype=torch.int32
        )
        owners = torch.tensor([e for _, e in tiles], dtype=torch.int32)
        padded = torch.tensor([len(order)], dtype=torch.int32)
        order = torch.cat(
            [order, torch.full((8,), 3, dtype=torch.int32)]
        )  # behind the last tile, as they come
        owners = torch.cat([owners, torch.tensor([0, 0], dtype=torch.int32)])
        assert np.array_equal(plugin.ggml_moe_a8(x, w, order, owners, padded, 12, N, 2, 5).numpy(), want)
    finally:
        assert "put back" in host.disable()
    assert plugin.ggml_dequantize is None


class GGMLTensor(torch.Tensor):
    """A stand-in of ComfyUI-GGUF's: bytes with the type, shape and patches of a weight."""

    def __new__(cls, data, **facts):
        return data.as_subclass(cls)

    def __init__(self, data, *, tensor_type, tensor_shape, patches=()):
        self.tensor_type, self.tensor_shape, self.patches = tensor_type, tensor_shape, list(patches)

    def to(self, *arguments, **options):
        return self


class Adapter:
    """A stand-in of comfy.weight_adapter's LoRA: up, down, alpha, mid, dora, reshape."""

    def __init__(self, *weights):
        self.weights = weights


def comfy():
    """A stand-in of the module ops: a Linear that says that it decoded."""

    class Linear(torch.nn.Module):
        def get_weight(self, tensor, dtype):
            return tensor.to(dtype)

        def forward_ggml_cast_weights(self, input):
            return "decoded"

    module = types.ModuleType("comfyui_gguf_ops")
    module.GGMLOps, module.GGMLTensor = type("GGMLOps", (), {"Linear": Linear}), GGMLTensor
    return module


def test_comfyui(fresh, monkeypatch):
    host, module = gt.hosts.comfyui, comfy()
    with pytest.raises(errors.MissingDependencyError, match="start it from ComfyUI"):
        host.enable()
    monkeypatch.setitem(sys.modules, module.__name__, module)
    q, w = blocks(fresh, N, K)
    layer = module.GGMLOps.Linear()
    layer.weight = GGMLTensor(w, tensor_type=12, tensor_shape=(N, K))
    layer.bias = floats(fresh, N)
    x, up, down = floats(fresh, 2, 3, K), floats(fresh, N, 4), floats(fresh, 4, K)
    node = host.NODE_CLASS_MAPPINGS["GGMLQProducts"]()
    assert node.switch("model", True) == ("model",)
    try:
        plain = gq.linear(x.numpy(), q) + layer.bias.numpy()
        np.testing.assert_allclose(layer.forward_ggml_cast_weights(x).numpy(), plain, rtol=1e-5)
        for patch in (Adapter(up, down, 8.0, None, None, None), ("lora", (up, down, 8.0, None, None))):
            layer.weight.patches = [([(0.5, patch, 1.0, None, None)], "key")]
            branch = (x @ down.T @ up.T * (0.5 * 8 / 4)).numpy()
            np.testing.assert_allclose(
                layer.forward_ggml_cast_weights(x).numpy(), plain + branch, rtol=1e-3, atol=1e-3
            )
        for odd in (
            Adapter(up, down, None, None, up, None),
            ("diff", (up,)),
            Adapter(up[..., None], down, 1, None),
        ):
            layer.weight.patches = [([(0.5, odd, 1.0, None, None)], "key")]
            assert layer.forward_ggml_cast_weights(x) == "decoded"
        layer.weight = GGMLTensor(x[0, 0], tensor_type=None, tensor_shape=(K,))
        assert layer.forward_ggml_cast_weights(x) == "decoded"
    finally:
        node.switch("model", False)
    assert layer.forward_ggml_cast_weights(x) == "decoded"
    assert set(host.Node.INPUT_TYPES()["required"]) == {"model", "packed"}


def test_a_host_of_another_inside(plugin):
    """An unknown version is an error that names what it lacks, before anything is replaced."""
    del plugin.ggml_moe_a8
    with pytest.raises(
        errors.UnsupportedError, match=r"has no vllm_gguf_plugin.ops.ggml_moe_a8; .* was tried"
    ):
        gt.hosts.vllm.enable()
    assert plugin.ggml_dequantize is None
    with pytest.raises(errors.UnsupportedError, match="not enabled"):
        gt.hosts.vllm.disable()


def test_a_host_that_is_not_there(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm_gguf_plugin", None)
    with pytest.raises(errors.MissingDependencyError, match="vllm-gguf-plugin cannot be imported"):
        gt.hosts.vllm.enable()


def test_the_four_functions(fresh):
    """The functions that transformers calls in a kernel module, for any number of rows."""
    kernel = gt.hosts.transformers.KERNEL
    q, w = blocks(fresh, N, K)
    for rows in (1, 8, 33):
        x = floats(fresh, rows, K)
        assert np.array_equal(kernel.mul_mat_vec(w, x, 12, N).numpy(), gq.linear(x.numpy(), q))
    assert np.array_equal(kernel.dequantize(w, 12, N, K, torch.float32).numpy(), np.asarray(q))
    ids = torch.tensor([3, 0])
    assert np.array_equal(kernel.get_rows(w, ids, 12, K, torch.float32).numpy(), np.asarray(q)[[3, 0]])
    q, w = blocks(fresh, E, N, K)
    uses = torch.from_numpy(fresh.integers(0, E, (4, 2)).astype(np.int32))
    x = floats(fresh, 4, K)
    assert np.array_equal(
        kernel.mul_mat_id(w, x, uses, 12, N).numpy(), gq.expert_linear(x.numpy(), q, uses.numpy())
    )
    assert {2, 8, 12, 14} <= kernel.GEMV_TYPES
    assert not {0, 1, 30} & kernel.GEMV_TYPES


@pytest.fixture
def loader(monkeypatch):
    """As much of transformers as is replaced: it keeps files of two architectures packed."""
    names = ("", ".integrations", ".integrations.gguf", ".quantizers", ".models", ".models.auto")
    parts = {name: types.ModuleType(f"transformers{name}") for name in names}
    inside = {
        ".integrations.gguf.kernels": {
            "_gguf_kernel": None, "kernel_can_read": None, "MAX_GEMV_ROWS": 8,
            "GgufKernel": lambda kernel: kernel,
        },
        ".integrations.gguf.utils": {"MAX_GEMV_ROWS": 8},
        ".integrations.gguf.gguf_conversion_mapping": {"GGUF_ARCHS": {"mamba9": None, "lfm9": None}},
        ".integrations.gguf.reader": {
            "read_gguf_metadata": lambda file: (dict(gq.open(file).metadata), None)
        },
        ".models.auto.configuration_auto": {"CONFIG_MAPPING_NAMES": ("llama", "qwen3", "granitemoeshared")},
        ".quantizers.quantizer_gguf": {"GgufHfQuantizer": Loader},
        ".modeling_gguf_pytorch_utils": {"load_gguf_checkpoint": lambda path, return_tensors=False: path},
    }  # fmt: skip
    for name, members in inside.items():
        parts[name] = types.ModuleType(f"transformers{name}")
        vars(parts[name]).update(members)
    parts[""].__version__ = "9.8.7"
    for name, part in parts.items():
        monkeypatch.setitem(sys.modules, f"transformers{name}", part)
    return parts


class Loader:
    """A stand-in of transformers' GgufHfQuantizer."""

    is_trainable = supported = False

    def __init__(self, dequantize=False):
        self.quantization_config = types.SimpleNamespace(dequantize=dequantize)

    def read_header(self, file):
        self.supported = gq.open(file).metadata["general.architecture"] == "lfm9"


def test_transformers_decodes_other_architectures(loader, tmp_path, recwarn):
    """The sentence says which ones stay packed, and a file of another one is a warning."""
    host = gt.hosts.transformers
    for name in ("lfm9", "llama"):
        gq.save(tmp_path / name, {"a": np.ones(3, np.float32)}, {"general.architecture": name})
    before = Loader.read_header
    said = host.enable()
    assert "transformers 9.8.7 keeps lfm9, mamba9 packed and decodes files of all other" in said
    assert "from_gguf(path) keeps llama, qwen3, granitemoe packed, and with a newer transformers " in said
    try:
        assert Loader().is_trainable
        for dequantize, name in ((False, "lfm9"), (True, "llama")):  # packed, or asked for as floats
            Loader(dequantize).read_header(tmp_path / name)
        assert not recwarn.list
        with pytest.warns(
            UserWarning, match=r"keeps lfm9, mamba9 packed and decodes 'llama' in full: .*load_"
        ):
            Loader().read_header(tmp_path / "llama")
        Loader().read_header(tmp_path / "llama")  # once is enough
        assert not recwarn.list
    finally:
        host.disable()
    assert Loader.read_header is before
    Loader().read_header(tmp_path / "llama")
    assert not recwarn.list
    del loader[".integrations.gguf.gguf_conversion_mapping"].GGUF_ARCHS
    with pytest.raises(errors.UnsupportedError, match=r"has no GGUF_ARCHS; .* 5\.24\.0, which was tried"):
        host.enable()
    loader[""].__version__ = "5.16.1"  # before it kept anything
    legacy = loader[".modeling_gguf_pytorch_utils"]
    assert "transformers 5.16.1 keeps none packed (from 5.17 on it keeps a few)" in host.enable()
    try:
        assert legacy.load_gguf_checkpoint(tmp_path / "llama") == tmp_path / "llama"
        assert not recwarn.list
        with pytest.warns(UserWarning, match=r"and decodes 'llama' in full: .*from_gguf"):
            legacy.load_gguf_checkpoint(tmp_path / "llama", return_tensors=True)
    finally:
        host.disable()
