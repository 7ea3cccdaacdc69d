"""Benchmarks and tools as modules, though they are run as scripts."""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from unittest.mock import patch

ROOT = Path(__file__).parents[1]


def load(folder, name):
    """A module that is run as a script; "tables.engine" is tables/engine.py, "house" a script without .py."""
    path = ROOT / folder / f"{name.replace('.', '/')}.py"
    path = path if path.exists() else path.with_suffix("")
    sys.path.insert(0, str(ROOT / folder))
    try:
        spec = importlib.util.spec_from_loader(name, SourceFileLoader(name, str(path)))
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        with patch.dict(os.environ):  # what a script sets for itself is not for the tests
            spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(ROOT / folder))
    return module
