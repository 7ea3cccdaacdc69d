"""The table of formats: look-up by name, id or Format, the listing, and the error where there is none."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

import numpy as np

from ..base.mixes import BY_NAME, WORDS
from ..base.text import html_table
from ..errors import FormatAttributeError, FormatError
from ._forks import claimants
from .format import Format

# Ids that ggml once used and then dropped: name, and what to do with such data.
REMOVED = {
    4: ("q4_2", "an early 16-wide 4-bit type; requantize the model from its floats to q4_0 or q4_K"),
    5: ("q4_3", "an early 16-wide 4-bit type; requantize the model from its floats to q4_1 or q4_K"),
    31: ("q4_0_4_4", "q4_0 interleaved for Arm; requantize to q4_0, ggml interleaves it in memory"),
    32: ("q4_0_4_8", "q4_0 interleaved for Arm; requantize to q4_0, ggml interleaves it in memory"),
    33: ("q4_0_8_8", "q4_0 interleaved for Arm; requantize to q4_0, ggml interleaves it in memory"),
    36: ("iq4_nl_4_4", "interleaved iq4_nl; requantize to iq4_nl, ggml interleaves it in memory"),
    37: ("iq4_nl_4_8", "interleaved iq4_nl; requantize to iq4_nl, ggml interleaves it in memory"),
    38: ("iq4_nl_8_8", "interleaved iq4_nl; requantize to iq4_nl, ggml interleaves it in memory"),
}


class Formats(Mapping[str, Format]):
    """All formats by name, id or Format; iterates over canonical names in the order of ids."""

    def __init__(self, formats: list[Format]) -> None:
        self._canonical = {f.name: f for f in formats}
        self._lower = {f.name.lower(): f for f in formats}
        self._ids = {f.id: f for f in formats}
        if not len(self._lower) == len(self._ids) == len(formats):
            raise ValueError("two formats share a name or an id")

    def __getitem__(self, key: object) -> Format:
        if isinstance(key, Format):
            return key
        if isinstance(key, str):
            fmt = self._lower.get(key.lower())
        elif isinstance(key, int | np.integer) and not isinstance(key, bool):
            fmt = self._ids.get(int(key))
        else:
            raise FormatError(
                f"formats[{key!r:.80}]: got {type(key).__name__}; "
                "a format is asked for by its name ('q4_0'), its ggml id (2) or a Format"
            )
        if fmt is None:
            raise FormatError(self._why_not(key))
        return fmt

    def __getattr__(self, name: str) -> Format:
        """The format of a name: ``gq.formats.q4_K`` is ``gq.formats["q4_K"]``."""
        if name.startswith("_"):  # what Python asks any object for
            raise AttributeError(name)
        try:
            return self[name]
        except FormatError as error:
            raise FormatAttributeError(str(error)) from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self]

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)

    def __iter__(self) -> Iterator[str]:
        return iter(self._canonical)

    def __len__(self) -> int:
        return len(self._canonical)

    def _repr_html_(self) -> str:
        """For a notebook: name, id, size and what can be done with each."""
        rows = [
            [f.name, f.id, f"{f.bits_per_weight:g}", f.block_size, "yes" if f.can_quantize else "no"]
            for f in self.values()
        ]
        header = ("format", "id", "bits a weight", "weights a block", "can be encoded")
        return html_table(header, rows, f"{len(self)} ggml formats")

    def __repr__(self) -> str:
        return f"<{len(self)} ggml formats: {', '.join(self)}>"

    def _why_not(self, key: str | int | np.integer) -> str:
        for id_, (name, advice) in REMOVED.items():
            if key == id_ or (isinstance(key, str) and key.lower() == name):
                return f"format {key!r}: ggml removed type {id_} ({name}), {advice}"
        if isinstance(key, str):
            low = key.lower()
            if low.isdecimal():
                return f"format {key!r}: a ggml id is an int; ask for formats[{int(low)}]"
            if (mix := BY_NAME.get(low)) is not None:
                return (
                    f"format {key!r}: a mix of types for whole models, most of it {mix.base}, and an array "
                    f"has one type; `ggmlq quantize` and `ggmlq convert` take --type {mix.name}, in Python "
                    "gq.convert.quantize and gq.checkpoint.to_gguf take the name"
                )
            known_names = {name: mix.name for name, mix in BY_NAME.items()}
            known_names |= {name: fmt.name for name, fmt in self._lower.items()}
            near = [name for name in self._lower if low and (name.startswith(low) or name in low)]
            near += difflib.get_close_matches(low, known_names, n=3, cutoff=0.5)
            names = WORDS.get(low) or ", ".join(known_names[name] for name in dict.fromkeys(near))
            way = f"did you mean {names}?" if names else f"the types are {', '.join(self)}"
            return f"format {key!r}: ggml has no such type; {way}"
        known = f"{min(self._ids)} to {max(self._ids)}"
        return (
            f"format id {key}: ggml has no such type; ggmlq knows the ids {known}, see `ggmlq formats`; "
            f"{claimants(int(key))}"
        )
