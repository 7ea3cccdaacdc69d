"""``ggmlq quantize``: a model in a smaller type, with llama.cpp's bytes."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any

from .. import gguf
from ..base.threads import set_num_threads
from ..convert import Plan, Pruned, plan_quantize, read_tensor_types, recipe
from ..convert.keep import rules
from ..convert.rules import why_left
from ..convert.weights import only
from ..errors import ConvertError
from ..safetensors.place import ENDING
from . import _convert, _engines, _kl, _llama_quantize


def run(args: argparse.Namespace) -> int:
    """Run ``ggmlq quantize``; the result is the exit status."""
    return _engines.run(_run, args)


def _run(args: argparse.Namespace, executor: Executor | None) -> int:
    has_target = args.target is not None or args.size is not None or args.kl is not None
    positional = _llama_quantize.positional(args.rest, has_target or args.type is not None)
    if positional.type is not None:
        args.type, args.mixed = _llama_quantize.type_of(positional.type, args.pure)
    if args.type is None and not has_target:
        raise ConvertError("no type is given; write --type q4_K_M, --target 4.5bpw, --size 5GiB or --kl 0.05")
    args.output = positional.output or (
        _llama_quantize.name_beside(args.input, args.type) if positional.type else None
    )
    args.threads = args.threads or positional.threads
    if args.threads is not None:
        set_num_threads(args.threads)
    if os.path.isdir(args.input) or args.input.endswith(ENDING):
        raise ConvertError(
            f"{args.input}: a checkpoint in safetensors, and quantize reads GGUF; write `ggmlq convert "
            f"{args.input} OUT.gguf --type q4_K_M`, which does both"
        )
    with gguf.open(args.input) as file:
        model = Pruned(file, args.prune_layers) if args.prune_layers else file
        plan = _planned(model, args, has_target)
        plan = replace(plan, metadata=_llama_quantize.overridden(plan.metadata, args.override_kv))
        return _convert.carry_out(
            plan, args, split=args.keep_split, write_types=args.write_types, executor=executor
        )


def _planned(model: gguf.GGUFFile | Pruned, args: argparse.Namespace, has_target: bool) -> Plan:
    keep = [*args.keep, *_llama_quantize.keep_rules(args)]
    notes: list[str] = []
    if args.tensor_types is not None:
        entries = read_tensor_types(args.tensor_types)
        keep += _used(entries, model, args, notes)
    settings: dict[str, Any] = {"imatrix": _importance(args), "keep": keep, "any_name": args.any_name}
    settings["allow_requantize"] = args.allow_requantize
    if has_target:
        settings["objective"] = args.objective
        if args.types:
            settings["types"] = args.types.split(",")
        if args.sample:
            settings["elements"] = args.sample
        if args.kl is not None:
            plan = _kl.searched(model, args, settings)
        else:
            plan = recipe(model, args.target, size=args.size, **settings).plan
    else:
        plan = plan_quantize(
            model, args.type, mixed=args.mixed, allow_fallback=not args.no_fallback, **settings
        )
    return replace(plan, notes=plan.notes + notes)


def _importance(args: argparse.Namespace) -> Mapping[str, Any] | None:
    """The importance matrix, of all tensors or of those that are meant."""
    if args.include_weights and args.exclude_weights:
        raise ConvertError(
            "--include-weights and --exclude-weights exclude each other, as in llama-quantize; give one"
        )
    if args.imatrix is None:
        return None
    return only(gguf.read_imatrix(args.imatrix), args.include_weights, args.exclude_weights)


def _used(
    pairs: list[tuple[str, str]], model: gguf.GGUFFile | Pruned, args: argparse.Namespace, notes: list[str]
) -> list[tuple[str, str]]:
    """Entries of a file that fit a tensor; the others are named, for a file may be of a larger model."""
    infos = {name: model.info(name) for name in model}
    able = [n for n, info in infos.items() if why_left(n, info.format, info.shape, args.any_name) is None]
    fitting = [any(rule.pattern.search(name) for name in able) for rule in rules(pairs)]
    unused = [pattern for (pattern, _), fits in zip(pairs, fitting, strict=True) if not fits]
    if unused:
        notes.append(
            f"{args.tensor_types}: {len(unused)} entries fit no tensor that is quantized: {unused[0]} …"
        )
    return [pair for pair, fits in zip(pairs, fitting, strict=True) if fits]
