"""Reader of a checkpoint's config.json: its family, and its numbers with the defaults of transformers.

Every number is checked before its use, because a configuration may be hostile.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ..base.text import short
from ..errors import ConvertError
from ..safetensors import SafetensorsFile, jsons
from .families import FAMILIES, MODEL_TYPES, Family

MOST = 2**31 - 1
FLOAT32_MOST = (2 - 2**-23) * 2.0**127


class Config:
    """A checkpoint's configuration. Errors name its file."""

    def __init__(self, file: SafetensorsFile) -> None:
        self.folder = file.folder
        self.path = os.path.join(file.folder, "config.json")
        if not os.path.exists(self.path):
            raise ConvertError(
                f"{file.folder}: there is no config.json, which says what model this is; fetch it into that "
                "folder"
            )
        self.raw: Mapping[str, Any] = file.config
        self._beside: dict[str, dict[str, Any]] = {}
        inner = self.raw.get("text_config")
        self.inner: Mapping[str, Any] = inner if isinstance(inner, dict) else {}
        self.architecture, self.family = self._family()
        merged = {**self.raw, **self.inner}
        self.values = {**self.family.defaults, **merged}
        if self.values.get("num_key_value_heads") is None:
            self.values["num_key_value_heads"] = self.values.get("num_attention_heads")
        self.layers = self.count("num_hidden_layers")

    def _family(self) -> tuple[str, Family]:
        names = self.inner.get("architectures") or self.raw.get("architectures")
        kind = self.raw.get("model_type")
        name = names[0] if isinstance(names, list) and names else MODEL_TYPES.get(str(kind))
        family = FAMILIES.get(name) if isinstance(name, str) else None
        if family is None or not isinstance(name, str):
            raise ConvertError(
                f"{self.path}: its architecture is {short(name or kind)}; known are {', '.join(FAMILIES)}; "
                "for others there is llama.cpp's convert_hf_to_gguf.py"
            )
        return name, family

    def get(self, *keys: str) -> Any:
        """The value of the first of some keys that is there and not null."""
        return next((self.values[key] for key in keys if self.values.get(key) is not None), None)

    def count(self, *keys: str) -> int:
        """A count under the first of some keys; an error if there is none."""
        value = self.maybe_count(*keys)
        if value is None:
            raise ConvertError(
                f"{self.path}: it lacks {keys[0]!r}, a whole number; the file is incomplete; fetch it"
            )
        return value

    def maybe_count(self, *keys: str) -> int | None:
        """A count under the first of some keys, or None."""
        value = self.get(*keys)
        if value is not None and (type(value) is not int or not 0 <= value <= MOST):
            raise ConvertError(
                f"{self.path}: {keys[0]!r} is {short(value)}; it is a whole number from 0 to {MOST}; mend "
                "the file"
            )
        return value

    def number(self, *keys: str) -> float | None:
        """A real number under the first of some keys, or None."""
        value = self.get(*keys)
        return None if value is None else real(self.path, keys[0], value)

    @property
    def heads(self) -> int:
        """The number of attention heads."""
        value = self.count("num_attention_heads")
        if not value:
            raise ConvertError(
                f"{self.path}: 'num_attention_heads' is 0; a model has one at least; mend the file"
            )
        return value

    @property
    def heads_kv(self) -> int:
        """The number of heads of keys and values."""
        return self.maybe_count("num_key_value_heads") or self.heads

    @property
    def head_length(self) -> int:
        """The length of a head."""
        return self.maybe_count("head_dim") or self.count("hidden_size") // self.heads

    @property
    def rope(self) -> dict[str, Any]:
        """The parameters of rotation: one set, or one for full and one for sliding attention."""
        value = self.get("rope_parameters", "rope_scaling")
        rope = dict(value) if isinstance(value, dict) else {}
        if "full_attention" in rope or "sliding_attention" in rope:
            return rope
        local = self.get("rope_local_base_freq", "local_rope_theta", "rope_local_theta", "swa_rope_theta")
        if local is not None:
            rope["sliding_attention"] = {"rope_theta": local}
        for key, value in (
            ("rope_theta", self.get("rope_theta")),
            ("rope_type", rope.get("type")),
            ("partial_rotary_factor", self.get("partial_rotary_factor")),
            ("original_max_position_embeddings", self.get("original_max_position_embeddings")),
        ):
            if value is not None:
                rope.setdefault(key, value)
        return rope

    def beside(self, name: str) -> dict[str, Any]:
        """Another JSON file of the folder; empty where there is none."""
        if name not in self._beside:
            path = os.path.join(self.folder, name)
            self._beside[name] = jsons.load_object(path) if os.path.exists(path) else {}
        return self._beside[name]


def real(path: str, key: str, value: Any) -> float:
    """A finite number that float32 holds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= FLOAT32_MOST:
        raise ConvertError(
            f"{path}: {key!r} is {short(value)}; it is a finite number within float32's range; mend the file"
        )
    return float(value)
