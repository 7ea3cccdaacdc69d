"""Facts about a rung, read from its file without running it: for lists where a package is missing."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any


def announced(path: Path) -> tuple[str | None, dict[str, Any]] | None:
    """The docstring of a rung's file, and the constants that it passes to ``register``."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body:
        for call in getattr(node, "decorator_list", ()):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "register":
                words = {
                    keyword.arg: keyword.value.value
                    for keyword in call.keywords
                    if keyword.arg and isinstance(keyword.value, ast.Constant)
                }
                return ast.get_docstring(tree), words
    return None
