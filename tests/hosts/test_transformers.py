"""transformers itself: its models keep GGUF weights packed on a CPU, and ours fill its modules."""

from __future__ import annotations

import copy
import warnings
from importlib import import_module
from pathlib import Path

import pytest
from vocabularies import pairs_vocabulary

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: tools/test --hosts")

import tiny  # noqa: E402
from families import family_model  # noqa: E402

import ggmlq as gq  # noqa: E402
import ggmlq.torch as gt  # noqa: E402
from ggmlq import errors  # noqa: E402

pytestmark = [pytest.mark.hosts, pytest.mark.filterwarnings("ignore")]  # warnings of others
IDS = torch.arange(24).reshape(2, 12) % tiny.WORDS


@pytest.fixture
def host():
    said = gt.hosts.transformers.enable()
    assert f"transformers {transformers.__version__} keeps {', '.join(KEPT) or 'none'} packed" in said
    assert ("MAX_GEMV_ROWS" in said) == bool(KEPT)
    yield
    gt.hosts.transformers.disable()


def kept():
    """The architectures that the installed version keeps packed."""
    try:
        from transformers.integrations.gguf.gguf_conversion_mapping import GGUF_ARCHS
    except ImportError:
        return []
    return sorted(GGUF_ARCHS)


KEPT = kept()


def opened(path, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = transformers.AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, attn_implementation="sdpa", **options
        )
    return model.eval()


@pytest.mark.skipif("lfm2" not in KEPT, reason="this version of transformers decodes lfm2")
@pytest.mark.parametrize("kind", ["q4_K", "q8_0", "iq4_xs"])
def test_a_model_stays_packed(kind, fresh, tmp_path, host):
    """Prefill of many rows and decoding, beside the model that transformers decodes when it loads."""
    path = tmp_path / "tiny.gguf"
    tensors = tiny.lfm2(path, fresh, kind)
    model = opened(path, dtype=torch.float32)
    names = {type(part).__name__ for part in model.modules()}
    assert {"GgufLinear", "GgufEmbedding"} <= names
    weight = model.model.layers[0].feed_forward.w1.weight
    assert weight.dtype == torch.uint8
    assert weight.numpy().tobytes() == tensors["blk.0.ffn_gate.weight"].raw.tobytes()
    plain = opened(path, dtype=torch.float32, quantization_config=transformers.GgufConfig(dequantize=True))
    with torch.no_grad():
        logits, want = model(IDS).logits, plain(IDS).logits
        assert float(((logits - want) ** 2).mean() / (want**2).mean()) < 2e-3
        assert torch.equal(model(IDS[:, :3]).logits, model(IDS[:, :3]).logits)
        assert model.generate(IDS[:1], max_new_tokens=4, do_sample=False, pad_token_id=0).shape == (1, 16)


def test_adapters_of_peft(fresh, tmp_path, host):
    """A LoRA of PEFT on packed layers of our own: the loss falls, and only adapters change."""
    peft = pytest.importorskip("peft", reason="peft is not installed: tools/test --hosts")
    path = tmp_path / "tiny.gguf"
    tiny.llama(path, fresh)
    model = transformers.LlamaForCausalLM(llama_config())
    gt.load_(model, path)
    with pytest.raises(errors.UnsupportedError, match="modules_to_save of PEFT: a packed Linear of q4_K"):
        peft.get_peft_model(copy.deepcopy(model), peft.LoraConfig(modules_to_save=["lm_head"]))
    attention = model.model.layers[1].self_attn
    attention.q_proj, packed = torch.nn.Linear(tiny.WIDTH, tiny.WIDTH, bias=False), attention.q_proj
    attention.q_proj.weight.data = packed.dequantize()  # a layer of floats among the others
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trained = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    optimizer = torch.optim.Adam([p for p in trained.parameters() if p.requires_grad], lr=3e-2)
    losses = []
    for _ in range(8):
        loss = trained(IDS, labels=IDS).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    for name, value in before.items():
        inside = name.replace("q_proj.w", "q_proj.base_layer.w").replace("v_proj.w", "v_proj.base_layer.w")
        assert torch.equal(trained.base_model.model.state_dict()[inside], value), name
    with torch.no_grad():
        want = trained(IDS).logits
        for merge in (
            trained.merge_and_unload,
            trained.merge_adapter,
            copy.deepcopy(trained).merge_and_unload,
        ):
            for options in ({}, {"safe_merge": True}):
                with pytest.raises(
                    errors.UnsupportedError, match=r"keep the adapter beside it .*merge_.*dequantize"
                ):
                    merge(**options)
        assert torch.equal(trained(IDS).logits, want)  # nothing is half merged
        assert {*gt.merge_(trained, "q8_0").taken.values()} == {"q8_0", "floats"}
        whole = trained.unload()
        assert type(whole.model.layers[0].self_attn.q_proj) is gt.Linear
        assert type(whole.model.layers[1].self_attn.q_proj) is torch.nn.Linear
        assert gq.nmse(whole(IDS).logits.numpy(), want.numpy()) < 2e-3  # other blocks, rounded once more


