"""The subcommands of ``ggmlq``, one a file: its ``run`` carries out what ``parsers`` has read.

A new command is a file here and one of the same name in ``parsers``. Results go through ggmlq/base/terminal.py,
which knows the terminal's width and whether colours are welcome; sizes, numbers and plurals through
ggmlq/base/text.py. A summary comes last, where the prompt is. Files whose names begin with ``_`` are what commands
share.
"""
