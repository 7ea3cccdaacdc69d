"""``from_gguf``: a model of transformers from a GGUF file alone, its weights packed.

The file says everything: its sizes go into the config that transformers has for the architecture, the module
is made on the device meta, and :func:`ggmlq.torch.load_` fills it. Matrices stay the file's blocks, those of
experts too; norms and biases become floats. Heads whose rows lie in pairs are put in order by moving whole
rows of blocks.
"""

from __future__ import annotations

import tempfile
import warnings
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import torch

import ggmlq as gq

from ...model.config import SECTIONS
from ..joins import Heads, Joined
from ..loading import load_
from ..mixtures import Mixtures
from ..modules import Experts

LEAST = 5  # the version of transformers from which experts lie in one module
RUN = "ggmlq.torch.model(path), or with gq.model.load(path)"
REQUEST = "ggmlq.torch.hosts.transformers.from_gguf(path)"


# Versions from which modules of an architecture are as they are filled here, where that is not from the first
# on that has it.
SINCE = {"granitemoe": (5, 15), "nemotron_h": (5, 6)}


def known() -> tuple[list[str], list[str]]:
    """The architectures that the installed version has modules of, and the others that are filled here."""
    transformers = _host()
    version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    kinds = import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING_NAMES
    has: list[str] = []
    lacks: list[str] = []
    for arch, family in gq.checkpoint.opened.OPENED.items():
        kind = gq.checkpoint.backconfig.kind_of(family, gq.checkpoint.backconfig.name_of(family))
        (has if kind in kinds and version >= SINCE.get(arch, (LEAST,)) else lacks).append(arch)
    return has, lacks


class Pretrained(NamedTuple):
    """A model, and its tokenizer, which is None where the file has none that transformers can read."""

    model: Any
    tokenizer: Any


def from_gguf(
    path: Any, *, dtype: torch.dtype = torch.float32, device: Any = "cpu", progress: bool | None = None,
    **settings: Any,
) -> Pretrained:  # fmt: skip
    """Open a GGUF file as a model of transformers, with its weights packed, and its tokenizer.

    Parameters
    ----------
    path : str, os.PathLike or GGUFFile
        The model, of an architecture that the sentence of ``enable()`` lists.
    dtype : torch.dtype
        Of activations, norms and biases; on a GPU ``torch.bfloat16`` is fastest.
    device : str or torch.device
        Where the model is in the end.
    progress : bool, optional
        As in :func:`ggmlq.torch.quantize_`.
    **settings
        Of the config, such as ``attn_implementation="eager"`` or ``max_position_embeddings=4096``.

    Returns
    -------
    Pretrained
        ``model``, in evaluation mode, with ``generate``; ``tokenizer``, with the chat template of the file.
    """
    transformers = _host()
    file = path if hasattr(path, "metadata") else gq.open(path)
    attention = settings.pop("attn_implementation", None)
    config = _config(transformers, file, settings)
    if attention is None and getattr(config, "attn_logit_softcapping", None):
        attention = "eager"  # early versions of transformers 5 forget the cap in torch's own kernel
    make: Any = transformers.AutoModelForCausalLM.from_config
    options = {} if attention is None else {"attn_implementation": attention}
    try:
        with torch.device("meta"):
            model = make(config, dtype=dtype, **options)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _refused(transformers, file, config.model_type, error) from error
    grouped = any(hasattr(part, "group_size") for part in model.modules())
    if config.model_type == "granitemoehybrid" and config.mamba_n_groups > 1 and not grouped:
        why = ValueError(f"its norms know one group of columns, of {config.mamba_n_groups}; 5.23 has them")
        raise _refused(transformers, file, config.model_type, why)
    if any("_exps." in name for name in file) and not Mixtures(model):
        raise gq.errors.UnsupportedError(
            f"{REQUEST}: transformers {transformers.__version__} has the experts of {file.path}, a "
            f"{config.model_type}, in modules that take no blocks; a newer one has others (granitemoe: from "
            f"5.15 on); or run it with {RUN}"
        )
    _join(model, file)
    load_(model.eval(), file, progress=progress)
    _stretch(model, file)
    tokenizer, generation = _tokenizer(transformers, file)
    model.generation_config = transformers.GenerationConfig(**generation)
    return Pretrained(model.to(device), tokenizer)


def _host() -> Any:
    try:
        transformers = import_module("transformers")
    except ImportError as error:
        raise gq.errors.MissingDependencyError(
            f'{REQUEST}: transformers cannot be imported ({error}); pip install "transformers>={LEAST}"'
        ) from error
    if int(transformers.__version__.partition(".")[0]) < LEAST:
        raise gq.errors.UnsupportedError(
            f"{REQUEST}: transformers {transformers.__version__} is installed; it fills models from "
            f'version {LEAST} on; pip install "transformers>={LEAST}"'
        )
    return transformers


