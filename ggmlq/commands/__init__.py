"""The larger subcommands, one a file; a new file is a new command. ``add`` declares it to argparse.

Results go through ggmlq/terminal.py, which knows the terminal's width and whether colours are welcome;
sizes, numbers and plurals through ggmlq/text.py. A summary comes last, where the prompt is. Files whose
names begin with ``_`` are what commands share.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil


def add_all(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare all of them."""
    for module in pkgutil.iter_modules(__path__):
        if not module.name.startswith("_"):
            importlib.import_module(f"{__name__}.{module.name}").add(commands)
