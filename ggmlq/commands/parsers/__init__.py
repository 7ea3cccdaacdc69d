"""Arguments of the commands: one file a command, declared to argparse.

``ggmlq --help`` and every Tab of a shell make all of these parsers, so nothing here imports NumPy or what
carries a command out: that is ``run`` in the file of the same name in ``ggmlq/commands``.

    _parser.py         the parser: its help in groups, what may have been meant
    _options.py        heads, options and kinds of values that many commands share
    _convert.py        those of `quantize` and `dequantize`; _llama_quantize.py: llama-quantize's own
    _engines.py        workers; _metadata.py: changes of metadata
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