def llama_config(**more):
    return transformers.LlamaConfig(
        vocab_size=tiny.WORDS, hidden_size=tiny.WIDTH, intermediate_size=tiny.FEED,
        num_hidden_layers=tiny.LAYERS, num_attention_heads=tiny.HEADS, num_key_value_heads=tiny.KV,
        rms_norm_eps=1e-5, **more,
    )  # fmt: skip


@pytest.mark.parametrize("tied", [False, True])
def test_load_fills_a_model_on_meta(tied, fresh, tmp_path):
    """The rows of heads are in the order of the checkpoint: transformers' own reader says the same."""
    path = tmp_path / "tiny.gguf"
    tiny.llama(path, fresh, "q8_0", tied)
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(llama_config(tie_word_embeddings=tied))
    report = gt.load_(model.eval(), path)
    assert not report.left
    assert report.taken["model.layers.0.self_attn.q_proj.weight"] == "q8_0"
    assert isinstance(model.lm_head, gt.Linear)
    if tied:
        assert model.lm_head.weight is model.model.embed_tokens.weight
    theirs = opened(path, dtype=torch.float32)
    with torch.no_grad():
        logits, want = model(IDS).logits, theirs(IDS).logits
    assert float(((logits - want) ** 2).mean() / (want**2).mean()) < 1e-3


def test_words_of_gemma(fresh, tmp_path):
    """They are multiplied by a number that no file has; so are they when they are packed."""
    config = transformers.Gemma3TextConfig(
        vocab_size=tiny.WORDS, hidden_size=tiny.WIDTH, intermediate_size=tiny.FEED, head_dim=64,
        num_hidden_layers=tiny.LAYERS, num_attention_heads=tiny.HEADS, num_key_value_heads=tiny.KV,
    )  # fmt: skip
    dense = transformers.Gemma3ForCausalLM(config).eval()
    tensors = {
        name: gq.quantize(value.detach().numpy(), "q8_0") if value.dim() > 1 else value.detach().numpy()
        for name, value in dense.named_parameters()
    }
    gq.save(tmp_path / "tiny.gguf", tensors)
    with torch.device("meta"):
        model = transformers.Gemma3ForCausalLM(config).eval()
    report = gt.load_(model, tmp_path / "tiny.gguf", {name: name for name in tensors})
    assert not report.left
    assert "decoded" not in str(report)
    with torch.no_grad():
        assert gq.nmse(model(IDS).logits.numpy(), dense(IDS).logits.numpy()) < 1e-3


def test_a_llama_is_decoded(fresh, tmp_path, host):
    """It keeps few architectures packed, and says so of the others."""
    path = tmp_path / "tiny.gguf"
    tiny.llama(path, fresh)
    with pytest.warns(UserWarning, match=r"packed.* and decodes 'llama' in full: .*from_gguf"):
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name)
    assert type(model.model.layers[0].mlp.up_proj) is torch.nn.Linear
    report = gt.report(model)
    assert not report.packed
    assert "decode" in str(report)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # once is enough
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name)
    if not KEPT:
        return
    gt.hosts.transformers.disable()
    gt.hosts.transformers.enable()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # floats were asked for
        transformers.AutoModelForCausalLM.from_pretrained(
            tmp_path, gguf_file=path.name, quantization_config=transformers.GgufConfig(dequantize=True)
        )


def test_the_example_of_the_page(tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[2] / "docs" / "torch.md").read_text()
    example = page.partition("## A model of transformers")[2].partition("```python\n")[2].partition("```")[0]
    (tmp_path / "models").mkdir()
    path = tmp_path / example.partition('from_gguf("')[2].partition('"')[0]
    family_model(path, "llama", vocabulary=pairs_vocabulary("smollm"))
    monkeypatch.chdir(tmp_path)
    exec(example, {})
    said = capsys.readouterr().out
    assert "weights packed" in said
    assert "The capital of France is" in said


def test_once_and_back():
    host = gt.hosts.transformers
    legacy = import_module("transformers.modeling_gguf_pytorch_utils")
    places = [(legacy, "load_gguf_checkpoint")]
    if KEPT:
        kernels = import_module("transformers.integrations.gguf.kernels")
        places = [(kernels, "kernel_can_read"), (kernels, "MAX_GEMV_ROWS")]
    before = [getattr(*place) for place in places]
    host.enable()
    assert before != [getattr(*place) for place in places]
    with pytest.raises(errors.UnsupportedError, match="it is enabled"):
        host.enable()
    host.disable()
    assert before == [getattr(*place) for place in places]
    with pytest.raises(errors.UnsupportedError, match="not enabled"):
        host.disable()
