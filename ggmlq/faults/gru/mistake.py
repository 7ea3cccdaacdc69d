"""A mistake that a kernel may have made: its name in the catalogue, words for this variant, its settings."""

from __future__ import annotations

from typing import NamedTuple

from .machine import Settings


class Mistake(NamedTuple):
    """One candidate."""

    fault: str
    says: str
    settings: Settings

    def with_other(self, other: Mistake) -> Mistake | None:
        """Both at once; None where they replace the same part."""
        if self.settings.keys() & other.settings.keys():
            return None
        name = "" if other.fault == self.fault else f"{other.fault}: "
        says = f"{self.says}; and {name}{other.says}"
        return Mistake(self.fault, says, {**self.settings, **other.settings})
