"""The options of tools/demo: those of `ggmlq demo`, read before anything is installed."""

import argparse
import sys

import _environment


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message):
        """Exit with the message."""
        self.exit(2, f"{self.prog}: {message}\n")


def words(arguments):
    """The arguments of `ggmlq demo`; the process ends after --help (0) and at a wrong option (2)."""
    sys.path.insert(0, str(_environment.ROOT))
    from ggmlq.commands import demo  # the standard library alone

    parser = _Parser(
        prog="tools/demo",
        description="Make an environment in .venv (a minute or two, once) and run `ggmlq demo` there. "
        + " ".join(demo.ABOUT.split()),
    )
    demo.add_options(parser)
    args = parser.parse_args(arguments)
    save = [] if args.file or args.model or args.save else ["--save", str(_environment.ROOT / demo.FILE)]
    try:
        demo.checked(args)
    except ValueError as error:
        parser.error(str(error))
    return [*arguments, *save]