def _config(transformers: Any, file: Any, settings: dict[str, Any]) -> Any:
    """The config of transformers for a file; an error for what its classes do not compute."""
    arch = file.metadata.get("general.architecture")
    own = gq.checkpoint.backconfig.family_of(file, f"run it with {RUN}").keys  # it says what rotates
    if own:  # whose sizes gq.model holds against the tensors
        gq.model.families.family_of(arch).read(file.metadata, arch, {**file}, None)
    said = gq.checkpoint.config_of(file)
    ahead = file.metadata.get(f"{arch}.{gq.checkpoint.backconfig.AHEAD}", 0)
    layers, there = said["num_hidden_layers"], gq.checkpoint.backconfig.layers_of(file) - ahead
    if layers != there:
        raise gq.errors.ConvertError(
            f"{REQUEST}: {file.path} has block_count {layers} and tensors of {there} layers; it is part of "
            "a model, or its metadata is of another one"
        )
    heads = said.get("num_attention_heads")
    whole = said.get("head_dim", said.get("hidden_size", 0) // heads if heads else None)
    rotated = file.metadata.get(f"{arch}.rope.dimension_count", whole)
    if rotated != whole and not own and arch not in gq.checkpoint.backconfig.PARTLY:
        raise gq.errors.UnsupportedError(
            f"{REQUEST}: {file.path} rotates {rotated} of {whole} columns of a head; models of "
            f"transformers for {arch} rotate all; run it with {RUN}"
        )
    straight = file.metadata.get(f"{arch}.rope.scaling.finetuned") is False  # without RoPE
    others = {
        "granite": straight, "granitemoe": straight,
        "glm4": np.any(file.metadata.get(f"{arch}.{SECTIONS}", 0)),  # pairs half of the columns apart
    }  # fmt: skip
    if others.get(arch):
        raise gq.errors.UnsupportedError(
            f"{REQUEST}: {file.path} has another RoPE than a {arch} of transformers, which rotates all pairs "
            f"of neighbours; run it with {RUN}"
        )
    if arch == "phi3":
        said["sliding_window"] = None  # which llama.cpp does not use; a setting brings it back
    said.setdefault("pad_token_id", None)  # a class's own may be beyond this vocabulary
    kind = said.pop("model_type")
    try:
        return transformers.AutoConfig.for_model(kind, **said | settings)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _refused(transformers, file, kind, error) from error


def _refused(transformers: Any, file: Any, kind: str, error: Exception) -> gq.errors.UnsupportedError:
    said = f"{error}".strip() or type(error).__name__
    return gq.errors.UnsupportedError(
        f"{REQUEST}: transformers {transformers.__version__} refuses the config of {file.path}, a "
        f"{kind}: {said:.200}; another version may know it, or run it with {RUN}"
    )


def _join(model: Any, file: Any) -> None:
    """Put products of a file's own matrices where a module has one in their place, or in another order."""
    family = gq.checkpoint.opened.OPENED[file.metadata["general.architecture"]]
    parts = dict(model.named_modules())
    for join in family.joined:
        orders = [None if order is None else order(file) for order in (join.rows, join.columns)]
        for path in [path for path in parts if path.endswith(f".{join.target}")]:
            layer = path.removesuffix(f".{join.target}").rpartition(".")[2]
            names = [f"blk.{layer}.{name}.weight" for name in join.names]
            if all(name in file for name in names):
                shapes = [file.info(name).shape for name in names]
                made = (
                    Heads(_matrix(file[n]) for n in names)
                    if join.heads
                    else Joined(map(_linear, shapes), *orders)
                )
                model.set_submodule(path, made)


def _linear(shape: tuple[int, ...]) -> torch.nn.Linear:
    return torch.nn.Linear(shape[1], shape[0], bias=False, device="meta")


def _matrix(q: Any) -> torch.nn.Module:
    """The matrices of heads: blocks, or floats on the device meta, in whose place those of the file come."""
    if q.format.block_size > 1:
        return Experts(q)
    part = torch.nn.Module()
    part.weight = torch.nn.Parameter(torch.empty(q.shape, device="meta"))
    return part


def _stretch(model: Any, file: Any) -> None:
    """Divide the frequencies of RoPE by the factors of a file, which no config says."""
    if "rope_freqs.weight" not in file:
        return
    factors = torch.from_numpy(np.array(file["rope_freqs.weight"], np.float32))
    for part in model.modules():
        if isinstance(frequencies := getattr(part, "inv_freq", None), torch.Tensor):
            if frequencies.shape != factors.shape:
                raise gq.errors.ShapeError(
                    f"{REQUEST}: rope_freqs.weight of {file.path} has shape {tuple(factors.shape)}, the "
                    f"model {tuple(frequencies.shape)} frequencies; the metadata is of another model"
                )
            part.inv_freq = frequencies / factors
            part.original_inv_freq = part.inv_freq.clone()


def _tokenizer(transformers: Any, file: Any) -> tuple[Any, dict[str, Any]]:
    """The tokenizer of a file, None where transformers cannot read it, and how its model generates."""
    tokenizer = None
    with tempfile.TemporaryDirectory() as folder:
        written = gq.checkpoint.write_tokenizer(file, folder, pieces=False)
        notes = [*written.notes]
        if "tokenizer_config.json" in written.files:
            try:
                tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
            except (ImportError, OSError, ValueError) as error:  # pieces alone want packages of their own
                notes.append(
                    f"transformers cannot read the tokenizer of {file.path} ({error}): it is None; there is "
                    "gq.model.Tokenizer(gq.open(path).metadata)"
                )
    for note in notes:
        warnings.warn(f"{REQUEST}: {note}", stacklevel=3)
    return tokenizer, written.files.get("generation_config.json", {})
