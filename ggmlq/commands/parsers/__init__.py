"""Arguments of the commands, declared to argparse: one file a command.

``ggmlq --help`` and every Tab of a shell build all of these parsers. So nothing here imports NumPy or the
file that runs the command: that is ``run`` in the file of the same name in ``ggmlq/commands``.

    _parser.py           the parser: help in groups, suggestions for misspelt words
    _options.py          heads, options and kinds of values that many commands share
    _convert.py          the options that `quantize` and `dequantize` share
    _llama_quantize.py   llama-quantize's own arguments
    _engines.py          options about workers
    _metadata.py         options about changes of metadata
    [a-z]*.py            a command each
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
