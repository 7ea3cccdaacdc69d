"""The subcommands of ``ggmlq``, one a file: ``add`` declares its arguments, ``run`` carries it out.

``ggmlq --help`` and every Tab of a shell build all parsers. So a command imports at its top only what is
light: the standard library, errors, words and tables of base/, and the light files below; its functions
import the rest. Tables go through base/terminal.py, which knows the terminal's width and its colours;
sizes, numbers and plurals through base/text.py. A summary comes last, above the prompt.

    [a-z]*.py            a command each; help.py has no `run`: the parser itself prints it
    _parser.py           light: the parser, with help in groups and suggestions for misspelt words
    _options.py          light: heads, options and kinds of values that many commands share
    _plain.py            light: text from files made harmless for a terminal, and JSON
    _files.py            light: files as a command line names them
    _sizes.py            light: files that are there already, or are written
    _engines.py          light: options about workers, and the workers
    _convert.py          light: the common part of quantize and dequantize
    _metadata.py         light: changes of metadata, of copy and metadata
    _llama_quantize.py   light: llama-quantize's own arguments, of quantize
    _kl.py               the search for a size by the distance of two models, of quantize
    _quality.py          a model's quality on a text, of run and quantize
    _talk.py             a conversation, of run
    _beside.py           a run in llama.cpp beside the model in float64, of logits
    _check_*.py          parts of check: cases that are named, operations, invariance
    _saved_nodes.py      nodes that trace has saved, of check and diagnose
    _dumps.py            operands and results in files, of diagnose
    _gru_files.py        files of gru
    _gru_facts.py        facts about a GRU, of gru
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
