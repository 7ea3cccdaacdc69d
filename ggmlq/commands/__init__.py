"""The subcommands of ``ggmlq``, one a file: ``add`` declares it, ``run`` carries it out and gives the status.

``ggmlq --help`` and every Tab of a shell build all parsers. So a command imports at its top only what is
light: the standard library, errors, words and tables of base/, and the light files below; its functions
import the rest. Tables go through base/terminal.py, which knows the terminal's width and its colours;
sizes, numbers and plurals through base/text.py. A summary comes last, above the prompt.

    [a-z]*.py            a command each; help.py has no `run`: the parser itself prints it
    _options.py          light: the parser; options and kinds of values of many commands; workers
    _plain.py            light: text from files made harmless for a terminal, and JSON
    _files.py            light: files as a command line names them, and those that it writes
    _trained.py          light: trained models that packages of the index bring, fetched once
    _beside.py           a whole model beside libllama, of demo
    _quality.py          a model's quality in lines, of run; the search for a size by it, of quantize
    _talk.py             a conversation, of run
    _check.py            parts of check: cases that are named, operations, invariance, nodes of trace
    _dumps.py            operands and results in files, of diagnose
    _gru.py              files of gru, and facts about a GRU
    _safetensors.py      tensors of safetensors, of info and show
"""

from __future__ import annotations

import importlib
import pkgutil

from ._options import Commands


def add_all(commands: Commands) -> None:
    """Declare all of them."""
    for module in pkgutil.iter_modules(__path__):
        if not module.name.startswith("_"):
            importlib.import_module(f"{__name__}.{module.name}").add(commands)
