"""The subcommands of ``ggmlq``, one a file: its ``run`` carries out what ``parsers`` has read.

A new command is a file here and one of the same name in ``parsers``. Tables go through base/terminal.py,
which knows the terminal's width and its colours; sizes, numbers and plurals through base/text.py. A summary
comes last, above the prompt. Commands share the files whose names begin with ``_``.
"""
